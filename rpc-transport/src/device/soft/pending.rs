//! Handshakes in progress: bounded in number and in time.
//!
//! Owns the tasks that talk to peers which have connected but not yet sent their request, and when
//! the next peer is accepted. Never lets pending handshakes keep others out: above the limit, and
//! when no file descriptor is left, the oldest is dropped, since an honest peer takes only
//! milliseconds. Keeps one spare descriptor: if there is no other, and no handshake to drop, the
//! next peer is accepted with it and receives the reason of its refusal.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::address::Address;
use crate::device::connection_error::ListenError;
use crate::device::open_files;
use crate::log_limit::LogLimit;

/// Most handshakes at a time, where the limit on open files allows that.
const MAX_PENDING: usize = 256;
/// Time limit of one handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that each handshake has, however many others wait. Also the pause before the next
/// `accept(2)` when the system has no room for another connection and there is no handshake to
/// drop.
const MIN_HANDSHAKE_TIME: Duration = Duration::from_millis(50);

/// Handshakes, each of which yields a `T` or fails.
#[derive(Debug)]
pub(super) struct Pending<T> {
    tasks: JoinSet<Option<T>>,
    /// The tasks with their start times, oldest first; some may have ended already.
    oldest: VecDeque<(AbortHandle, Instant)>,
    /// Nobody is accepted before this time, unless a handshake ends.
    paused_until: Option<Instant>,
    spare: Spare,
    open_spare: fn() -> Option<OwnedFd>,
    dropped: LogLimit,
    not_accepted: LogLimit,
}

/// A file descriptor kept in reserve.
#[derive(Debug)]
enum Spare {
    Kept {
        _fd: OwnedFd,
    },
    /// Given up for the next peer; the reason why no other descriptor was left for it.
    Lent(String),
    /// The peer that has it is still connected, or the system had none.
    Missing,
}

/// Opens a file that is of no use but to be closed; `None`: there is no descriptor left.
fn open_spare() -> Option<OwnedFd> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()
}

/// Most handshakes at a time. Asked each time, since `prlimit` may change the limit of a running
/// process.
fn most() -> usize {
    open_files::handshakes(MAX_PENDING)
}

/// Something that happened at a listener.
#[derive(Debug)]
pub(super) enum Event<S, T> {
    /// A handshake has succeeded.
    Ready(T),
    /// A peer has connected: its handshake is to be started.
    Accepted(S),
    /// A peer has connected, and there is no file descriptor for it: the listener is to refuse it,
    /// for this reason.
    Refused(S, String),
    /// Nothing for the listener: a handshake has failed, or a pause is over.
    Other,
}

impl<T: Send + 'static> Pending<T> {
    pub(super) fn new() -> Self {
        Self::with_spares(open_spare)
    }

    fn with_spares(open_spare: fn() -> Option<OwnedFd>) -> Self {
        let mut new = Self {
            tasks: JoinSet::new(),
            oldest: VecDeque::new(),
            paused_until: None,
            spare: Spare::Missing,
            open_spare,
            dropped: LogLimit::new("handshakes dropped to make room"),
            not_accepted: LogLimit::new("failures to accept a connection"),
        };
        new.find_spare();
        new
    }

    /// Whether a descriptor is free, which is kept then.
    fn find_spare(&mut self) -> bool {
        let found = (self.open_spare)();
        self.spare = found.map_or(Spare::Missing, |fd| Spare::Kept { _fd: fd });
        matches!(self.spare, Spare::Kept { .. })
    }

    /// Starts a handshake. It is dropped after [`HANDSHAKE_TIMEOUT`].
    pub(super) fn start(&mut self, handshake: impl Future<Output = Option<T>> + Send + 'static) {
        let bounded = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake);
        let task = self.tasks.spawn(async { bounded.await.ok().flatten() });
        self.oldest.retain(|(task, _)| !task.is_finished());
        self.oldest.push_back((task, Instant::now()));
    }

    /// Waits until a handshake has ended, or until a peer has connected while there is room for it.
    /// Cancel-safe if `accept` is.
    ///
    /// # Errors
    /// The listener at `address` is broken.
    pub(super) async fn next<S>(
        &mut self,
        address: &Address,
        accept: impl Future<Output = io::Result<S>>,
    ) -> Result<Event<S, T>, ListenError> {
        if matches!(self.spare, Spare::Missing) && self.tasks.is_empty() {
            self.find_spare();
        }
        // A dropped handshake counts until its task has ended, since it has its file until then.
        if self.tasks.len() > most() && self.paused_until.is_none() {
            self.make_room(Instant::now());
        }
        let pause = self.paused_until;
        let over = async {
            match pause {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let has_tasks = !self.tasks.is_empty();
        tokio::select! {
            biased;
            Some(ended) = self.tasks.join_next(), if has_tasks => {
                self.paused_until = None;
                Ok(ended.ok().flatten().map_or(Event::Other, Event::Ready))
            }
            () = over => {
                self.paused_until = None;
                Ok(Event::Other)
            }
            accepted = accept, if pause.is_none() => match accepted {
                Ok(peer) => Ok(match std::mem::replace(&mut self.spare, Spare::Missing) {
                    // `accept(2)` lacks a descriptor before there is a peer, and a peer may come
                    // much later.
                    Spare::Lent(why) if !self.find_spare() => Event::Refused(peer, why),
                    Spare::Lent(_) => Event::Accepted(peer),
                    other => {
                        self.spare = other;
                        Event::Accepted(peer)
                    }
                }),
                Err(error) => self.survive(address, error).map(|()| Event::Other),
            },
        }
    }

    /// Handles a failed `accept(2)`. A failure that concerns one peer only, or is temporary (no
    /// file descriptors left), is logged and the listener goes on; any other ends it.
    fn survive(&mut self, address: &Address, error: io::Error) -> Result<(), ListenError> {
        match error.raw_os_error() {
            Some(
                libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM
                // A sandbox or a firewall: retrying at once would keep a core busy.
                | libc::EPERM | libc::EACCES | libc::ENOSYS,
            ) => {
                let text = open_files::explain(&error);
                self.not_accepted.fault(std::time::Instant::now(), || {
                    tracing::warn!(%address, error = %text, "cannot accept now");
                });
                let may_lend = self.tasks.is_empty() && open_files::advice(&error).is_some();
                match std::mem::replace(&mut self.spare, Spare::Missing) {
                    Spare::Kept { .. } if may_lend => self.spare = Spare::Lent(text),
                    kept @ Spare::Kept { .. } => {
                        self.spare = kept;
                        self.make_room(Instant::now());
                    }
                    // Another thread of this process was faster, or the system has no descriptor
                    // left either.
                    _ => self.make_room(Instant::now()),
                }
                Ok(())
            }
            Some(libc::EBADF | libc::EINVAL | libc::ENOTSOCK | libc::EFAULT) | None => {
                let (address, reason) = (address.clone(), error.to_string());
                Err(ListenError::Failed { address, reason })
            }
            Some(_) => {
                tracing::debug!(%address, %error, "a connection was lost before it was accepted");
                Ok(())
            }
        }
    }

    /// Drops the oldest handshake that has used its time, and accepts nobody until one has ended.
    fn make_room(&mut self, now: Instant) {
        self.oldest.retain(|(task, _)| !task.is_finished());
        let mut until = now + MIN_HANDSHAKE_TIME;
        if let Some((oldest, since)) = self.oldest.front() {
            if *since + MIN_HANDSHAKE_TIME <= now {
                self.dropped.fault(std::time::Instant::now(), || {
                    tracing::warn!(
                        "too many peers connect without sending anything: dropping the \
                                    oldest"
                    );
                });
                oldest.abort();
                self.oldest.pop_front();
            } else {
                until = *since + MIN_HANDSHAKE_TIME;
            }
        }
        self.paused_until = Some(until);
    }
}

#[cfg(test)]
mod tests;
