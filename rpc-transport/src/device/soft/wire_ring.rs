//! The ring wire: two rings in shared memory and a doorbell in each direction.
//!
//! Owns the state of one connection over memory. With `mem` the memory belongs to this process.
//! With `shm` it is shared with the peer's process. A side channel then carries doorbells and the
//! memory files of regions, so that one-sided accesses bypass the target's engine, and reports the
//! peer's death. Never completes a WR.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::device::RemoteSlice;

use super::bell::Doorbell;
use super::landing::Landing;
use super::mapping::{self, Mapping};
use super::packet::{Extension, Flags, Nak, Op, Span};
use super::regions::{Known, Regions};
use super::ring::{Piece, Ring, segment_bytes};
use super::side_channel::SideChannel;
use super::socket;
use crate::memory::process;
use crate::user_code::logged;

/// Result of a one-sided access that bypasses the target's engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// The bytes have been copied.
    Done,
    /// The target has been asked for access, or the wire is full: try again later.
    Asked,
    /// Not possible on this wire, or for this region: send packets.
    ThroughEngine,
}

/// This side's half of a `shm` connection, before the peer's is known.
#[derive(Debug)]
pub(super) struct Half {
    slots: usize,
    file: OwnedFd,
    mapping: Mapping,
}

impl Half {
    /// Creates a segment for a connection over `socket`, and this side's other resources.
    ///
    /// # Errors
    /// Those of [`mapping::create_shared`] and [`SideChannel::make_room`].
    pub(super) fn create(slots: usize, socket: BorrowedFd<'_>) -> io::Result<Self> {
        SideChannel::make_room(socket)?;
        let (file, mapping) = mapping::create_shared("rpc-ring", segment_bytes(slots), true)?;
        Ok(Self { slots, file, mapping })
    }

    /// The segment, to be sent to the peer.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Joins with the peer's half. Also returns this side's segment, to be sent to a peer that does
    /// not have it yet.
    pub(super) fn join(self, peer: PeerHalf, socket: OwnedFd) -> (RingWire, OwnedFd) {
        let slots = self.slots.min(peer.slots);
        let ring = Ring::new(Arc::new(self.mapping), Arc::new(peer.mapping), slots);
        let side = SideChannel::new(socket);
        let process = Process { side, regions: Regions::default(), asked: None, hung_up: false };
        let (peer, maker) = (Peer::Process(process), process::Process::current());
        (RingWire { ring, peer, maker }, self.file)
    }
}

/// The peer's half, checked and mapped.
#[derive(Debug)]
pub(super) struct PeerHalf {
    slots: usize,
    mapping: Mapping,
}

impl PeerHalf {
    /// Maps the segment that a peer has sent.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`]: a defect of the files; otherwise the refused call.
    pub(super) fn map(slots: usize, files: Vec<OwnedFd>) -> io::Result<Self> {
        let wrong = |_| io::Error::new(io::ErrorKind::InvalidData, "one file is needed");
        let [segment] = <[OwnedFd; 1]>::try_from(files).map_err(wrong)?;
        let bytes = mapping::whole_pages(segment_bytes(slots))?;
        let mapping = mapping::map_received(segment.as_fd(), bytes, false)?;
        Ok(Self { slots, mapping })
    }

    pub(super) fn slots(&self) -> usize {
        self.slots
    }
}

/// The other end of the rings.
#[derive(Debug)]
enum Peer {
    /// A queue pair of this process.
    Local { own_bell: Doorbell, peer_bell: Doorbell },
    /// Another process.
    Process(Process),
}

/// The parts of a connection to another process besides the rings.
#[derive(Debug)]
struct Process {
    side: SideChannel,
    regions: Regions,
    /// The region that the peer has been asked for.
    asked: Option<Span>,
    hung_up: bool,
}

/// One side of a connection over rings.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct RingWire {
    pub(super) ring: Ring,
    peer: Peer,
    /// A child of this process must not close the ring.
    maker: process::Process,
}

impl RingWire {
    /// Creates and joins both sides inside this process.
    ///
    /// # Errors
    /// Out of memory, or of file descriptors.
    pub(super) fn pair(slots: usize) -> io::Result<(Self, Self)> {
        let segment = || Mapping::anonymous(segment_bytes(slots)).map(Arc::new);
        let (a, b) = (segment()?, segment()?);
        let (near, far) = (Doorbell::new()?, Doorbell::new()?);
        let ring = Ring::new(Arc::clone(&a), Arc::clone(&b), slots);
        let peer = Peer::Local { own_bell: near.clone(), peer_bell: far.clone() };
        let maker = process::Process::current();
        let here = Self { ring, peer, maker };
        let ring = Ring::new(b, a, slots);
        let peer = Peer::Local { own_bell: far, peer_bell: near };
        let there = Self { ring, peer, maker };
        Ok((here, there))
    }

    /// The fd that becomes readable when the peer has rung. A side channel's fd also reports that
    /// the peer is gone.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        match &self.peer {
            Peer::Local { own_bell, .. } => own_bell.as_fd(),
            Peer::Process(process) => process.side.socket(),
        }
    }

    /// Answers the set-up: accepts, with this side's segment, or refuses.
    ///
    /// # Errors
    /// Those of `sendmsg(2)`.
    pub(super) fn send_reply(&self, reply: &[u8], segment: &[BorrowedFd<'_>]) -> io::Result<()> {
        let Peer::Process(process) = &self.peer else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        socket::send(process.side.socket(), reply, segment)
    }

    /// Handles the end of the socket.
    pub(super) fn on_hangup(&mut self) {
        if let Peer::Process(process) = &mut self.peer {
            process.hung_up = true;
        }
    }

    /// Asks the peer for a doorbell. Must be followed by a sequentially consistent fence and
    /// another look at the ring.
    pub(super) fn arm(&mut self) {
        if let Peer::Process(process) = &mut self.peer {
            process.side.before_arming();
        }
        self.ring.arm();
    }

    /// Rings the peer's doorbell if it has armed. Call it after the batch's fence.
    #[inline]
    pub(super) fn notify(&mut self) {
        if self.ring.needs_notify() {
            self.ring_now();
        }
    }

    // Not inlined, since it is a system call, and seldom needed while the peer polls.
    #[inline(never)]
    fn ring_now(&self) {
        match &self.peer {
            Peer::Local { peer_bell, .. } => peer_bell.ring(),
            Peer::Process(process) => process.side.ring(),
        }
    }

    /// Reports to the peer at once that its next packet is refused.
    pub(super) fn refuse(&mut self, nak: Nak) {
        self.ring.refuse(nak);
        // Rings unconditionally: the peer may expect nothing, and so not have armed.
        self.ring_now();
    }

    /// Reports to the peer that nothing more will be sent.
    pub(super) fn close(&self) {
        self.ring.close();
        self.ring_now();
    }

    /// Whether the peer is gone.
    pub(super) fn peer_gone(&self) -> bool {
        self.ring.peer_closed() || matches!(&self.peer, Peer::Process(process) if process.hung_up)
    }

    /// Copies `from` into the peer's region, if it is mapped or can be.
    pub(super) fn place(&mut self, to: RemoteSlice, from: Piece) -> Placement {
        let Peer::Process(process) = &mut self.peer else { return Placement::ThroughEngine };
        let known = process.regions.write(to, from);
        self.placed(known, to, from.len, true)
    }

    /// Copies from the peer's region, if it is mapped or can be.
    pub(super) fn fetch(&mut self, from: RemoteSlice, to: Piece) -> Placement {
        let Peer::Process(process) = &mut self.peer else { return Placement::ThroughEngine };
        let known = process.regions.read(from, to);
        self.placed(known, from, to.len, false)
    }

    fn placed(&mut self, known: Known, at: RemoteSlice, len: usize, write: bool) -> Placement {
        match known {
            Known::Done => Placement::Done,
            Known::ThroughEngine => Placement::ThroughEngine,
            Known::Unknown => {
                self.ask(at, len, write);
                Placement::Asked
            }
        }
    }

    /// Asks the peer for a region, unless a request is outstanding.
    fn ask(&mut self, at: RemoteSlice, len: usize, write: bool) {
        let Peer::Process(process) = &mut self.peer else { return };
        if process.asked.is_some() {
            return;
        }
        let RemoteSlice { address, rkey } = at;
        let span = Span { address, rkey, aux: u32::from(write), len: len as u64 };
        let whole = Flags::FIRST.with(Flags::LAST).with(Flags::ACK);
        let pieces = [Piece::EMPTY; 2];
        if self.ring.push(Op::MapRequest, whole, Extension::Span(span), pieces).is_ok() {
            process.asked = Some(span);
        }
    }

    /// Handles the peer's answer. `None` if nothing was asked or the answer violates the protocol;
    /// otherwise a dangling landing, as the answer has no payload.
    pub(super) fn on_map_answer(&mut self, answer: Extension) -> Option<Landing> {
        let Peer::Process(process) = &mut self.peer else { return None };
        let Extension::Span(answer) = answer else { return None };
        let asked = process.asked.take()?;
        if asked.rkey != answer.rkey || (answer.len > 0 && !answer.covers(asked)) {
            return None;
        }
        let file = if answer.len > 0 { process.side.take_file(answer.rkey)? } else { None };
        if let Err(error) = process.regions.insert(answer, file.as_ref().map(AsFd::as_fd)) {
            if error.kind() == io::ErrorKind::InvalidData {
                return None;
            }
            let text = "a region is not mapped; it is written through the peer's engine";
            logged(move || tracing::warn!(%error, "{text}"));
        }
        Some(Landing::dangling())
    }

    /// Passes a region's memory file. Returns `false` if it must be tried again later.
    ///
    /// # Errors
    /// When this wire cannot pass files, or the peer is gone.
    pub(super) fn pass_file(&mut self, rkey: u32, file: BorrowedFd<'_>) -> io::Result<bool> {
        match &self.peer {
            Peer::Local { .. } => Err(io::ErrorKind::Unsupported.into()),
            Peer::Process(process) => process.side.pass_file(rkey, file),
        }
    }
}

impl Drop for RingWire {
    fn drop(&mut self) {
        if self.maker.is_current() {
            self.close();
        }
    }
}
