//! Where the ids of spans come from, if not from here.

use std::sync::OnceLock;

use tracing::Span;

use crate::observability::trace_parent::TraceParent;

/// Gives spans of calls their ids, in place of this crate: a bridge to a tracing system, which makes the
/// ids of the spans that it records itself. `rpc-otel` is the one for OpenTelemetry.
///
/// It is asked outside of all locks, once for each span, and only where spans are enabled.
pub trait SpanIds: Send + Sync + 'static {
    /// The parent of `span` is in another process, or is a span that the subscriber does not see. Called
    /// before the span is entered; `state` is the `tracestate` that came with it.
    fn set_parent(&self, span: &Span, parent: TraceParent, state: Option<&str>);

    /// The ids of `span` as others shall know them, and its `tracestate`, empty for none. `None` if it
    /// is not recorded: calls then carry the ids of the span around it, if that has some.
    fn ids(&self, span: &Span) -> Option<(TraceParent, String)>;
}

static SOURCE: OnceLock<Box<dyn SpanIds>> = OnceLock::new();

/// Has the ids of spans made by `source`, for the whole process from now on. False if there is a source
/// already: the first one stays.
pub fn set_span_ids(source: impl SpanIds) -> bool {
    SOURCE.set(Box::new(source)).is_ok()
}

/// What [`set_span_ids`] has been given.
pub(super) fn source() -> Option<&'static dyn SpanIds> {
    SOURCE.get().map(|source| &**source)
}
