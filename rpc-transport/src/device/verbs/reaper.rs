//! A thread that destroys device objects, so that no worker waits for it.
//!
//! Owns the order of destruction: first in, first out. A child holds its parent's `Arc`, so the
//! parent's job is queued after the child's: QP, then its buffers and MRs, then CQ and PD. Never
//! looks at what it destroys.
//!
//! Destroyed objects may hold user memory, whose destructors may panic. A panic ends only its own
//! job; later jobs still run.
//!
//! Destroying may wait: for the kernel, for an event that is being handled, for pages to be
//! unpinned (a millisecond for 64 MiB).

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::user_code::caught;
use crate::wait::after;

type Job = Box<dyn FnOnce() + Send>;

/// Number of objects that are not yet destroyed, or are in use, here and on the connection
/// manager's thread.
struct Outstanding {
    count: Mutex<usize>,
    none: Condvar,
}

static OUTSTANDING: Outstanding = Outstanding { count: Mutex::new(0), none: Condvar::new() };

/// Stands for one object that is waiting to be destroyed.
#[derive(Debug)]
pub(super) struct Token(());

impl Token {
    /// Counts one more object.
    pub(super) fn take() -> Self {
        *OUTSTANDING.count.lock() += 1;
        Self(())
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        let mut count = OUTSTANDING.count.lock();
        *count -= 1;
        if *count == 0 {
            OUTSTANDING.none.notify_all();
        }
    }
}

/// An object while a thread other than its owner's uses it. If the owner drops it in the meantime,
/// it is destroyed when this use has ended, and counts until then.
#[derive(Debug)]
pub(super) struct InUse<T> {
    object: Arc<T>,
    /// Dropped after the object, which has taken its own token by then if nobody else has it.
    _token: Token,
}

impl<T> InUse<T> {
    /// `None` if its owner has dropped it.
    pub(super) fn of(object: &Weak<T>) -> Option<Self> {
        // Taken first: from now on a thread that drops the object finds it counted.
        let token = Token::take();
        object.upgrade().map(|object| Self { object, _token: token })
    }

    /// For a use that lasts as long as a peer is silent. It does not count until the peer has
    /// answered, nor after everybody has stopped waiting for that answer.
    pub(super) fn into_inner(self) -> Arc<T> {
        self.object
    }
}

impl<T> Deref for InUse<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.object
    }
}

/// Waits until every object that was dropped before this call has also been destroyed in the
/// device, or until `limit` has passed. Returns true when all are destroyed. Meant for orderly
/// exits and for tests: nothing depends on it, and it blocks the thread.
#[must_use]
pub fn wait_for_teardown(limit: Duration) -> bool {
    let deadline = after(Instant::now(), limit);
    let mut count = OUTSTANDING.count.lock();
    while *count > 0 {
        if OUTSTANDING.none.wait_until(&mut count, deadline).timed_out() {
            return *count == 0;
        }
    }
    true
}

struct Reaper {
    jobs: Mutex<VecDeque<(Job, Token)>>,
    more: Condvar,
}

impl Reaper {
    fn run(&self) {
        loop {
            let mut jobs = self.jobs.lock();
            while jobs.is_empty() {
                self.more.wait(&mut jobs);
            }
            let next = jobs.pop_front();
            drop(jobs);
            if let Some((job, token)) = next {
                caught(job);
                // Dropped last: the job may have dropped parents, which have taken their own tokens
                // by now.
                drop(token);
            }
        }
    }
}

/// The thread lives as long as the process, and sleeps while there is nothing to destroy.
static REAPER: LazyLock<Option<&'static Reaper>> = LazyLock::new(|| {
    let reaper: &'static Reaper =
        Box::leak(Box::new(Reaper { jobs: Mutex::default(), more: Condvar::new() }));
    let thread = std::thread::Builder::new().name("rdma-reaper".to_owned());
    match thread.spawn(|| reaper.run()) {
        Ok(_) => Some(reaper),
        Err(error) => {
            tracing::warn!(%error, "cannot start the teardown thread: destroying objects where \
                                    they are dropped");
            None
        }
    }
});

/// Runs `job` on the reaper's thread, after all jobs before it.
pub(super) fn dispose(job: impl FnOnce() + Send + 'static) {
    let Some(reaper) = *REAPER else {
        caught(job);
        return;
    };
    reaper.jobs.lock().push_back((Box::new(job), Token::take()));
    reaper.more.notify_one();
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    struct Noted(&'static str, Option<Arc<Noted>>, mpsc::Sender<&'static str>);

    impl Drop for Noted {
        fn drop(&mut self) {
            let (name, parent, notes) = (self.0, self.1.take(), self.2.clone());
            dispose(move || {
                let _ = notes.send(name);
                drop(parent);
            });
        }
    }

    #[test]
    fn waiting_takes_any_limit() {
        let _ = wait_for_teardown(Duration::ZERO);
        let (notes, noted) = mpsc::channel();
        drop(Arc::new(Noted("pd", None, notes)));
        assert!(wait_for_teardown(Duration::MAX));
        assert_eq!(noted.recv(), Ok("pd"));
    }

    #[test]
    fn children_are_destroyed_first_and_all_are_awaited() {
        let (notes, noted) = mpsc::channel();
        let pd = Arc::new(Noted("pd", None, notes.clone()));
        let cq = Arc::new(Noted("cq", Some(Arc::clone(&pd)), notes.clone()));
        let qp = Noted("qp", Some(Arc::clone(&cq)), notes);
        drop((pd, cq, qp));
        assert!(wait_for_teardown(Duration::from_secs(60)));
        assert_eq!(noted.iter().collect::<Vec<_>>(), ["qp", "cq", "pd"]);
    }

    /// A regression: the connection manager's thread used a queue pair for a moment when its owner
    /// dropped it. Waiting reported it gone while its memory was not free yet (S28 over siw).
    #[test]
    fn object_in_use_elsewhere_counts_until_destroyed() {
        let (notes, noted) = mpsc::channel();
        let qp = Arc::new(Noted("qp", None, notes));
        let owned = Arc::downgrade(&qp);
        let in_use = InUse::of(&owned).unwrap();
        drop(qp);
        assert!(!wait_for_teardown(Duration::from_millis(1)));
        assert!(noted.try_recv().is_err(), "destroyed while it is used");
        drop(in_use);
        assert!(wait_for_teardown(Duration::from_secs(60)));
        assert_eq!(noted.try_recv(), Ok("qp"));
        assert!(InUse::of(&owned).is_none());
    }

    /// A regression: the thread died of the first destructor that panicked, and nothing was
    /// destroyed any more.
    #[test]
    fn panicking_owner_does_not_stop_other_teardowns() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("on purpose");
            }
        }
        let (notes, noted) = mpsc::channel();
        for number in 0..3 {
            let (owner, notes) = (Bomb, notes.clone());
            dispose(move || {
                let _ = notes.send(number);
                drop(owner);
            });
        }
        drop(notes);
        assert!(wait_for_teardown(Duration::from_secs(60)));
        assert_eq!(noted.iter().collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn waiting_ends_when_its_time_is_over() {
        let (release, held) = mpsc::channel::<()>();
        dispose(move || {
            let _ = held.recv();
        });
        assert!(!wait_for_teardown(Duration::from_millis(1)));
        drop(release);
        assert!(wait_for_teardown(Duration::from_secs(60)));
    }
}
