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
mod tests {
    use std::sync::{Arc, Weak};

    use super::*;

    /// A listener with silent peers; each holds an object in place of its file.
    struct Silence {
        pending: Pending<()>,
        files: Vec<Weak<()>>,
    }

    impl Silence {
        fn new(count: usize) -> Self {
            let mut silence = Self { pending: Pending::new(), files: Vec::new() };
            (0..count).for_each(|_| silence.start());
            silence
        }

        fn start(&mut self) {
            let file = Arc::new(());
            self.files.push(Arc::downgrade(&file));
            self.pending.start(async move {
                std::future::pending::<()>().await;
                drop(file);
                None
            });
        }

        /// The peers that are still connected.
        fn open(&self) -> Vec<usize> {
            let files = self.files.iter().enumerate();
            files.filter(|(_, file)| file.strong_count() > 0).map(|(peer, _)| peer).collect()
        }

        /// Runs until `accept` has been called, and returns whether it has accepted.
        async fn accept(&mut self, accept: impl Fn() -> io::Result<()>) -> bool {
            let address = Address::ShmName("silence".to_owned());
            let asked = std::cell::Cell::new(false);
            loop {
                let accept = async {
                    asked.set(true);
                    accept()
                };
                match self.pending.next(&address, accept).await.expect("the listener lives") {
                    Event::Accepted(()) => return true,
                    Event::Other if asked.get() => return false,
                    _ => {}
                }
            }
        }
    }

    thread_local! {
        static IS_FULL: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }

    fn spare_if_free() -> Option<OwnedFd> {
        (!IS_FULL.get()).then(open_spare).flatten()
    }

    fn out_of_files() -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EMFILE))
    }

    /// A regression: 1,000 silent peers kept honest ones out of a server that had fewer files, for
    /// as long as they liked.
    #[tokio::test(start_paused = true)]
    async fn out_of_descriptors_evicts_the_oldest_handshake() {
        let mut silence = Silence::new(3);
        assert!(!silence.accept(out_of_files).await);
        assert_eq!(silence.open(), [0, 1, 2], "they have just come");
        assert!(!silence.accept(out_of_files).await);
        assert!(silence.accept(|| Ok(())).await);
        assert_eq!(silence.open(), [1, 2]);
        assert!(!silence.accept(out_of_files).await);
        assert!(silence.accept(|| Ok(())).await);
        assert_eq!(silence.open(), [2]);
    }

    /// A regression: clients waited in the backlog until their own time limit, whose error blamed
    /// firewalls.
    #[tokio::test(start_paused = true)]
    async fn without_any_file_the_next_peer_hears_why() {
        let mut pending = Pending::<()>::with_spares(spare_if_free);
        let address = Address::ShmName("full".to_owned());
        for _ in 0..2 {
            let lack = async { out_of_files() };
            let event = pending.next(&address, lack).await;
            assert!(matches!(event, Ok(Event::Other)), "{event:?}");
            let start = Instant::now();
            IS_FULL.set(true);
            let event = pending.next(&address, async { Ok(()) }).await;
            let Ok(Event::Refused((), why)) = event else { panic!("{event:?}") };
            assert!(why.contains("ulimit -n"), "{why}");
            assert_eq!(Instant::now(), start, "no pause");
            IS_FULL.set(false);
        }
        let event = pending.next(&address, async { Ok(()) }).await;
        assert!(matches!(event, Ok(Event::Accepted(()))), "{event:?}");
    }

    /// A regression: after one shortage the next peer was refused, hours later and with all files
    /// free.
    #[tokio::test(start_paused = true)]
    async fn a_peer_after_a_shortage_is_welcome() {
        let mut pending = Pending::<()>::with_spares(spare_if_free);
        let address = Address::ShmName("free-again".to_owned());
        let lack = async { out_of_files() };
        assert!(matches!(pending.next(&address, lack).await, Ok(Event::Other)));
        for _ in 0..2 {
            let event = pending.next(&address, async { Ok(()) }).await;
            assert!(matches!(event, Ok(Event::Accepted(()))), "{event:?}");
        }
        // The spare is back for the next shortage.
        let lack = async { out_of_files() };
        assert!(matches!(pending.next(&address, lack).await, Ok(Event::Other)));
        IS_FULL.set(true);
        let event = pending.next(&address, async { Ok(()) }).await;
        assert!(matches!(event, Ok(Event::Refused(..))), "{event:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn refused_accept_is_not_retried_at_once() {
        for errno in [libc::EPERM, libc::EACCES, libc::ENOSYS] {
            let mut pending = Pending::<()>::new();
            let address = Address::ShmName("sandbox".to_owned());
            let refused = async { io::Result::<()>::Err(io::Error::from_raw_os_error(errno)) };
            let event = pending.next(&address, refused).await;
            assert!(matches!(event, Ok(Event::Other)), "{event:?}");
            assert!(pending.paused_until.is_some(), "errno {errno}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ended_handshakes_are_not_evicted_first() {
        let mut silence = Silence::new(0);
        for _ in 0..3 {
            silence.pending.start(async { None });
        }
        silence.start();
        while silence.pending.tasks.len() > 1 {
            silence.pending.tasks.join_next().await;
        }
        tokio::time::advance(MIN_HANDSHAKE_TIME).await;
        assert!(!silence.accept(out_of_files).await);
        assert!(silence.accept(|| Ok(())).await);
        assert_eq!(silence.open(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_limit_accepting_waits_for_an_eviction() {
        let most = most();
        let mut silence = Silence::new(most);
        assert!(silence.accept(|| Ok(())).await, "one more");
        silence.start();
        assert_eq!(silence.open().len(), most + 1);
        assert!(silence.accept(|| Ok(())).await);
        assert_eq!(silence.open(), (1..=most).collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn a_handshake_that_ends_makes_room_at_once() {
        let mut silence = Silence::new(1);
        assert!(!silence.accept(out_of_files).await);
        silence.pending.start(async { Some(()) });
        let address = Address::ShmName("silence".to_owned());
        let never = std::future::pending::<io::Result<()>>();
        let start = Instant::now();
        let event = silence.pending.next(&address, never).await;
        assert!(matches!(event, Ok(Event::Ready(()))), "{event:?}");
        assert!(silence.accept(|| Ok(())).await);
        assert_eq!(
            (Instant::now(), silence.open()),
            (start, vec![0]),
            "no pause, and none dropped"
        );
    }
}
