//! Interceptors and spans of a call: its begin and its end.

use std::time::Instant;

use rpc_transport::message::outgoing::OutBuf;

use super::RawCall;
use super::due::Whose;
use super::extras::CallExtras;
use crate::bulk::BulkMut;
use crate::reply::{CallOutcome, Value};
use crate::service::ReplyKind;
use crate::stats::counts::End;
use crate::status::Code;
use crate::stream::item_counts::ItemCounters;
use crate::trace;

impl RawCall<'_> {
    /// Runs the interceptors, and adds the channel's metadata, before anything of the call is sent.
    /// Returns false if the call has ended. `inherited`: the deadline of the handler that makes the
    /// call.
    #[inline(always)]
    pub(super) fn begin_interceptors(&mut self, inherited: Option<Instant>) -> bool {
        if self.via.channel().around.is_none() {
            return true;
        }
        // Attempts are part of a call that has begun.
        if self.extras.as_ref().is_some_and(|it| it.is_second || it.watch.has_begun()) {
            return true;
        }
        // Interceptors see the deadline that the call would have without them, and may bring it
        // forward.
        if inherited.is_some() || self.via.channel().default_timeout.is_some() {
            self.weigh_deadlines(inherited);
        }
        let weighed = self.deadline;
        let Self { via, method, deadline, whose, body, extras, .. } = self;
        let Some(around) = &via.channel().around else { return true };
        let bytes = body.as_ref().map_or(0, OutBuf::total_len);
        let CallExtras { watch, metadata, .. } = &mut **extras.get_or_insert_with(CallExtras::take);
        if let Err(status) = around.begin(watch, method, metadata, deadline, bytes) {
            self.fail(status);
            return false;
        }
        if deadline.is_some() && *deadline != weighed {
            *whose = Whose::Call;
        }
        true
    }

    /// Gives the call its place in a trace, before anything of it is sent.
    #[cold]
    pub(super) fn begin_trace(&mut self, has_metadata: bool) {
        // Attempts are part of a call that has its place. Spans are not even asked for then:
        // filters of layers keep their answer for the span that comes next.
        if self.extras.as_ref().is_some_and(|it| it.is_second || it.is_traced) {
            return;
        }
        let is_enabled = trace::is_enabled();
        if has_metadata || is_enabled {
            let most = self.via.channel().max_metadata_bytes;
            let method = self.method;
            let extras = self.extras_mut();
            extras.is_traced = true;
            extras.span = trace::begin_call(method, &mut extras.metadata, most, is_enabled);
        }
    }

    /// The call has ended: releases its extras, and reports the end to interceptors, one of which
    /// may replace the outcome by panicking. Gives the buffer for the reply, too.
    #[inline(never)]
    pub(super) fn end_extras(
        &self,
        mut extras: Box<CallExtras>,
        mut found: CallOutcome,
    ) -> (CallOutcome, Option<Box<BulkMut>>) {
        let channel = self.via.channel();
        // Before the interceptors: the time that they take is not the call's.
        if let Some(hedge) = extras.hedge.take() {
            hedge.end(channel, self.method, &found);
        }
        if extras.kept.is_some()
            && let (Some(Ok(_)), Some(retries)) = (&found, &channel.retry)
        {
            retries.on_success();
        }
        if let Some(load) = extras.load.take() {
            load.end_with(&found, self.method);
        }
        if let Some(around) = &channel.around {
            around.end(&extras.watch, self.method, &mut found);
        }
        if let Some(span) = extras.span.take() {
            trace::end(span, end_of(&found));
        }
        let into = extras.into.take();
        extras.give_back();
        (found, into)
    }

    /// What counts the items of its streams.
    pub(crate) fn item_counters(&self) -> Option<&ItemCounters> {
        self.extras.as_ref()?.watch.items()
    }
}

#[cold]
fn end_of(found: &CallOutcome) -> End {
    match found {
        Some(Ok(Value { kind: ReplyKind::Ok, .. })) => End::OK,
        Some(Ok(Value { kind: ReplyKind::UserError, .. })) => End::UserError,
        Some(Err(status)) => End::Code(status.code()),
        None => End::Code(Code::Unknown),
    }
}
