//! Spans of calls, and their traces.
//!
//! Each call has a [`tracing`] span at both ends, under the target [`TARGET`] and the level DEBUG:
//! `RUST_LOG=info,rpc_core::call=debug` shows them. A handler runs inside its span, also as a task,
//! and so do streams, so its log lines name the call. The fields follow OpenTelemetry's conventions
//! for RPC: `rpc.system`, `rpc.service`, `rpc.method`, `rpc.response.status_code`,
//! `network.peer.address`, `network.peer.port`, `peer.id` (the name that the caller has proven),
//! `trace_id`, `span_id` and `parent_span_id`.
//!
//! The trace is sent as W3C `traceparent` and `tracestate` in the metadata of the request. A call
//! made inside a handler belongs to the handler's trace, and is a child of the handler's span if
//! there is one. Each span has its own id; without spans the caller's id is passed on. Ids are
//! generated if spans are enabled or the caller sent some; otherwise nothing is added to a request.
//! A tracing system with its own ids provides them through [`SpanIds`].
//!
//! A trace never makes a call fail: a `tracestate` of more than 512 bytes is not passed on, nor is
//! anything that does not fit into the channel's `max_metadata_bytes` together with the call's own
//! metadata.
//!
//! Invariant: if spans are disabled, a call costs a check of the level and of whether the handler's
//! request had metadata.

mod ids;

use rpc_transport::device::PeerIdentity;
use rpc_transport::user_code::caught;
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};
use tracing::{Level, Span, field};

use self::ids::source;
pub use self::ids::{SpanIds, set_span_ids};
use crate::context::Context;
use crate::metadata::Metadata;
pub use crate::metadata::trace_parent::{TRACEPARENT, TraceParent};
use crate::method::MethodDescriptor;
use crate::stats::counts::End;
use crate::status::Code;

/// The target of the spans.
pub const TARGET: &str = "rpc_core::call";
/// The name of the metadata with the vendors' part of the trace.
pub const TRACESTATE: &str = "tracestate";
/// Longest `tracestate` that is passed on, bytes: the minimum that W3C requires everybody to
/// support.
const MAX_TRACESTATE_BYTES: usize = 512;

/// Whether spans of this level are enabled at all.
#[inline(always)]
pub(crate) fn may_be_enabled() -> bool {
    Level::DEBUG <= STATIC_MAX_LEVEL && Level::DEBUG <= LevelFilter::current()
}

/// Whether spans of calls are enabled. If so, one must be created before anything else is logged:
/// layers with their own filters keep their answer for it.
#[inline(always)]
pub(crate) fn is_enabled() -> bool {
    tracing::span_enabled!(target: TARGET, Level::DEBUG)
}

/// The span of a received call. Calls made by the handler become its children.
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
    let (peer, port) = context.peer().map(address_of).unzip();
    let port = port.flatten();
    let span = tracing::debug_span!(
        target: TARGET,
        parent: None,
        "server call",
        otel.name = context.method()?.name,
        otel.kind = "server",
        rpc.system = "rpc_over_rdma",
        rpc.service = service,
        rpc.method = method,
        network.peer.address = peer,
        network.peer.port = port,
        peer.id = context.identity().and_then(|caller| caller.id()),
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

/// Address and port of a peer in OpenTelemetry's form: separate, and IPv4-mapped addresses as IPv4.
fn address_of(peer: &PeerIdentity) -> (String, Option<u16>) {
    match peer {
        PeerIdentity::Network(address) => {
            (address.ip().to_canonical().to_string(), Some(address.port()))
        }
        other => (other.to_string(), None),
    }
}

/// Ids for a span, if this crate generates them.
fn own_ids(source: Option<&dyn SpanIds>, parent: Option<TraceParent>) -> Option<TraceParent> {
    source.is_none().then(|| parent.map_or_else(TraceParent::new, TraceParent::child))
}

/// Records the parent, in the source of ids and in the span.
fn set_parent(source: &dyn SpanIds, span: &Span, parent: TraceParent, state: Option<&str>) {
    source.set_parent(span, parent, state);
    span.record("parent_span_id", parent.span_text());
}

/// Records the ids in the span.
fn record(span: &Span, trace: TraceParent) {
    span.record("trace_id", trace.trace_text());
    span.record("span_id", trace.span_text());
}

/// Adds the trace of a call that is about to be sent to its metadata, unless that would exceed
/// `max_bytes`. Returns the span, if spans are enabled.
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
    // Only the state of the trace that it belongs to.
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
    // A span named by the caller takes precedence.
    if named.is_none() {
        if let Some((trace, state)) = ids {
            hand_on(trace, Some(&state), metadata, max_bytes);
        } else if let Some(parent) = parent {
            hand_on(parent, state, metadata, max_bytes);
        }
    }
    span
}

/// The span of a call that is about to be sent, with its ids and state, if there are any.
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
        // The current span is the parent, unless the caller named another.
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

/// Adds a trace to the metadata of a call, as far as there is room.
fn hand_on(trace: TraceParent, state: Option<&str>, metadata: &mut Metadata, max_bytes: usize) {
    if !insert_within(metadata, TRACEPARENT, trace.to_string().into_bytes(), max_bytes) {
        return;
    }
    // A longer state is dropped whole: W3C forbids cutting inside an entry. One set by the call
    // itself stays.
    if let Some(state) =
        state.filter(|state| !state.is_empty() && state.len() <= MAX_TRACESTATE_BYTES)
        && metadata.bytes(TRACESTATE).is_none()
    {
        insert_within(metadata, TRACESTATE, state.into(), max_bytes);
    }
}

/// False if it does not fit.
fn insert_within(metadata: &mut Metadata, name: &str, value: Vec<u8>, max_bytes: usize) -> bool {
    let mut with = metadata.clone();
    let fits = with.insert(name, value).is_ok() && with.encoded_bytes() <= max_bytes;
    if fits {
        *metadata = with;
    }
    fits
}

/// Records the outcome in the span and closes it. A panic of a subscriber does not affect the call.
#[cold]
pub(crate) fn end(span: Span, end: End) {
    caught(|| record_end(&span, end));
    // Separately: if closing the span panicked while another panic unwinds, the process would
    // abort.
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
