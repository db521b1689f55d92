//! The end of a session: an orderly one by go-away, or the loss of the connection.
//!
//! Owns whether calls may still be started, and when the session has drained.
//!
//! Invariants:
//! 1. A peer that said go-away is sent no request that was not with the link already.
//! 2. The answer to a go-away is sent once no call of this end is in flight, so it needs no order
//!    between frames.
//! 3. After the loss of the connection each pending call has its one outcome, nothing is sent,
//!    and the replies of handlers that end later are dropped.

use rpc_transport::device::connection_error::CloseCause;

use super::outgoing::Stage;
use super::transmit::{Control, Side, tag};
use super::{Failure, Revoke, Role, Session, SessionError, SessionEvent};

/// How far an orderly shutdown has come.
#[derive(Debug, Default)]
pub(super) struct Shutdown {
    /// This end starts no calls any more.
    pub(super) stopped: bool,
    /// This end has said go-away.
    sent: bool,
    /// The peer has none of its calls left.
    pub(super) peer_drained: bool,
    /// [`Event::Drained`](super::Event::Drained) is out.
    reported: bool,
    /// The peer has said go-away.
    pub(super) peer_sent: bool,
    /// This end has answered it.
    answered: bool,
    /// This end has said go-away because the session was idle, or old.
    pub(super) ends_itself: bool,
}

impl Shutdown {
    /// Whether either end has said go-away.
    pub(super) fn has_begun(&self) -> bool {
        self.sent || self.peer_sent
    }
}

impl<W, H> Session<W, H> {
    /// Asks the peer to start no more calls. Those in flight end as always, and
    /// [`Event::Drained`](super::Event::Drained) comes when none is left in either direction. This
    /// end may still call, for the handlers that are finishing.
    pub fn go_away(&mut self) {
        if self.closed.is_none() && !self.shutdown.sent {
            self.shutdown.sent = true;
            self.frames.push_control(Control::GoAway { drained: false });
        }
    }

    #[cfg(test)]
    pub(crate) fn has_said_go_away(&self) -> bool {
        self.shutdown.sent
    }

    /// Whether this end has said go-away because the session was [idle](Self::end_when_idle), or
    /// [old](Self::end_when_old).
    #[must_use]
    pub fn ends_itself(&self) -> bool {
        self.shutdown.ends_itself
    }

    /// Whether a go-away of this end has run its course: nothing is in flight in either direction,
    /// the peer starts nothing, and no frame waits here.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.shutdown.reported && self.frames.is_empty()
    }

    /// Whether the peer has answered a go-away of this end, and none of its calls is in flight: so
    /// none will be. Calls of this end may go on.
    #[must_use]
    pub fn has_no_callers(&self) -> bool {
        let none = self.shutdown.peer_drained && self.incoming.in_flight() == 0;
        self.closed.is_some() || none && self.frames.is_empty()
    }

    /// Whether no call is in flight that somebody waits for, of either end, and no frame waits
    /// here.
    #[must_use]
    pub fn is_served(&self) -> bool {
        let own = self.slots.busy() - self.slots.zombies();
        let calls = own as usize + self.calls.unsent_len() + self.incoming.in_flight() as usize;
        self.closed.is_some() || (calls == 0 && self.frames.is_empty())
    }

    /// Whether the peer has said that it takes no new calls.
    #[must_use]
    pub fn is_peer_going_away(&self) -> bool {
        self.shutdown.peer_sent
    }

    pub(super) fn on_go_away(&mut self) -> Result<(), SessionError> {
        if self.shutdown.peer_sent {
            return Err(SessionError::GoAwayTwice);
        }
        self.shutdown.peer_sent = true;
        self.notices.push_back(SessionEvent::PeerGoingAway);
        self.fail_unsent(Failure::PeerGoingAway);
        self.check_drained();
        Ok(())
    }

    pub(super) fn on_drained(&mut self) -> Result<(), SessionError> {
        if !self.shutdown.sent {
            return Err(SessionError::DrainedUnasked);
        }
        if self.shutdown.peer_drained {
            return Err(SessionError::GoAwayTwice);
        }
        if self.incoming.in_flight() != 0 {
            return Err(SessionError::CallAfterDrained);
        }
        self.shutdown.peer_drained = true;
        self.check_drained();
        Ok(())
    }

    /// To be called after whatever ends a call.
    #[inline]
    pub(super) fn check_drained(&mut self) {
        if self.shutdown.has_begun() {
            self.advance_shutdown();
        }
    }

    #[cold]
    fn advance_shutdown(&mut self) {
        if self.closed.is_some() || self.slots.busy() != 0 || self.calls.unsent_len() != 0 {
            return;
        }
        let Shutdown { peer_sent, answered, peer_drained, .. } = self.shutdown;
        if peer_sent && !answered {
            self.shutdown.answered = true;
            self.frames.push_control(Control::GoAway { drained: true });
        }
        if peer_drained && self.incoming.in_flight() == 0 {
            self.report_drained();
        }
    }

    /// Nothing is in flight in either direction, as far as this end knows.
    pub(super) fn report_drained(&mut self) {
        if !self.shutdown.reported {
            self.shutdown.reported = true;
            // A connection that was accepted and ends by itself is closed next: a call that came
            // now would be cut.
            self.shutdown.stopped |= self.shutdown.ends_itself && self.role == Role::Server;
            self.notices.push_back(SessionEvent::Drained);
        }
    }

    /// The connection is gone: every pending call ends once, every handler is stopped, and nothing
    /// is sent any more. `revoke` returns which requests the peer never saw.
    pub fn on_closed(&mut self, cause: CloseCause, revoke: Revoke<'_>) {
        if self.closed.is_some() {
            return;
        }
        self.closed = Some(cause);
        for index in self.calls.pending() {
            let never_sent = match self.calls.stage(index) {
                Stage::Sent(slot) => {
                    let tag = tag(Side::Request, self.slots.id(slot));
                    let never_sent = revoke(tag).is_unsent();
                    if never_sent {
                        self.given_back.insert(tag, index);
                    }
                    never_sent
                }
                _ => true,
            };
            self.fail(index, Failure::Closed, never_sent);
        }
        self.close_incoming_streams();
        self.notices.extend(self.incoming.clear().map(SessionEvent::CancelHandler));
        self.slots.clear();
        for unsent in self.frames.clear() {
            self.discard(unsent);
        }
        self.deadlines.clear();
        self.idle = None;
        self.ages = false;
    }

    /// Why the connection closed, once it has.
    #[must_use]
    pub fn close_cause(&self) -> Option<&CloseCause> {
        self.closed.as_ref()
    }
}
