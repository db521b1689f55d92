//! Takes the outcomes of calls that this end has made, and counts them.

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;

use super::RpcEndpoint;
use super::counts::{body_bytes, end_of};
use crate::service::MethodDescriptor;
use crate::session::{CallId, Failure, NoResult, Outcome};
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

/// An outcome that is no result.
pub(crate) struct NotResult {
    pub(crate) outcome: Outcome,
    /// The request, if no handler has seen it: another connection may take it, or this one with its
    /// schema.
    pub(crate) request: Option<OutBuf>,
}

impl NotResult {
    /// The outcome of a call whose connection the shard no longer has.
    pub(crate) const CONNECTION_GONE: Self = Self {
        outcome: Outcome::Failed { reason: Failure::Closed, never_sent: false },
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
        // A call that goes on elsewhere has not ended.
        if request.is_none() {
            self.count_outcome(sent, &outcome);
        }
        Box::new(NotResult { outcome, request })
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
