//! What the channel does around a call: its interceptors, and the metadata that all calls have.

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::user_code::caught;
use tracing::Span;

use super::{CallOutcome, RawCall};
use crate::client::shared::earliest;
use crate::context::Context as CallContext;
use crate::interceptor::{Ending, ItemCounters};
use crate::observability::stats::counts::End;
use crate::observability::trace;
use crate::status::Code;

impl RawCall<'_> {
    /// Before anything of the call is sent. False if it has ended by that.
    #[cold]
    pub(super) fn begin_around(&mut self) -> bool {
        let Some(around) = &self.via.channel().around else { return true };
        let extras = self.extras.get_or_insert_default();
        // Attempts are part of a call that has begun.
        if extras.has_begun || extras.is_second {
            return true;
        }
        extras.has_begun = true;
        let inherited = CallContext::current_deadline();
        let deadline = earliest(self.deadline, self.via.channel().default_timeout, inherited);
        let mut deadline = deadline.map(|(at, _)| at);
        let bytes = self.body.as_ref().map_or(0, OutBuf::total_len);
        match around.begin(self.method, &mut extras.metadata, &mut deadline, bytes) {
            Ok(watch) => {
                (extras.watch, self.deadline) = (watch, deadline);
                true
            }
            Err(status) => {
                self.fail(status);
                false
            }
        }
    }

    /// Before anything of the call is sent: it takes its place in a trace.
    #[cold]
    pub(super) fn begin_trace(&mut self) {
        let extras = self.extras.get_or_insert_default();
        // Attempts are part of a call that has its place.
        if !extras.is_second && !std::mem::replace(&mut extras.is_traced, true) {
            let most = self.via.channel().max_metadata_bytes;
            extras.span = trace::begin_call(self.method, &mut extras.metadata, most);
        }
    }

    /// The call has ended.
    #[cold]
    pub(super) fn end_trace(span: &Span, found: &CallOutcome) {
        let end = match found {
            CallOutcome::Ok(_) => End::OK,
            CallOutcome::UserError(_) => End::UserError,
            CallOutcome::Failed(status) => End::Code(status.code()),
            CallOutcome::Nothing => End::Code(Code::Unknown),
        };
        caught(|| trace::end(span, end));
    }

    /// The call has ended.
    #[cold]
    pub(super) fn end_around(&mut self, found: &mut CallOutcome) {
        let extras = self.extras.as_mut();
        let Some(mut watch) = extras.and_then(|extras| extras.watch.take()) else { return };
        let panicked = match &*found {
            CallOutcome::Ok(message) => watch.end(Ending::Ok, Some(message)),
            CallOutcome::UserError(message) => watch.end(Ending::UserError, Some(message)),
            CallOutcome::Failed(status) => watch.end(Ending::Status(status), None),
            CallOutcome::Nothing => None,
        };
        if let Some(status) = panicked {
            *found = CallOutcome::Failed(status.of_call(self.method));
        }
    }

    /// What counts the items of its streams.
    pub(crate) fn item_counters(&self) -> Option<&ItemCounters> {
        self.extras.as_ref()?.watch.as_ref()?.items()
    }
}
