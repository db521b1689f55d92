//! What the channel does around a call: its interceptors, and the metadata that all calls have.

use std::time::Instant;

use rpc_transport::message::outgoing::OutBuf;
use tracing::Span;

use super::beside::Beside;
use super::{CallOutcome, Extras, RawCall};
use crate::client::shared::earliest;
use crate::interceptor::{Ending, ItemCounters};
use crate::metadata::Metadata;
use crate::observability::stats::counts::End;
use crate::observability::trace;
use crate::runtime::recycled;
use crate::status::Code;

impl RawCall<'_> {
    /// Before anything of the call is sent. False if it has ended by that. `inherited`: the deadline of
    /// the handler that makes the call.
    #[inline(never)]
    pub(super) fn begin_around(&mut self, inherited: Option<Instant>) -> bool {
        let Self { via, method, deadline: own, body, extras, beside, .. } = self;
        let channel = via.channel();
        let Some(around) = &channel.around else { return true };
        // Attempts are part of a call that has begun.
        if extras.as_ref().is_some_and(|extras| extras.is_second)
            || beside.as_ref().is_some_and(|beside| beside.watch.has_begun())
        {
            return true;
        }
        let mut deadline = earliest(*own, channel.default_timeout, inherited).map(|(at, _)| at);
        let bytes = body.as_ref().map_or(0, OutBuf::total_len);
        let mut metadata = match &mut **extras {
            Some(extras) => std::mem::take(&mut extras.metadata),
            None => Metadata::new(),
        };
        let watch = &mut beside.get_or_insert_with(recycled::take).watch;
        match around.begin(watch, method, &mut metadata, &mut deadline, bytes) {
            Ok(()) => {
                *own = deadline;
                if !metadata.is_empty() {
                    extras.get_or_insert_default().metadata = metadata;
                }
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
    pub(super) fn begin_trace(&mut self, has_metadata: bool) {
        // Attempts are part of a call that has its place. Nobody is asked whether spans are enabled
        // without making one then: filters of layers keep their answer for what comes next.
        let has_place = |extras: &Extras| extras.is_second || extras.is_traced;
        if self.extras.as_deref().is_some_and(has_place) {
            return;
        }
        let is_enabled = trace::is_enabled();
        if has_metadata || is_enabled {
            let most = self.via.channel().max_metadata_bytes;
            let extras = self.extras.get_or_insert_default();
            extras.is_traced = true;
            extras.span = trace::begin_call(self.method, &mut extras.metadata, most, is_enabled);
        }
    }

    /// The call has ended.
    #[cold]
    pub(super) fn end_trace(span: Span, found: &CallOutcome) {
        let end = match found {
            CallOutcome::Ok(_) => End::OK,
            CallOutcome::UserError(_) => End::UserError,
            CallOutcome::Failed(status) => End::Code(status.code()),
            CallOutcome::Nothing => End::Code(Code::Unknown),
        };
        trace::end(span, end);
    }

    /// The call has ended: what it had beside its outcome has, too.
    #[inline(never)]
    pub(super) fn end_beside(&mut self, mut beside: Box<Beside>, found: &mut CallOutcome) {
        if let Some(kept) = beside.kept.take() {
            self.let_go_of_kept(kept, found);
        }
        if let Some(load) = beside.load.take() {
            load.let_go(found);
        }
        if let Some(around) = &self.via.channel().around {
            let (ending, reply) = match &*found {
                CallOutcome::Ok(message) => (Ending::Ok, Some(message)),
                CallOutcome::UserError(message) => (Ending::UserError, Some(message)),
                CallOutcome::Failed(status) => (Ending::Status(status), None),
                CallOutcome::Nothing => (Ending::Cancelled, None),
            };
            if let Some(status) = around.end(&mut beside.watch, ending, reply) {
                *found = CallOutcome::Failed(status.of_call(self.method));
            }
        }
        recycled::give_back(beside);
    }

    /// The call is dropped before its end.
    #[cold]
    pub(super) fn drop_beside(&mut self, mut beside: Box<Beside>) {
        if let Some(around) = &self.via.channel().around {
            around.cancel(&mut beside.watch);
        }
        recycled::give_back(beside);
    }

    /// What counts the items of its streams.
    pub(crate) fn item_counters(&self) -> Option<&ItemCounters> {
        self.beside.as_ref()?.watch.items()
    }
}
