//! What the channel does around a call: its interceptors, and the metadata that all calls have.

use std::time::Instant;

use rpc_transport::message::outgoing::OutBuf;
use tracing::Span;

use super::beside::Beside;
use super::{Extras, RawCall};
use crate::client::shared::{Shared, earliest};
use crate::metadata::Metadata;
use crate::observability::stats::counts::End;
use crate::observability::trace;
use crate::runtime::recycled;
use crate::service::ReplyKind;
use crate::service::reply::CallOutcome;
use crate::status::Code;
use crate::stream::item_counts::ItemCounters;

/// The earliest of all deadlines is the call's own.
#[inline(never)]
fn bring_forward(own: &mut Option<Instant>, channel: &Shared, inherited: Option<Instant>) {
    *own = earliest(*own, channel.default_timeout, inherited).map(|(at, _)| at);
}

impl RawCall<'_> {
    /// Before anything of the call is sent. False if it has ended by that. `inherited`: the deadline of
    /// the handler that makes the call. Inline, as it is called in one place, for each call.
    #[inline(always)]
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
        // What they see, and may bring forward, is the earliest; no later one is added when the call is sent.
        if inherited.is_some() || channel.default_timeout.is_some() {
            bring_forward(own, channel, inherited);
        }
        let bytes = body.as_ref().map_or(0, OutBuf::total_len);
        let watch = &mut beside.get_or_insert_with(recycled::take).watch;
        let mut first = Metadata::new();
        let metadata = extras.as_mut().map_or(&mut first, |extras| &mut extras.metadata);
        if let Err(status) = around.begin(watch, method, metadata, own, bytes) {
            self.fail(status);
            return false;
        }
        if first.is_empty() {
            // There is nothing to drop.
            std::mem::forget(first);
        } else {
            extras.get_or_insert_default().metadata = first;
        }
        true
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
            Some(Ok((ReplyKind::Ok, _))) => End::OK,
            Some(Ok((ReplyKind::UserError, _))) => End::UserError,
            Some(Err(status)) => End::Code(status.code()),
            None => End::Code(Code::Unknown),
        };
        trace::end(span, end);
    }

    /// The call has ended: what it had beside its outcome has, too. Each part is let go of where it is told of:
    /// nothing is left in the box, which is used again.
    #[inline(never)]
    pub(super) fn end_beside(&mut self, mut beside: Box<Beside>, found: &mut CallOutcome) {
        // Looked at first: what is taken is moved, also where there is none.
        if beside.kept.is_some()
            && let Some(kept) = beside.kept.take()
        {
            self.let_go_of_kept(kept, found);
        }
        if beside.load.is_some()
            && let Some(load) = beside.load.take()
        {
            load.let_go(found);
        }
        if let Some(around) = &self.via.channel().around {
            around.end(&mut beside.watch, self.method, found);
        }
        beside.began = None;
        recycled::give_back(beside);
    }

    /// The call is dropped before its end.
    #[cold]
    pub(super) fn drop_beside(&mut self, mut beside: Box<Beside>) {
        // Before the end, which would say that the end point has answered.
        beside.load = None;
        self.end_beside(beside, &mut None);
    }

    /// What counts the items of its streams.
    pub(crate) fn item_counters(&self) -> Option<&ItemCounters> {
        self.beside.as_ref()?.watch.items()
    }
}
