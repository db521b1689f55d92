//! [`ReturnQueue`]: takes chunks back when the application drops the payloads that lie in them.
//!
//! Owns what was returned and not yet consumed by the link. Any thread returns; the link consumes
//! under its lock.
//!
//! Invariants:
//! 1. What was lent is returned exactly once: a [`Lease`] is not `Clone`, and returns on drop.
//! 2. Between two times that the link consumes, returned chunks notify the connection at most once,
//!    and only when as many have been returned as the link waits for; slots, at the first one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::message::payload::Lease as PieceLease;
use crate::message::payload_stream::StreamHome;
use crate::message::reply_slot::SlotHome;
use crate::protocol::arena::Landed;
use crate::protocol::frame::MaxStreamData;
use crate::sync::{AtomicBool, AtomicU32, Mutex};

/// Notifies the connection that the link should consume. Called by any thread that drops a payload;
/// it must not take a lock that such a thread may hold.
pub type OnReturn = Box<dyn Fn() + Send + Sync>;

pub(in crate::protocol::link) struct ReturnQueue {
    inner: Mutex<Inner>,
    /// Landed messages in `inner`, read without the lock.
    count: AtomicU32,
    /// Leases that have come back one after the other whose bytes had been copied for an owner.
    copied_in_row: AtomicU32,
}

struct Inner {
    back: Vec<Landed>,
    chunks: u32,
    /// Slots of the peer that this end will not write again.
    done: Vec<u32>,
    /// Whether the link was notified of them.
    told_done: bool,
    /// How much the reader of a stream accepts now.
    max_stream_data: Option<MaxStreamData>,
    /// Number of returned chunks at which to notify the link; 0 if it was notified.
    tell_at: u32,
    on_return: Option<Arc<OnReturn>>,
}

/// What was returned since the link last consumed.
pub(super) struct Back {
    pub(super) landed: Vec<Landed>,
    /// Slots of the peer that this end will not write again.
    pub(super) done: Vec<u32>,
    /// How much the reader of a stream accepts now.
    pub(super) max_stream_data: Option<MaxStreamData>,
}

impl Default for ReturnQueue {
    fn default() -> Self {
        let inner = Inner {
            back: Vec::new(),
            chunks: 0,
            done: Vec::new(),
            told_done: false,
            max_stream_data: None,
            tell_at: 1,
            on_return: None,
        };
        Self {
            inner: Mutex::new(inner),
            count: AtomicU32::new(0),
            copied_in_row: AtomicU32::new(0),
        }
    }
}

impl ReturnQueue {
    pub(in crate::protocol::link) fn set_on_return(&self, on_return: OnReturn) {
        self.inner.lock().on_return = Some(Arc::new(on_return));
    }

    /// Takes everything that was returned, and the progress that readers of streams reported.
    pub(super) fn take(&self) -> Back {
        let mut inner = self.inner.lock();
        inner.told_done = false;
        inner.chunks = 0;
        self.count.store(0, Ordering::Relaxed);
        Back {
            landed: std::mem::take(&mut inner.back),
            done: std::mem::take(&mut inner.done),
            max_stream_data: inner.max_stream_data.take(),
        }
    }

    /// Asks for a notification once `chunks` chunks are returned; false if they already are.
    pub(in crate::protocol::link) fn tell_at(&self, chunks: u32) -> bool {
        let mut inner = self.inner.lock();
        inner.tell_at = chunks.max(1);
        inner.chunks < inner.tell_at
    }

    /// Whether anything was returned.
    #[inline]
    pub(in crate::protocol::link) fn has_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Leases that have come back one after the other whose bytes had been copied for an owner: readers are
    /// likely to do that with the next ones, too.
    pub(super) fn copied_in_row(&self) -> u32 {
        self.copied_in_row.load(Ordering::Relaxed)
    }

    fn give_back(&self, landed: Landed, is_copied: bool) {
        // A guess depends on it: it may be wrong where two come back at once.
        let in_row = if is_copied { self.copied_in_row().saturating_add(1) } else { 0 };
        self.copied_in_row.store(in_row, Ordering::Relaxed);
        let told = {
            let mut inner = self.inner.lock();
            inner.chunks += landed.chunk_count();
            inner.back.push(landed);
            self.count.fetch_add(1, Ordering::Relaxed);
            if inner.tell_at == 0 || inner.chunks < inner.tell_at {
                return;
            }
            inner.tell_at = 0;
            inner.on_return.clone()
        };
        if let Some(on_return) = told {
            on_return();
        }
    }
}

impl SlotHome for ReturnQueue {
    fn done(&self, slot: u32) {
        let told = {
            let mut inner = self.inner.lock();
            inner.done.push(slot);
            self.count.fetch_add(1, Ordering::Relaxed);
            if std::mem::replace(&mut inner.told_done, true) {
                return;
            }
            inner.on_return.clone()
        };
        if let Some(on_return) = told {
            on_return();
        }
    }
}

impl StreamHome for ReturnQueue {
    fn on_read(&self, number: u32, bytes: u64) {
        let told = {
            let mut inner = self.inner.lock();
            // One message arrives at a time, so an older value is of it or of an earlier one.
            inner.max_stream_data = Some(MaxStreamData { number, bytes });
            self.count.fetch_add(1, Ordering::Relaxed);
            inner.on_return.clone()
        };
        if let Some(on_return) = told {
            on_return();
        }
    }
}

impl fmt::Debug for ReturnQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReturnQueue({} back)", self.count.load(Ordering::Relaxed))
    }
}

/// Chunks that the application holds; dropping the lease returns them.
pub(in crate::protocol::link) struct Lease {
    landed: Option<Landed>,
    home: Arc<ReturnQueue>,
    is_copied: AtomicBool,
}

impl Lease {
    pub(in crate::protocol::link) fn new(landed: Landed, home: &Arc<ReturnQueue>) -> Self {
        Self { landed: Some(landed), home: Arc::clone(home), is_copied: AtomicBool::new(false) }
    }
}

impl PieceLease for Lease {
    fn on_copied(&self) {
        self.is_copied.store(true, Ordering::Relaxed);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(landed) = self.landed.take() {
            self.home.give_back(landed, self.is_copied.load(Ordering::Relaxed));
        }
    }
}

/// Every interleaving: `RUSTFLAGS="--cfg rpc_loom"`.
#[cfg(all(test, rpc_loom))]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::sync::AtomicBool;

    /// Two threads return one slot each while the link consumes. Returns how many slots it got,
    /// counting one more `take` if it was notified and `obeys`.
    fn come_home(obeys: bool) -> usize {
        let home = Arc::new(ReturnQueue::default());
        let told = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&told);
        home.set_on_return(Box::new(move || tell.store(true, Ordering::Release)));
        let givers = [1, 2].map(|slot| {
            let home = Arc::clone(&home);
            thread::spawn(move || home.done(slot))
        });
        let mut done = 0;
        if home.has_any() {
            done += home.take().done.len();
        }
        // A link that does not obey ignores the notification.
        for giver in givers {
            giver.join().unwrap();
        }
        if told.load(Ordering::Acquire) && obeys {
            done += home.take().done.len();
        }
        done
    }

    #[test]
    fn slots_that_are_done_come_home() {
        loom::model(|| {
            let home = come_home(true);
            assert_eq!(home, 2, "slots are lost");
        });
    }

    #[test]
    #[should_panic(expected = "slots are lost")]
    fn a_link_that_is_told_and_does_not_look_loses_some() {
        loom::model(|| {
            let home = come_home(false);
            assert_eq!(home, 2, "slots are lost");
        });
    }

    /// One message is returned while the link asks for a notification.
    fn released(asks_first: bool) -> usize {
        let home = Arc::new(ReturnQueue::default());
        let told = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&told);
        home.set_on_return(Box::new(move || tell.store(true, Ordering::Release)));
        // The link was notified before and has not consumed since.
        drop(Lease::new(Landed::of_one_chunk(), &home));
        told.store(false, Ordering::Release);
        let lease = Lease::new(Landed::of_one_chunk(), &home);
        let giver = thread::spawn(move || drop(lease));
        let mut back = home.take().landed.len();
        // As `Landing::consume`: take again if enough chunks were already returned.
        if !home.tell_at(1) && asks_first {
            back += home.take().landed.len();
        }
        giver.join().unwrap();
        if told.load(Ordering::Acquire) {
            back += home.take().landed.len();
        }
        back
    }

    #[test]
    fn a_message_given_back_while_the_link_looks_away_is_not_lost() {
        loom::model(|| assert_eq!(released(true), 2, "a message is lost"));
    }

    #[test]
    #[should_panic(expected = "a message is lost")]
    fn without_looking_again_it_is() {
        loom::model(|| assert_eq!(released(false), 2, "a message is lost"));
    }
}
