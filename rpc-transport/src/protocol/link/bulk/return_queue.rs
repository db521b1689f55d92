//! [`ReturnQueue`]: takes chunks back when the application drops the payloads that lie in them.
//!
//! Owns what was returned and not yet consumed by the link. Any thread returns; the link consumes
//! under its lock.
//!
//! Invariants:
//! 1. What was lent is returned exactly once: a [`ArenaLease`] is not `Clone`, and returns on drop.
//! 2. A child of `fork(2)` returns nothing: the chunks are its parent's.
//! 3. Between two times that the link consumes, returned chunks notify the connection at most once,
//!    and only when as many have been returned as the link waits for; slots, at the first one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::memory::process::Process;
use crate::message::payload_stream::StreamProgress;
use crate::message::reply_slot::SlotReturns;
use crate::message::sealed::ForgeryReports;
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
    /// A record failed its check.
    has_forged: AtomicBool,
    process: Process,
}

struct Inner {
    back: Vec<Landed>,
    chunks: u32,
    /// Slots of the peer that this end will not write again.
    done: Vec<u32>,
    /// Whether the link was notified of these slots.
    is_notified: bool,
    /// How much the reader of a stream accepts now.
    max_stream_data: Option<MaxStreamData>,
    /// Number of returned chunks at which to notify the link; 0 if it was notified.
    notify_at: u32,
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
            is_notified: false,
            max_stream_data: None,
            notify_at: 1,
            on_return: None,
        };
        Self {
            inner: Mutex::new(inner),
            count: AtomicU32::new(0),
            has_forged: AtomicBool::new(false),
            process: Process::current(),
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
        inner.is_notified = false;
        inner.chunks = 0;
        self.count.store(0, Ordering::Relaxed);
        Back {
            landed: std::mem::take(&mut inner.back),
            done: std::mem::take(&mut inner.done),
            max_stream_data: inner.max_stream_data.take(),
        }
    }

    /// Asks for a notification once `chunks` chunks are returned; false if they already are.
    pub(in crate::protocol::link) fn notify_at(&self, chunks: u32) -> bool {
        let mut inner = self.inner.lock();
        inner.notify_at = chunks.max(1);
        inner.chunks < inner.notify_at
    }

    /// Whether anything was returned.
    #[inline]
    pub(in crate::protocol::link) fn has_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Whether a record failed its check.
    pub(in crate::protocol::link) fn has_forged_record(&self) -> bool {
        self.has_forged.load(Ordering::Relaxed)
    }

    fn give_back(&self, landed: Landed) {
        if !self.process.is_current() {
            return;
        }
        let on_return = {
            let mut inner = self.inner.lock();
            inner.chunks += landed.chunk_count();
            inner.back.push(landed);
            self.count.fetch_add(1, Ordering::Relaxed);
            if inner.notify_at == 0 || inner.chunks < inner.notify_at {
                return;
            }
            inner.notify_at = 0;
            inner.on_return.clone()
        };
        if let Some(on_return) = on_return {
            on_return();
        }
    }
}

impl SlotReturns for ReturnQueue {
    fn done(&self, slot: u32) {
        if !self.process.is_current() {
            return;
        }
        let on_return = {
            let mut inner = self.inner.lock();
            inner.done.push(slot);
            self.count.fetch_add(1, Ordering::Relaxed);
            if std::mem::replace(&mut inner.is_notified, true) {
                return;
            }
            inner.on_return.clone()
        };
        if let Some(on_return) = on_return {
            on_return();
        }
    }
}

impl StreamProgress for ReturnQueue {
    fn on_read(&self, number: u32, bytes: u64) {
        if !self.process.is_current() {
            return;
        }
        let on_return = {
            let mut inner = self.inner.lock();
            // Readers report outside of any lock, so a report of an earlier message may come last.
            let reported = MaxStreamData { number, bytes };
            inner.max_stream_data = Some(reported.latest(inner.max_stream_data));
            self.count.fetch_add(1, Ordering::Relaxed);
            inner.on_return.clone()
        };
        if let Some(on_return) = on_return {
            on_return();
        }
    }
}

impl ForgeryReports for ReturnQueue {
    fn on_forged(&self) {
        let on_return = {
            let inner = self.inner.lock();
            self.has_forged.store(true, Ordering::Relaxed);
            self.count.fetch_add(1, Ordering::Relaxed);
            inner.on_return.clone()
        };
        if let Some(on_return) = on_return {
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
pub(in crate::protocol::link) struct ArenaLease {
    landed: Option<Landed>,
    queue: Arc<ReturnQueue>,
}

impl ArenaLease {
    pub(in crate::protocol::link) fn new(landed: Landed, queue: &Arc<ReturnQueue>) -> Self {
        Self { landed: Some(landed), queue: Arc::clone(queue) }
    }
}

impl Drop for ArenaLease {
    fn drop(&mut self) {
        if let Some(landed) = self.landed.take() {
            self.queue.give_back(landed);
        }
    }
}

/// Every interleaving: `RUSTFLAGS="--cfg rpc_loom"`.
#[cfg(all(test, rpc_loom))]
mod loom_tests {
    use loom::thread;

    use super::*;

    /// Two threads return one slot each while the link consumes. Returns how many slots it got,
    /// counting one more `take` if it was notified and `obeys`.
    fn returned_slots(obeys: bool) -> usize {
        let queue = Arc::new(ReturnQueue::default());
        let is_notified = Arc::new(AtomicBool::new(false));
        let notify = Arc::clone(&is_notified);
        queue.set_on_return(Box::new(move || notify.store(true, Ordering::Release)));
        let givers = [1, 2].map(|slot| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.done(slot))
        });
        let mut done = 0;
        if queue.has_any() {
            done += queue.take().done.len();
        }
        // A link that does not obey ignores the notification.
        for giver in givers {
            giver.join().unwrap();
        }
        if is_notified.load(Ordering::Acquire) && obeys {
            done += queue.take().done.len();
        }
        done
    }

    #[test]
    fn done_slots_are_returned() {
        loom::model(|| {
            let slots = returned_slots(true);
            assert_eq!(slots, 2, "slots are lost");
        });
    }

    #[test]
    #[should_panic(expected = "slots are lost")]
    fn a_link_that_ignores_notice_loses_slots() {
        loom::model(|| {
            let slots = returned_slots(false);
            assert_eq!(slots, 2, "slots are lost");
        });
    }

    /// One message is returned while the link asks for a notification.
    fn released(asks_first: bool) -> usize {
        let queue = Arc::new(ReturnQueue::default());
        let is_notified = Arc::new(AtomicBool::new(false));
        let notify = Arc::clone(&is_notified);
        queue.set_on_return(Box::new(move || notify.store(true, Ordering::Release)));
        // The link was notified before and has not consumed since.
        drop(ArenaLease::new(Landed::of_one_chunk(), &queue));
        is_notified.store(false, Ordering::Release);
        let lease = ArenaLease::new(Landed::of_one_chunk(), &queue);
        let giver = thread::spawn(move || drop(lease));
        let mut back = queue.take().landed.len();
        // As `LandingZone::consume`: take again if enough chunks were already returned.
        if !queue.notify_at(1) && asks_first {
            back += queue.take().landed.len();
        }
        giver.join().unwrap();
        if is_notified.load(Ordering::Acquire) {
            back += queue.take().landed.len();
        }
        back
    }

    #[test]
    fn messages_returned_meanwhile_are_not_lost() {
        loom::model(|| assert_eq!(released(true), 2, "a message is lost"));
    }

    #[test]
    #[should_panic(expected = "a message is lost")]
    fn without_a_second_look_messages_are_lost() {
        loom::model(|| assert_eq!(released(false), 2, "a message is lost"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::{Context, Waker};

    use super::*;
    use crate::memory::budget::MemoryBudget;
    use crate::message::payload::Payload;
    use crate::message::payload_stream::StreamFeed;

    /// A thread that loses its core after it has unlocked the stream, before it reports.
    struct Preempted {
        queue: Arc<ReturnQueue>,
        is_there: std::sync::Mutex<mpsc::Sender<()>>,
        goes_on: std::sync::Mutex<mpsc::Receiver<()>>,
    }

    impl StreamProgress for Preempted {
        fn on_read(&self, number: u32, bytes: u64) {
            if bytes != u64::MAX {
                self.is_there.lock().unwrap().send(()).unwrap();
                self.goes_on.lock().unwrap().recv().unwrap();
            }
            self.queue.on_read(number, bytes);
        }
    }

    /// What a reader of message `number` reports if `meanwhile` happens just before.
    fn reported_late(
        number: u32,
        meanwhile: impl FnOnce(StreamFeed, &Arc<ReturnQueue>),
    ) -> Option<MaxStreamData> {
        let queue = Arc::new(ReturnQueue::default());
        let (there, is_there) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel();
        let slow = Preempted {
            queue: Arc::clone(&queue),
            is_there: there.into(),
            goes_on: goes_on.into(),
        };
        let (feed, mut stream) = StreamFeed::new(1000, 100);
        feed.report_to(number, Arc::new(slow));
        drop(feed.push(Payload::private(vec![0; 100]), None));
        let reader = std::thread::spawn(move || {
            let _ = stream.poll_next(&mut Context::from_waker(Waker::noop()));
            // Not dropped: that would report more.
            std::mem::forget(stream);
        });
        is_there.recv().unwrap();
        meanwhile(feed, &queue);
        go_on.send(()).unwrap();
        reader.join().unwrap();
        queue.take().max_stream_data
    }

    #[test]
    fn late_reports_of_earlier_messages_do_not_count() {
        for number in [0, u32::MAX] {
            let next = number.wrapping_add(1);
            let reported = reported_late(number, |feed, queue| {
                drop(feed.finish());
                let (feed, mut stream) = StreamFeed::new(1000, 100);
                feed.report_to(next, Arc::clone(queue) as Arc<dyn StreamProgress>);
                drop(feed.push(Payload::private(vec![0; 100]), None));
                let read = stream.poll_next(&mut Context::from_waker(Waker::noop()));
                assert!(read.is_ready());
                std::mem::forget(stream);
            });
            assert_eq!(reported, Some(MaxStreamData { number: next, bytes: 200 }));
        }
    }

    #[test]
    fn readers_do_not_take_a_refusal_back() {
        let reported = reported_late(7, |feed, _| {
            let budget = MemoryBudget::new(1);
            let reason = budget.reserve(2).expect_err("there is one byte");
            drop(feed.refuse(reason));
        });
        assert_eq!(reported, Some(MaxStreamData { number: 7, bytes: u64::MAX }));
    }
}
