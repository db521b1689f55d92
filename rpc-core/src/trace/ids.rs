//! An external source of span ids.

use std::sync::OnceLock;

use tracing::Span;

use crate::metadata::trace_parent::TraceParent;

/// Provides the ids of spans instead of this crate: a bridge to a tracing system that generates the
/// ids of the spans it records. `rpc-otel` is the bridge to OpenTelemetry.
///
/// It is called outside all locks, a few times per span, and only if spans are enabled.
pub trait SpanIds: Send + Sync + 'static {
    /// Sets a remote parent of `span`: one in another process, one named by the call, or, if no
    /// span is current, that of the handler that makes the call. Called before the span is entered;
    /// `state` is the parent's `tracestate`.
    fn set_parent(&self, span: &Span, parent: TraceParent, state: Option<&str>);

    /// The ids of `span` to send to others, and its `tracestate`, which may be empty. `None` if the
    /// tracing system does not know the span: a call then carries those of
    /// [`current`](Self::current), or else the trace of the handler that makes it.
    fn ids(&self, span: &Span) -> Option<(TraceParent, String)>;

    /// The ids and the `tracestate` of the implicit parent of a span created now. If a subscriber
    /// hides [`Span::current`] from the tracing system, this is the enclosing span.
    fn current(&self) -> Option<(TraceParent, String)> {
        self.ids(&Span::current())
    }
}

static SOURCE: OnceLock<Box<dyn SpanIds>> = OnceLock::new();

/// Sets the source of span ids for the whole process. Returns false if there is a source already,
/// which stays.
pub fn set_span_ids(source: impl SpanIds) -> bool {
    SOURCE.set(Box::new(source)).is_ok()
}

/// The source set by [`set_span_ids`].
pub(super) fn source() -> Option<&'static dyn SpanIds> {
    SOURCE.get().map(|source| &**source)
}
