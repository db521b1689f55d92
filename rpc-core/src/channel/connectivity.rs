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
mod tests;
