//! Unix sockets of the `shm` wire: messages that carry file descriptors, and the peer's
//! credentials.
//!
//! Owns the system calls on sequenced-packet sockets (`SOCK_SEQPACKET`), which keep message
//! boundaries, and the socket address of a `shm://` name or path. Never waits.
//!
//! Invariants:
//! 1. Every socket and every received file is close-on-exec; sockets do not block.
//! 2. A message is received whole or refused; no more files are accepted than asked for.
#![allow(unsafe_code, reason = "SO_PEERCRED, recvmmsg, and sockets that the runtime watches")]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use tokio::io::unix::AsyncFd;

use crate::address::Address;
use crate::device::open_files;

use super::bind_lock::BindLock;
use super::mapping::refused;

/// Most connections that wait in the kernel to be accepted.
const BACKLOG: i32 = 128;
/// Most files in one message.
pub(super) const MAX_FILES: usize = 1;
/// Most messages that [`receive_batch`] reads at a time.
pub(super) const BATCH: usize = 64;

/// Flags for a send that neither waits nor raises a signal, whatever flags the socket has.
pub(super) const NEVER_WAIT: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// The socket address of a `shm` address; `None` for other schemes.
pub(super) fn address_of(address: &Address) -> Option<io::Result<SocketAddrUnix>> {
    let made = match address {
        Address::ShmName(name) => {
            SocketAddrUnix::new_abstract_name(format!("shm://{name}").as_bytes())
        }
        Address::ShmPath(path) => SocketAddrUnix::new(path),
        _ => return None,
    };
    Some(made.map_err(io::Error::from))
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Opens a socket and connects it. Fails with [`io::ErrorKind::WouldBlock`] when the listener's
/// backlog is full.
///
/// # Errors
/// Those of `connect(2)`.
pub(super) fn connect(address: &SocketAddrUnix) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(&socket, address)?;
    Ok(socket)
}

/// Registers a socket with the runtime.
///
/// # Errors
/// Those of `epoll_ctl(2)`.
pub(super) fn watch(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` owns a valid descriptor and always names the same one.
    Ok(unsafe { AsyncFd::register(socket) }?)
}

/// Accepts a connection, if one is waiting.
///
/// # Errors
/// Those of `accept4(2)`.
pub(super) fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::accept_with(listener, flags)?)
}

/// A listening socket; removes its file on drop.
#[derive(Debug)]
pub(super) struct ListeningSocket {
    pub(super) fd: OwnedFd,
    /// The file, with device and inode at binding: a file that has been replaced is not removed.
    file: Option<(std::path::PathBuf, u64, u64)>,
}

impl ListeningSocket {
    /// Binds and listens. A leftover socket file without a listener is replaced.
    ///
    /// # Errors
    /// `EADDRINUSE` when another listener has the address; those of `bind(2)` and `listen(2)`.
    pub(super) fn bind(address: &Address) -> io::Result<Self> {
        let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
        let at = address_of(address).ok_or_else(unsupported)??;
        let fd = socket()?;
        let file = match address {
            Address::ShmPath(path) => {
                let _lock = BindLock::take(path)?;
                remove_leftover(path, &at)?;
                rustix::net::bind(&fd, &at)?;
                // Set-up refuses processes of other users anyway.
                rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR)?;
                rustix::net::listen(&fd, BACKLOG)?;
                let (device, inode) = identity(path)?;
                Some((path.clone(), device, inode))
            }
            _ => {
                rustix::net::bind(&fd, &at)?;
                rustix::net::listen(&fd, BACKLOG)?;
                None
            }
        };
        Ok(Self { fd, file })
    }
}

impl Drop for ListeningSocket {
    fn drop(&mut self) {
        if let Some((path, device, inode)) = &self.file
            && identity(path).is_ok_and(|now| now == (*device, *inode))
        {
            // If it cannot be removed, the next listener replaces it as a leftover.
            let _ = rustix::fs::unlink(path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::lstat(path)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Removes a socket file whose server is gone.
fn remove_leftover(path: &Path, at: &SocketAddrUnix) -> io::Result<()> {
    match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_socket() => {}
        Ok(_) => {
            let reason = "the path exists and is not a socket";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, reason));
        }
    }
    match rustix::net::connect(&socket()?, at) {
        // Nobody listens: a live server accepts, or has a full backlog, or has another socket type.
        Err(Errno::CONNREFUSED) => Ok(rustix::fs::unlink(path)?),
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(Errno::ADDRINUSE.into()),
        Err(error) => Err(error.into()),
    }
}

/// Sends one message. Fails with [`io::ErrorKind::WouldBlock`] when the socket is full.
///
/// # Errors
/// Those of `sendmsg(2)`, and of `send(2)` without files.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let sent = if files.is_empty() {
        // Works where a sandbox refuses the other call too: a refusal has no files.
        rustix::net::send(socket, bytes, NEVER_WAIT)?
    } else {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, NEVER_WAIT)?
    };
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// A received message.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// Bytes written to the caller's buffer; 0 at the end of the stream.
    pub(super) len: usize,
    /// The files that came with it.
    pub(super) files: Vec<OwnedFd>,
}

/// Receives one message. Fails with [`io::ErrorKind::WouldBlock`] when none is waiting, and with
/// [`io::ErrorKind::InvalidData`] when it is longer than `bytes` or carries more files than
/// [`MAX_FILES`].
///
/// # Errors
/// Those of `recvmsg(2)`; `EMFILE` when this process had no descriptor left for a file.
pub(super) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    // The files are taken first, so that they are closed whatever else is wrong.
    let mut files = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = part {
            files.extend(fds);
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) && files.is_empty() {
        // When no descriptor is left for it, the kernel drops the file and delivers the message.
        return Err(Errno::MFILE.into());
    }
    if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        let reason = "a message is too long, or carries too many files";
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    Ok(Received { len: message.bytes, files })
}

/// Takes a message that [`receive`] was not allowed to take, so that closing the socket does not
/// discard what was sent to the peer. The kernel closes the files that it brings.
pub(super) fn discard(socket: BorrowedFd<'_>) {
    let _ = rustix::io::read(socket, &mut [0_u8]);
}

/// Whether a system call failed because this process may not make it, as in a sandbox.
pub(super) fn is_forbidden(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES))
}

/// A short message.
#[derive(Debug)]
pub(super) struct Small<'a> {
    /// At most 8 bytes; a longer message is truncated.
    pub(super) bytes: &'a [u8],
    /// The file that came with it, unless this process had no descriptor left for it.
    pub(super) file: Option<OwnedFd>,
}

/// Receives up to [`BATCH`] waiting messages in one system call. Returns how many there were.
///
/// # Errors
/// Those of `recvmmsg(2)`.
pub(super) fn receive_batch(
    socket: BorrowedFd<'_>,
    mut take: impl FnMut(Small<'_>),
) -> io::Result<usize> {
    let mut bytes = [[0_u8; 8]; BATCH];
    // Room for a header and one file per message; `u64` gives the alignment that headers need.
    let mut control = [[0_u64; 3]; BATCH];
    let mut pieces = bytes
        .each_mut()
        .map(|bytes| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() });
    // SAFETY: all fields of an mmsghdr may be zero.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
    for ((message, piece), control) in messages.iter_mut().zip(&mut pieces).zip(&mut control) {
        message.msg_hdr.msg_iov = piece;
        message.msg_hdr.msg_iovlen = 1;
        message.msg_hdr.msg_control = control.as_mut_ptr().cast();
        // The type differs in musl, as do the flags below.
        message.msg_hdr.msg_controllen = size_of_val(control) as _;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let count = libc::c_uint::try_from(BATCH).unwrap_or(0);
    let none = std::ptr::null_mut();
    // SAFETY: `messages` are `BATCH` headers, whose bytes and control bytes are valid for writes.
    let received = unsafe {
        libc::recvmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count, flags as _, none)
    };
    let Ok(received) = usize::try_from(received) else {
        let error = io::Error::last_os_error();
        return if is_forbidden(&error) { receive_singly(socket, take) } else { Err(error) };
    };
    for (message, bytes) in messages[..received].iter().zip(&bytes) {
        let len = usize::try_from(message.msg_len).map_or(0, |len| len.min(bytes.len()));
        take(Small { bytes: &bytes[..len], file: take_file(&message.msg_hdr) });
    }
    Ok(received)
}

/// Like [`receive_batch`], with one system call per message: for sandboxes that refuse
/// `recvmmsg(2)`.
#[cold]
fn receive_singly(socket: BorrowedFd<'_>, mut take: impl FnMut(Small<'_>)) -> io::Result<usize> {
    for count in 0..BATCH {
        let mut bytes = [0; 8];
        match receive(socket, &mut bytes) {
            Ok(Received { len, files }) => {
                take(Small { bytes: &bytes[..len], file: files.into_iter().next() });
            }
            // Too long, or with too many files: ignored as in a batch.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
            // A file comes with an rkey.
            Err(error) if open_files::advice(&error).is_some() => {
                take(Small { bytes: &bytes[..4], file: None });
            }
            Err(_) if count > 0 => return Ok(count),
            Err(error) => return Err(error),
        }
    }
    Ok(BATCH)
}

/// The first file of a received message; any others are closed.
fn take_file(message: &libc::msghdr) -> Option<OwnedFd> {
    // SAFETY: the kernel has filled in the control bytes, and their length says how many.
    let header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null, or a header inside the control bytes, which are aligned for it.
    let head = unsafe { header.as_ref() }?;
    if (head.cmsg_level, head.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
        return None;
    }
    // SAFETY: pure arithmetic.
    let empty = unsafe { libc::CMSG_LEN(0) };
    // The type differs between C libraries.
    let bytes: usize = head.cmsg_len.saturating_sub(empty as _) as _;
    let count = bytes / size_of::<libc::c_int>();
    // SAFETY: `header` lies inside the control bytes, so its data starts inside them or at their
    // end.
    let first = unsafe { libc::CMSG_DATA(header) }.cast::<libc::c_int>();
    let mut files = (0..count).map(|i| {
        // SAFETY: `cmsg_len` says that `count` descriptors follow the header.
        let at = unsafe { first.add(i) };
        // SAFETY: as above; they need not be aligned.
        let fd = unsafe { at.read_unaligned() };
        // SAFETY: the kernel has just opened it for this process, and nothing else owns it.
        unsafe { OwnedFd::from_raw_fd(fd) }
    });
    let file = files.next();
    files.for_each(drop);
    file
}

/// Credentials of the process at the other end, attested by the kernel: those that it had when it
/// connected or started to listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Credentials {
    /// 0 when the process is not visible in this process's pid namespace.
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// The credentials of the peer of a connected socket.
///
/// # Errors
/// That `getsockopt` is refused.
pub(super) fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    // Not rustix's wrapper: its pid type cannot hold the 0 that stands for another pid namespace.
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let size = size_of::<libc::ucred>();
    let mut len = libc::socklen_t::try_from(size).unwrap_or(0);
    // SAFETY: `found` and `len` are valid for the kernel to write `len` bytes and the length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut found).cast(),
            &mut len,
        )
    };
    if result != 0 {
        return Err(Errno::from_io_error(&io::Error::last_os_error())
            .map_or_else(|| io::ErrorKind::Other.into(), refused("getsockopt")));
    }
    if len as usize != size {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Credentials { pid: u32::try_from(found.pid).unwrap_or(0), uid: found.uid, gid: found.gid })
}

/// Checks that the peer belongs to the user of this process.
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`], naming both users, if not.
pub(super) fn check_user(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let peer = peer_credentials(socket.as_fd())?;
    let own = rustix::process::geteuid().as_raw();
    if peer.uid == own {
        return Ok(peer);
    }
    let reason = format!(
        "the peer belongs to user {}, this process to user {own}; run both ends as the same user, or \
         use tcp://",
        peer.uid
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}
