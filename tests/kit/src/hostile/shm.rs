//! The raw shm wire: set-up messages that carry files, then a ring in memory that both sides map.
#![allow(unsafe_code, reason = "memory that another side reads and writes")]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::kind;

/// Slots of a ring, unless a peer asks for another number.
pub const SLOTS: usize = 512;
/// Size of a slot, bytes.
pub const SLOT_BYTES: usize = 128;
/// Bytes in front of the slots.
pub const CONTROL_BYTES: usize = 256;
/// Size of a segment with [`SLOTS`] slots.
pub const SEGMENT_BYTES: usize = segment_bytes(SLOTS);

/// Size of a segment: whole pages.
#[must_use]
pub const fn segment_bytes(slots: usize) -> usize {
    (CONTROL_BYTES + slots * SLOT_BYTES).next_multiple_of(4096)
}

/// Offsets of the control words.
pub mod word {
    /// Position up to which the other side's packets were accepted, in slots.
    pub const ACCEPTED: usize = 0;
    /// The reason why the next packet was not.
    pub const NAK: usize = 8;
    /// Nothing more will come.
    pub const CLOSED: usize = 12;
    /// Whether a doorbell is requested.
    pub const ARMED: usize = 128;
}

/// The seals that a segment must have.
pub const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A socket of the set-up.
///
/// # Panics
/// When there is no file descriptor left.
#[must_use]
pub fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let family = AddressFamily::UNIX;
    rustix::net::socket_with(family, SocketType::SEQPACKET, flags, None).expect("a socket")
}

fn abstract_name(address: &str) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(address.as_bytes()).expect("a short name")
}

/// Connects to the listener at `shm://name`, and nothing more.
///
/// # Panics
/// When nobody listens there.
#[must_use]
pub fn dial(address: &str) -> OwnedFd {
    try_dial(address).expect("somebody listens")
}

/// Connects to a listener that may be gone.
///
/// # Errors
/// Those of `connect(2)`.
pub fn try_dial(address: &str) -> io::Result<OwnedFd> {
    let socket = socket();
    rustix::net::connect(&socket, &abstract_name(address))?;
    Ok(socket)
}

/// Listens at `shm://name` for one connection.
///
/// # Panics
/// When the name is taken.
#[must_use]
pub fn listen(address: &str) -> OwnedFd {
    let listening = socket();
    rustix::net::bind(&listening, &abstract_name(address)).expect("a name of its own");
    rustix::net::listen(&listening, 1).expect("it is bound");
    listening
}

/// Sends a message with files. Its receiver may be gone.
///
/// # Panics
/// With more than eight files.
pub fn say(socket: &OwnedFd, bytes: &[u8], files: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(files)));
    }
    let flags = SendFlags::NOSIGNAL;
    let _ = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags);
}

/// The next message and its files; empty at the end.
pub fn hear(socket: &OwnedFd) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut bytes = [0; 1024];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let heard =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    let len = heard.map_or(0, |message| message.bytes);
    let mut files = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = part {
            files.extend(fds);
        }
    }
    (bytes[..len].to_vec(), files)
}

/// A message of the set-up.
#[must_use]
pub fn message(kind: u8, slots: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = b"softrdma".to_vec();
    bytes.extend([3, kind, 0, 0]);
    bytes.extend(slots.to_le_bytes());
    bytes.extend(body);
    bytes
}

/// A valid request.
///
/// # Panics
/// Never.
#[must_use]
pub fn request() -> Vec<u8> {
    message(kind::REQUEST, u32::try_from(SLOTS).expect("small"), &[0; 56])
}

/// A file in memory.
///
/// # Panics
/// When the kernel has no room.
#[must_use]
pub fn memory_file(len: usize, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("hostile", flags).expect("a file");
    rustix::fs::ftruncate(&file, len as u64).expect("memory");
    rustix::fs::fcntl_add_seals(&file, seals).expect("it allows sealing");
    file
}

/// A mapping of a file, for arbitrary writes.
#[derive(Debug)]
pub struct Map {
    base: *mut u8,
    len: usize,
}

// SAFETY: the memory is the mapping's own, and accessed by volatile reads and writes only.
unsafe impl Send for Map {}

impl Map {
    /// Maps a file.
    ///
    /// # Panics
    /// When the kernel refuses.
    #[must_use]
    pub fn of(file: &OwnedFd, len: usize, protection: ProtFlags) -> Self {
        let null = std::ptr::null_mut();
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe { rustix::mm::mmap(null, len, protection, MapFlags::SHARED, file, 0) };
        Self { base: base.expect("a mapping").cast(), len }
    }

    /// Writes bytes.
    ///
    /// # Panics
    /// When they lie outside the mapping.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: inside the mapping (asserted).
            let to = unsafe { self.base.add(at + i) };
            // SAFETY: as above; the other side expects arbitrary bytes.
            unsafe { to.write_volatile(*byte) };
        }
    }

    /// Reads an aligned word.
    ///
    /// # Panics
    /// When it lies outside the mapping.
    #[must_use]
    pub fn word(&self, at: usize) -> u32 {
        assert!(at + 4 <= self.len && at.is_multiple_of(4));
        // SAFETY: inside the mapping (asserted).
        let from = unsafe { self.base.add(at) }.cast::<u32>();
        // SAFETY: aligned and mapped.
        unsafe { from.read_volatile() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: exactly what `of` mapped.
        let unmapped = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A peer after a correct set-up: its own segment, and the other side's, which it can only read.
#[derive(Debug)]
pub struct Wire {
    /// The socket of the set-up, which carries doorbells and files of regions.
    pub socket: OwnedFd,
    /// The file of this side's segment.
    pub own_file: OwnedFd,
    /// This side's segment.
    pub own: Map,
    /// The other side's segment.
    pub theirs: Map,
    /// The file of that segment.
    pub their_file: OwnedFd,
    /// Slot of the next packet.
    pub position: u32,
}

impl Wire {
    /// Sends a valid request for a connection to the listener at `shm://name`; [`Asked::wire`]
    /// returns the connection once it has accepted.
    #[must_use]
    pub fn ask(address: &str) -> Asked {
        let socket = dial(address);
        let own_file = memory_file(SEGMENT_BYTES, SEALS);
        say(&socket, &request(), &[own_file.as_fd()]);
        Asked { socket, own_file }
    }

    /// The results of a set-up: the socket, this side's segment, and the file of the other side.
    ///
    /// # Panics
    /// When the files are not exactly one segment.
    #[must_use]
    pub fn with(socket: OwnedFd, own_file: OwnedFd, files: Vec<OwnedFd>) -> Self {
        let files = <[OwnedFd; 1]>::try_from(files);
        let [their_file] = files.expect("a segment");
        let own = Map::of(&own_file, SEGMENT_BYTES, ProtFlags::READ | ProtFlags::WRITE);
        let theirs = Map::of(&their_file, SEGMENT_BYTES, ProtFlags::READ);
        Self { socket, own_file, own, theirs, their_file, position: 0 }
    }

    /// Offset of a slot in a segment.
    #[must_use]
    pub fn slot(position: u32) -> usize {
        CONTROL_BYTES + (position as usize % SLOTS) * SLOT_BYTES
    }

    /// Publishes a packet of one slot, with a body length that need not be true, and rings.
    ///
    /// # Panics
    /// When the body is longer than the ring, or the length exceeds its field.
    pub fn packet(&mut self, op: u8, flags: u8, claimed: usize, body: &[u8]) {
        let at = Self::slot(self.position);
        self.own.put(at + 8, body);
        let [low, high] = u16::try_from(claimed).expect("16 bits").to_le_bytes();
        self.own.put(at + 4, &[op, flags, low, high]);
        self.own.put(at, &(self.position | 1 << 31).to_le_bytes());
        self.position += 1;
        self.ring();
    }

    /// Publishes a packet of one slot.
    ///
    /// # Panics
    /// When the body is longer than the ring.
    pub fn send(&mut self, op: u8, flags: u8, body: &[u8]) {
        self.packet(op, flags, body.len(), body);
    }

    /// Rings the other side's doorbell, unless the socket is full or the other side is gone.
    pub fn ring(&self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let _ = rustix::net::send(&self.socket, &[0], flags);
    }
}

/// A peer that waits to be accepted.
#[derive(Debug)]
pub struct Asked {
    socket: OwnedFd,
    own_file: OwnedFd,
}

impl Asked {
    /// Receives the answer.
    ///
    /// # Panics
    /// When it does not accept.
    #[must_use]
    pub fn wire(self) -> Wire {
        let (reply, files) = hear(&self.socket);
        assert_eq!(reply.get(9), Some(&kind::REPLY));
        Wire::with(self.socket, self.own_file, files)
    }
}
