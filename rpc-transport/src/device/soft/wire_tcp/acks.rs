//! The acknowledgements that the peer of a tcp wire is due: how many of its packets are accepted,
//! and when it must learn that.
//!
//! Every frame carries an acknowledgement, so an answer is one too. A frame of its own costs a
//! system call at either end, so it waits until a poll finds nothing, unless it is urgent.

/// The peer is notified at the latest after this many accepted packets.
const REPORT_EVERY: u64 = 32;

/// The acknowledgements of one wire.
#[derive(Debug, Default)]
pub(super) struct Acks {
    /// Packets accepted.
    accepted: u64,
    /// Accepted packets as of the last frame sent.
    reported: u64,
    due: Due,
    /// A large packet was accepted since the last notification that covered a packet that asked.
    /// The peer keeps the memory of a WRITE until the SEND after it is accepted, and only the SEND
    /// asks.
    keeps_memory: bool,
}

/// When the peer must be notified.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    #[default]
    Never,
    /// With the next packet, or when a poll finds nothing.
    WithNext,
    /// The peer keeps memory until then, or was not notified for long.
    Now,
}

impl Acks {
    /// Records an accepted packet. `asks`: its sender wants an acknowledgement, and keeps memory
    /// until then if this packet, or an earlier one that did not ask, `is_large`.
    #[inline]
    pub(super) fn on_accepted(&mut self, asks: bool, is_large: bool) {
        self.accepted += 1;
        self.keeps_memory |= is_large;
        if asks && self.keeps_memory || self.accepted - self.reported >= REPORT_EVERY {
            self.due = Due::Now;
        } else if asks {
            self.due = self.due.max(Due::WithNext);
        }
    }

    /// The number that the next frame carries.
    #[inline]
    pub(super) fn report(&mut self) -> u64 {
        self.reported = self.accepted;
        self.keeps_memory &= self.due == Due::Never;
        self.due = Due::Never;
        self.accepted
    }

    /// Whether the peer must be notified.
    #[inline]
    pub(super) fn are_due(&self) -> bool {
        self.due > Due::Never
    }

    /// Whether the notification may wait for the next packet.
    #[inline]
    pub(super) fn may_wait(&self) -> bool {
        self.due < Due::Now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_packets_defer_acks_large_ones_do_not() {
        let mut acks = Acks::default();
        acks.on_accepted(false, false);
        assert!(!acks.are_due());
        acks.on_accepted(true, false);
        assert!(acks.are_due() && acks.may_wait());
        acks.on_accepted(true, true);
        acks.on_accepted(true, false);
        assert!(!acks.may_wait(), "a small one does not put the large one off");
        assert_eq!(acks.report(), 4);
        assert!(!acks.are_due());
    }

    /// The WRITEs of a message do not ask for an acknowledgement: the SEND after them does, and is
    /// small.
    #[test]
    fn write_sources_are_released_at_once() {
        let mut acks = Acks::default();
        acks.on_accepted(false, true);
        assert!(!acks.are_due());
        // Notified by an answer to something else, in between.
        acks.report();
        acks.on_accepted(true, false);
        assert!(!acks.may_wait(), "the peer keeps what it wrote from");
        acks.report();
        acks.on_accepted(true, false);
        assert!(acks.may_wait());
    }

    #[test]
    fn peer_that_never_asks_is_notified_eventually() {
        let mut acks = Acks::default();
        for count in 1..=3 * REPORT_EVERY {
            acks.on_accepted(count % 2 == 1, false);
            if count % REPORT_EVERY == 0 {
                assert!(!acks.may_wait(), "{count}");
                assert_eq!(acks.report(), count);
            } else {
                assert!(acks.may_wait(), "{count}");
            }
        }
    }
}
