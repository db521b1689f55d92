//! The doorbell hand-off: how a side that sleeps and a side that sends never miss each other.
//!
//! Owns the two steps that race on one shared word, whatever memory it lies in. Never rings, sleeps
//! or looks at a message.
//!
//! ```text
//! sleeper: arm            fence   look for messages once more   sleep if there are none
//! sender:  publish        fence   read the word                 ring if it was armed
//! ```
//!
//! Invariant: with a sequentially consistent fence on both sides, either the sleeper's second look
//! finds the message or the sender finds the word armed. Each arming is answered at most once, so a
//! busy sender does not ring the same sleeper twice.

use std::sync::atomic::Ordering;

/// A shared 32-bit atomic word, in whatever memory it lies.
pub(crate) trait Word {
    /// Atomic load.
    fn load(&self, order: Ordering) -> u32;
    /// Atomic store.
    fn store(&self, value: u32, order: Ordering);
}

impl Word for std::sync::atomic::AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }
}

/// The sleeper's side: counts its armings.
#[derive(Debug, Default)]
pub(crate) struct Sleeper {
    armings: u32,
}

impl Sleeper {
    /// Asks for a doorbell. Must be followed by a sequentially consistent fence and another look
    /// for messages.
    #[inline]
    pub(crate) fn arm(&mut self, word: &impl Word) {
        self.armings = self.armings.wrapping_add(1).max(1);
        word.store(self.armings, Ordering::Relaxed);
    }

    /// Withdraws the request for a doorbell.
    #[inline]
    pub(crate) fn disarm(&self, word: &impl Word) {
        word.store(0, Ordering::Relaxed);
    }
}

/// The sender's side: remembers the last arming that it answered.
#[derive(Debug, Default)]
pub(crate) struct Ringer {
    answered: u32,
}

impl Ringer {
    /// Whether the sleeper has armed since the last doorbell. A sequentially consistent fence must
    /// separate publishing a message from this call.
    #[inline]
    pub(crate) fn needs_notify(&mut self, word: &impl Word) -> bool {
        let armed = word.load(Ordering::Relaxed);
        if armed == 0 || armed == self.answered {
            return false;
        }
        self.answered = armed;
        true
    }
}

#[cfg(all(test, not(rpc_loom)))]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn each_arming_is_answered_once() {
        let word = AtomicU32::new(0);
        let (mut sleeper, mut ringer) = (Sleeper::default(), Ringer::default());
        assert!(!ringer.needs_notify(&word));
        sleeper.arm(&word);
        assert!(ringer.needs_notify(&word));
        assert!(!ringer.needs_notify(&word));
        sleeper.disarm(&word);
        sleeper.arm(&word);
        assert!(ringer.needs_notify(&word));
        sleeper.disarm(&word);
        assert!(!ringer.needs_notify(&word));
    }
}

/// Runs every interleaving and weak-memory outcome under loom: `RUSTFLAGS="--cfg rpc_loom"`.
#[cfg(all(test, rpc_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU32, fence};
    use loom::thread;

    use super::*;

    impl Word for AtomicU32 {
        fn load(&self, order: Ordering) -> u32 {
            self.load(order)
        }

        fn store(&self, value: u32, order: Ordering) {
            self.store(value, order);
        }
    }

    #[derive(Default)]
    struct Shared {
        armed: AtomicU32,
        published: AtomicU32,
        bell: AtomicBool,
    }

    /// Sends two messages in two batches, ringing the bell if the sleeper has armed.
    fn send(shared: &Shared, with_fence: bool) {
        let mut ringer = Ringer::default();
        for message in 1..=2 {
            shared.published.store(message, Ordering::Release);
            if with_fence {
                fence(Ordering::SeqCst);
            }
            if ringer.needs_notify(&shared.armed) {
                shared.bell.store(true, Ordering::Release);
            }
        }
    }

    fn check(with_fence: bool) {
        loom::model(move || {
            let shared = Arc::new(Shared::default());
            let sender = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || send(&shared, with_fence))
            };
            let mut sleeper = Sleeper::default();
            sleeper.arm(&shared.armed);
            if with_fence {
                fence(Ordering::SeqCst);
            }
            let sleeps = shared.published.load(Ordering::Acquire) != 2;
            sender.join().unwrap();
            // The sender is done: a sleeper that did not see its last message must have been rung.
            assert!(!sleeps || shared.bell.load(Ordering::Acquire), "slept through a message");
        });
    }

    #[test]
    fn no_message_is_slept_through() {
        check(true);
    }

    #[test]
    #[should_panic(expected = "slept through a message")]
    fn without_the_fences_one_is() {
        check(false);
    }
}
