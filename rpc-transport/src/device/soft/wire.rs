//! Wires: what carries packets between two queue pairs.
//!
//! Owns the choice of wire behind one set of functions, so that requester and responder know only
//! packets and positions. Never completes a WR.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::event::epoll::EventFlags;

use crate::device::{RemoteSlice, Traffic};

use super::domain::Memory;
use super::packet::{Extension, Flags, MAX_EXTENSION_BYTES, Nak, Op};
use super::ring::{BadFeedback, Feedback, Piece, Unsent};
use super::wire_ring::{Placement, RingWire};
use super::wire_tcp::{self, TcpWire};

/// The wire of one QP.
#[derive(Debug)]
pub(super) enum Wire {
    /// Not connected.
    None,
    /// Rings in memory: `mem` and `shm`.
    Ring(Box<RingWire>),
    /// Frames on a byte stream.
    Tcp(Box<TcpWire>),
}

impl Wire {
    /// Most payload bytes of one packet (the MTU).
    #[inline]
    pub(super) fn max_payload_bytes(&self) -> usize {
        let body = match self {
            Self::None => MAX_EXTENSION_BYTES,
            Self::Ring(wire) => wire.ring.max_body_bytes(),
            Self::Tcp(_) => wire_tcp::MAX_BODY_BYTES,
        };
        body - MAX_EXTENSION_BYTES
    }

    /// Position after the last packet sent. Positions grow with every packet.
    #[inline]
    pub(super) fn position(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Ring(wire) => wire.ring.tail(),
            Self::Tcp(wire) => wire.position(),
        }
    }

    /// Position to wait for so that everything sent before has been accepted. Asks the peer to
    /// report it, if no packet has asked yet. `None` when the wire is full.
    pub(super) fn await_all(&mut self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Ring(wire) => wire.ring.await_all(),
            Self::Tcp(wire) => Some(wire.position()),
        }
    }

    /// Sends a packet, copying its payload. Returns the position after it.
    #[inline]
    pub(super) fn send_copied(
        &mut self,
        op: Op,
        flags: Flags,
        extension: Extension,
        pieces: [Piece; 2],
    ) -> Result<u64, Unsent> {
        match self {
            Self::None => Err(Unsent::Full),
            Self::Ring(wire) => wire.ring.push(op, flags, extension, pieces),
            Self::Tcp(wire) => wire.send_copied(op, flags, extension, pieces),
        }
    }

    /// Sends a packet whose payload is not copied: it stays in place until the peer has accepted
    /// the message, or [`Wire::close`] was called.
    pub(super) fn send_kept(
        &mut self,
        op: Op,
        flags: Flags,
        extension: Extension,
        piece: Piece,
    ) -> Result<u64, Unsent> {
        match self {
            Self::Tcp(wire) => wire.send_kept(op, flags, extension, piece),
            _ => self.send_copied(op, flags, extension, [piece, Piece::EMPTY]),
        }
    }

    /// Sends a packet without extension whose payload lies in `memory`.
    pub(super) fn send_shared(
        &mut self,
        op: Op,
        flags: Flags,
        piece: Piece,
        memory: &Arc<Memory>,
    ) -> Result<u64, Unsent> {
        match self {
            Self::Tcp(wire) => wire.send_shared(op, flags, piece, memory),
            _ => self.send_copied(op, flags, Extension::None, [piece, Piece::EMPTY]),
        }
    }

    /// The peer's report about the packets sent.
    #[inline]
    pub(super) fn feedback(&mut self) -> Result<Feedback, BadFeedback> {
        match self {
            Self::None => Err(BadFeedback),
            Self::Ring(wire) => wire.ring.feedback(),
            Self::Tcp(wire) => wire.feedback(),
        }
    }

    /// Frees memory of what was sent.
    pub(super) fn release_buffers(&mut self) {
        if let Self::Tcp(wire) = self {
            wire.release_buffers();
        }
    }

    /// How far the bytes have got. Excludes what the requester still holds.
    pub(super) fn traffic(&mut self) -> Traffic {
        match self {
            Self::None => Traffic::default(),
            Self::Ring(wire) => wire.ring.traffic(),
            Self::Tcp(wire) => wire.traffic(),
        }
    }

    /// The fd that the CQ's epoll set watches for this wire, and the events to watch for.
    pub(super) fn watched(&self) -> Option<(BorrowedFd<'_>, EventFlags)> {
        let news = EventFlags::IN | EventFlags::RDHUP;
        match self {
            Self::None => None,
            Self::Ring(wire) => Some((wire.bell(), news)),
            Self::Tcp(wire) => Some((wire.socket(), news | EventFlags::OUT)),
        }
    }

    /// Handles the end of the wire's socket.
    pub(super) fn on_hangup(&mut self) {
        match self {
            Self::None => {}
            Self::Ring(wire) => wire.on_hangup(),
            // The next read will find the end.
            Self::Tcp(_) => {}
        }
    }

    /// Reports to the peer at once that its next packet is refused.
    pub(super) fn refuse(&mut self, nak: Nak) {
        match self {
            Self::None => {}
            Self::Ring(wire) => wire.refuse(nak),
            Self::Tcp(wire) => wire.refuse(nak),
        }
    }

    /// Whether the peer has closed or died.
    pub(super) fn peer_gone(&self) -> bool {
        match self {
            Self::None => false,
            Self::Ring(wire) => wire.peer_gone(),
            Self::Tcp(wire) => wire.has_ended(),
        }
    }

    /// Reports to the peer that nothing more will be sent, and stops using the memory of WRs.
    pub(super) fn close(&mut self) {
        match self {
            Self::None => {}
            Self::Ring(wire) => wire.close(),
            Self::Tcp(wire) => wire.close(),
        }
    }

    /// Copies `from` into the peer's region, if the wire can.
    pub(super) fn place(&mut self, remote: RemoteSlice, from: Piece) -> Placement {
        match self {
            Self::None | Self::Tcp(_) => Placement::ThroughEngine,
            Self::Ring(wire) => wire.place(remote, from),
        }
    }

    /// Copies from the peer's region to `to`, if the wire can.
    pub(super) fn fetch(&mut self, remote: RemoteSlice, to: Piece) -> Placement {
        match self {
            Self::None | Self::Tcp(_) => Placement::ThroughEngine,
            Self::Ring(wire) => wire.fetch(remote, to),
        }
    }

    /// Passes a region's memory file to the peer, ahead of the packets that follow. Returns `false`
    /// if it must be tried again later.
    ///
    /// # Errors
    /// When this wire cannot pass files.
    pub(super) fn pass_file(&mut self, rkey: u32, file: BorrowedFd<'_>) -> io::Result<bool> {
        match self {
            Self::None | Self::Tcp(_) => Err(io::ErrorKind::Unsupported.into()),
            Self::Ring(wire) => wire.pass_file(rkey, file),
        }
    }
}
