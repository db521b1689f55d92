//! Handshakes in progress: bounded in number and in time.
//!
//! Owns the tasks that talk to peers which have connected but not yet sent their request, and when
//! the next peer is accepted. Never lets those there are keep others out: above the limit, and when
//! no file descriptor is left, the oldest is dropped, since an honest peer takes only milliseconds.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::connect::address::Address;
use crate::connect::error::ListenError;
use crate::device::open_files;
use crate::log_limit::LogLimit;

/// Most handshakes at a time, where the limit on open files allows that.
const MAX_PENDING: usize = 256;
/// Time limit of one handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that each handshake has, however many others wait; and the pause before the next `accept(2)`
/// when the system has no room for another connection and there is no handshake to be dropped.
const TURN: Duration = Duration::from_millis(50);

/// Handshakes, each of which yields a `T` or fails.
#[derive(Debug)]
pub(super) struct Pending<T> {
    tasks: JoinSet<Option<T>>,
    /// The tasks and when they began, oldest first; some may have ended already.
    oldest: VecDeque<(AbortHandle, Instant)>,
    /// Nobody is accepted before, unless a handshake ends.
    paused_until: Option<Instant>,
    dropped: LogLimit,
    not_accepted: LogLimit,
}

/// Most handshakes at a time. Asked each time, as `prlimit` may change the limit while we run.
fn most() -> usize {
    open_files::handshakes(MAX_PENDING)
}

/// What has happened at a listener.
#[derive(Debug)]
pub(super) enum Event<S, T> {
    /// A handshake has succeeded.
    Ready(T),
    /// A peer has connected: its handshake is to be started.
    Accepted(S),
    /// Nothing for the listener: a handshake has failed, or a pause is over.
    Other,
}

impl<T: Send + 'static> Pending<T> {
    pub(super) fn new() -> Self {
        Self {
            tasks: JoinSet::new(),
            oldest: VecDeque::new(),
            paused_until: None,
            dropped: LogLimit::new("handshakes that gave way to others"),
            not_accepted: LogLimit::new("times that no connection could be accepted"),
        }
    }

    /// Starts a handshake. It is dropped after [`HANDSHAKE_TIMEOUT`].
    pub(super) fn start(&mut self, handshake: impl Future<Output = Option<T>> + Send + 'static) {
        let bounded = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake);
        let task = self.tasks.spawn(async { bounded.await.ok().flatten() });
        self.oldest.retain(|(task, _)| !task.is_finished());
        self.oldest.push_back((task, Instant::now()));
    }

    /// Waits until a handshake has ended, or a peer has connected; there is room for one then.
    /// Cancel-safe if `accept` is.
    ///
    /// # Errors
    /// The listener at `address` is broken.
    pub(super) async fn next<S>(
        &mut self,
        address: &Address,
        accept: impl Future<Output = io::Result<S>>,
    ) -> Result<Event<S, T>, ListenError> {
        // One that was dropped counts until its task has ended, as it has its file until then.
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
                Ok(peer) => Ok(Event::Accepted(peer)),
                Err(error) => self.survive(address, error).map(|()| Event::Other),
            },
        }
    }

    /// Handles a failed `accept(2)`. A failure that concerns one peer only, or is temporary (no file
    /// descriptors left), is logged and the listener goes on; any other ends it.
    fn survive(&mut self, address: &Address, error: io::Error) -> Result<(), ListenError> {
        match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                self.not_accepted.fault(std::time::Instant::now(), || {
                    let error = open_files::explain(&error);
                    tracing::warn!(%address, %error, "cannot accept now");
                });
                self.make_room(Instant::now());
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

    /// Drops the oldest handshake that has had its time, and accepts nobody until one has ended.
    fn make_room(&mut self, now: Instant) {
        self.oldest.retain(|(task, _)| !task.is_finished());
        let mut until = now + TURN;
        if let Some((oldest, since)) = self.oldest.front() {
            if *since + TURN <= now {
                self.dropped.fault(std::time::Instant::now(), || {
                    tracing::warn!("peers connect and say nothing: the oldest is dropped");
                });
                oldest.abort();
                self.oldest.pop_front();
            } else {
                until = *since + TURN;
            }
        }
        self.paused_until = Some(until);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Weak};

    use super::*;

    /// A listener whose peers say nothing; each holds what stands for its file.
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

        /// Which peers are still there.
        fn open(&self) -> Vec<usize> {
            let files = self.files.iter().enumerate();
            files.filter(|(_, file)| file.strong_count() > 0).map(|(peer, _)| peer).collect()
        }

        /// Goes on until `accept` has been asked, and says whether it has accepted.
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

    fn out_of_files() -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EMFILE))
    }

    /// 1,000 silent peers kept honest ones out of a server that had fewer files, as long as they liked.
    #[tokio::test(start_paused = true)]
    async fn without_a_file_the_oldest_handshake_gives_way_once_it_has_had_its_turn() {
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

    #[tokio::test(start_paused = true)]
    async fn handshakes_that_have_ended_do_not_give_way_before_one_that_lasts() {
        let mut silence = Silence::new(0);
        for _ in 0..3 {
            silence.pending.start(async { None });
        }
        silence.start();
        while silence.pending.tasks.len() > 1 {
            silence.pending.tasks.join_next().await;
        }
        tokio::time::advance(TURN).await;
        assert!(!silence.accept(out_of_files).await);
        assert!(silence.accept(|| Ok(())).await);
        assert_eq!(silence.open(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn above_the_limit_nobody_is_accepted_until_the_oldest_has_gone() {
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
