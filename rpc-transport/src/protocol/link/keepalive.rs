//! Keep-alive: who is silent for too long, and the Ping and Pong that find out.
//!
//! Owns the times of one end, what counts as a sign of life, and which of the two frames is due.
//! Never reads a clock and sends nothing.
//!
//! Invariants:
//! 1. A frame that was received is a sign of life, and so are bytes that arrive in the midst of
//!    one. What the peer's end takes of what was sent here is one until the Ping has arrived there,
//!    as it may wait behind megabytes, and so is that arrival, as much may wait once more in a
//!    relay between the two. From then on the answer alone counts, or a host that acknowledges for
//!    a stopped process would do as well as a peer.
//! 2. At most one Ping of each direction is unanswered, so a peer can make us owe one Pong.
//! 3. The wait starts when the ping becomes due, not when it leaves: a live peer returns credits
//!    without help of its application, so a ping that cannot leave is a silent peer as well.
//! 4. Silence is counted in looks: `LOOKS` in a row, each at its time, that find no sign of life. A
//!    look that comes late says that this end did not listen itself: the count begins anew.
//! 5. A peer that dies is found within twice the interval, the timeout and one look, counted from
//!    the last byte that moved or the last late look; within once the interval and the timeout if
//!    no message was under way.

use std::time::{Duration, Instant};

use crate::device::Traffic;
use crate::protocol::config::LinkConfig;
use crate::protocol::error::ProtocolError;
use crate::protocol::link::LinkError;

/// Looks at a silent peer before it counts as dead, spread evenly over the timeout.
const LOOKS: u32 = 8;
/// What schedulers and timers may take of a look's time, apart from one part of the timeout.
const SCHEDULING: Duration = Duration::from_millis(100);

/// How far the bytes of a link have got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Moves {
    /// What the device says, if it can tell.
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
    /// The peer's silence is suspicious.
    suspicion: Option<Suspicion>,
    ping_due: bool,
    /// A Ping has left and its Pong has not arrived.
    awaited: Option<Awaited>,
    pong_due: bool,
    seen: Moves,
}

#[derive(Debug)]
struct Suspicion {
    looked_at: Instant,
    /// Looks in a row, each at its time, that found no sign of life.
    looks: u32,
}

/// The Ping that is out.
#[derive(Debug)]
struct Awaited {
    /// Posted SQ slots up to the Ping, modulo 2^16.
    slot: u16,
    /// What [`Traffic::accepted`] is when the Ping has arrived, or more; unknown until somebody
    /// looks.
    end: Option<u64>,
    is_looked_at: bool,
    has_arrived: bool,
}

impl Awaited {
    /// How far the Ping is, for a look at a peer that is under suspicion.
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

/// How far a Ping is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ping {
    UnderWay,
    /// It was under way at the last look.
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
        }
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

    /// The Ping that was due leaves; `slot` is the number of SQ slots posted up to it, modulo 2^16.
    /// Its completion must be asked for.
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

    /// Time between two looks.
    fn patience(&self) -> Duration {
        self.timeout / LOOKS
    }

    /// Looks, if it is time to.
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
                self.suspicion = Some(Suspicion { looked_at: now, looks: 0 });
                self.ping_due = self.awaited.is_none();
            }
            Some(_) if is_alive => self.on_received(now),
            Some(suspicion) => {
                suspicion.looked_at = now;
                suspicion.looks = if is_late { 0 } else { suspicion.looks + 1 };
                if suspicion.looks >= LOOKS {
                    return Err(LinkError::PingTimeout(self.timeout));
                }
            }
        }
        Ok(())
    }

    /// Whether anything has moved since the last look that only moves while the peer lives.
    fn is_alive(&mut self, moves: Moves) -> bool {
        let ping = self.awaited.as_mut().map_or(Ping::UnderWay, |awaited| awaited.look(moves));
        let (now, seen) = (moves.device.unwrap_or_default(), self.seen.device.unwrap_or_default());
        let has_taken = now.accepted != seen.accepted || moves.completed != self.seen.completed;
        now.received != seen.received
            || ping == Ping::Arrives
            || (has_taken && ping == Ping::UnderWay)
    }
}

/// What keep-alive has to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Ping,
    Pong,
}

#[cfg(test)]
mod tests;
