//! A call that has streams.
//!
//! Owns what such a call has beyond its outcome: whether it was accepted, its stream's place, and how
//! the stream of results ended.

use std::task::{Context, Poll};

use super::outcome::{CONNECTION_GONE, Other, count};
use super::{RawCall, State};
use crate::codec::Codec;
use crate::endpoint::RpcEndpoint;
use crate::service::reply::CallOutcome;
use crate::service::{MethodDescriptor, ReplyKind, ReplyParts};
use crate::session::{self, CallId, Failure, Outcome};
use crate::status::{Code, Status};
use crate::stream::StreamEnd;
use crate::stream::call::ResultsCall;
use crate::stream::item_counts::ItemCounters;
use crate::stream::line::LineRef;
use crate::stream::upload::PumpedCall;

/// What became of a call that wants a stream of results.
pub(crate) enum Accepted {
    /// There is a stream.
    Yes,
    /// There is none, and the outcome says why.
    No(CallOutcome),
}

impl RawCall<'_> {
    /// Sends the request, if that was not done before. Pending while there is no connection.
    pub(crate) fn begin(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match self.state {
                State::Ready => {
                    let mut found = None;
                    self.send(false, &mut found);
                    if found.is_some() {
                        self.over(found);
                    }
                }
                State::Waiting => std::task::ready!(self.poll_waiting(cx)),
                State::InFlight(_) | State::Over | State::Done => return Poll::Ready(()),
            }
        }
    }

    fn id(&self) -> Option<CallId> {
        match self.state {
            State::InFlight(call) => Some(call),
            _ => None,
        }
    }

    pub(crate) fn line(&self) -> Option<LineRef<'_>> {
        let connection = self.on.as_ref()?;
        let id = self.id()?.into();
        Some(LineRef { shard: &connection.shard, key: connection.key, id })
    }

    /// The call, while arguments may be sent.
    pub(crate) fn pumped(&self) -> Option<PumpedCall<'_>> {
        let connection = self.on.as_deref()?;
        Some(PumpedCall {
            codec: connection.codec,
            placement: connection.placement(),
            line: self.line()?,
            method: self.method,
            counters: self.item_counters(),
        })
    }

    /// Ready when the server has accepted the call, or it has ended.
    pub(crate) fn poll_accepted(&mut self, cx: &Context<'_>) -> Poll<Accepted> {
        if let (Some(id), Some(line)) = (self.id(), self.line()) {
            let state = |peer: &RpcEndpoint| match peer.session.is_accepted(id) {
                true => Some(true),
                false => peer.session.has_outcome(id).then_some(false),
            };
            loop {
                match line.with(|peer| state(peer)) {
                    Some(Some(true)) => return Poll::Ready(Accepted::Yes),
                    Some(Some(false)) | None => break,
                    Some(None) if line.wait_to_read(cx, |peer| state(peer).is_some()) => {
                        return Poll::Pending;
                    }
                    Some(None) => {}
                }
            }
        }
        let (_, found) = self.take_end();
        // Without items the response alone says that the call was accepted.
        if let Some(Ok((ReplyKind::Ok, _))) = found {
            self.over(found);
            return Poll::Ready(Accepted::Yes);
        }
        Poll::Ready(Accepted::No(found))
    }

    /// Takes the outcome, behind all items.
    fn take_end(&mut self) -> (StreamEnd, CallOutcome) {
        let mut found = None;
        let end = match self.id() {
            None => {
                self.take_found(&mut found);
                match found {
                    Some(Ok((ReplyKind::Ok, _))) => StreamEnd::Finished,
                    _ => StreamEnd::Failed,
                }
            }
            Some(id) => {
                let outcome = self.on.as_ref().and_then(|connection| {
                    let sent = self.sent(id);
                    connection.shard.with(connection.key, |peer| {
                        let outcome = peer.session.take_outcome(id)?;
                        count(peer, sent, &outcome);
                        Some(outcome)
                    })
                });
                let other = outcome.flatten().map(|outcome| Other { outcome, request: None });
                let other = other.unwrap_or(CONNECTION_GONE);
                let end = end_of(&other.outcome);
                found = self.rarely_found(other);
                end
            }
        };
        self.state = State::Done;
        (end, found)
    }
}

impl ResultsCall for RawCall<'static> {
    fn codec(&self) -> Codec {
        self.via.channel().codec
    }

    fn method(&self) -> &'static MethodDescriptor {
        self.method
    }

    fn line(&self) -> Option<LineRef<'_>> {
        self.line()
    }

    fn pumped(&self) -> Option<PumpedCall<'_>> {
        self.pumped()
    }

    fn item_counters(&self) -> Option<&ItemCounters> {
        self.item_counters()
    }

    fn finish(&mut self, own: Option<Status>) -> (StreamEnd, ReplyParts) {
        let (end, mut found) = self.take_end();
        if let Some(status) = own {
            self.end_by_source(&mut found, status);
        }
        (end, self.finish(found))
    }

    fn cancel(&mut self) {
        if let State::InFlight(call) = self.state {
            self.state = State::Done;
            if let Some(connection) = &self.on {
                super::cancel(connection, call, self.method);
            }
        }
    }
}

fn end_of(outcome: &Outcome) -> StreamEnd {
    match outcome {
        Outcome::Reply(reply) if reply.is_reset => {
            let session::ReplyKind::Status { code, .. } = reply.kind else {
                return StreamEnd::Failed;
            };
            StreamEnd::Reset(Code::from_number(code).unwrap_or(Code::Unknown))
        }
        Outcome::Reply(reply) if reply.kind == session::ReplyKind::Ok => StreamEnd::Finished,
        Outcome::Failed { reason: Failure::Closed, .. } => StreamEnd::Disconnected,
        Outcome::Reply(_) | Outcome::Failed { .. } => StreamEnd::Failed,
    }
}
