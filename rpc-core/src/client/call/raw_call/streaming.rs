//! A call that has streams.
//!
//! Owns the steps of such a call besides its outcome: its acceptance, its stream, and the end of
//! the stream of results.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::{RawCall, State};
use crate::channel::picker::CallEnd;
use crate::codec::Codec;
use crate::endpoint::RpcEndpoint;
use crate::endpoint::take::NotResult;
use crate::reply::{CallOutcome, Value};
use crate::resolution::Decoding;
use crate::service::{MethodDescriptor, ReplyKind, ReplyParts};
use crate::session::{self, CallId, Failure, Outcome};
use crate::status::{Code, Status};
use crate::stream::StreamEnd;
use crate::stream::call::ResultsCall;
use crate::stream::item_counts::ItemCounters;
use crate::stream::stream_ref::StreamRef;
use crate::stream::upload::PumpedCall;

/// Whether the server has accepted a call with a stream of results.
pub(crate) enum Accepted {
    /// There is a stream of results, whose items are decoded like this.
    Yes(Decoding),
    /// There is none. The outcome says why.
    No(CallOutcome),
}

impl RawCall<'_> {
    /// Sends the request, if that was not done before. Pending while there is no connection.
    pub(crate) fn begin(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match self.state {
                State::Ready => self.send_unawaited(),
                State::Waiting => std::task::ready!(self.poll_waiting(cx)),
                State::InFlight | State::Over | State::Done => return Poll::Ready(()),
            }
        }
    }

    /// The attempt under way: another one has another value.
    pub(crate) fn attempt(&self) -> Option<(CallId, usize)> {
        let on = self.on.as_ref().map_or(0, |on| Arc::as_ptr(on).addr());
        Some((self.id()?, on))
    }

    /// While it is in flight.
    fn id(&self) -> Option<CallId> {
        match self.state {
            State::InFlight => Some(self.id),
            _ => None,
        }
    }

    pub(crate) fn stream(&self) -> Option<StreamRef<'_>> {
        let connection = self.on.as_ref()?;
        let id = self.id()?.into();
        Some(StreamRef { shard: &connection.shard, key: connection.key, id })
    }

    /// The call, while arguments may be sent.
    pub(crate) fn pumped(&self) -> Option<PumpedCall<'_>> {
        let connection = self.on.as_deref()?;
        Some(PumpedCall {
            codec: connection.codec.of_calls(self.method),
            placement: connection.placement(),
            stream: self.stream()?,
            method: self.method,
            counters: self.item_counters(),
        })
    }

    /// Ready when the server has accepted the call, or it has ended.
    pub(crate) fn poll_accepted(&mut self, cx: &Context<'_>) -> Poll<Accepted> {
        if let (Some(id), Some(stream)) = (self.id(), self.stream()) {
            let state = |peer: &RpcEndpoint| match peer.decoding_of_items(id) {
                Some(decoding) => Some(Some(decoding)),
                None => peer.session.has_outcome(id).then_some(None),
            };
            loop {
                match stream.with(|peer| state(peer)) {
                    Some(Some(Some(decoding))) => {
                        // That is the end point's answer: its load does not determine how long the
                        // stream lasts.
                        if let Some(load) = self.take_load() {
                            load.end(CallEnd::Answered);
                        }
                        return Poll::Ready(Accepted::Yes(decoding));
                    }
                    Some(Some(None)) | None => break,
                    Some(None) if stream.wait_to_read(cx, |peer| state(peer).is_some()) => {
                        return Poll::Pending;
                    }
                    Some(None) => {}
                }
            }
        }
        let (_, found) = self.take_end();
        if !matches!(self.state, State::Done | State::Over) {
            // It is sent again.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        // Without items the response alone says that the call was accepted.
        if let Some(Ok(Value { kind: ReplyKind::Ok, decoding, .. })) = &found {
            let decoding = decoding.clone();
            self.over(found);
            return Poll::Ready(Accepted::Yes(decoding));
        }
        Poll::Ready(Accepted::No(found))
    }

    /// Takes the outcome, behind all items. There is none if the call is to be sent again.
    fn take_end(&mut self) -> (StreamEnd, CallOutcome) {
        if self.id().is_none() {
            let found = self.take_found();
            self.state = State::Done;
            let is_ok = matches!(found, Some(Ok(Value { kind: ReplyKind::Ok, .. })));
            return (if is_ok { StreamEnd::Finished } else { StreamEnd::Failed }, found);
        }
        let sent = self.sent();
        let outcome = self.on.as_ref().and_then(|connection| {
            connection.shard.with(connection.key, |peer| peer.take_end(sent)).flatten()
        });
        let ended = outcome.map_or(NotResult::CONNECTION_GONE, |ended| *ended);
        let end = end_of(&ended.outcome);
        self.state = State::Done;
        (end, self.on_not_result(ended))
    }
}

impl ResultsCall for RawCall<'static> {
    fn codec(&self) -> Codec {
        self.via.channel().codec.of_calls(self.method)
    }

    fn method(&self) -> &'static MethodDescriptor {
        self.method
    }

    fn stream(&self) -> Option<StreamRef<'_>> {
        self.stream()
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
            found = self.end_by_source(&found, status);
        }
        (end, self.finish(found))
    }

    fn cancel(&mut self) {
        if let State::InFlight = self.state {
            self.state = State::Done;
            if let Some(connection) = &self.on {
                super::cancel(connection, self.id, self.method);
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
