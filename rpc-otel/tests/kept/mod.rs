//! Keeps ended OpenTelemetry spans.

use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use opentelemetry::trace::{SpanKind, TraceId};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use tokio::sync::Notify;

/// All ended spans of this process.
static ENDED: LazyLock<(Mutex<Vec<SpanData>>, Notify)> = LazyLock::new(Default::default);

#[derive(Debug)]
pub(crate) struct Keep;

impl SpanProcessor for Keep {
    fn on_start(&self, _: &mut Span, _: &opentelemetry::Context) {}

    fn on_end(&self, span: SpanData) {
        ENDED.0.lock().unwrap().push(span);
        ENDED.1.notify_waiters();
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Waits until a trace has this many spans, and returns them.
pub(crate) async fn ended(trace: TraceId, count: usize) -> Vec<SpanData> {
    loop {
        let mut next = std::pin::pin!(ENDED.1.notified());
        next.as_mut().enable();
        let spans: Vec<_> = ENDED.0.lock().unwrap().iter().cloned().collect();
        let spans: Vec<_> =
            spans.into_iter().filter(|span| span.span_context.trace_id() == trace).collect();
        if spans.len() >= count {
            assert_eq!(spans.len(), count, "{spans:#?}");
            return spans;
        }
        next.await;
    }
}

pub(crate) fn find<'a>(spans: &'a [SpanData], name: &str, kind: SpanKind) -> &'a SpanData {
    let mut found = spans.iter().filter(|span| span.name == name && span.span_kind == kind);
    let span = found.next().unwrap_or_else(|| panic!("no {name}, {kind:?} in {spans:#?}"));
    assert!(found.next().is_none(), "{name} {kind:?} twice in {spans:#?}");
    span
}

pub(crate) fn attribute(span: &SpanData, name: &str) -> String {
    let mut found = span.attributes.iter().filter(|pair| pair.key.as_str() == name);
    let value = found.next().unwrap_or_else(|| panic!("no {name} in {:#?}", span.attributes));
    assert!(found.next().is_none(), "{name} twice in {:#?}", span.attributes);
    value.value.to_string()
}

pub(crate) fn is_child(child: &SpanData, of: &SpanData, is_remote: bool) {
    assert_eq!(child.parent_span_id, of.span_context.span_id(), "{child:#?}\n{of:#?}");
    assert_eq!(child.parent_span_is_remote, is_remote, "{child:#?}");
}

pub(crate) fn trace_of(span: &tracing::Span) -> TraceId {
    use opentelemetry::trace::TraceContextExt;
    use tracing_opentelemetry::OpenTelemetrySpanExt;
    span.context().span().span_context().trace_id()
}
