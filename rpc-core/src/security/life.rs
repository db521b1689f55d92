//! How long a connection may last.
//!
//! Owns the decision when it is replaced by another one, and when it is closed. Never reads a
//! clock: certificates end by the wall clock, which may be set, and the rest is by one that only
//! goes on.
//!
//! Invariant: a connection is asked to go away once, and closed when the grace is over, whatever
//! its peer does.

use std::time::{Duration, Instant, SystemTime};

use crate::identity::Certificate;

/// The life of one connection.
#[derive(Debug, Clone)]
pub(super) struct Life {
    /// When what the peer has shown ends.
    ends: Option<SystemTime>,
    /// When this end wants another connection.
    old_at: Option<Instant>,
    grace: Duration,
    /// When it was asked to go away.
    asked: Option<Instant>,
}

/// What is to be done about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing, for so long.
    Wait(Duration),
    GoAway,
    Close,
}

impl Life {
    pub(super) fn new(
        ends: Option<SystemTime>,
        max_age: Option<Duration>,
        grace: Duration,
        now: Instant,
    ) -> Self {
        let old_at = max_age.and_then(|age| now.checked_add(age));
        Self { ends, old_at, grace, asked: None }
    }

    /// Has it replaced by then.
    pub(super) fn replace_by(&mut self, at: Instant) {
        self.old_at = Some(self.old_at.map_or(at, |old| old.min(at)));
    }

    pub(super) fn step(&mut self, wall: SystemTime, now: Instant) -> Step {
        if let Some(asked) = self.asked {
            let left = self.grace.saturating_sub(now.saturating_duration_since(asked));
            return if left.is_zero() { Step::Close } else { Step::Wait(left) };
        }
        let until_end = self.ends.map(|ends| ends.duration_since(wall).unwrap_or_default());
        let until_old = self.old_at.map(|at| at.saturating_duration_since(now));
        match until_end.into_iter().chain(until_old).min() {
            Some(Duration::ZERO) => {
                self.asked = Some(now);
                Step::GoAway
            }
            left => Step::Wait(left.unwrap_or(Duration::MAX)),
        }
    }
}

/// What is left of a certificate, where less than a third of its life is.
pub(super) fn last_third(certificate: &Certificate, wall: SystemTime) -> Option<Duration> {
    let ends = certificate.not_after()?;
    let left = ends.duration_since(wall).unwrap_or_default();
    let life = certificate.not_before().and_then(|begins| ends.duration_since(begins).ok());
    (left < life.unwrap_or_default() / 3 || left.is_zero()).then_some(left)
}

/// Whether more than half of the time between two is over.
pub(super) fn is_second_half(begins: SystemTime, ends: SystemTime, wall: SystemTime) -> bool {
    let half = ends.duration_since(begins).unwrap_or_default() / 2;
    wall.duration_since(begins).is_ok_and(|since| since > half)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn who_ignores_go_away_is_closed() {
        let (wall, now) = (SystemTime::UNIX_EPOCH + HOUR, Instant::now());
        let mut life = Life::new(Some(wall + 2 * SECOND), None, 60 * SECOND, now);
        assert_eq!(life.step(wall, now), Step::Wait(2 * SECOND));
        // The time alone does not end it, if the wall clock says something else.
        assert_eq!(life.step(wall + SECOND, now + HOUR), Step::Wait(SECOND));
        let now = now + HOUR;
        assert_eq!(life.step(wall + 2 * SECOND, now), Step::GoAway);
        assert_eq!(life.step(wall, now + SECOND), Step::Wait(59 * SECOND));
        assert_eq!(life.step(wall, now + 60 * SECOND), Step::Close);
    }

    #[test]
    fn a_clock_that_is_set_counts_at_once() {
        let (wall, now) = (SystemTime::UNIX_EPOCH + HOUR, Instant::now());
        let mut life = Life::new(Some(wall + HOUR), None, SECOND, now);
        assert_eq!(life.step(wall - SECOND, now), Step::Wait(HOUR + SECOND));
        assert_eq!(life.step(wall + 2 * HOUR, now), Step::GoAway);
    }

    #[test]
    fn age_and_renewal_end_it_too() {
        let (wall, now) = (SystemTime::UNIX_EPOCH, Instant::now());
        let mut life = Life::new(None, Some(HOUR), SECOND, now);
        assert_eq!(life.step(wall, now), Step::Wait(HOUR));
        life.replace_by(now + 2 * HOUR);
        assert_eq!(life.step(wall, now), Step::Wait(HOUR));
        life.replace_by(now + SECOND);
        assert_eq!(life.step(wall, now), Step::Wait(SECOND));
        assert_eq!(life.step(wall, now + SECOND), Step::GoAway);
        let mut endless = Life::new(None, None, SECOND, now);
        assert_eq!(endless.step(wall + HOUR, now + HOUR), Step::Wait(Duration::MAX));
    }

    #[test]
    fn what_ends_soon_is_known_before() {
        let at = |hours: u32| SystemTime::UNIX_EPOCH + hours * HOUR;
        let (not_before, not_after) = (Some(at(10)), Some(at(100)));
        let certificate = Certificate { not_before, not_after, ..Certificate::of_key([0; 32]) };
        assert_eq!(last_third(&certificate, at(70)), None);
        assert_eq!(last_third(&certificate, at(71)), Some(29 * HOUR));
        assert_eq!(last_third(&certificate, at(200)), Some(Duration::ZERO));
        assert_eq!(last_third(&Certificate::of_key([0; 32]), at(200)), None);
        for (now, is) in [(0, false), (55, false), (56, true), (200, true)] {
            assert_eq!(is_second_half(at(10), at(100), at(now)), is, "{now}");
        }
    }
}
