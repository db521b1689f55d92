//! The side channel of a `shm` connection: the socket of its rendezvous, used on.
//!
//! Owns what two processes need besides the rings: doorbells, memory files of regions, and the end
//! of the socket, which is the end of the peer. Never waits, never touches a ring.
//!
//! ```text
//! doorbell: 1 byte, which means nothing        file: rkey u32, with the region's memory file
//! ```
//!
//! Each process has an end of its own, and no descriptor but memory files is ever shared: flags of
//! an open file belong to all who share it, so a peer could make any `write(2)` here block.
//!
//! Doorbells are not read as they come: in an edge-triggered epoll set every message is an edge.
//! They are read in batches, before every [`READ_EVERY`]th arming.
//!
//! Invariants:
//! 1. Every call says by itself that it does not wait and raises no signal.
//! 2. A doorbell that finds no room is dropped. With an honest peer there is always room: it is rung
//!    once for an arming, and the socket takes [`READ_EVERY`] and a few more. What a peer does to
//!    its own end costs it its own doorbells.
//! 3. At most one file is kept that nobody has asked for yet.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::socket::{self, BATCH, Small};

/// Armings after which the doorbells are read. One system call reads them all.
const READ_EVERY: u32 = 32;
/// What the socket's send buffer must hold, bytes: [`BATCH`] small messages, each of which the kernel
/// counts as less than 1 KiB.
const MIN_SEND_BUFFER_BYTES: usize = BATCH * 1024;
/// Batches in which a file that the peer speaks of must be found.
const FILE_WITHIN: usize = 4;

/// One end of a side channel.
#[derive(Debug)]
pub(super) struct SideChannel {
    socket: OwnedFd,
    /// Armings since the doorbells were read.
    armings: u32,
    /// The file that came last: its rkey, and the file if this process had room for it.
    arrived: Option<(u32, Option<OwnedFd>)>,
}

impl SideChannel {
    /// Goes on with the socket of a rendezvous.
    ///
    /// # Errors
    /// When this system's socket buffers are too small for doorbells.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        use rustix::net::sockopt;
        if sockopt::socket_send_buffer_size(&socket)? < MIN_SEND_BUFFER_BYTES {
            sockopt::set_socket_send_buffer_size(&socket, MIN_SEND_BUFFER_BYTES)?;
            if sockopt::socket_send_buffer_size(&socket)? < MIN_SEND_BUFFER_BYTES {
                let reason = format!(
                    "socket buffers are too small; raise the sysctl net.core.wmem_max to \
                     {MIN_SEND_BUFFER_BYTES} or more"
                );
                return Err(io::Error::other(reason));
            }
        }
        Ok(Self { socket, armings: 0, arrived: None })
    }

    /// The socket, to be watched.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Rings the peer's doorbell. One that cannot be rung wakes nobody (invariant 2).
    pub(super) fn ring(&self) {
        let _ = rustix::net::send(&self.socket, &[0], socket::NEVER_WAIT);
    }

    /// Makes room for the doorbell that arming asks for.
    #[inline]
    pub(super) fn before_arming(&mut self) {
        self.armings += 1;
        if self.armings >= READ_EVERY {
            self.armings = 0;
            self.read();
        }
    }

    /// Takes a batch of messages in; whether there may be more.
    #[cold]
    fn read(&mut self) -> bool {
        let arrived = &mut self.arrived;
        let taken = socket::receive_batch(self.socket.as_fd(), |Small { bytes, file }| {
            // All else is a doorbell, or makes no sense, and is forgotten.
            if let &[a, b, c, d] = bytes {
                *arrived = Some((u32::from_le_bytes([a, b, c, d]), file));
            }
        });
        match taken {
            Ok(count) => count == BATCH,
            // Said once, when the peer has gone without reading all; what it has sent can be read.
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    /// Passes a region's memory file; `false` to try again later.
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

    /// Takes the file that the peer has sent ahead of its answer. The outer `None` if it has sent
    /// none, or another; the inner if this process had no room for it.
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
