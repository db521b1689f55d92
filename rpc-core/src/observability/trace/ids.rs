//! Where the ids of spans come from, if not from here.

use std::sync::OnceLock;

use tracing::Span;

use crate::observability::trace_parent::TraceParent;

/// Gives spans of calls their ids, in place of this crate: a bridge to a tracing system, which makes the
/// ids of the spans that it records itself. `rpc-otel` is the one for OpenTelemetry.
///
/// It is asked outside of all locks, a few times for each span, and only where spans are enabled.
pub trait SpanIds: Send + Sync + 'static {
    /// The parent of `span` is in another process, is named by the call, or is the span of the handler
    /// that makes the call, where nothing is current. Called before the span is entered; `state` is the
    /// `tracestate` that came with the parent.
    fn set_parent(&self, span: &Span, parent: TraceParent, state: Option<&str>);

    /// The ids of `span` as others shall know them, and its `tracestate`, empty for none. `None` if it
    /// is not known there: a call then carries those of [`current`](Self::current), or else the trace of
    /// the handler that makes it.
    fn ids(&self, span: &Span) -> Option<(TraceParent, String)>;

    /// The same of what a span that is made here and now becomes a child of by itself. A subscriber may
    /// hide [`Span::current`] from the tracing system: then it is the span around that.
    fn current(&self) -> Option<(TraceParent, String)> {
        self.ids(&Span::current())
    }
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
