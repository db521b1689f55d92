//! Takes the outcomes of calls that this end has made, and counts them.

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;

use super::RpcEndpoint;
use super::counts::{body_bytes, end_of};
use crate::resolution::{Decoding, Planned};
use crate::service::MethodDescriptor;
use crate::session::{CallId, Failure, NoResult, Outcome, PlanId, ReadBy};
use crate::stats::counts::{End, Timed};

/// A call that the session knows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent<'a> {
    pub(crate) call: CallId,
    pub(crate) method: &'static MethodDescriptor,
    /// When it was sent, if it is timed.
    pub(crate) began: Option<&'a Timed>,
}

/// The outcome of a call: its result, or another outcome.
pub(crate) type Taken = Result<Message, Box<NotResult>>;

/// An outcome that is no result which this end's own types decode.
pub(crate) struct NotResult {
    pub(crate) outcome: Outcome,
    /// How a value in it is decoded.
    pub(crate) decoding: Decoding,
    /// The request, if no handler has seen it: another connection may take it, or this one with its
    /// schema.
    pub(crate) request: Option<OutBuf>,
}

impl NotResult {
    /// The outcome of a call whose connection the shard no longer has.
    pub(crate) const CONNECTION_GONE: Self = Self {
        outcome: Outcome::Failed { reason: Failure::Closed, never_sent: false },
        // There is no value.
        decoding: Decoding::OwnTypes,
        request: None,
    };
}

impl RpcEndpoint {
    /// Takes the outcome of a call. `None` if it has not arrived.
    #[inline]
    pub(crate) fn take(&mut self, Sent { call, method, began }: Sent<'_>) -> Option<Taken> {
        self.take_parts(call, method, began)
    }

    // In parts, as these are passed in registers.
    fn take_parts(
        &mut self,
        call: CallId,
        method: &'static MethodDescriptor,
        began: Option<&Timed>,
    ) -> Option<Taken> {
        match self.session.take_result(call) {
            Ok((message, method_index)) => {
                self.counts.on_end(method_index, End::OK, body_bytes(&message));
                if let Some(began) = began {
                    self.counts.on_timed(method_index, *began);
                }
                Some(Ok(message))
            }
            Err(NoResult::Pending) => None,
            Err(NoResult::Other) => Some(Err(self.take_not_result(Sent { call, method, began }))),
        }
    }

    #[cold]
    fn take_not_result(&mut self, sent: Sent<'_>) -> Box<NotResult> {
        // A call with streams does not begin again on another connection.
        let unsent = match sent.method.has_streams() {
            true => None,
            false => self.session.take_request(sent.call),
        };
        // Before the outcome is taken: the id then names nothing.
        let request = unsent.or_else(|| self.session.take_refused_request(sent.call));
        let gone = Outcome::Failed { reason: Failure::NoSuchCall, never_sent: false };
        let outcome = self.session.take_outcome(sent.call).unwrap_or(gone);
        let decoding = match &outcome {
            Outcome::Reply(reply) => self.decoding(reply.read_by),
            Outcome::Failed { .. } => Decoding::OwnTypes,
        };
        // A call that goes on elsewhere has not ended.
        if request.is_none() {
            self.count_outcome(sent, &outcome);
        }
        Box::new(NotResult { outcome, decoding, request })
    }

    /// How values are decoded that the session says are read so.
    fn decoding(&self, read_by: ReadBy) -> Decoding {
        match read_by {
            ReadBy::Nobody | ReadBy::OwnTypes => Decoding::OwnTypes,
            ReadBy::Plan(PlanId(plan)) => Decoding::Planned(self.plans[plan as usize].clone()),
        }
    }

    /// How the items of a call are decoded that the callee has accepted; `None`: it has not.
    pub(crate) fn decoding_of_items(&self, call: CallId) -> Option<Decoding> {
        self.session.items_read_by(call).map(|read_by| self.decoding(read_by))
    }

    /// The types of a method of this end differ at the peer: what it writes is decoded by this plan
    /// from now on. Returns what is not needed any more, to be dropped outside the lock.
    #[cold]
    pub(crate) fn resolve(
        &mut self,
        method: &'static MethodDescriptor,
        plan: Planned,
    ) -> Option<Planned> {
        let PlanId(number) = self.session.resolve(method.id, method.checked_hash());
        match self.plans.get_mut(number as usize) {
            Some(before) => Some(std::mem::replace(before, plan)),
            None => {
                debug_assert_eq!(self.plans.len(), number as usize);
                self.plans.push(plan);
                None
            }
        }
    }

    /// Takes the outcome of a call with streams, behind all items. `None` if it has not arrived.
    pub(crate) fn take_end(&mut self, sent: Sent<'_>) -> Option<Box<NotResult>> {
        self.session.has_outcome(sent.call).then(|| self.take_not_result(sent))
    }

    fn count_outcome(&mut self, sent: Sent<'_>, outcome: &Outcome) {
        let ((end, bytes), method_index) = (end_of(outcome), sent.method.dense_index());
        self.counts.on_end(method_index, end, bytes);
        if let Some(began) = sent.began {
            self.counts.on_timed(method_index, *began);
        }
    }
}
