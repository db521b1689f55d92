//! How much of a stream its receiver takes: grants, and windows that grow.
//!
//! Invariants:
//! 1. What was consumed is granted again, at the latest when half of either currency has been.
//! 2. A window grows only while its reader waits for the sender, never because of the sender
//!    alone, and never above the bounds.

use super::rules::Rules;
use super::types::StreamLimits;

/// One stream's window, and what is owed to the sender.
#[derive(Debug)]
pub(super) struct Window {
    items: u32,
    bytes: u64,
    owed_items: u32,
    owed_bytes: u64,
    /// At the grant before, the reader had read all there was.
    was_empty: bool,
}

impl Window {
    pub(super) fn new(limits: &StreamLimits) -> Self {
        Self {
            items: limits.items,
            bytes: u64::from(limits.bytes),
            owed_items: 0,
            owed_bytes: 0,
            was_empty: false,
        }
    }

    /// Its size, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// An item was consumed. Says whether a grant is due.
    #[inline]
    pub(super) fn consume(&mut self, bytes: u64, rules: Rules) -> bool {
        self.owed_items += 1;
        self.owed_bytes += bytes;
        if !rules.grants() {
            return false;
        }
        if rules.grants_late() {
            return self.owed_items >= self.items;
        }
        u64::from(self.owed_items) * 2 >= u64::from(self.items) || self.owed_bytes * 2 >= self.bytes
    }

    /// By how many bytes the window would grow with the grant that is due, if it would. `is_empty`:
    /// the reader has read all there was; `spare`: by how many bytes the windows of the connection
    /// may still grow. The window doubles when the reader waited at two grants in a row: it took a
    /// whole window as fast as that came.
    pub(super) fn growth(&self, is_empty: bool, spare: u64, limits: &StreamLimits) -> Option<u64> {
        let fits = self.bytes * 2 <= u64::from(limits.max_window_bytes) && self.bytes <= spare;
        let grows = is_empty && self.was_empty && fits && self.items < u32::MAX / 4;
        grows.then_some(self.bytes)
    }

    /// Takes what is to be granted. `grows`: by the result of [`growth`](Self::growth).
    pub(super) fn take_grant(&mut self, is_empty: bool, grows: bool) -> (u32, u64) {
        let mut grant = (self.owed_items, self.owed_bytes);
        (self.owed_items, self.owed_bytes) = (0, 0);
        if grows {
            grant.0 += self.items;
            grant.1 += self.bytes;
            self.items *= 2;
            self.bytes *= 2;
            self.was_empty = false;
        } else {
            self.was_empty = is_empty;
        }
        grant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: StreamLimits =
        StreamLimits { items: 4, bytes: 100, max_window_bytes: 400, max_stream_bytes: 1000 };

    #[test]
    fn half_of_either_currency_is_granted() {
        let mut window = Window::new(&LIMITS);
        assert!(!window.consume(10, Rules::default()));
        assert!(window.consume(10, Rules::default()));
        assert_eq!(window.take_grant(false, false), (2, 20));
        assert!(window.consume(50, Rules::default()), "one long item");
        assert_eq!(window.take_grant(false, false), (1, 50));
        assert!(window.consume(1000, Rules::default()), "longer than the window");
        assert_eq!(window.take_grant(false, false), (1, 1000));
    }

    #[test]
    fn a_window_doubles_for_a_waiting_reader() {
        let mut window = Window::new(&LIMITS);
        let mut grant = |is_empty, spare| {
            window.consume(50, Rules::default());
            let growth = window.growth(is_empty, spare, &LIMITS);
            window.take_grant(is_empty, growth.is_some())
        };
        assert_eq!(grant(true, 1000), (1, 50));
        assert_eq!(grant(false, 1000), (1, 50), "a slow reader needs no larger window");
        assert_eq!(grant(true, 1000), (1, 50));
        assert_eq!(grant(true, 99), (1, 50), "the budget of the connection is used up");
        assert_eq!(grant(true, 100), (5, 150));
        assert_eq!(grant(true, 1000), (1, 50));
        assert_eq!(grant(true, 1000), (9, 250));
        assert_eq!((grant(true, 1000), grant(true, 1000)), ((1, 50), (1, 50)), "400 is the most");
        assert_eq!(window.bytes(), 400);
    }
}
