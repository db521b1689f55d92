//! Turns: connections that could send more leave the shard to others first.
//!
//! Owns the queue of the connections that wait for their next turn, and what each connection knows
//! of its own turn. Never sends anything.
//!
//! Invariants:
//! 1. A connection is in the queue once at most.
//! 2. Arrivals are handled first, but not for ever: the queue gets a turn after
//!    [`MOST_PASSED_OVER`] polls with completions at the latest.
//! 3. A turn lasts for one pump.

use std::collections::VecDeque;

/// Polls with completions before the connections of the queue get a turn.
const MOST_PASSED_OVER: u8 = 4;
/// Most connections that then get a turn, of one slice each: about what a device copies in a
/// millisecond.
const MOST_TURNS: usize = 32;

/// The turn of one connection.
#[derive(Debug, Default)]
pub(crate) struct PumpTurn {
    /// The last pump stopped although more could be sent.
    is_unfinished: bool,
    is_queued: bool,
    /// The next pump may write a slice of a large message even if small ones are sent.
    has_turn: bool,
}

impl PumpTurn {
    /// A pump begins.
    pub(crate) fn begin(&mut self) {
        self.is_unfinished = false;
    }

    /// The pump stops here, though more could be sent.
    pub(crate) fn stop(&mut self) {
        self.is_unfinished = true;
    }

    /// The pump has ended, and the turn with it.
    pub(crate) fn end(&mut self) {
        self.has_turn = false;
    }

    pub(crate) fn is_unfinished(&self) -> bool {
        self.is_unfinished
    }

    pub(crate) fn has_turn(&self) -> bool {
        self.has_turn
    }
}

/// The connections of a shard that wait for a turn, longest waiting first.
#[derive(Debug, Default)]
pub(crate) struct PumpQueue {
    queue: VecDeque<u32>,
    /// Polls with completions since the queue last had a turn.
    passed_over: u8,
}

impl PumpQueue {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    #[cfg(any(test, feature = "model"))]
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// A connection was pumped. It waits for its next turn if it is not finished.
    pub(crate) fn on_pumped(&mut self, index: u32, turn: &mut PumpTurn) {
        if turn.is_unfinished && !std::mem::replace(&mut turn.is_queued, true) {
            self.queue.push_back(index);
        }
    }

    /// The CQ was polled, and had completions or not. Returns how many connections get a turn now.
    pub(crate) fn on_poll(&mut self, had_completions: bool) -> usize {
        self.passed_over += 1;
        if had_completions && self.passed_over < MOST_PASSED_OVER {
            return 0;
        }
        self.passed_over = 0;
        self.queue.len().min(MOST_TURNS)
    }

    /// Takes the connection that is next. It gets its turn by [`PumpQueue::give`].
    pub(crate) fn pop(&mut self) -> Option<u32> {
        self.queue.pop_front()
    }

    /// A connection that was taken out of the queue gets its turn.
    pub(crate) fn give(turn: &mut PumpTurn) {
        turn.is_queued = false;
        turn.has_turn = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_queued_once() {
        let (mut queue, mut turn) = (PumpQueue::default(), PumpTurn::default());
        queue.on_pumped(7, &mut turn);
        assert!(queue.is_empty(), "it is finished");
        for _ in 0..3 {
            turn.begin();
            turn.stop();
            queue.on_pumped(7, &mut turn);
            turn.end();
        }
        assert_eq!((queue.len(), queue.pop()), (1, Some(7)));
        PumpQueue::give(&mut turn);
        assert!(turn.has_turn());
        queue.on_pumped(7, &mut turn);
        assert_eq!(queue.len(), 1);
        turn.end();
        assert!(!turn.has_turn(), "a turn lasts for one pump");
    }

    #[test]
    fn arrivals_pass_the_queue_three_times() {
        let mut queue = PumpQueue::default();
        for index in 0..40 {
            queue.on_pumped(index, &mut PumpTurn { is_unfinished: true, ..PumpTurn::default() });
        }
        assert_eq!([true; 5].map(|arrived| queue.on_poll(arrived)), [0, 0, 0, 32, 0]);
        assert_eq!([false; 2].map(|arrived| queue.on_poll(arrived)), [32, 32]);
    }
}
