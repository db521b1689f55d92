//! One end point: whether it is connected, and when to connect next.
//!
//! Owns the state of gRPC's connectivity and the timing of attempts. Connects nothing itself: one
//! *connector* (a task) at a time asks [`Connectivity::step`] what to do, does it, and tells the
//! outcome.
//!
//! Invariants:
//! 1. At most one connector runs, so at most one attempt is under way.
//! 2. Each attempt has an epoch of its own; news of an earlier epoch change nothing.
//! 3. After a failure nothing is attempted before the backoff is over. A connection that ends
//!    within [`SETTLED_AFTER`] counts as a failure, though after the first of these in a row there
//!    is no wait: a server that accepts and dies at once is not stormed.
//! 4. Nobody who waits: no attempt. An end point that no call needs stays as it is.

use std::time::{Duration, Instant};

use super::backoff::Backoff;

/// A connection that has lasted so long has not failed.
pub const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// What a channel does about its connection: gRPC's states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectivityState {
    /// Not connected, and not trying: the next call connects.
    Idle,
    /// An attempt is under way.
    Connecting,
    /// Connected: calls leave at once.
    Ready,
    /// The last attempt failed; the next one follows after a backoff if a call waits for it.
    TransientFailure,
    /// Closed for good: no call succeeds any more.
    Shutdown,
}

/// What a connector does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Connect, and tell the outcome with this epoch.
    Connect(u64),
    /// Wait until then, and ask again.
    Sleep(Instant),
    /// End: nothing is to be done. Whoever needs a connection starts another connector.
    Stop,
}

/// The state of one end point.
#[derive(Debug)]
pub struct Connectivity {
    /// `None`: what is lost stays lost.
    backoff: Option<Backoff>,
    state: ConnectivityState,
    epoch: u64,
    /// Attempts that failed since a connection lasted.
    failures: u32,
    /// When the backoff is over.
    retry_at: Option<Instant>,
    ready_since: Option<Instant>,
    /// A connector runs.
    runs: bool,
    /// It owes one attempt, also if nobody waits any more.
    owes_attempt: bool,
}

impl Connectivity {
    /// Not connected. Without a backoff there is one attempt, and no other after a loss.
    #[must_use]
    pub fn new(backoff: Option<Backoff>) -> Self {
        Self {
            backoff,
            state: ConnectivityState::Idle,
            epoch: 0,
            failures: 0,
            retry_at: None,
            ready_since: None,
            runs: false,
            owes_attempt: false,
        }
    }

    /// The state.
    #[must_use]
    pub fn state(&self) -> ConnectivityState {
        self.state
    }

    /// Of the attempt that is under way, or was last.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether a call had better not wait for this end point, unless it waits until it is ready:
    /// the last attempt failed, and the next one is not due.
    #[must_use]
    pub fn is_failing(&self, now: Instant) -> bool {
        match self.state {
            ConnectivityState::TransientFailure => self.retry_at.is_some_and(|at| at > now),
            ConnectivityState::Shutdown => true,
            _ => false,
        }
    }

    /// A connection is wanted. True: the caller must start a connector. `waits`: somebody waits
    /// for it through any number of failures, so a connector is of use before the backoff is over.
    #[must_use]
    pub fn start(&mut self, now: Instant, waits: bool) -> bool {
        let is_of_use = match self.state {
            ConnectivityState::Idle => true,
            ConnectivityState::TransientFailure => waits || !self.is_failing(now),
            _ => false,
        };
        let starts = is_of_use && !self.runs;
        if starts {
            (self.runs, self.owes_attempt) = (true, true);
        }
        starts
    }

    /// What the connector does next. `waits`: somebody waits for a connection.
    pub fn step(&mut self, now: Instant, waits: bool) -> Step {
        let wanted = waits || self.owes_attempt;
        let may_connect =
            matches!(self.state, ConnectivityState::Idle | ConnectivityState::TransientFailure);
        if !wanted || !may_connect {
            (self.runs, self.owes_attempt) = (false, false);
            return Step::Stop;
        }
        if let Some(at) = self.retry_at.filter(|at| *at > now) {
            return Step::Sleep(at);
        }
        self.owes_attempt = false;
        self.epoch += 1;
        self.state = ConnectivityState::Connecting;
        Step::Connect(self.epoch)
    }

    /// The connector is gone without a word: its task was dropped.
    pub fn on_connector_gone(&mut self, now: Instant) {
        (self.runs, self.owes_attempt) = (false, false);
        if self.state == ConnectivityState::Connecting {
            self.state = ConnectivityState::TransientFailure;
            self.retry_at = Some(now);
        }
    }

    /// The attempt of that epoch has succeeded. False: it is not the current one, and the
    /// connection is not wanted.
    #[must_use]
    pub fn on_connected(&mut self, epoch: u64, now: Instant) -> bool {
        let is_current = epoch == self.epoch && self.state == ConnectivityState::Connecting;
        if is_current {
            self.state = ConnectivityState::Ready;
            (self.retry_at, self.ready_since) = (None, Some(now));
        }
        is_current
    }

    /// The attempt of that epoch has failed.
    pub fn on_failed(&mut self, epoch: u64, now: Instant, random: u64) {
        if epoch == self.epoch && self.state == ConnectivityState::Connecting {
            self.back_off(now, random);
        }
    }

    /// The connection of that epoch has ended, or takes no calls any more. True: it was the current
    /// one.
    pub fn on_lost(&mut self, epoch: u64, now: Instant, random: u64) -> bool {
        if epoch != self.epoch || self.state != ConnectivityState::Ready {
            return false;
        }
        let since = self.ready_since.take();
        let lasted = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        if lasted < SETTLED_AFTER && self.failures > 0 {
            self.back_off(now, random);
        } else {
            // The first in a row is tried again at once.
            self.failures = u32::from(lasted < SETTLED_AFTER);
            (self.state, self.retry_at) = (ConnectivityState::Idle, None);
        }
        if self.backoff.is_none() {
            self.state = ConnectivityState::Shutdown;
        }
        true
    }

    fn back_off(&mut self, now: Instant, random: u64) {
        let Some(backoff) = &self.backoff else {
            self.state = ConnectivityState::Shutdown;
            return;
        };
        self.failures = self.failures.saturating_add(1);
        self.retry_at = now.checked_add(backoff.delay(self.failures, random));
        self.state = ConnectivityState::TransientFailure;
    }

    /// Nothing is connected any more.
    pub fn shut_down(&mut self) {
        self.state = ConnectivityState::Shutdown;
    }
}

#[cfg(test)]
mod tests {
    use super::ConnectivityState::*;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn machine() -> Connectivity {
        Connectivity::new(Some(Backoff::new().jitter(0.0)))
    }

    fn connected(machine: &mut Connectivity, now: Instant) -> u64 {
        assert!(machine.start(now, true));
        let Step::Connect(epoch) = machine.step(now, true) else { panic!("{machine:?}") };
        assert!(machine.on_connected(epoch, now));
        assert_eq!(machine.step(now, true), Step::Stop);
        epoch
    }

    #[test]
    fn one_attempt_at_a_time_however_many_ask() {
        let (mut machine, now) = (machine(), Instant::now());
        assert!(machine.start(now, true));
        assert!(!machine.start(now, true) && !machine.start(now, false));
        assert_eq!(machine.step(now, true), Step::Connect(1));
        assert!(!machine.start(now, true));
        assert_eq!(machine.state(), Connecting);
    }

    #[test]
    fn failures_are_waited_out_and_nobody_who_waits_means_no_attempt() {
        let (mut machine, now) = (machine(), Instant::now());
        assert!(machine.start(now, true));
        assert_eq!(machine.step(now, true), Step::Connect(1));
        machine.on_failed(1, now, 0);
        assert_eq!(machine.state(), TransientFailure);
        assert_eq!(machine.step(now, true), Step::Sleep(now + 50 * MS));
        assert_eq!(machine.step(now, false), Step::Stop);
        assert!(machine.is_failing(now + 49 * MS) && !machine.is_failing(now + 50 * MS));
        assert!(!machine.start(now + 49 * MS, false), "it would wait in vain");
        assert!(machine.start(now + 50 * MS, false));
        assert_eq!(machine.step(now + 50 * MS, false), Step::Connect(2));
        machine.on_failed(2, now + 50 * MS, 0);
        assert!(machine.is_failing(now + 129 * MS) && !machine.is_failing(now + 130 * MS));
    }

    #[test]
    fn a_loss_after_a_while_is_no_failure_and_one_at_once_is() {
        let (mut machine, mut now) = (machine(), Instant::now());
        let epoch = connected(&mut machine, now);
        now += SETTLED_AFTER;
        assert!(machine.on_lost(epoch, now, 0));
        assert_eq!(machine.state(), Idle);
        let epoch = connected(&mut machine, now);
        assert!(machine.on_lost(epoch, now, 0));
        assert_eq!(machine.state(), Idle, "the first in a row");
        for failures in 1..20 {
            let epoch = connected(&mut machine, now);
            assert!(machine.on_lost(epoch, now, 0));
            assert_eq!(machine.state(), TransientFailure, "the {failures}th in a row");
            let Step::Sleep(at) = ({
                assert!(machine.start(now, true));
                machine.step(now, true)
            }) else {
                panic!("{machine:?}")
            };
            assert_eq!(machine.step(now, false), Step::Sleep(at), "it owes an attempt");
            machine.on_connector_gone(now);
            assert!(at > now);
            now = at;
        }
    }

    #[test]
    fn news_of_an_earlier_epoch_change_nothing() {
        let (mut machine, now) = (machine(), Instant::now());
        let first = connected(&mut machine, now);
        assert!(machine.on_lost(first, now + SETTLED_AFTER, 0));
        let second = connected(&mut machine, now + SETTLED_AFTER);
        assert!(second > first);
        assert!(!machine.on_lost(first, now + SETTLED_AFTER, 0));
        machine.on_failed(first, now, 0);
        assert!(!machine.on_connected(first, now) && !machine.on_connected(second, now));
        assert_eq!(machine.state(), Ready);
    }

    #[test]
    fn a_connector_that_vanishes_is_replaced() {
        let (mut machine, now) = (machine(), Instant::now());
        assert!(machine.start(now, true));
        assert_eq!(machine.step(now, true), Step::Connect(1));
        machine.on_connector_gone(now);
        assert!(machine.start(now, false));
        assert_eq!(machine.step(now, false), Step::Connect(2));
        assert!(!machine.on_connected(1, now) && machine.on_connected(2, now));
    }

    #[test]
    fn without_a_backoff_what_is_lost_stays_lost() {
        let (mut machine, now) = (Connectivity::new(None), Instant::now());
        let epoch = connected(&mut machine, now);
        assert!(machine.on_lost(epoch, now + SETTLED_AFTER, 0));
        assert_eq!(machine.state(), Shutdown);
        assert!(!machine.start(now, true));
    }
}
