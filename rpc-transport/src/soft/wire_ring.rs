//! The ring wire: two rings in shared memory and a doorbell each way.
//!
//! Owns what belongs to one connection over memory. The memory is this process's own (`mem`) or
//! shared with the peer's (`shm`). Never completes a WR.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::provider::RemoteSlice;

use super::bell::Bell;
use super::mapping::Mapping;
use super::packet::{Extension, Nak};
use super::responder::Landing;
use super::ring::{Piece, Ring, segment_bytes};
use super::wire::Placement;

/// One side of a connection over rings.
#[derive(Debug)]
pub(super) struct RingWire {
    pub(super) ring: Ring,
    /// The peer rings this one.
    pub(super) own_bell: Bell,
    peer_bell: Bell,
}

impl RingWire {
    /// Joins both sides inside this process.
    ///
    /// # Errors
    /// Out of memory, or of file descriptors.
    pub(super) fn pair(slots: usize) -> io::Result<(Self, Self)> {
        let segment = || Mapping::anonymous(segment_bytes(slots)).map(Arc::new);
        let (a, b) = (segment()?, segment()?);
        let (a_bell, b_bell) = (Bell::new()?, Bell::new()?);
        let ring = Ring::new(Arc::clone(&a), Arc::clone(&b), slots);
        let near = Self { ring, own_bell: a_bell.clone(), peer_bell: b_bell.clone() };
        let ring = Ring::new(b, a, slots);
        let far = Self { ring, own_bell: b_bell, peer_bell: a_bell };
        Ok((near, far))
    }

    /// Rings the peer's doorbell if it has armed; call behind the batch's fence.
    #[inline]
    pub(super) fn ring_bell(&mut self) {
        if self.ring.wants_bell() {
            self.peer_bell.ring();
        }
    }

    /// Rings the peer's doorbell in any case, for what it must look at and may not expect.
    pub(super) fn alert(&self) {
        self.peer_bell.ring();
    }

    /// Tells the peer at once that its next packet is refused.
    pub(super) fn refuse(&mut self, nak: Nak) {
        self.ring.refuse(nak);
        self.alert();
    }

    /// The target's answer to a request for direct access. `None` if nobody asked; the landing of a
    /// payload that there is not, otherwise.
    pub(super) fn on_map_answer(&mut self, _answer: Extension) -> Option<Landing> {
        None
    }

    /// Tells the peer that nothing more will come.
    pub(super) fn close(&self) {
        self.ring.close();
        self.alert();
    }

    /// Whether the peer is gone.
    pub(super) fn peer_gone(&self) -> bool {
        self.ring.peer_closed()
    }

    pub(super) fn place(&mut self, _remote: RemoteSlice, _from: Piece) -> Placement {
        Placement::ThroughEngine
    }

    pub(super) fn fetch(&mut self, _remote: RemoteSlice, _to: Piece) -> Placement {
        Placement::ThroughEngine
    }

    pub(super) fn pass_file(&mut self, _file: BorrowedFd<'_>) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Drop for RingWire {
    fn drop(&mut self) {
        self.close();
    }
}
