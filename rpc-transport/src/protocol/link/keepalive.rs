//! Keep-alive: finds out with Ping and Pong whether a silent peer is dead.
//!
//! Owns the deadlines of one end, the rule what counts as a sign of life, and which of the two
//! frames is due. Never reads a clock and sends nothing.
//!
//! Invariants:
//! 1. These are signs of life: a received frame; bytes of a frame that is still arriving; bytes of
//!    this end that the peer's host accepts before it has the Ping, as the Ping may wait behind
//!    megabytes; and the arrival of the Ping there, as a relay between the two may hold as much
//!    again. After that, bytes that the host accepts no longer count, only those that the peer
//!    sends: otherwise a host that acknowledges for a stopped process would pass for a live peer.
//! 2. At most one Ping of each direction is unanswered, so a peer can make this end owe one Pong.
//! 3. The timeout starts when the Ping becomes due, not when it is sent: a live peer returns
//!    credits without help of its application, so if the Ping cannot be sent the peer is silent.
//! 4. Silence is counted in checks ("looks"): the peer is dead after `LOOKS` checks in a row, each
//!    on time, without a sign of life. A late check means that this end itself did not listen: the
//!    count starts again.
//! 5. On a sealed connection only frames that were opened are proofs of life. Bytes and their
//!    acknowledgements, which anybody on the way can forge, put the end off: the peer is dead
//!    after the interval and [`UNPROVEN`] timeouts without such a frame, unless a check was late.
//! 6. A peer that dies is found within twice the interval, the timeout and one check, counted from
//!    the last byte that moved or the last late check; within once the interval and the timeout if
//!    no message was being sent.

use std::time::{Duration, Instant};

use crate::device::Traffic;
use crate::protocol::config::LinkConfig;
use crate::protocol::error::ProtocolError;
use crate::protocol::link::LinkError;

/// Checks of a silent peer before it counts as dead, spread evenly over the timeout.
const LOOKS: u32 = 8;
/// Timeouts that signs of life can put the end off which nothing authenticates.
pub(crate) const UNPROVEN: u32 = 8;
/// A check is late if it is later than one `LOOKS`-th of the timeout plus this: what schedulers and
/// timers may take.
const SCHEDULING: Duration = Duration::from_millis(100);

/// Progress of the bytes of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Moves {
    /// The device's counters, if it has them.
    pub(super) device: Option<Traffic>,
    /// SQ slots completed, modulo 2^16.
    pub(super) completed: u16,
}

#[derive(Debug)]
pub(super) struct KeepAlive {
    interval: Option<Duration>,
    timeout: Duration,
    /// When the last sign of life was seen.
    alive_at: Instant,
    /// Set while the peer is silent for longer than the interval.
    suspicion: Option<Suspicion>,
    ping_due: bool,
    /// A Ping was sent and its Pong has not arrived.
    awaited: Option<Awaited>,
    pong_due: bool,
    seen: Moves,
    /// Invariant 5.
    trusts_frames_alone: bool,
}

#[derive(Debug)]
struct Suspicion {
    /// It began then, or with the last late check.
    since: Instant,
    looked_at: Instant,
    /// Checks in a row, each on time, without a sign of life.
    looks: u32,
}

/// A Ping that was sent and not answered.
#[derive(Debug)]
struct Awaited {
    /// Posted SQ slots up to the Ping, modulo 2^16.
    slot: u16,
    /// A value that [`Traffic::accepted`] has reached only if the Ping has arrived; set by the
    /// first check.
    end: Option<u64>,
    is_looked_at: bool,
    has_arrived: bool,
}

impl Awaited {
    /// Where the Ping is, for a check of a silent peer.
    fn look(&mut self, moves: Moves) -> Ping {
        let by_completion = moves.completed.wrapping_sub(self.slot) <= u16::MAX / 2;
        let by_device = moves.device.is_some_and(|traffic| {
            let end = traffic.accepted.saturating_add(traffic.pending);
            traffic.accepted >= *self.end.get_or_insert(end)
        });
        let was_under_way = std::mem::replace(&mut self.is_looked_at, true) && !self.has_arrived;
        self.has_arrived |= by_completion | by_device;
        match (was_under_way, self.has_arrived) {
            (_, false) => Ping::UnderWay,
            (true, true) => Ping::Arrives,
            (false, true) => Ping::Arrived,
        }
    }
}

/// Where a Ping is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ping {
    UnderWay,
    /// It arrived since the last check.
    Arrives,
    Arrived,
}

impl KeepAlive {
    pub(super) fn new(config: &LinkConfig, now: Instant) -> Self {
        Self {
            interval: config.keep_alive,
            timeout: config.keep_alive_timeout,
            alive_at: now,
            suspicion: None,
            ping_due: false,
            awaited: None,
            pong_due: false,
            seen: Moves::default(),
            trusts_frames_alone: false,
        }
    }

    /// Received frames are authenticated from now on, and nothing else is.
    pub(super) fn trust_frames_alone(&mut self) {
        self.trusts_frames_alone = true;
    }

    #[inline]
    pub(super) fn on_received(&mut self, now: Instant) {
        self.alive_at = now;
        self.suspicion = None;
        self.ping_due = false;
    }

    pub(super) fn on_ping(&mut self) -> Result<(), ProtocolError> {
        if self.pong_due {
            return Err(ProtocolError::PingUnanswered);
        }
        self.pong_due = true;
        Ok(())
    }

    pub(super) fn on_pong(&mut self) -> Result<(), ProtocolError> {
        self.awaited.take().map(|_| ()).ok_or(ProtocolError::PongUnasked)
    }

    pub(super) fn is_pong_due(&self) -> bool {
        self.pong_due
    }

    /// Whether a frame is to be sent now.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.pong_due | self.ping_due
    }

    /// The frame to send now; the caller has a credit for it.
    #[inline]
    pub(super) fn take_due(&mut self) -> Option<Due> {
        if !self.is_due() {
            return None;
        }
        if std::mem::take(&mut self.pong_due) {
            return Some(Due::Pong);
        }
        if std::mem::take(&mut self.ping_due) {
            return Some(Due::Ping);
        }
        None
    }

    /// The Ping that was due is sent; `slot` is the number of SQ slots posted up to it, modulo
    /// 2^16. It must be signaled.
    pub(super) fn on_ping_sent(&mut self, slot: u16) {
        self.awaited = Some(Awaited { slot, end: None, is_looked_at: false, has_arrived: false });
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let interval = self.interval?;
        match &self.suspicion {
            Some(suspicion) => suspicion.looked_at.checked_add(self.patience()),
            None => self.alive_at.checked_add(interval),
        }
    }

    /// Time between two checks.
    fn patience(&self) -> Duration {
        self.timeout / LOOKS
    }

    /// Checks the peer, if it is time to.
    ///
    /// # Errors
    /// [`LinkError::PingTimeout`]: the peer is dead.
    pub(super) fn on_timeout(&mut self, now: Instant, moves: Moves) -> Result<(), LinkError> {
        let Some(at) = self.next_deadline().filter(|at| now >= *at) else { return Ok(()) };
        let is_alive = self.suspicion.is_some() && self.is_alive(moves);
        self.seen = moves;
        let is_late = now.saturating_duration_since(at) > self.patience() + SCHEDULING;
        match &mut self.suspicion {
            None => {
                self.suspicion = Some(Suspicion { since: now, looked_at: now, looks: 0 });
                self.ping_due = self.awaited.is_none();
            }
            Some(_) if is_alive && !self.trusts_frames_alone => self.on_received(now),
            Some(suspicion) => {
                suspicion.looked_at = now;
                suspicion.looks = if is_late || is_alive { 0 } else { suspicion.looks + 1 };
                if is_late {
                    suspicion.since = now;
                }
                let is_unproven = self.trusts_frames_alone
                    && now.saturating_duration_since(suspicion.since) >= UNPROVEN * self.timeout;
                if suspicion.looks >= LOOKS || is_unproven {
                    return Err(LinkError::PingTimeout(self.timeout));
                }
            }
        }
        Ok(())
    }

    /// Whether there was a sign of life since the last check (invariant 1).
    fn is_alive(&mut self, moves: Moves) -> bool {
        let ping = self.awaited.as_mut().map_or(Ping::UnderWay, |awaited| awaited.look(moves));
        let (now, seen) = (moves.device.unwrap_or_default(), self.seen.device.unwrap_or_default());
        let has_taken = now.accepted != seen.accepted || moves.completed != self.seen.completed;
        now.received != seen.received
            || ping == Ping::Arrives
            || (has_taken && ping == Ping::UnderWay)
    }
}

/// The frame that keep-alive has to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Ping,
    Pong,
}

#[cfg(test)]
mod tests;
