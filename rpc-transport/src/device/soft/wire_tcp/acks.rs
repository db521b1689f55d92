//! What the peer of a tcp wire is to be told: how many of its packets are accepted, and when.
//!
//! Every frame tells it, so an answer is an acknowledgement, too. A frame of its own is a system call for either
//! end: it waits until a poll finds nothing, unless it is pressing.

/// The peer is told at the latest after so many accepted packets.
const TELL_EVERY: u64 = 32;

/// The acknowledgements of one wire.
#[derive(Debug, Default)]
pub(super) struct Acks {
    /// Packets accepted.
    accepted: u64,
    /// The same, in the last frame sent.
    told: u64,
    due: Due,
    /// A large packet was accepted since the peer was last told of one that asked: it keeps the memory of a
    /// WRITE until the SEND behind it is accepted, and only that asks.
    keeps_memory: bool,
}

/// When the peer must be told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    #[default]
    Never,
    /// With the next packet, or when a poll finds nothing.
    WithNext,
    /// The peer keeps memory for it, or has heard nothing for long.
    Now,
}

impl Acks {
    /// A packet was accepted, whose sender `asks` to be told, and keeps memory for it, and for those before it
    /// that did not ask, if one of these `is_large`.
    #[inline]
    pub(super) fn on_accepted(&mut self, asks: bool, is_large: bool) {
        self.accepted += 1;
        self.keeps_memory |= is_large;
        if asks && self.keeps_memory || self.accepted - self.told >= TELL_EVERY {
            self.due = Due::Now;
        } else if asks {
            self.due = self.due.max(Due::WithNext);
        }
    }

    /// What the next frame says.
    #[inline]
    pub(super) fn tell(&mut self) -> u64 {
        self.told = self.accepted;
        self.keeps_memory &= self.due == Due::Never;
        self.due = Due::Never;
        self.accepted
    }

    /// Whether the peer must be told.
    #[inline]
    pub(super) fn are_due(&self) -> bool {
        self.due > Due::Never
    }

    /// Whether that may wait for the next packet.
    #[inline]
    pub(super) fn may_wait(&self) -> bool {
        self.due < Due::Now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_packets_are_acknowledged_with_the_next_answer_large_ones_at_once() {
        let mut acks = Acks::default();
        acks.on_accepted(false, false);
        assert!(!acks.are_due());
        acks.on_accepted(true, false);
        assert!(acks.are_due() && acks.may_wait());
        acks.on_accepted(true, true);
        acks.on_accepted(true, false);
        assert!(!acks.may_wait(), "a small one does not put the large one off");
        assert_eq!(acks.tell(), 4);
        assert!(!acks.are_due());
    }

    /// The WRITEs of a message do not ask: the SEND behind them does, and is small.
    #[test]
    fn memory_that_was_written_from_is_let_go_at_once() {
        let mut acks = Acks::default();
        acks.on_accepted(false, true);
        assert!(!acks.are_due());
        // Told by an answer to something else, between the two.
        acks.tell();
        acks.on_accepted(true, false);
        assert!(!acks.may_wait(), "the peer keeps what it wrote from");
        acks.tell();
        acks.on_accepted(true, false);
        assert!(acks.may_wait());
    }

    #[test]
    fn who_asks_for_nothing_is_told_now_and_then() {
        let mut acks = Acks::default();
        for count in 1..=3 * TELL_EVERY {
            acks.on_accepted(count % 2 == 1, false);
            if count % TELL_EVERY == 0 {
                assert!(!acks.may_wait(), "{count}");
                assert_eq!(acks.tell(), count);
            } else {
                assert!(acks.may_wait(), "{count}");
            }
        }
    }
}
