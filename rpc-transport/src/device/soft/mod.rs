//! The software RDMA device: queue pairs, keys and completions in plain Rust, over three wires.
//!
//! Owns the device objects and one queue pair engine. A *wire* carries packets between two QPs:
//! `mem` inside one process (deterministic, the base of simulation), `shm` between processes of one
//! machine, `tcp` between machines. One CQ may own QPs of all wires at once. Never knows messages
//! or credits.
//!
//! | file | idea |
//! |---|---|
//! | `cq` | which QPs are visited, what makes the event fd readable |
//! | `queue_pair`, `requester`, `responder`, `posted`, `srq`, `targets`, `sink` | the engine |
//! | `packet` | what one QP says to the other, on any wire |
//! | `domain`, `mapping` | keys and registered memory |
//! | `wire`, `wire_ring`, `ring`, `bell` | packets through memory |
//! | `side_channel` | between processes, besides rings: doorbells, memory files, end of the peer |
//! | `regions` | the peer's memory, mapped: one-sided access without its CPU (`shm`) |
//! | `wire_tcp`, `outbox` | packets as frames on a byte stream |
//! | `setup`, `pending`, `mem`, `shm`, `socket`, `bind_lock`, `tcp` | connecting |

mod advice;
mod bell;
mod bind_lock;
mod cq;
mod domain;
mod doorbell;
mod in_flight;
mod landing;
mod mapping;
mod mem;
mod outbox;
mod packet;
mod pending;
mod posted;
mod prefetch;
mod queue_pair;
mod regions;
mod requester;
mod responder;
mod ring;
mod setup;
mod shm;
mod side_channel;
mod sink;
mod socket;
mod srq;
mod targets;
mod tcp;
mod wire;
mod wire_ring;
mod wire_tcp;

use std::sync::{Arc, LazyLock};

use crate::device::{Capabilities, CompletionQueue, Device, DeviceAttributes, ProviderError};
use crate::memory::region::ProtectionDomain;

pub use mem::{MemConnector, listen_mem};
pub use shm::{ShmConnector, listen_shm};
pub use tcp::{ProbeAnswer, TcpConnector, listen_tcp};

/// Most inline bytes of one WR. Every post copies into the wire anyway, so a small limit would save
/// nothing.
const MAX_INLINE_BYTES: u32 = 16 * 1024;
/// Longest message, bytes (the limit of InfiniBand).
const MAX_MESSAGE_BYTES: u64 = 1 << 31;
/// Most WRs of one SQ or RQ.
const MAX_QP_WR: u32 = 16 * 1024;
/// Most RECVs of one SRQ.
const MAX_SRQ_WR: u32 = 64 * 1024;
/// Most entries of one CQ.
const MAX_CQE: u32 = 4 * 1024 * 1024;

/// A software device. There is one per wire and process; they differ in name and capabilities only.
#[derive(Debug)]
struct SoftDevice {
    attributes: DeviceAttributes,
}

impl SoftDevice {
    fn open(scheme: &'static str, wire: Capabilities) -> Arc<dyn Device> {
        let capabilities = Capabilities::IMMEDIATE
            .with(Capabilities::WRITE_WITH_IMM)
            .with(Capabilities::READ)
            .with(Capabilities::REGISTER_REMOTE)
            .with(Capabilities::FLUSHES_LATE_RECEIVES)
            .with(Capabilities::FLUSHES_LATE_SENDS)
            .with(Capabilities::REMOTE_ERRORS)
            .with(Capabilities::KEEPS_CUT_OFF_RECVS)
            .with(Capabilities::EMPTY_SEND)
            .with(Capabilities::FREE_REGISTRATION)
            .with(Capabilities::WINDOWS)
            .with(Capabilities::BINDS_ONCE)
            .with(wire);
        let attributes = DeviceAttributes {
            name: format!("soft-{scheme}"),
            scheme,
            max_inline_bytes: MAX_INLINE_BYTES,
            max_message_bytes: MAX_MESSAGE_BYTES,
            max_qp_wr: MAX_QP_WR,
            max_cqe: MAX_CQE,
            max_srq_wr: MAX_SRQ_WR,
            capabilities,
        };
        Arc::new(Self { attributes })
    }
}

impl Device for SoftDevice {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn allocate_pd(&self) -> Result<ProtectionDomain, ProviderError> {
        Ok(domain::SoftDomain::allocate())
    }

    fn create_cq(&self, min_entries: u32) -> Result<Box<dyn CompletionQueue>, ProviderError> {
        if min_entries > MAX_CQE {
            let (asked, limit) = (u64::from(min_entries), u64::from(MAX_CQE));
            return Err(ProviderError::Limit { what: "completion queue entries", asked, limit });
        }
        Ok(Box::new(cq::SoftCompletionQueue::create(min_entries)?))
    }
}

/// The device behind `mem://`.
pub fn mem_device() -> &'static Arc<dyn Device> {
    static DEVICE: LazyLock<Arc<dyn Device>> =
        LazyLock::new(|| SoftDevice::open("mem", Capabilities::COPIES_ON_POST));
    &DEVICE
}

/// The device behind `shm://`.
pub fn shm_device() -> &'static Arc<dyn Device> {
    static DEVICE: LazyLock<Arc<dyn Device>> =
        LazyLock::new(|| SoftDevice::open("shm", Capabilities::COPIES_ON_POST));
    &DEVICE
}

/// The device behind `tcp://`.
pub fn tcp_device() -> &'static Arc<dyn Device> {
    static DEVICE: LazyLock<Arc<dyn Device>> =
        LazyLock::new(|| SoftDevice::open("tcp", Capabilities::NONE));
    &DEVICE
}
