//! The ring wire: two rings in shared memory and a doorbell each way.
//!
//! Owns what belongs to one connection over memory. The memory is this process's own (`mem`) or
//! shared with the peer's (`shm`); then a socket passes memory files of regions, so that one-sided
//! accesses skip the target's engine, and its end tells that the peer has died. Never completes a
//! WR.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::device::RemoteSlice;

use super::bell::Bell;
use super::mapping::{self, Mapping};
use super::packet::{Extension, Flags, Nak, Op, Span};
use super::regions::{Known, Regions};
use super::responder::Landing;
use super::ring::{Piece, Ring, segment_bytes};
use super::socket;
use super::wire::Placement;

/// This side's half of a `shm` connection, before the peer's is known.
#[derive(Debug)]
pub(super) struct Half {
    slots: usize,
    file: OwnedFd,
    mapping: Mapping,
    bell: Bell,
}

impl Half {
    /// Makes a segment and a doorbell.
    ///
    /// # Errors
    /// Out of memory, or of file descriptors.
    pub(super) fn create(slots: usize) -> io::Result<Self> {
        let (file, mapping) = mapping::create_shared("rpc-ring", segment_bytes(slots), true)?;
        Ok(Self { slots, file, mapping, bell: Bell::new()? })
    }

    /// What the peer gets: segment and doorbell.
    pub(super) fn files(&self) -> [BorrowedFd<'_>; 2] {
        [self.file.as_fd(), self.bell.as_fd()]
    }

    /// Joins with the peer's half. Also returns this side's segment, for a peer that has not got it.
    pub(super) fn join(self, peer: PeerHalf, socket: OwnedFd) -> (RingWire, OwnedFd) {
        let slots = self.slots.min(peer.slots);
        let ring = Ring::new(Arc::new(self.mapping), Arc::new(peer.mapping), slots);
        let remote = Remote { socket, regions: Regions::default(), asked: None, hung_up: false };
        let (own_bell, peer_bell) = (self.bell, peer.bell);
        (RingWire { ring, own_bell, peer_bell, remote: Some(remote) }, self.file)
    }
}

/// The peer's half, checked and mapped.
#[derive(Debug)]
pub(super) struct PeerHalf {
    slots: usize,
    mapping: Mapping,
    bell: Bell,
}

impl PeerHalf {
    /// Maps the segment that a peer has sent, and takes its doorbell over.
    ///
    /// # Errors
    /// What is wrong with the files.
    pub(super) fn map(slots: usize, files: Vec<OwnedFd>) -> io::Result<Self> {
        let wrong = |_| io::Error::new(io::ErrorKind::InvalidData, "two files are needed");
        let [segment, bell] = <[OwnedFd; 2]>::try_from(files).map_err(wrong)?;
        let bytes = mapping::whole_pages(segment_bytes(slots))?;
        let mapping = mapping::map_received(segment.as_fd(), bytes, false)?;
        Ok(Self { slots, mapping, bell: Bell::received(bell)? })
    }

    pub(super) fn slots(&self) -> usize {
        self.slots
    }
}

/// What a connection to another process has besides the rings.
#[derive(Debug)]
struct Remote {
    socket: OwnedFd,
    regions: Regions,
    /// The rkey that the peer has been asked about.
    asked: Option<u32>,
    hung_up: bool,
}

/// One side of a connection over rings.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct RingWire {
    pub(super) ring: Ring,
    /// The peer rings this one.
    pub(super) own_bell: Bell,
    peer_bell: Bell,
    remote: Option<Remote>,
}

impl RingWire {
    /// Joins both sides inside this process.
    ///
    /// # Errors
    /// Out of memory, or of file descriptors.
    pub(super) fn pair(slots: usize) -> io::Result<(Self, Self)> {
        let segment = || Mapping::anonymous(segment_bytes(slots)).map(Arc::new);
        let (a, b) = (segment()?, segment()?);
        let (near, far) = (Bell::new()?, Bell::new()?);
        let ring = Ring::new(Arc::clone(&a), Arc::clone(&b), slots);
        let (own_bell, peer_bell) = (near.clone(), far.clone());
        let here = Self { ring, own_bell, peer_bell, remote: None };
        let ring = Ring::new(b, a, slots);
        let there = Self { ring, own_bell: far, peer_bell: near, remote: None };
        Ok((here, there))
    }

    /// The socket whose end is the peer's death, if the peer is another process.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.remote.as_ref().map(|remote| remote.socket.as_fd())
    }

    /// Sends the accepting reply of the set-up, with this side's segment and doorbell.
    ///
    /// # Errors
    /// Those of `sendmsg(2)`.
    pub(super) fn send_reply(&self, reply: &[u8], segment: BorrowedFd<'_>) -> io::Result<()> {
        let socket = self.socket().ok_or(io::ErrorKind::NotConnected)?;
        socket::send(socket, reply, &[segment, self.own_bell.as_fd()])
    }

    /// The socket has ended.
    pub(super) fn on_hangup(&mut self) {
        if let Some(remote) = &mut self.remote {
            remote.hung_up = true;
        }
    }

    /// Rings the peer's doorbell if it has armed; call behind the batch's fence.
    #[inline]
    pub(super) fn ring_bell(&mut self) {
        if self.ring.wants_bell() {
            self.peer_bell.ring();
        }
    }

    /// Tells the peer at once that its next packet is refused.
    pub(super) fn refuse(&mut self, nak: Nak) {
        self.ring.refuse(nak);
        // The peer may not expect anything, and so not have armed.
        self.peer_bell.ring();
    }

    /// Tells the peer that nothing more will come.
    pub(super) fn close(&self) {
        self.ring.close();
        self.peer_bell.ring();
    }

    /// Whether the peer is gone.
    pub(super) fn peer_gone(&self) -> bool {
        self.ring.peer_closed() || self.remote.as_ref().is_some_and(|remote| remote.hung_up)
    }

    /// Copies `from` into the peer's region, if it is mapped or can be.
    pub(super) fn place(&mut self, to: RemoteSlice, from: Piece) -> Placement {
        let Some(remote) = &mut self.remote else { return Placement::ThroughEngine };
        let known = remote.regions.write(to, from);
        self.placed(known, to, from.len, true)
    }

    /// Copies from the peer's region, if it is mapped or can be.
    pub(super) fn fetch(&mut self, from: RemoteSlice, to: Piece) -> Placement {
        let Some(remote) = &mut self.remote else { return Placement::ThroughEngine };
        let known = remote.regions.read(from, to);
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

    /// Asks the peer for a region, once.
    fn ask(&mut self, at: RemoteSlice, len: usize, write: bool) {
        let Some(remote) = &mut self.remote else { return };
        if remote.asked.is_some() {
            return;
        }
        let RemoteSlice { address, rkey } = at;
        let span = Span { address, rkey, aux: u32::from(write), len: len as u64 };
        let whole = Flags::FIRST.with(Flags::LAST).with(Flags::ACK);
        let pieces = [Piece::EMPTY; 2];
        if self.ring.push(Op::MapRequest, whole, Extension::Span(span), pieces).is_some() {
            remote.asked = Some(rkey);
        }
    }

    /// The peer's answer. `None` if nobody asked, or if it breaks the protocol; the landing of a
    /// payload that there is not, otherwise.
    pub(super) fn on_map_answer(&mut self, answer: Extension) -> Option<Landing> {
        let remote = self.remote.as_mut()?;
        let Extension::Span(answer) = answer else { return None };
        if remote.asked.take() != Some(answer.rkey) {
            return None;
        }
        let file = if answer.len > 0 { remote.take_file(answer.rkey)? } else { None };
        if let Err(error) = remote.regions.insert(answer, file.as_ref().map(AsFd::as_fd)) {
            if error.kind() == io::ErrorKind::InvalidData {
                return None;
            }
            tracing::warn!(%error, "a region is not mapped; it is written through the peer's engine");
        }
        Some(Landing::dangling())
    }

    /// Passes a region's memory file; `false` to try again later.
    ///
    /// # Errors
    /// When this wire cannot, or the peer is gone.
    pub(super) fn pass_file(&mut self, rkey: u32, file: BorrowedFd<'_>) -> io::Result<bool> {
        let remote = self.remote.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        match socket::send(remote.socket.as_fd(), &rkey.to_le_bytes(), &[file]) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Remote {
    /// Takes the file that the peer has sent ahead of its answer. The outer `None` if it has sent
    /// none, or a wrong one; the inner if this process has no room for it.
    fn take_file(&self, rkey: u32) -> Option<Option<OwnedFd>> {
        let mut bytes = [0; 4];
        match socket::receive(self.socket.as_fd(), &mut bytes) {
            Ok(mut received) if received.len == 4 && received.files.len() == 1 => {
                (bytes == rkey.to_le_bytes()).then(|| received.files.pop())
            }
            // Out of file descriptors: the kernel dropped the file, not the message.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Some(None),
            _ => None,
        }
    }
}

impl Drop for RingWire {
    fn drop(&mut self) {
        self.close();
    }
}
