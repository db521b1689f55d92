//! Where the payload of a packet goes, or why the packet is refused.
//!
//! Below wires and targets, so that neither has to know the other.

use std::ptr::NonNull;

use crate::device::Status;

use super::packet::{Extension, Head, Nak};

/// Receives the packets that a wire brings.
pub(super) trait TakePackets {
    /// Whether the poll's caller accepts more completions.
    fn has_room(&self) -> bool;

    /// Starts a packet: checks it and says where its payload goes. The landing is valid for the
    /// packet's payload until the packet is finished or the QP is flushed.
    fn begin(&mut self, head: Head, extension: Extension) -> Result<Landing, Refusal>;

    /// Finishes a packet whose payload has arrived.
    fn finish(&mut self, head: Head, extension: Extension) -> Result<(), Refusal>;
}

/// Where the payload of a packet goes.
pub(super) type Landing = NonNull<u8>;

/// Why a packet was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No RECV is posted: only the requester fails (contract rule 9).
    NotReady,
    /// The RECV is too small (rule 10).
    TooLong,
    /// The RECV's memory belongs to another PD.
    BadBuffer,
    /// rkey, bounds, access or PD (rule 11).
    Access,
    /// The packet violates the protocol.
    Protocol,
}

impl Refusal {
    /// The reason that the requester receives.
    pub(super) fn nak(self) -> Nak {
        match self {
            Self::NotReady => Nak::NotReady,
            Self::TooLong | Self::Protocol => Nak::Invalid,
            Self::BadBuffer => Nak::Operation,
            Self::Access => Nak::Access,
        }
    }

    /// Status for the RECV at the front; the others are flushed.
    pub(super) fn recv_status(self) -> Option<Status> {
        match self {
            Self::TooLong => Some(Status::LocalLength),
            Self::BadBuffer => Some(Status::LocalProtection),
            Self::NotReady | Self::Access | Self::Protocol => None,
        }
    }
}
