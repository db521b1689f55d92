//! Keeps a key in etcd as long as its server lives.
//!
//! Owns the lease and what was last written under it. Decides the next request; never sends one.
//!
//! Invariants:
//! 1. A lease without remaining time, one that is not found, and one that could not be renewed for
//!    its whole duration, is over: there is a new one, and the key is written again.
//! 2. The key is written again when the state of the server changes.
//! 3. A lease is renewed each third of its duration.

use std::time::{Duration, Instant};

/// Time between two leases that have ended before they began.
const GRANT_AGAIN: Duration = Duration::from_secs(1);

/// The next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Ask for a lease.
    Grant,
    /// Write the key under this lease.
    Put(i64),
    /// Renew this lease.
    KeepAlive(i64),
    /// Nothing until then.
    Wait(Instant),
}

/// A lease, and the key under it.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    id: Option<i64>,
    duration: Duration,
    /// When the lease ends, if it is not renewed.
    ends_at: Option<Instant>,
    /// When the next request is due.
    next_at: Option<Instant>,
    /// Whether the server was draining when the key was written.
    written: Option<bool>,
    is_draining: bool,
    failures: u32,
}

impl Lease {
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// The lease, for revoking it.
    pub(crate) fn id(&self) -> Option<i64> {
        self.id
    }

    /// The server begins to shut down.
    pub(crate) fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Failed requests in a row.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    pub(crate) fn step(&mut self, now: Instant) -> Step {
        if self.id.is_some() && self.ends_at.is_some_and(|end| end <= now) {
            self.forget();
        }
        if self.failures > 0
            && let Some(at) = self.next_at.filter(|at| *at > now)
        {
            return Step::Wait(at);
        }
        let Some(id) = self.id else { return Step::Grant };
        if self.written != Some(self.is_draining) {
            return Step::Put(id);
        }
        match self.next_at.filter(|at| *at > now) {
            Some(at) => Step::Wait(at),
            None => Step::KeepAlive(id),
        }
    }

    /// etcd has granted a lease, or renewed the one that there is, for some seconds.
    pub(crate) fn on_lease(&mut self, now: Instant, id: i64, seconds: i64) {
        self.failures = 0;
        let seconds = u64::try_from(seconds).unwrap_or(0).min(1 << 20);
        if seconds == 0 {
            let was_held = self.id.is_some();
            self.forget();
            if !was_held {
                // Asked again at once, it would be no different.
                self.on_failed(now, false, GRANT_AGAIN);
            }
            return;
        }
        self.id = Some(id);
        self.duration = Duration::from_secs(seconds);
        self.ends_at = Some(now + self.duration);
        self.next_at = Some(now + self.duration / 3);
    }

    /// The key was written; `is_draining` as in the value.
    pub(crate) fn on_put(&mut self, is_draining: bool) {
        self.failures = 0;
        self.written = Some(is_draining);
    }

    /// A request has failed; the next one is due after a while. `is_gone`: the lease is not found.
    pub(crate) fn on_failed(&mut self, now: Instant, is_gone: bool, wait: Duration) {
        if is_gone {
            self.forget();
        }
        self.failures = self.failures.saturating_add(1);
        self.next_at = Some(now + wait);
    }

    fn forget(&mut self) {
        (self.id, self.ends_at, self.written) = (None, None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn registered(now: Instant) -> Lease {
        let mut lease = Lease::default();
        assert_eq!(lease.step(now), Step::Grant);
        lease.on_lease(now, 7, 9);
        assert_eq!(lease.step(now), Step::Put(7));
        lease.on_put(false);
        assert_eq!(lease.step(now), Step::Wait(now + 3 * SECOND));
        lease
    }

    #[test]
    fn a_lease_is_renewed_in_time() {
        let now = Instant::now();
        let mut lease = registered(now);
        let now = now + 3 * SECOND;
        assert_eq!(lease.step(now), Step::KeepAlive(7));
        lease.on_lease(now, 7, 9);
        assert_eq!(lease.step(now), Step::Wait(now + 3 * SECOND));
        lease.drain();
        assert_eq!(lease.step(now), Step::Put(7));
        lease.on_put(true);
        assert_eq!(lease.step(now), Step::Wait(now + 3 * SECOND));
    }

    #[test]
    fn an_ended_lease_is_replaced_and_written() {
        let now = Instant::now();
        for how in 0..4 {
            let mut lease = registered(now);
            let mut then = now + 3 * SECOND;
            match how {
                0 => lease.on_lease(then, 7, 0),
                1 => lease.on_lease(then, 7, -1),
                2 => lease.on_failed(then, true, Duration::ZERO),
                _ => {
                    // etcd is silent for longer than the lease lasts.
                    lease.on_failed(then, false, SECOND);
                    assert_eq!(lease.step(then), Step::Wait(then + SECOND));
                    assert_eq!(lease.step(then + SECOND), Step::KeepAlive(7));
                    lease.on_failed(then + SECOND, false, SECOND);
                    then = now + 9 * SECOND;
                }
            }
            assert_eq!(lease.step(then), Step::Grant, "{how}");
            lease.on_lease(then, 8, 9);
            assert_eq!(lease.step(then), Step::Put(8), "{how}");
        }
    }

    #[test]
    fn leases_without_time_are_no_storm() {
        let now = Instant::now();
        let mut lease = Lease::default();
        for second in 0..3 {
            let now = now + second * SECOND;
            assert_eq!(lease.step(now), Step::Grant);
            lease.on_lease(now, 7, 0);
            assert_eq!(lease.step(now), Step::Wait(now + SECOND));
        }
    }

    #[test]
    fn failures_delay_every_request() {
        let now = Instant::now();
        let mut lease = Lease::default();
        lease.on_failed(now, false, SECOND);
        assert_eq!((lease.step(now), lease.failures()), (Step::Wait(now + SECOND), 1));
        let now = now + SECOND;
        assert_eq!(lease.step(now), Step::Grant);
        lease.on_lease(now, 7, 9);
        lease.on_failed(now, false, SECOND);
        assert_eq!(lease.step(now), Step::Wait(now + SECOND), "the key is written later");
        assert_eq!(lease.step(now + SECOND), Step::Put(7));
    }

    /// Whatever fails and when: as soon as requests work again, the key is there.
    #[test]
    fn the_key_always_returns() {
        test_kit::for_seeds(1, 500, |rng| {
            let (mut lease, mut now) = (Lease::default(), Instant::now());
            // In etcd: the lease, its end, and whether the key is under it.
            let (mut held, mut key, mut next_id) = (None, false, 1);
            for turn in 0..200 {
                let fails = turn < 150 && rng.chance(40);
                if held.is_some_and(|(_, end)| end <= now) || turn < 150 && rng.chance(5) {
                    (held, key) = (None, false);
                }
                let is_there = |id: i64| held.is_some_and(|(held, _)| held == id);
                match lease.step(now) {
                    Step::Wait(at) => now = at,
                    _ if fails => lease.on_failed(now, false, rng.pick(&[SECOND, 5 * SECOND])),
                    Step::Grant => {
                        held = Some((next_id, now + 9 * SECOND));
                        lease.on_lease(now, next_id, 9);
                        (key, next_id) = (false, next_id + 1);
                    }
                    Step::Put(id) if is_there(id) => {
                        key = true;
                        lease.on_put(lease.is_draining());
                    }
                    Step::Put(_) => lease.on_failed(now, true, SECOND),
                    Step::KeepAlive(id) if is_there(id) => {
                        held = Some((id, now + 9 * SECOND));
                        lease.on_lease(now, id, 9);
                    }
                    Step::KeepAlive(id) => lease.on_lease(now, id, 0),
                }
            }
            assert!(key && held.is_some(), "{lease:?}");
        });
    }
}
