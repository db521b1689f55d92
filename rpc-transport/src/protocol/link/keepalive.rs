//! Keep-alive: who is silent for too long, and the Ping and Pong that find out.
//!
//! Owns the times of one end and which of the two frames is due. Never reads a clock and sends
//! nothing.
//!
//! Invariants:
//! 1. Every frame received counts as life: it ends the wait that a ping began.
//! 2. At most one Ping of each direction is unanswered, so a peer can make us owe one Pong.
//! 3. The wait starts when the ping becomes due, not when it leaves: a live peer returns credits
//!    without help of its application, so a ping that cannot leave is a silent peer as well.

use std::time::{Duration, Instant};

use crate::protocol::config::LinkConfig;
use crate::protocol::error::ProtocolError;
use crate::protocol::link::LinkError;

#[derive(Debug)]
pub(super) struct KeepAlive {
    interval: Option<Duration>,
    timeout: Duration,
    last_received: Instant,
    /// When the peer's silence became suspicious; `None` while it is not.
    asked_at: Option<Instant>,
    ping_due: bool,
    /// A Ping has left and its Pong has not arrived.
    pong_awaited: bool,
    pong_due: bool,
}

impl KeepAlive {
    pub(super) fn new(config: &LinkConfig, now: Instant) -> Self {
        Self {
            interval: config.keep_alive,
            timeout: config.keep_alive_timeout,
            last_received: now,
            asked_at: None,
            ping_due: false,
            pong_awaited: false,
            pong_due: false,
        }
    }

    #[inline]
    pub(super) fn on_received(&mut self, now: Instant) {
        self.last_received = now;
        self.asked_at = None;
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
        if !self.pong_awaited {
            return Err(ProtocolError::PongUnasked);
        }
        self.pong_awaited = false;
        Ok(())
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
            self.pong_awaited = true;
            return Some(Due::Ping);
        }
        None
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let interval = self.interval?;
        match self.asked_at {
            Some(asked_at) => asked_at.checked_add(self.timeout),
            None => self.last_received.checked_add(interval),
        }
    }

    pub(super) fn on_timeout(&mut self, now: Instant) -> Result<(), LinkError> {
        if self.next_deadline().is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        if self.asked_at.is_some() {
            return Err(LinkError::PingTimeout(self.timeout));
        }
        self.asked_at = Some(now);
        self.ping_due = !self.pong_awaited;
        Ok(())
    }
}

/// What keep-alive has to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Ping,
    Pong,
}
