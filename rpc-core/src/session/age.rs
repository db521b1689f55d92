//! When a session has lasted long enough, and how it ends then.
//!
//! Owns the end of a session by its age: it lets clients find servers that are new, without any
//! fault. Never reads a clock: a timer of the session says when.
//!
//! Invariant: a session that is old says go-away, once, and ends when no call is left; a call or a
//! stream that runs is never cut. A peer that does not answer has a second for it.

use std::time::{Duration, Instant};

use super::{Session, Timer};

/// How long a peer without calls has to answer, and how often that is checked.
const PATIENCE: Duration = Duration::from_secs(1);

impl<W, H> Session<W, H> {
    /// Ends the session after `limit`: it says go-away, and when no call is left
    /// [`Event::Drained`](super::Event::Drained) comes. To be called once.
    pub fn end_when_old(&mut self, limit: Duration, now: Instant) {
        // Beyond the clock's end is never.
        if let Some(at) = now.checked_add(limit) {
            self.deadlines.insert(at, now, Timer::Age);
            self.ages = true;
        }
    }

    /// Ends the session now, as [`end_when_old`](Self::end_when_old) does: it is to be replaced.
    #[cold]
    pub fn end(&mut self, now: Instant) {
        if self.closed.is_none() && !self.shutdown.has_begun() {
            self.shutdown.ends_itself = true;
            self.go_away();
            if !self.ages {
                self.end_when_old(PATIENCE, now);
            }
        }
    }

    #[cold]
    pub(super) fn check_age(&mut self, now: Instant) {
        self.ages = false;
        if !self.shutdown.has_begun() {
            self.shutdown.ends_itself = true;
            self.go_away();
        } else if self.shutdown.ends_itself && self.count_calls() == 0 {
            return self.report_drained();
        }
        self.end_when_old(PATIENCE, now);
    }
}
