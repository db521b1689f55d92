//! The side channel of a `shm` connection: the socket of its rendezvous.
//!
//! Owns the rest of what two processes need besides the rings: doorbells, memory files of regions,
//! and the end of the socket, which means that the peer is gone. Never waits, never touches a ring.
//!
//! ```text
//! doorbell: 1 byte, which means nothing        file: rkey u32, with the region's memory file
//! ```
//!
//! Each process has its own end, and no descriptors are shared except memory files: the flags of an
//! open file apply to all processes that share it, so a peer could make any `write(2)` here block.
//!
//! Doorbells are not read one by one: in an edge-triggered epoll set every message is an event.
//! They are read in batches, before every [`READ_EVERY`]th arming.
//!
//! Invariants:
//! 1. Every call passes flags so that it neither waits nor raises a signal.
//! 2. A doorbell that finds no room is dropped. With an honest peer there is always room: it is
//!    rung once per arming, and the socket has room for [`READ_EVERY`] and a few more. A peer that
//!    tampers with its own end loses only its own doorbells.
//! 3. At most one file that has not been asked for yet is kept.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::mapping::refused;
use super::socket::{self, BATCH, Small};

/// Number of armings after which the doorbells are read. One system call reads them all.
const READ_EVERY: u32 = 32;
/// Minimum size of the socket's send buffer, bytes: [`BATCH`] small messages, each of which the
/// kernel counts as less than 1 KiB.
const MIN_SEND_BUFFER_BYTES: usize = BATCH * 1024;
/// A file that the peer has announced must be found within this many batches.
const FILE_WITHIN: usize = 4;

/// One end of a side channel.
#[derive(Debug)]
pub(super) struct SideChannel {
    socket: OwnedFd,
    /// Armings since the doorbells were last read.
    armings: u32,
    /// The last file that arrived: its rkey, and the file unless this process had no descriptor
    /// left for it.
    arrived: Option<(u32, Option<OwnedFd>)>,
}

impl SideChannel {
    /// Gives the socket of a rendezvous the room that doorbells need.
    ///
    /// # Errors
    /// The refused call, or the finding that this system's socket buffers are too small, with a
    /// remedy.
    pub(super) fn make_room(socket: BorrowedFd<'_>) -> io::Result<()> {
        use rustix::net::sockopt;
        let size = || sockopt::socket_send_buffer_size(socket).map_err(refused("getsockopt"));
        if size()? < MIN_SEND_BUFFER_BYTES {
            sockopt::set_socket_send_buffer_size(socket, MIN_SEND_BUFFER_BYTES)
                .map_err(refused("setsockopt"))?;
            if size()? < MIN_SEND_BUFFER_BYTES {
                let reason = format!(
                    "socket buffers are too small; raise the sysctl net.core.wmem_max to \
                     {MIN_SEND_BUFFER_BYTES} or more, or use tcp://"
                );
                return Err(io::Error::other(reason));
            }
        }
        Ok(())
    }

    /// Takes over the socket of a rendezvous, which [has room](Self::make_room).
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, armings: 0, arrived: None }
    }

    /// The socket, for the CQ's epoll set.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Rings the peer's doorbell. A ring that does not fit into the socket is dropped (invariant
    /// 2).
    pub(super) fn ring(&self) {
        let _ = rustix::net::send(&self.socket, &[0], socket::NEVER_WAIT);
    }

    /// Makes room for the doorbell that an arming asks for.
    #[inline]
    pub(super) fn before_arming(&mut self) {
        self.armings += 1;
        if self.armings >= READ_EVERY {
            self.armings = 0;
            self.read();
        }
    }

    /// Reads a batch of messages. Returns whether there may be more.
    #[cold]
    fn read(&mut self) -> bool {
        let arrived = &mut self.arrived;
        let taken = socket::receive_batch(self.socket.as_fd(), |Small { bytes, file }| {
            // Anything else is a doorbell, or invalid, and is ignored.
            if let &[a, b, c, d] = bytes {
                *arrived = Some((u32::from_le_bytes([a, b, c, d]), file));
            }
        });
        match taken {
            Ok(count) => count == BATCH,
            // Reported once, when the peer has closed with unread data; its own messages can still
            // be read.
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    /// Passes a region's memory file to the peer. Returns `false` if it must be tried again later.
    ///
    /// # Errors
    /// When the peer is gone.
    pub(super) fn pass_file(&self, rkey: u32, file: BorrowedFd<'_>) -> io::Result<bool> {
        match socket::send(self.socket.as_fd(), &rkey.to_le_bytes(), &[file]) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes the file that the peer has sent ahead of its answer. The outer `None` means that no
    /// file, or that of another rkey, has arrived; the inner `None` that this process had no
    /// descriptor left for it.
    pub(super) fn take_file(&mut self, rkey: u32) -> Option<Option<OwnedFd>> {
        for _ in 0..FILE_WITHIN {
            let more = self.arrived.is_none() && self.read();
            if self.arrived.is_some() || !more {
                break;
            }
        }
        let (of, file) = self.arrived.take()?;
        (of == rkey).then_some(file)
    }
}
