//! When a session counts as idle, and how it ends then.
//!
//! Owns the judgement that neither end has made a call for some time. Never reads a clock: a timer
//! of the session checks four times within that time, so calls pay nothing for it.
//!
//! Invariants:
//! 1. A session is found idle once its limit has passed without calls and messages, and at most a
//!    quarter of the limit later. A call or a stream that runs is never idle.
//! 2. An idle session says go-away first. It ends when the peer has answered that, or with the next
//!    check that finds no call, if the peer does not answer.

use std::time::{Duration, Instant};

use super::{Session, Timer};

/// Checks within the limit.
const CHECKS: u32 = 4;

/// What a session that may become idle has seen. While it exists, its timer is in the wheel.
#[derive(Debug)]
pub(super) struct Idle {
    interval: Duration,
    /// Messages of both ends so far.
    messages: u64,
    /// The same at the last check.
    checked: u64,
    /// Checks in a row that found nothing.
    quiet: u32,
}

impl Idle {
    /// A quarter of the limit has passed. Whether the session is idle now.
    fn check(&mut self, has_calls: bool) -> bool {
        let is_quiet = !has_calls && self.messages == self.checked;
        self.checked = self.messages;
        self.quiet = if is_quiet { self.quiet + 1 } else { 0 };
        self.quiet >= CHECKS
    }
}

impl<W, H> Session<W, H> {
    /// Ends the session once neither end has made a call for `limit`: it says go-away, and then
    /// [`Event::Drained`](super::Event::Drained) comes. To be called once.
    pub fn end_when_idle(&mut self, limit: Duration, now: Instant) {
        self.check_later(Idle { interval: limit / CHECKS, messages: 0, checked: 0, quiet: 0 }, now);
    }

    fn check_later(&mut self, idle: Idle, now: Instant) {
        // Beyond the clock's end is never.
        if let Some(at) = now.checked_add(idle.interval) {
            self.deadlines.insert(at, now, Timer::Idle);
            self.idle = Some(idle);
        }
    }

    /// Messages that both ends have sent so far. Needed before each [`Session::on_timeout`] where
    /// [`Session::end_when_idle`] was called; without effect elsewhere.
    pub fn set_messages(&mut self, count: u64) {
        if let Some(idle) = &mut self.idle {
            idle.messages = count;
        }
    }

    /// Calls of both ends.
    pub(super) fn count_calls(&self) -> usize {
        self.calls.len() + (self.slots.busy() + self.incoming.in_flight()) as usize
    }

    #[cold]
    pub(super) fn check_idle(&mut self, now: Instant) {
        let calls = self.count_calls();
        let Some(mut idle) = self.idle.take() else { return };
        if self.shutdown.ends_itself {
            // The peer had a quarter of the limit to answer.
            if calls == 0 {
                return self.report_drained();
            }
        } else if idle.check(calls != 0) && !self.shutdown.has_begun() {
            self.shutdown.ends_itself = true;
            self.go_away();
        }
        self.check_later(idle, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks until it is idle, with a message before the first one.
    fn checks(mut idle: Idle, calls_until: u32) -> u32 {
        idle.messages += 1;
        (1..).find(|count| idle.check(*count <= calls_until)).expect("in the end")
    }

    #[test]
    fn idle_lasts_a_whole_limit_without_calls() {
        let new = || Idle { interval: Duration::ZERO, messages: 0, checked: 0, quiet: 0 };
        // The message came at any time before the first check.
        assert_eq!(checks(new(), 0), 1 + CHECKS);
        assert_eq!(checks(new(), 7), 7 + CHECKS);
        let mut busy = new();
        for _ in 0..100 {
            busy.messages += 2;
            assert!(!busy.check(false), "a call between any two checks");
        }
    }
}
