//! The connection manager's thread, as the rest of the process sees it.
//!
//! Owns the one thread on which all of librdmacm runs ([`dispatcher`](super::dispatcher)), the
//! queue of commands to it, and the keys of ids. Never waits for it.
//!
//! Invariants:
//! 1. There is one thread and one event channel per process, started with the first command and
//!    kept.
//! 2. A key ([`IdKey`]) is never used twice, so a command for an id that is gone reaches no other
//!    id.
//! 3. An id is closed, at the latest, when the last [`IdLink`] to it is dropped.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::{mpsc, oneshot};

use crate::device::QpHandle;

use super::cm_id::CmChannel;
use super::device::VerbsDevice;
use super::dispatcher::Dispatcher;
use super::failure::Failure;
use super::options::SetupOptions;
use super::queue_pair::{QpGuard, Transition};
use super::reaper::Token;

/// Identifies an id of the connection manager. It travels through the kernel as the id's context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct IdKey(usize);

impl IdKey {
    /// No id.
    pub(super) const NONE: Self = Self(0);

    /// A new key.
    pub(super) fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Never wraps with 64 bits. A 32-bit address space has 2^32 keys; no such machine is known
        // with RDMA.
        Self(usize::try_from(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap_or(0))
    }

    /// Encodes as the context of an id: a number, not an address.
    pub(super) fn to_context(self) -> *mut std::ffi::c_void {
        std::ptr::without_provenance_mut(self.0)
    }

    /// Decodes the context of an id.
    pub(super) fn from_context(context: *mut std::ffi::c_void) -> Self {
        Self(context.addr())
    }
}

/// An id whose device is known, so that a QP can be created for it.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) device: Arc<VerbsDevice>,
    pub(super) init: Transition,
    pub(super) peer: Option<SocketAddr>,
}

/// A connection request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) link: IdLink,
    pub(super) resolved: Resolved,
    pub(super) private_data: Vec<u8>,
}

/// Answers a command once: with the peer's private data, if there is any.
pub(super) type Answer<T> = oneshot::Sender<Result<T, Failure>>;

/// The QP of a connection that is being set up.
#[derive(Debug)]
pub(super) struct SetupQp {
    /// Weak, so that a QP that is destroyed meanwhile is not kept alive.
    pub(super) guard: Weak<QpGuard>,
    pub(super) handle: QpHandle,
}

/// A command to the thread.
#[derive(Debug)]
pub(super) enum Command {
    /// Find a device and a route; from an address of this machine, if one is given.
    Resolve {
        key: IdKey,
        from: Option<SocketAddr>,
        to: SocketAddr,
        options: Arc<SetupOptions>,
        answer: Answer<Resolved>,
    },
    /// Listen.
    Listen {
        key: IdKey,
        at: SocketAddr,
        options: Arc<SetupOptions>,
        requests: mpsc::Sender<Result<Request, Failure>>,
        answer: Answer<SocketAddr>,
    },
    /// Connect a resolved id.
    Connect { key: IdKey, qp: SetupQp, private_data: Vec<u8>, answer: Answer<Vec<u8>> },
    /// Accept a request.
    Accept { key: IdKey, qp: SetupQp, private_data: Vec<u8>, answer: Answer<Vec<u8>> },
    /// Refuse a request.
    Reject { key: IdKey, private_data: Vec<u8>, done: oneshot::Sender<()> },
    /// A worker has moved the QP to RTS, or could not.
    Ready { key: IdKey, outcome: io::Result<()> },
    /// The QP is in ERR.
    Disconnect { key: IdKey },
    /// The owner has dropped the id.
    Close { key: IdKey, token: Token },
}

/// Handle to the connection manager's thread.
#[derive(Debug)]
pub(super) struct Service {
    commands: Mutex<Vec<Command>>,
    bell: OwnedFd,
}

static SERVICE: Mutex<Option<&'static Service>> = Mutex::new(None);

impl Service {
    /// Returns the service, starting it if necessary (invariant 1).
    ///
    /// # Errors
    /// When the machine has no connection manager, or this process may not use it. The next call
    /// tries again.
    pub(super) fn get() -> io::Result<&'static Self> {
        let mut service = SERVICE.lock();
        if let Some(service) = *service {
            return Ok(service);
        }
        let channel = CmChannel::open()?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let started: &'static Self = Box::leak(Box::new(Self { commands: Mutex::default(), bell }));
        let thread = std::thread::Builder::new().name("rdma-cm".to_owned());
        thread.spawn(move || Dispatcher::new(started, channel).run())?;
        *service = Some(started);
        Ok(started)
    }

    /// Sends a command.
    pub(super) fn send(&self, command: Command) {
        self.commands.lock().push(command);
        // EAGAIN means that the counter is full, so the fd is readable already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// The fd that is readable when there are commands.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Takes all commands.
    pub(super) fn take(&self, into: &mut Vec<Command>) {
        // EAGAIN means that it was not rung.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        into.append(&mut self.commands.lock());
    }
}

/// A shared handle to an id. Dropping the last one closes the id.
#[derive(Debug, Clone)]
pub(super) struct IdLink(Arc<Share>);

#[derive(Debug)]
struct Share {
    key: IdKey,
    service: &'static Service,
}

impl IdLink {
    /// The first handle to an id.
    pub(super) fn new(service: &'static Service, key: IdKey) -> Self {
        Self(Arc::new(Share { key, service }))
    }

    /// The id's key.
    pub(super) fn key(&self) -> IdKey {
        self.0.key
    }

    /// The thread that owns the id.
    pub(super) fn service(&self) -> &'static Service {
        self.0.service
    }

    /// Tells the peer that the QP is in ERR.
    pub(super) fn disconnect(&self) {
        self.0.service.send(Command::Disconnect { key: self.0.key });
    }

    /// Closes the id at once, even if others hold a handle. Harmless if it is already closed.
    pub(super) fn close(&self) {
        self.0.close();
    }
}

impl Share {
    fn close(&self) {
        self.service.send(Command::Close { key: self.key, token: Token::take() });
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.close();
    }
}
