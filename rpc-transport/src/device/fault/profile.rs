//! Device profiles: what kinds of NICs refuse, and how little they grant, on any device.
//!
//! Owns the table of figures, each with its source. A profile takes abilities away and never adds
//! any, so a wrapped device keeps the contract of [`crate::device`].

use std::time::Duration;

use crate::device::{Capabilities, DeviceAttributes};

/// The limits of one kind of NIC, and the abilities that it lacks.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceProfile {
    /// The kernel driver's name.
    pub driver: &'static str,
    /// Whether it has RC queue pairs at all.
    pub has_rc: bool,
    /// Most inline bytes.
    pub max_inline_bytes: u32,
    /// Most WRs of an SQ or RQ.
    pub max_qp_wr: u32,
    /// Most entries of a CQ.
    pub max_cqe: u32,
    /// Most RECVs of a shared receive queue; 0: it has none.
    pub max_srq_wr: u32,
    /// Duration of a command: creating a QP, or changing its state.
    pub command_time: Duration,
    /// The abilities that it lacks.
    pub lacks: Capabilities,
}

/// The profile sets no limit.
const UNLIMITED: u32 = u32::MAX;

/// Real NICs pin memory to register it, read it after the post, and do not reliably complete a RECV
/// that is posted in ERR.
const LACK_ALL: Capabilities = Capabilities::FREE_REGISTRATION
    .with(Capabilities::COPIES_ON_POST)
    .with(Capabilities::FLUSHES_LATE_RECEIVES)
    .with(Capabilities::KEEPS_CUT_OFF_RECVS);

/// NVIDIA ConnectX. Inline: what the provider `verbs` asks for (an SQ entry of 256 bytes). Commands
/// take some 0.1 ms alone and 1 ms where many processes give them; the latter is what counts here.
/// SRQ: `max_srq_wr` of a ConnectX-7, as measured.
pub static MLX5: DeviceProfile = DeviceProfile {
    driver: "mlx5",
    has_rc: true,
    max_inline_bytes: 220,
    max_qp_wr: UNLIMITED,
    max_cqe: UNLIMITED,
    max_srq_wr: 32_767,
    command_time: Duration::from_millis(1),
    lacks: LACK_ALL,
};

/// Broadcom. Inline: `BNXT_RE_MAX_INLINE_SIZE`, 0x60 (rdma-core, providers/bnxt_re/bnxt_re-abi.h);
/// more is EINVAL for the whole QP. SRQ: what the firmware says (linux,
/// drivers/infiniband/hw/bnxt_re/qplib_sp.c, `max_srq_wqes`).
pub static BNXT_RE: DeviceProfile = DeviceProfile {
    driver: "bnxt_re",
    has_rc: true,
    max_inline_bytes: 96,
    max_qp_wr: 16 << 10,
    max_cqe: UNLIMITED,
    max_srq_wr: UNLIMITED,
    command_time: Duration::ZERO,
    lacks: LACK_ALL,
};

/// Intel E810 as an iWARP device. Inline: `IRDMA_MAX_INLINE_DATA_SIZE`, 101 (linux,
/// drivers/infiniband/hw/irdma/user.h). WRs: `IRDMA_MAX_QP_WRS(8)` with a queue of 32768 quanta
/// less `IRDMA_SQ_RSVD` 258 (defs.h there). iWARP has no immediates (RFC 5040). No SRQ
/// (openucx/ucx#9736).
pub static IRDMA: DeviceProfile = DeviceProfile {
    driver: "irdma",
    has_rc: true,
    max_inline_bytes: 101,
    max_qp_wr: (32_768 - 258) / 8,
    max_cqe: UNLIMITED,
    max_srq_wr: 0,
    command_time: Duration::ZERO,
    lacks: LACK_ALL.with(Capabilities::IMMEDIATE).with(Capabilities::WRITE_WITH_IMM),
};

/// Microsoft Azure's virtual NIC. No code for inline data (rdma-core, providers/mana/wr.c), which
/// also refuses SENDs in ERR in current versions. `max_cqe` and `max_qp_wr` are one number of the
/// host (linux, drivers/infiniband/hw/mana/main.c, `mana_ib_query_device`); which one is a guess.
/// No SRQ: `mana_ib_dev_ops` (device.c there) has nothing to create one.
pub static MANA: DeviceProfile = DeviceProfile {
    driver: "mana",
    has_rc: true,
    max_inline_bytes: 0,
    max_qp_wr: 1024,
    max_cqe: 1024,
    max_srq_wr: 0,
    command_time: Duration::ZERO,
    lacks: LACK_ALL.with(Capabilities::FLUSHES_LATE_SENDS).with(Capabilities::WINDOWS),
};

/// Amazon's NIC: UD and its own SRD, no RC (rdma-core, providers/efa/verbs.c, `create_qp`), and
/// no SRQ.
pub static EFA: DeviceProfile = DeviceProfile {
    driver: "efa",
    has_rc: false,
    max_inline_bytes: 32,
    max_qp_wr: UNLIMITED,
    max_cqe: UNLIMITED,
    max_srq_wr: 0,
    command_time: Duration::ZERO,
    lacks: LACK_ALL,
};

/// All profiles.
pub static PROFILES: [&DeviceProfile; 5] = [&MLX5, &BNXT_RE, &IRDMA, &MANA, &EFA];

impl DeviceProfile {
    /// Reduces a device's attributes to those of this kind of NIC.
    pub(super) fn limit(&self, attributes: &mut DeviceAttributes) {
        attributes.name = format!("{} as {}", attributes.name, self.driver);
        attributes.max_inline_bytes = attributes.max_inline_bytes.min(self.max_inline_bytes);
        attributes.max_qp_wr = attributes.max_qp_wr.min(self.max_qp_wr);
        attributes.max_cqe = attributes.max_cqe.min(self.max_cqe);
        attributes.max_srq_wr = attributes.max_srq_wr.min(self.max_srq_wr);
        attributes.capabilities = attributes.capabilities.without(self.lacks);
    }
}
