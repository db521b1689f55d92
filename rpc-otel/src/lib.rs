#![doc = include_str!("../README.md")]

use opentelemetry::Context;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer,
};
use rpc_core::trace::{SpanIds, TARGET, TraceParent};
use tracing::level_filters::LevelFilter;
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

/// Has calls carry the ids of OpenTelemetry's spans, in the whole process and from now on: the span of a
/// call that arrives is a child of its caller's, and calls that its handler makes are children of that.
///
/// Do so once, before the first call. False if something else gives the ids already
/// ([`rpc_core::trace::set_span_ids`]); it stays then.
pub fn install() -> bool {
    rpc_core::trace::set_span_ids(OpenTelemetry)
}

/// A layer that gives `tracer` the spans of calls, and those of everybody else from INFO on.
///
/// Spans of calls are of the level DEBUG: a filter over all layers has to let them through, as
/// `RUST_LOG=info,rpc_core::call=debug` does. For another choice of spans, use
/// [`tracing_opentelemetry::layer`] and a filter of yours: [`install`] works with any.
pub fn layer<S, T>(tracer: T) -> impl Layer<S> + Send + Sync + 'static
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    T: Tracer + Send + Sync + 'static,
    T::Span: Send + Sync,
{
    let spans =
        Targets::new().with_default(LevelFilter::INFO).with_target(TARGET, LevelFilter::DEBUG);
    tracing_opentelemetry::layer().with_tracer(tracer).with_filter(spans)
}

/// What is known to OpenTelemetry about a span.
struct OpenTelemetry;

impl SpanIds for OpenTelemetry {
    fn set_parent(&self, span: &Span, parent: TraceParent, state: Option<&str>) {
        // What does not parse is nobody's state, and the trace goes on without.
        let state = state.and_then(|state| state.parse::<TraceState>().ok()).unwrap_or_default();
        let remote = SpanContext::new(
            TraceId::from(parent.trace_id),
            SpanId::from(parent.span_id),
            TraceFlags::new(parent.flags),
            true,
            state,
        );
        // Without a layer of OpenTelemetry there is nothing to be a child.
        let _ = span.set_parent(Context::new().with_remote_span_context(remote));
    }

    fn ids(&self, span: &Span) -> Option<(TraceParent, String)> {
        ids(&span.context())
    }

    fn current(&self) -> Option<(TraceParent, String)> {
        // The layer makes the context of each span that it sees the current one, and the parent of what
        // is made next. One that is told not to has the spans only.
        ids(&Context::current()).or_else(|| self.ids(&Span::current()))
    }
}

fn ids(context: &Context) -> Option<(TraceParent, String)> {
    let span = context.span();
    let context = span.span_context();
    let ids = TraceParent {
        trace_id: u128::from_be_bytes(context.trace_id().to_bytes()),
        span_id: u64::from_be_bytes(context.span_id().to_bytes()),
        flags: context.trace_flags().to_u8(),
    };
    context.is_valid().then(|| (ids, context.trace_state().header()))
}
