//! The connection manager's thread, as the rest of the process sees it.
//!
//! Owns the queue of commands to it, and their contents. Never waits for the thread, and never
//! starts it: [`dispatcher`](super::dispatcher), which is the thread, does that.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::{mpsc, oneshot};

use crate::device::QpHandle;
use crate::user_code::caught;

use super::cm_id::Dial;
use super::device::VerbsDevice;
use super::failure::Failure;
use super::id_link::{IdKey, IdLink, IdOwner};
use super::options::SetupOptions;
use super::queue_pair::{QpGuard, Transition};
use super::reaper::{InUse, Token};

/// An id whose device is known, so that a QP can be created for it.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) device: Arc<VerbsDevice>,
    pub(super) init: Transition,
    pub(super) local: Option<SocketAddr>,
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

/// Sends an answer, unless nobody waits for it any more. The waker is the caller's code: a panic of
/// it ends here.
pub(super) fn send_answer<T>(waiting: oneshot::Sender<T>, answer: T) {
    caught(|| drop(waiting.send(answer)));
}

/// The QP of a connection that is being set up.
#[derive(Debug)]
pub(super) struct SetupQp {
    /// Weak, so that a QP whose owner destroys it is not kept alive.
    guard: Weak<QpGuard>,
    pub(super) handle: QpHandle,
}

impl SetupQp {
    pub(super) fn new(guard: &Arc<QpGuard>, handle: QpHandle) -> Self {
        Self { guard: Arc::downgrade(guard), handle }
    }

    /// The QP, unless its owner has destroyed it.
    pub(super) fn in_use(&self) -> Option<InUse<QpGuard>> {
        InUse::of(&self.guard)
    }
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
    /// The call that connects has returned, on a device where it waits for the peer.
    Dialed { key: IdKey, dial: Dial, outcome: io::Result<()> },
    /// An id has been destroyed whose peer had to be awaited.
    Destroyed { key: IdKey },
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

impl Service {
    /// An empty queue of commands.
    ///
    /// # Errors
    /// When this process may have no further file.
    pub(super) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { commands: Mutex::default(), bell })
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

impl IdOwner for Service {
    fn disconnect(&self, key: IdKey) {
        self.send(Command::Disconnect { key });
    }

    fn close(&self, key: IdKey) {
        self.send(Command::Close { key, token: Token::take() });
    }
}
