//! Spans of calls, and the trace that they belong to.
//!
//! Each call has a [`tracing`] span at both ends, under the target [`TARGET`] and the level DEBUG:
//! `RUST_LOG=info,rpc_core::call=debug` shows them. A handler runs inside its span, also as a task, and
//! streams do, so that what it logs says which call it belongs to. Fields have the names of
//! OpenTelemetry's conventions for RPC: `rpc.system`, `rpc.service`, `rpc.method`,
//! `rpc.response.status_code`, `network.peer.address`, `trace_id`, `span_id` and `parent_span_id`.
//!
//! The trace travels as W3C's `traceparent` and `tracestate` in the metadata of the request. A call that
//! is made inside a handler is of the handler's trace, and a child of the handler's span where that has
//! one. Each span has an id of its own; without spans the caller's is passed on. Ids are made where
//! spans are enabled, or where a caller sent some: otherwise nothing is added to a request. A tracing
//! system that makes ids of its own gives them to the spans by [`SpanIds`].
//!
//! No trace makes a call fail: a `tracestate` of more than 512 bytes is not passed on, and what the
//! channel's `max_metadata_bytes` have no room for beside the call's own metadata is left out.
//!
//! Invariant: where spans are disabled, a call costs a look at the level, and one at whether the
//! handler's request had metadata.

mod ids;

use rpc_transport::user_code::caught;
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};
use tracing::{Level, Span, field};

use self::ids::source;
pub use self::ids::{SpanIds, set_span_ids};
use crate::context::Context;
use crate::metadata::Metadata;
use crate::observability::stats::counts::End;
pub use crate::observability::trace_parent::{TRACEPARENT, TraceParent};
use crate::service::method::MethodDescriptor;
use crate::status::Code;

/// The target of the spans.
pub const TARGET: &str = "rpc_core::call";
/// Metadata with what others add to that.
pub const TRACESTATE: &str = "tracestate";
/// Longest `tracestate` that is passed on, bytes: what W3C asks everybody to take.
const MAX_TRACESTATE_BYTES: usize = 512;

/// Whether somebody wants spans of their level at all.
#[inline(always)]
pub(crate) fn may_be_enabled() -> bool {
    Level::DEBUG <= STATIC_MAX_LEVEL && Level::DEBUG <= LevelFilter::current()
}

/// Whether spans of calls are wanted. If so, one has to be made before anything else is logged: layers
/// with filters of their own keep their answer for it.
#[inline(always)]
pub(crate) fn is_enabled() -> bool {
    tracing::span_enabled!(target: TARGET, Level::DEBUG)
}

/// The span of a call that has arrived. The calls that its handler makes will be children of it.
#[inline]
pub(crate) fn of_request(context: &mut Context) -> Option<Span> {
    if is_enabled() { server_span(context) } else { None }
}

#[cold]
fn server_span(context: &mut Context) -> Option<Span> {
    let (service, method) = parts(context.method()?);
    let parent = TraceParent::of(context.metadata());
    let source = source();
    let own = own_ids(source, parent);
    let span = tracing::debug_span!(
        target: TARGET,
        parent: None,
        "server call",
        otel.name = context.method()?.name,
        otel.kind = "server",
        rpc.system = "rpc_over_rdma",
        rpc.service = service,
        rpc.method = method,
        network.peer.address = context.peer().map(field::debug),
        trace_id = own.map(|own| own.trace_text()),
        span_id = own.map(|own| own.span_text()),
        parent_span_id = own.and(parent).map(|parent| parent.span_text()),
        rpc.response.status_code = field::Empty,
        otel.status_code = field::Empty,
    );
    if span.is_disabled() {
        return None;
    }
    if let Some(own) = own {
        context.set_trace(own);
    } else if let Some(source) = source {
        if let Some(parent) = parent {
            set_parent(source, &span, parent, context.metadata().text(TRACESTATE));
        }
        if let Some((own, _)) = source.ids(&span) {
            record(&span, own);
            context.set_trace(own);
        }
    }
    Some(span)
}

/// Ids for a span, if those are made here.
fn own_ids(source: Option<&dyn SpanIds>, parent: Option<TraceParent>) -> Option<TraceParent> {
    source.is_none().then(|| parent.map_or_else(TraceParent::new, TraceParent::child))
}

/// Says whose child the span is, to the source and in the span.
fn set_parent(source: &dyn SpanIds, span: &Span, parent: TraceParent, state: Option<&str>) {
    source.set_parent(span, parent, state);
    span.record("parent_span_id", parent.span_text());
}

/// Says in the span which one it is.
fn record(span: &Span, trace: TraceParent) {
    span.record("trace_id", trace.trace_text());
    span.record("span_id", trace.span_text());
}

/// The trace of a call that is about to be sent goes into its metadata, if that does not exceed
/// `max_bytes` by it. Gives its span, if those are wanted.
#[cold]
pub(crate) fn begin_call(
    method: &'static MethodDescriptor,
    metadata: &mut Metadata,
    max_bytes: usize,
    is_enabled: bool,
) -> Option<Span> {
    let context = Context::current();
    let named = TraceParent::of(metadata);
    let sent = TraceParent::of(context.metadata());
    let parent = named.or_else(|| context.trace()).or(sent);
    // The state of the trace that it came with, and of no other.
    let state = match (parent, sent) {
        _ if named.is_some() => metadata.text(TRACESTATE).map(str::to_owned),
        (Some(parent), Some(sent)) if parent.trace_id == sent.trace_id => {
            context.metadata().text(TRACESTATE).map(str::to_owned)
        }
        _ => None,
    };
    let state = state.as_deref();
    let (span, ids) =
        if is_enabled { client_span(method, parent, named.is_some(), state) } else { (None, None) };
    // A caller that names its span itself has told more than this one can.
    if named.is_none() {
        if let Some((trace, state)) = ids {
            hand_on(trace, Some(&state), metadata, max_bytes);
        } else if let Some(parent) = parent {
            hand_on(parent, state, metadata, max_bytes);
        }
    }
    span
}

/// The span of a call that is about to be sent, and what the call says of it: its ids and state, if it
/// has some.
fn client_span(
    method: &'static MethodDescriptor,
    parent: Option<TraceParent>,
    is_named: bool,
    state: Option<&str>,
) -> (Option<Span>, Option<(TraceParent, String)>) {
    let (service, name) = parts(method);
    let source = source();
    let own = own_ids(source, parent);
    let span = tracing::debug_span!(
        target: TARGET,
        "client call",
        otel.name = method.name,
        otel.kind = "client",
        rpc.system = "rpc_over_rdma",
        rpc.service = service,
        rpc.method = name,
        trace_id = own.map(|own| own.trace_text()),
        span_id = own.map(|own| own.span_text()),
        parent_span_id = own.and(parent).map(|parent| parent.span_text()),
        rpc.response.status_code = field::Empty,
        otel.status_code = field::Empty,
    );
    let mut ids = own.map(|own| (own, state.unwrap_or_default().to_owned()));
    if span.is_disabled() {
        return (None, ids);
    }
    if let Some(source) = source {
        // What the span is in here is its parent, unless the caller has named another.
        let around = source.current();
        if let Some(parent) = parent
            && (is_named || around.is_none())
        {
            set_parent(source, &span, parent, state);
        }
        ids = source.ids(&span);
        if let Some((own, _)) = &ids {
            record(&span, *own);
        }
        ids = ids.or(around);
    }
    (Some(span), ids)
}

/// Puts a trace into the metadata of a call; what there is no room for does not travel.
fn hand_on(trace: TraceParent, state: Option<&str>, metadata: &mut Metadata, max_bytes: usize) {
    if !insert_within(metadata, TRACEPARENT, trace.to_string().into_bytes(), max_bytes) {
        return;
    }
    // Longer ones are whole or worthless: W3C lets nobody cut inside of an entry.
    // One that the call has of its own stays.
    if let Some(state) =
        state.filter(|state| !state.is_empty() && state.len() <= MAX_TRACESTATE_BYTES)
        && metadata.bytes(TRACESTATE).is_none()
    {
        insert_within(metadata, TRACESTATE, state.into(), max_bytes);
    }
}

/// False if that would be too much.
fn insert_within(metadata: &mut Metadata, name: &str, value: Vec<u8>, max_bytes: usize) -> bool {
    let mut with = metadata.clone();
    let fits = with.insert(name, value).is_ok() && with.encoded_bytes() <= max_bytes;
    if fits {
        *metadata = with;
    }
    fits
}

/// Says in the span how its call ended, and closes it. A subscriber that panics costs the call nothing.
#[cold]
pub(crate) fn end(span: Span, end: End) {
    caught(|| record_end(&span, end));
    // By itself: a span that closed while another panic unwinds would end the process.
    caught(|| drop(span));
}

fn record_end(span: &Span, end: End) {
    match end {
        End::UserError => {
            span.record("rpc.response.status_code", "UserError");
        }
        End::Code(Code::Ok) => {
            span.record("rpc.response.status_code", "Ok");
        }
        End::Code(code) => {
            span.record("rpc.response.status_code", field::debug(code));
            span.record("otel.status_code", "ERROR");
        }
    }
}

/// Service and method of `Service.method`.
fn parts(method: &'static MethodDescriptor) -> (&'static str, &'static str) {
    method.name.rsplit_once('.').unwrap_or(("", method.name))
}
