//! A thread that destroys device objects, so that no worker waits for it.
//!
//! Owns the order of destruction: first in, first out. A child holds its parent's `Arc`, so the
//! parent's job is queued after the child's: QP, then its buffers and MRs, then CQ and PD. Never
//! looks at what it destroys.
//!
//! What is destroyed may hold memory of the user's, whose destructors may panic: each job runs by
//! itself, and those behind it are done all the same.
//!
//! Destroying may wait: for the kernel, for an event that is being handled, for pages to be
//! unpinned (a millisecond for 64 MiB).

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::user_code::caught;

type Job = Box<dyn FnOnce() + Send>;

/// Number of objects not yet destroyed, or in use, here and on the connection manager's thread.
struct Outstanding {
    count: Mutex<usize>,
    none: Condvar,
}

static OUTSTANDING: Outstanding = Outstanding { count: Mutex::new(0), none: Condvar::new() };

/// Stands for one object that is waiting to be destroyed.
#[derive(Debug)]
pub(super) struct Token(());

impl Token {
    /// Counts one more.
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

/// An object while another thread than its owner's uses it. The owner may let go of it meanwhile: it is
/// destroyed when this use has ended, and counts until then.
#[derive(Debug)]
pub(super) struct InUse<T> {
    object: Arc<T>,
    /// Dropped behind the object, which has taken its own by then if nobody else has it.
    _token: Token,
}

impl<T> InUse<T> {
    /// `None` if its owner has let go of it.
    pub(super) fn of(object: &Weak<T>) -> Option<Self> {
        // Taken first: from now on whoever lets go of it finds it counted.
        let token = Token::take();
        object.upgrade().map(|object| Self { object, _token: token })
    }

    /// For a use that lasts as long as a peer is silent: it does not count until the peer has answered, nor once
    /// nobody waits for that answer any more.
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
    let deadline = Instant::now() + limit;
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
                // Dropped only now: the job may have dropped parents, which have taken their own
                // tokens by now.
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
            tracing::warn!(%error, "no thread for teardown: objects are destroyed where dropped");
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
    fn children_go_before_their_parents_and_waiting_sees_all_of_them_gone() {
        let (notes, noted) = mpsc::channel();
        let pd = Arc::new(Noted("pd", None, notes.clone()));
        let cq = Arc::new(Noted("cq", Some(Arc::clone(&pd)), notes.clone()));
        let qp = Noted("qp", Some(Arc::clone(&cq)), notes);
        drop((pd, cq, qp));
        assert!(wait_for_teardown(Duration::from_secs(60)));
        assert_eq!(noted.iter().collect::<Vec<_>>(), ["qp", "cq", "pd"]);
    }

    /// The connection manager's thread had a queue pair for a moment when its owner let go of it: waiting saw
    /// it gone, and its memory was not free yet (S28 over siw).
    #[test]
    fn what_another_thread_uses_when_its_owner_lets_go_counts_until_it_is_destroyed() {
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

    /// The thread died of the first destructor that panicked, and nothing was destroyed any more.
    #[test]
    fn an_owner_that_panics_does_not_end_the_teardown_of_others() {
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
