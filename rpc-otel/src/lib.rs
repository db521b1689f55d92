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

/// Makes calls carry the ids of OpenTelemetry's spans, in the whole process: the span of a received
/// call becomes a child of the caller's, and calls made by its handler become children of that
/// span.
///
/// Call it once, before the first call. Returns false if another source of ids is already set
/// ([`rpc_core::trace::set_span_ids`]), which then stays.
pub fn install() -> bool {
    rpc_core::trace::set_span_ids(OpenTelemetry)
}

/// A layer that sends the spans of calls, and all other spans of INFO and above, to `tracer`.
///
/// Spans of calls have the level DEBUG: a global filter must let them through, as
/// `RUST_LOG=info,rpc_core::call=debug` does. For another choice of spans, use
/// [`tracing_opentelemetry::layer`] with your own filter: [`install`] works with any.
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

/// The OpenTelemetry context of a span.
struct OpenTelemetry;

impl SpanIds for OpenTelemetry {
    fn set_parent(&self, span: &Span, parent: TraceParent, state: Option<&str>) {
        // A malformed state is dropped, and the trace continues without it.
        let state = state.and_then(|state| state.parse::<TraceState>().ok()).unwrap_or_default();
        let remote = SpanContext::new(
            TraceId::from(parent.trace_id),
            SpanId::from(parent.span_id),
            TraceFlags::new(parent.flags),
            true,
            state,
        );
        // Without an OpenTelemetry layer, nothing could become a child.
        let _ = span.set_parent(Context::new().with_remote_span_context(remote));
    }

    fn ids(&self, span: &Span) -> Option<(TraceParent, String)> {
        ids(&span.context())
    }

    fn current(&self) -> Option<(TraceParent, String)> {
        // By default, the layer makes the context of each entered span the current one, and so the
        // parent of the next span. A layer configured not to do so has only the spans.
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
