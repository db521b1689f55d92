//! The deadline of a call, and its source.
//!
//! Owns the rule for the deadline of a call: the earlier of its own, or else the channel's default,
//! and that of the handler that makes it. Never runs a timer.

use std::time::{Duration, Instant};

use rpc_transport::engine::clock;

use super::RawCall;
use crate::client::shared::LastMoment;
use crate::context::Context as CallContext;
use crate::session::Deadline;

/// How much earlier than an inherited deadline a call gives up waiting for a connection, at most:
/// enough for an answer to travel back through a few handlers.
const MOST_EARLY: Duration = Duration::from_millis(25);

/// The source of a call's deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// There is no deadline, and none was looked for.
    Unasked,
    /// There is no deadline, and the call takes none of the channel.
    Unlimited,
    /// The call itself.
    Call,
    /// The channel's default.
    Channel,
    /// The channel's default for a call with streams: it counts until the server has taken the
    /// call.
    Opening,
    /// The handler that makes the call: the deadline of its own caller.
    Handler,
}

impl RawCall<'_> {
    /// The call ends at `deadline` at the latest.
    pub(crate) fn bring_forward(&mut self, deadline: Instant) {
        self.deadline = Some(self.deadline.map_or(deadline, |other| other.min(deadline)));
    }

    /// The call has no deadline of its own, and takes none of the channel.
    pub(crate) fn unlimited(&mut self) {
        (self.deadline, self.whose) = (None, Whose::Unlimited);
    }

    /// Weighs the deadlines before the call is sent or waits. A deadline from an earlier attempt
    /// stays: attempts share one. `inherited`: the deadline of the handler that makes the call.
    #[inline]
    pub(super) fn weigh_deadlines(&mut self, inherited: Option<Instant>) -> Option<Deadline> {
        let default = self.via.channel().default_timeout;
        if self.deadline.is_none() && inherited.is_none() && default.is_none() {
            return None;
        }
        self.weigh_some(inherited, default)
    }

    #[inline(never)]
    fn weigh_some(
        &mut self,
        inherited: Option<Instant>,
        default: Option<Duration>,
    ) -> Option<Deadline> {
        let now = clock::now();
        match (self.deadline, self.whose) {
            (Some(_), Whose::Unasked | Whose::Unlimited) => self.whose = Whose::Call,
            // What a stream inherits ends it in any case, taken or not.
            (None, Whose::Unasked) if !self.method.has_streams() || inherited.is_none() => {
                self.deadline = default.and_then(|timeout| now.checked_add(timeout));
                let has_streams = self.method.has_streams();
                self.whose = if has_streams { Whose::Opening } else { Whose::Channel };
            }
            _ => {}
        }
        if let Some(inherited) = inherited
            && self.deadline.is_none_or(|own| inherited < own)
        {
            (self.deadline, self.whose) = (Some(inherited), Whose::Handler);
        }
        self.deadline.map(|at| Deadline { at, now })
    }

    /// The time until which the call waits for a connection: its deadline. A call under the
    /// deadline of a handler's own caller gives up a little earlier, so that the handler can still
    /// report what it waited for.
    pub(super) fn last_moment(&self, deadline: Deadline) -> LastMoment {
        let is_inherited = self.whose == Whose::Handler;
        let left = deadline.at.saturating_duration_since(deadline.now);
        let early = if is_inherited { (left / 8).min(MOST_EARLY) } else { Duration::ZERO };
        let at = deadline.at.checked_sub(early).unwrap_or(deadline.at);
        let passed = if is_inherited { "is about to pass" } else { "passed" };
        LastMoment { at, text: format!("the deadline {passed} ({})", self.whose()) }
    }

    /// The text for a deadline that has passed, with its source.
    pub(super) fn deadline_passed(&self) -> String {
        format!("the deadline passed ({})", self.whose())
    }

    /// The source of the call's deadline, as a text.
    fn whose(&self) -> String {
        let default = self.via.channel().default_timeout.unwrap_or_default();
        match self.whose {
            Whose::Channel => format!("the channel's `default_timeout` of {default:?}"),
            Whose::Opening => format!(
                "the channel's `default_timeout` of {default:?}, which covers the time until the \
                 server accepts the call"
            ),
            Whose::Handler => match CallContext::current().method_name() {
                "" => "inherited from the handler that made the call".to_owned(),
                method => format!("inherited from {method}, whose handler made the call"),
            },
            Whose::Unasked | Whose::Unlimited | Whose::Call => "set for this call".to_owned(),
        }
    }
}
