//! The bulk window: how much of the credits and of the SQ the bulk lane may hold at once.
//!
//! Owns the list of bulk frames whose credit or SQ slot is in use. Never looks at the queue.
//!
//! Invariants:
//! 1. At most `T = D / 2 + 1` data credits in the peer's current window are spent on bulk and not
//!    returned; the rest is left for small messages. With a lower bound, bulk could wait for ever:
//!    with nothing in flight a peer may keep up to `T - 1` credits (credit rule I5), and all of
//!    them may be bulk.
//! 2. At most half of the SQ's data slots and `max_bytes` hold bulk frames, but two frames always
//!    fit. A small message waits behind no more than that.
//! 3. The frame after which the SQ has no room for another bulk frame is signaled: no bulk frame
//!    ever waits for a completion that no WR generates.

use std::collections::VecDeque;

use crate::protocol::credit::{SendQueueBudget, SendQueueMark, Window};

/// Segments that may be in flight whatever the byte budget: with just one, the wire would be idle
/// between two segments.
const MIN_FRAMES: usize = 2;

#[derive(Debug)]
pub(in crate::protocol::link) struct BulkWindow {
    max_credits: usize,
    min_frames: usize,
    max_slots: usize,
    max_bytes: u64,
    max_frame_bytes: u64,
    /// Numbers of bulk frames (of all data frames sent) whose credit was not returned yet,
    /// oldest first.
    uncredited: VecDeque<u32>,
    /// SQ mark, slots and size of bulk frames not known to be complete, oldest first.
    unswept: VecDeque<(u16, u16, u64)>,
    unswept_slots: usize,
    unswept_bytes: u64,
    /// SQ slots of the largest frame with its WRITEs.
    max_frame_slots: usize,
}

impl BulkWindow {
    pub(in crate::protocol::link) fn new(
        remote: Window,
        sq: SendQueueBudget,
        max_bytes: u32,
        max_frame_bytes: u32,
    ) -> Self {
        let slots = usize::from(sq.data_slots);
        Self {
            max_credits: usize::from(remote.data_threshold()),
            min_frames: MIN_FRAMES.min(slots),
            max_slots: slots / 2,
            max_bytes: u64::from(max_bytes),
            max_frame_bytes: u64::from(max_frame_bytes),
            max_frame_slots: usize::from(sq.message_slots),
            uncredited: VecDeque::new(),
            unswept: VecDeque::new(),
            unswept_slots: 0,
            unswept_bytes: 0,
        }
    }

    /// The peer's window of now.
    pub(in crate::protocol::link) fn set_remote(&mut self, remote: Window) {
        self.max_credits = usize::from(remote.data_threshold());
    }

    /// Whether a bulk frame of any size may be sent; `returned` is how many of all data frames sent
    /// have had their credit returned, modulo 2^32.
    pub(in crate::protocol::link) fn allows(&mut self, returned: u32) -> bool {
        // Credits come back in the order in which they were spent: receivers repost in order.
        let is_returned = |number: &u32| (1..1 << 31).contains(&returned.wrapping_sub(*number));
        while self.uncredited.front().is_some_and(is_returned) {
            self.uncredited.pop_front();
        }
        self.uncredited.len() < self.max_credits && self.has_room()
    }

    fn has_room(&self) -> bool {
        let frames = self.unswept.len();
        let has_slots = self.unswept_slots + self.max_frame_slots <= self.max_slots;
        let has_bytes = self.unswept_bytes + self.max_frame_bytes <= self.max_bytes;
        frames < self.min_frames || (has_slots && has_bytes)
    }

    /// Records a bulk frame that is sent; `true` if it must be signaled (invariant 3).
    pub(in crate::protocol::link) fn on_sent(
        &mut self,
        number: u32,
        mark: SendQueueMark,
        slots: u16,
        bytes: u64,
    ) -> bool {
        self.uncredited.push_back(number);
        self.on_written(mark, slots, bytes)
    }

    /// Records WRITEs that are sent ahead of their frame; `true` if the last must be signaled
    /// (invariant 3).
    pub(in crate::protocol::link) fn on_written(
        &mut self,
        mark: SendQueueMark,
        slots: u16,
        bytes: u64,
    ) -> bool {
        self.unswept.push_back((mark.data, slots, bytes));
        self.unswept_slots += usize::from(slots);
        self.unswept_bytes += bytes;
        !self.has_room()
    }

    /// All frames up to `mark` are complete.
    #[inline]
    pub(in crate::protocol::link) fn on_send_completion(&mut self, mark: SendQueueMark) {
        while let Some((sent, slots, bytes)) = self.unswept.front()
            // A queue has fewer than 2^15 slots, so the distance is small on one side of the mark.
            && mark.data.wrapping_sub(*sent) < 1 << 15
        {
            self.unswept_slots -= usize::from(*slots);
            self.unswept_bytes -= bytes;
            self.unswept.pop_front();
        }
    }

    /// Credits of bulk frames not known to be returned; for metrics and tests.
    pub(in crate::protocol::link) fn credits_out(&self) -> usize {
        self.uncredited.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: Window = Window { data: 8, ack: 2 };

    fn window(slots: u16, max_bytes: u32) -> BulkWindow {
        let sq = SendQueueBudget {
            data_slots: slots,
            ack_slots: 2,
            message_slots: 1,
            signal_interval: 4,
        };
        BulkWindow::new(REMOTE, sq, max_bytes, 100)
    }

    fn mark(data: u16) -> SendQueueMark {
        SendQueueMark { data, ack: 0 }
    }

    /// Sends frames of 100 bytes from `first` on until the window is shut; returns how many.
    fn fill(window: &mut BulkWindow, first: u32, returned: u32) -> u32 {
        let mut number = first;
        while window.allows(returned) {
            let posted = u16::try_from((number + 1) & 0xffff).unwrap();
            window.on_sent(number, mark(posted), 1, 100);
            number += 1;
        }
        number - first
    }

    #[test]
    fn credits_out_never_pass_the_threshold() {
        let mut window = window(64, 1 << 20);
        assert_eq!(fill(&mut window, 0, 0), 5);
        assert_eq!(fill(&mut window, 5, 2), 2);
        // Returned credits of other frames do not open the window.
        assert_eq!(fill(&mut window, 7, 2), 0);
    }

    #[test]
    fn numbers_and_marks_wrap() {
        let mut window = window(4, 1 << 20);
        let start = u32::MAX - 1;
        window.on_sent(start, mark(u16::MAX), 1, 100);
        assert!(window.on_sent(start.wrapping_add(1), mark(0), 1, 100), "invariant 3");
        assert!(!window.allows(start));
        window.on_send_completion(mark(u16::MAX));
        assert!(window.allows(start));
        window.on_sent(start.wrapping_add(2), mark(1), 1, 100);
        assert!(!window.allows(0));
        assert_eq!(window.credits_out(), 1);
        window.on_send_completion(mark(1));
        assert!(window.allows(1));
        assert_eq!(window.credits_out(), 0);
    }

    #[test]
    fn send_queue_bytes_are_bounded_two_frames_fit() {
        assert_eq!(fill(&mut window(64, 1), 0, 0), 2);
        assert_eq!(fill(&mut window(64, 399), 0, 0), 3);
        let mut window = window(64, 400);
        assert_eq!(fill(&mut window, 0, 0), 4);
        window.on_send_completion(mark(4));
        assert_eq!(fill(&mut window, 4, 4), 4);
    }

    #[test]
    fn a_queue_of_one_slot_holds_one() {
        assert_eq!(fill(&mut window(1, 1 << 20), 0, 0), 1);
    }
}
