//! A queue of events with a doorbell (an eventfd, say): any thread adds events and rings; the one
//! owner silences the doorbell and takes the events.
//!
//! Owns the order of these steps. Never knows what the doorbell is.
//!
//! Invariants:
//! 1. An event that is added after the owner has looked leaves the doorbell rung: the owner
//!    silences it first and takes events afterwards.
//! 2. A ringing doorbell can always be silenced. `was_rung` is set after ringing, so the owner may
//!    be woken once too often, but never by a doorbell that it does not silence.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use crate::sync::{AtomicBool, Mutex};

/// Wakes the owner.
pub(crate) trait Doorbell {
    /// Makes the doorbell ring until it is silenced.
    fn ring(&self);
    /// Makes the doorbell silent until it is rung again.
    fn silence(&self);
}

/// Events waiting for their owner.
#[derive(Debug)]
pub(crate) struct Events<T, B> {
    events: Mutex<VecDeque<T>>,
    /// Whether `events` may hold something: keeps the lock off the polling path.
    has_events: AtomicBool,
    bell: B,
    /// Whether the doorbell was rung. Saves the system call that silences it when a completion
    /// caused the wake-up.
    was_rung: AtomicBool,
}

impl<T, B: Doorbell> Events<T, B> {
    /// An empty queue with a silent doorbell.
    pub(crate) fn new(bell: B) -> Self {
        Self {
            events: Mutex::new(VecDeque::new()),
            has_events: AtomicBool::new(false),
            bell,
            was_rung: AtomicBool::new(false),
        }
    }

    /// The doorbell.
    pub(crate) fn bell(&self) -> &B {
        &self.bell
    }

    /// Rings.
    pub(crate) fn ring(&self) {
        self.bell.ring();
        // After ringing: a thread that sees the flag finds the doorbell rung (invariant 2). A swap,
        // since loom lets a plain store slip between the two halves of another thread's swap.
        self.was_rung.swap(true, Ordering::Release);
    }

    /// Silences the doorbell if it was rung.
    pub(crate) fn silence(&self) {
        if self.was_rung.swap(false, Ordering::Acquire) {
            self.bell.silence();
        }
    }

    /// Adds an event and rings.
    pub(crate) fn put(&self, event: T) {
        let mut events = self.events.lock();
        events.push_back(event);
        self.has_events.store(true, Ordering::Release);
        drop(events);
        self.ring();
    }

    /// Takes the next event.
    pub(crate) fn take(&self) -> Option<T> {
        if !self.has_events.load(Ordering::Acquire) {
            return None;
        }
        let mut events = self.events.lock();
        let event = events.pop_front();
        if events.is_empty() {
            self.has_events.store(false, Ordering::Release);
        }
        event
    }
}

/// Runs every interleaving and weak-memory outcome under loom: `RUSTFLAGS="--cfg rpc_loom"`.
#[cfg(all(test, rpc_loom))]
mod loom_tests {
    use std::sync::Arc;

    use loom::thread;

    use super::*;

    /// Models an eventfd: a counter that reading sets to zero.
    struct Counter(Mutex<u64>);

    impl Counter {
        fn is_heard(&self) -> bool {
            *self.0.lock() > 0
        }
    }

    impl Doorbell for Counter {
        fn ring(&self) {
            *self.0.lock() += 1;
        }

        fn silence(&self) {
            *self.0.lock() = 0;
        }
    }

    fn events() -> Arc<Events<u8, Counter>> {
        Arc::new(Events::new(Counter(Mutex::new(0))))
    }

    /// Two threads add one event each while the owner, woken early, looks once and then sleeps. The
    /// owner looks again afterwards if the doorbell rings. Returns the number of events taken.
    fn taken(silences_first: bool) -> usize {
        let events = events();
        let putters = [1, 2].map(|number| {
            let events = Arc::clone(&events);
            thread::spawn(move || events.put(number))
        });
        let take_all = || std::iter::from_fn(|| events.take()).count();
        let mut taken = 0;
        if silences_first {
            events.silence();
            taken += take_all();
        } else {
            taken += take_all();
            events.silence();
        }
        for putter in putters {
            putter.join().unwrap();
        }
        if events.bell().is_heard() {
            events.silence();
            taken += take_all();
        }
        taken
    }

    #[test]
    fn no_event_is_slept_through() {
        loom::model(|| assert_eq!(taken(true), 2, "slept through an event"));
    }

    #[test]
    #[should_panic(expected = "slept through an event")]
    fn taking_before_silencing_misses_a_wakeup() {
        loom::model(|| assert_eq!(taken(false), 2, "slept through an event"));
    }

    /// Whether the doorbell can be silenced after a ring that raced with an owner that silences it.
    fn falls_silent(ring: fn(&Events<u8, Counter>)) -> bool {
        let events = events();
        let ringer = {
            let events = Arc::clone(&events);
            thread::spawn(move || ring(&events))
        };
        events.silence();
        ringer.join().unwrap();
        events.silence();
        !events.bell().is_heard()
    }

    #[test]
    fn a_bell_that_is_heard_can_be_silenced() {
        loom::model(|| assert!(falls_silent(Events::ring), "it rings for good"));
    }

    #[test]
    #[should_panic(expected = "it rings for good")]
    fn noted_ahead_of_the_ringing_it_cannot() {
        loom::model(|| {
            let silent = falls_silent(|events| {
                events.was_rung.swap(true, Ordering::Release);
                events.bell.ring();
            });
            assert!(silent, "it rings for good");
        });
    }
}
