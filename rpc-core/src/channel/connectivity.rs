//! The connectivity of one end point: whether it is connected, and when to connect next.
//!
//! Owns the connectivity state, as in gRPC, and the timing of attempts. Connects nothing itself:
//! one task at a time, the *connector*, calls [`Connectivity::step`] for what to do, does it, and
//! reports the outcome.
//!
//! Invariants:
//! 1. At most one connector runs, so at most one attempt is in progress.
//! 2. Each attempt has its own epoch; reports of an earlier epoch are ignored.
//! 3. After a failure, the next attempt waits for the backoff. A connection that ends within
//!    [`SETTLED_AFTER`] counts as a failure, except that the first of these in a row is followed by
//!    an attempt at once: a server that accepts and dies is not stormed.
//! 4. A connection that has served and ends in order is no failure, however short it was.
//! 5. Each attempt was asked for, by a waiting call or by [`Connectivity::start`]. Without that an
//!    end point stays as it is; [`Connectivity::retry_at`] says when to ask again.

use std::time::{Duration, Instant};

use rpc_transport::wait::after;

use super::backoff::Backoff;

/// A connection that lasted this long does not count as a failure.
pub const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// The state of a channel's connection, as in gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectivityState {
    /// Not connected, and not trying: the next call connects. A channel to several servers that is
    /// in use tries by itself.
    Idle,
    /// An attempt is in progress.
    Connecting,
    /// Connected: calls are sent at once.
    Ready,
    /// The last attempt failed; the next one follows after a backoff if a call waits for it, or,
    /// where there are several servers, if the channel is in use.
    TransientFailure,
    /// Closed permanently: all calls fail.
    Shutdown,
}

/// How a connection was lost, for the time of the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// It has served, and one of its ends sent the other away.
    InOrder,
    /// In any other way. It is a failure if it did not last.
    Other,
}

/// The connector's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Connect, and report the outcome with this epoch.
    Connect(u64),
    /// Wait until then, then call [`Connectivity::step`] again.
    Sleep(Instant),
    /// End: there is nothing to do. The next call that needs a connection starts another connector.
    Stop,
}

/// The state of one end point.
#[derive(Debug)]
pub struct Connectivity {
    /// `None`: a lost connection is not replaced.
    backoff: Option<Backoff>,
    state: ConnectivityState,
    epoch: u64,
    /// Failed attempts since the last lasting connection.
    failures: u32,
    /// When the backoff is over.
    retry_at: Option<Instant>,
    ready_since: Option<Instant>,
    /// Whether a connector runs.
    runs: bool,
    /// Whether the connector must make one more attempt, even without waiters.
    owes_attempt: bool,
}

impl Connectivity {
    /// Starts unconnected. Without a backoff there is a single attempt, and none after a loss.
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

    /// The epoch of the current attempt, or of the last one.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether the attempt of that epoch is in progress.
    #[must_use]
    pub fn is_connecting(&self, epoch: u64) -> bool {
        epoch == self.epoch && self.state == ConnectivityState::Connecting
    }

    /// Whether a connector runs, which will notify all waiters.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.runs
    }

    /// Whether calls that do not wait for ready should fail: the last attempt failed, and the next
    /// one is not due.
    #[must_use]
    pub fn is_failing(&self, now: Instant) -> bool {
        match self.state {
            ConnectivityState::TransientFailure => self.retry_at.is_some_and(|at| at > now),
            ConnectivityState::Shutdown => true,
            _ => false,
        }
    }

    /// When a connection can be asked for again, if that is of no use now.
    #[must_use]
    pub fn retry_at(&self, now: Instant) -> Option<Instant> {
        self.retry_at.filter(|at| *at > now && self.state == ConnectivityState::TransientFailure)
    }

    /// A connection is wanted. True: the caller must start a connector. `waits`: a call waits
    /// through any number of failures, so a connector is useful even before the backoff is over.
    #[must_use]
    pub fn start(&mut self, now: Instant, waits: bool) -> bool {
        let is_of_use = match self.state {
            ConnectivityState::Idle => true,
            ConnectivityState::TransientFailure => waits || !self.is_failing(now),
            _ => false,
        };
        let starts = is_of_use && !self.runs;
        // Also of a connector that runs: the call that it runs for may go away.
        self.owes_attempt |= starts || is_of_use && !waits;
        self.runs |= starts;
        starts
    }

    /// The connector's next step. `waits`: a call waits for a connection.
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

    /// Records that the connector's task was dropped.
    pub fn on_connector_gone(&mut self, now: Instant) {
        (self.runs, self.owes_attempt) = (false, false);
        if self.state == ConnectivityState::Connecting {
            self.state = ConnectivityState::TransientFailure;
            self.retry_at = Some(now);
        }
    }

    /// Records that the attempt of that epoch succeeded. False: it is not the current one, and the
    /// connection must be dropped.
    #[must_use]
    pub fn on_connected(&mut self, epoch: u64, now: Instant) -> bool {
        let is_current = self.is_connecting(epoch);
        if is_current {
            self.state = ConnectivityState::Ready;
            (self.retry_at, self.ready_since) = (None, Some(now));
        }
        is_current
    }

    /// Records that the attempt of that epoch failed.
    pub fn on_failed(&mut self, epoch: u64, now: Instant, random: u64) {
        if self.is_connecting(epoch) {
            self.back_off(now, random);
        }
    }

    /// Records that the connection of that epoch has ended, or accepts no more calls. True: it was
    /// the current one.
    pub fn on_lost(&mut self, epoch: u64, now: Instant, random: u64, loss: Loss) -> bool {
        if epoch != self.epoch || self.state != ConnectivityState::Ready {
            return false;
        }
        let since = self.ready_since.take();
        let lasted = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let is_failure = loss == Loss::Other && lasted < SETTLED_AFTER;
        if is_failure && self.failures > 0 {
            self.back_off(now, random);
        } else {
            // After the first in a row, the next attempt is due at once.
            self.failures = u32::from(is_failure);
            (self.state, self.retry_at) = (ConnectivityState::Idle, None);
        }
        if self.backoff.is_none() {
            self.state = ConnectivityState::Shutdown;
        }
        true
    }

    /// Records that the connection of that epoch ended with the runtime that drove it, which says
    /// nothing about the server: the next attempt is due at once. True: it was the current one.
    pub fn on_driver_gone(&mut self, epoch: u64) -> bool {
        if epoch != self.epoch || self.state != ConnectivityState::Ready {
            return false;
        }
        self.ready_since = None;
        let is_last = self.backoff.is_none();
        self.state = if is_last { ConnectivityState::Shutdown } else { ConnectivityState::Idle };
        true
    }

    fn back_off(&mut self, now: Instant, random: u64) {
        let Some(backoff) = &self.backoff else {
            self.state = ConnectivityState::Shutdown;
            return;
        };
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(after(now, backoff.delay(self.failures, random)));
        self.state = ConnectivityState::TransientFailure;
    }

    /// Closes the end point permanently.
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
    fn no_attempt_during_backoff_or_without_waiters() {
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
    fn a_backoff_beyond_the_clock_is_one() {
        let backoff = Backoff::new().initial(Duration::MAX).max(Duration::MAX);
        let (mut machine, now) = (Connectivity::new(Some(backoff)), Instant::now());
        assert!(machine.start(now, true));
        assert_eq!(machine.step(now, true), Step::Connect(1));
        machine.on_failed(1, now, 0);
        let later = now + 1_000_000_000 * MS;
        assert!(machine.is_failing(later));
        assert!(matches!(machine.step(later, true), Step::Sleep(at) if at > later));
    }

    #[test]
    fn only_an_immediate_loss_is_a_failure() {
        let (mut machine, mut now) = (machine(), Instant::now());
        let epoch = connected(&mut machine, now);
        now += SETTLED_AFTER;
        assert!(machine.on_lost(epoch, now, 0, Loss::Other));
        assert_eq!(machine.state(), Idle);
        let epoch = connected(&mut machine, now);
        assert!(machine.on_lost(epoch, now, 0, Loss::Other));
        assert_eq!(machine.state(), Idle, "the first in a row");
        for failures in 1..20 {
            let epoch = connected(&mut machine, now);
            assert!(machine.on_lost(epoch, now, 0, Loss::Other));
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

    /// Each of many servers that end their connections within a second.
    #[test]
    fn an_orderly_end_after_service_is_no_failure() {
        let (mut machine, mut now) = (machine(), Instant::now());
        for _ in 0..100 {
            let epoch = connected(&mut machine, now);
            now += MS;
            assert!(machine.on_lost(epoch, now, 0, Loss::InOrder));
            assert_eq!((machine.state(), machine.retry_at(now)), (Idle, None));
        }
        for state in [Idle, TransientFailure] {
            let epoch = connected(&mut machine, now);
            assert!(machine.on_lost(epoch, now, 0, Loss::Other));
            assert_eq!(machine.state(), state, "those before were none");
        }
    }

    #[test]
    fn a_missing_end_point_can_be_wanted_again() {
        let (mut machine, now) = (machine(), Instant::now());
        assert!(machine.start(now, true));
        assert_eq!(machine.step(now, true), Step::Connect(1));
        assert_eq!(machine.retry_at(now), None);
        machine.on_failed(1, now, 0);
        let at = machine.retry_at(now).unwrap();
        assert_eq!(at, now + 50 * MS);
        // The connector waits for a call, which goes as the backoff ends.
        assert_eq!(machine.step(now, true), Step::Sleep(at));
        assert_eq!((machine.start(at, false), machine.retry_at(at)), (false, None));
        assert_eq!(machine.step(at, false), Step::Connect(2));
    }

    #[test]
    fn news_of_an_earlier_epoch_change_nothing() {
        let (mut machine, now) = (machine(), Instant::now());
        let first = connected(&mut machine, now);
        assert!(machine.on_lost(first, now + SETTLED_AFTER, 0, Loss::Other));
        let second = connected(&mut machine, now + SETTLED_AFTER);
        assert!(second > first);
        assert!(!machine.on_lost(first, now + SETTLED_AFTER, 0, Loss::Other));
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
    fn the_end_of_our_runtime_is_no_failure() {
        let (mut machine, now) = (machine(), Instant::now());
        for _ in 0..5 {
            let epoch = connected(&mut machine, now);
            assert!(machine.on_driver_gone(epoch) && !machine.on_driver_gone(epoch));
            assert_eq!(machine.state(), Idle);
        }
        let epoch = connected(&mut machine, now);
        assert!(machine.on_lost(epoch, now, 0, Loss::Other));
        assert_eq!(machine.state(), Idle, "the first of the server's in a row");
    }

    #[test]
    fn without_a_backoff_what_is_lost_stays_lost() {
        let (mut machine, now) = (Connectivity::new(None), Instant::now());
        let epoch = connected(&mut machine, now);
        assert!(machine.on_lost(epoch, now + SETTLED_AFTER, 0, Loss::Other));
        assert_eq!(machine.state(), Shutdown);
        assert!(!machine.start(now, true));
    }
}
