//! A queue of events with a bell: any thread puts in and rings, one owner silences and takes.
//!
//! Owns the order of these steps. Never knows what the bell is.
//!
//! Invariants:
//! 1. What was put in after the owner has looked leaves the bell rung: the owner silences first and
//!    takes then.
//! 2. The bell that was heard can be silenced: whether it was rung is noted behind the ringing, so
//!    it may be heard once too often, and never for good.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use crate::sync::{AtomicBool, Mutex};

/// What wakes the owner.
pub(crate) trait Bell {
    /// Makes it heard until it is silenced.
    fn ring(&self);
    /// Makes it unheard until it is rung again.
    fn silence(&self);
}

/// Events on their way to their owner.
#[derive(Debug)]
pub(crate) struct Events<T, B> {
    events: Mutex<VecDeque<T>>,
    /// Whether `events` may hold something: keeps the lock off the polling path.
    has_events: AtomicBool,
    bell: B,
    /// The bell was rung: keeps the system call out of every wake-up by a completion.
    was_rung: AtomicBool,
}

impl<T, B: Bell> Events<T, B> {
    /// No events, and a bell that was not rung.
    pub(crate) fn new(bell: B) -> Self {
        Self {
            events: Mutex::new(VecDeque::new()),
            has_events: AtomicBool::new(false),
            bell,
            was_rung: AtomicBool::new(false),
        }
    }

    /// The bell.
    pub(crate) fn bell(&self) -> &B {
        &self.bell
    }

    /// Rings.
    pub(crate) fn ring(&self) {
        self.bell.ring();
        // Behind it: whoever sees it finds the bell rung (invariant 2). A swap, as loom lets a plain
        // store slip between the two halves of another thread's swap.
        self.was_rung.swap(true, Ordering::Release);
    }

    /// Silences the bell, if it was rung.
    pub(crate) fn silence(&self) {
        if self.was_rung.swap(false, Ordering::Acquire) {
            self.bell.silence();
        }
    }

    /// Puts an event in, and rings.
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

/// Every interleaving and every weak-memory outcome: `RUSTFLAGS="--cfg rpc_loom"`.
#[cfg(all(test, rpc_loom))]
mod loom_tests {
    use std::sync::Arc;

    use loom::thread;

    use super::*;

    /// An eventfd: a counter that reading sets to zero.
    struct Counter(Mutex<u64>);

    impl Counter {
        fn is_heard(&self) -> bool {
            *self.0.lock() > 0
        }
    }

    impl Bell for Counter {
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

    /// Two threads put an event in each while the owner, woken early, looks once and sleeps; then it
    /// looks as long as the bell is heard. Returns what it has taken.
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
    fn an_owner_that_takes_before_it_silences_sleeps_through_one() {
        loom::model(|| assert_eq!(taken(false), 2, "slept through an event"));
    }

    /// Whether the bell can be silenced after it was rung beside an owner that silences.
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
