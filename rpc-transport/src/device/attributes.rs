//! A device's report about itself: its name, limits and abilities.
//!
//! Owns the bits that say where devices differ; the device contract holds for all of them.

use std::fmt;

/// The abilities and limits of a device.
#[derive(Debug, Clone)]
pub struct DeviceAttributes {
    /// The device's name, for logs: `soft-shm`, `soft-tcp`, `rxe0`, `mlx5_0`.
    pub name: String,
    /// The scheme of its addresses: `mem`, `shm`, `tcp`, `rdma` or another. Both ends of a
    /// connection must have the same, since a handshake proves it, and it decides how the
    /// connection is protected.
    pub scheme: &'static str,
    /// Largest payload that [`Source::Inline`](super::Source::Inline) may carry, bytes.
    pub max_inline_bytes: u32,
    /// Largest SEND, bytes.
    pub max_message_bytes: u64,
    /// Most WRs that one SQ or one RQ may hold.
    pub max_qp_wr: u32,
    /// Most completions that one CQ may hold.
    pub max_cqe: u32,
    /// Most RECVs that one shared receive queue may hold (rule 22); 0: the device has none.
    pub max_srq_wr: u32,
    /// Optional abilities and known differences.
    pub capabilities: Capabilities,
}

impl DeviceAttributes {
    /// The limits that its queues must keep to.
    #[must_use]
    pub const fn queue_limits(&self) -> QueueLimits {
        QueueLimits { max_cqe: self.max_cqe, max_srq_wr: self.max_srq_wr }
    }
}

/// Limits on the queues that the connections of one device share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// See [`DeviceAttributes::max_cqe`].
    pub max_cqe: u32,
    /// As [`DeviceAttributes::max_srq_wr`].
    pub max_srq_wr: u32,
}

impl QueueLimits {
    /// The limits of a device that grants every size.
    pub const UNLIMITED: Self = Self { max_cqe: u32::MAX, max_srq_wr: u32::MAX };
}

/// A set of optional abilities of a device.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities(u32);

impl Capabilities {
    /// No optional ability.
    pub const NONE: Self = Self(0);
    /// SEND_WITH_IMM works (missing on iWARP).
    pub const IMMEDIATE: Self = Self(1);
    /// WRITE_WITH_IMM works.
    pub const WRITE_WITH_IMM: Self = Self(1 << 1);
    /// READ works.
    pub const READ: Self = Self(1 << 2);
    /// User memory may be registered for remote access, not only memory that the device allocated.
    pub const REGISTER_REMOTE: Self = Self(1 << 3);
    /// A RECV posted after the QP went to ERR is flushed too (rule 8; Soft-RoCE does not).
    pub const FLUSHES_LATE_RECEIVES: Self = Self(1 << 4);
    /// A SEND of length zero arrives.
    pub const EMPTY_SEND: Self = Self(1 << 5);
    /// Registering memory for local access is practically free, so copying into registered memory
    /// saves nothing. It also pins nothing, so pages of free buffers may be returned to the system.
    pub const FREE_REGISTRATION: Self = Self(1 << 6);
    /// Posting copies the bytes: posting a large WRITE takes the caller as long as the copy.
    pub const COPIES_ON_POST: Self = Self(1 << 7);

    /// A SEND posted after the QP went to ERR is accepted, and flushed (rule 8; mana and ocrdma
    /// refuse it).
    pub const FLUSHES_LATE_SENDS: Self = Self(1 << 8);
    /// A SEND or WRITE that the target refuses fails here with its own status (rules 6, 9, 10, 11).
    /// Without this bit (iWARP) it has already succeeded, is flushed, or was cut off while it was
    /// sent ([`Status::LocalQpOperation`](super::Status::LocalQpOperation)), and the target ends
    /// the connection.
    pub const REMOTE_ERRORS: Self = Self(1 << 9);
    /// The RECV of a shared receive queue that was being filled as its QP failed completes, too
    /// (rule 22; Soft-RoCE loses it).
    pub const KEEPS_CUT_OFF_RECVS: Self = Self(1 << 10);
    /// Memory windows of type 2B: keys that are valid on one QP only (rule 23).
    pub const WINDOWS: Self = Self(1 << 11);
    /// A retransmission does not carry out a bind a second time (on Soft-RoCE it does, and the QP
    /// sends nothing more). Without this bit, windows are used only where the user wants them.
    pub const BINDS_ONCE: Self = Self(1 << 12);

    /// The union of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The abilities of this set that `other` lacks.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether every ability of `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(&str, Capabilities); 13] = [
            ("IMMEDIATE", Capabilities::IMMEDIATE),
            ("WRITE_WITH_IMM", Capabilities::WRITE_WITH_IMM),
            ("READ", Capabilities::READ),
            ("REGISTER_REMOTE", Capabilities::REGISTER_REMOTE),
            ("FLUSHES_LATE_RECEIVES", Capabilities::FLUSHES_LATE_RECEIVES),
            ("EMPTY_SEND", Capabilities::EMPTY_SEND),
            ("FREE_REGISTRATION", Capabilities::FREE_REGISTRATION),
            ("COPIES_ON_POST", Capabilities::COPIES_ON_POST),
            ("FLUSHES_LATE_SENDS", Capabilities::FLUSHES_LATE_SENDS),
            ("REMOTE_ERRORS", Capabilities::REMOTE_ERRORS),
            ("KEEPS_CUT_OFF_RECVS", Capabilities::KEEPS_CUT_OFF_RECVS),
            ("WINDOWS", Capabilities::WINDOWS),
            ("BINDS_ONCE", Capabilities::BINDS_ONCE),
        ];
        let names = NAMES.iter().filter(|(_, bit)| self.contains(*bit)).map(|(name, _)| name);
        f.debug_set().entries(names).finish()
    }
}
