//! Spans of calls that are hidden from OpenTelemetry, but not from other layers.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;
use rpc_core::{Channel, Context};
use test_kit::Watchdog;
use tracing::Instrument;
use tracing::level_filters::LevelFilter;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Identity, SubscriberExt};

#[rpc_core::service]
trait Seen {
    async fn seen(&self) -> Option<String>;
}

struct Service;

impl Seen for Service {
    async fn seen(&self) -> Option<String> {
        Some(Context::current().metadata().text("traceparent")?.to_owned())
    }
}

/// Regression: the call carried no trace at all.
#[test]
fn a_hidden_call_carries_the_enclosing_span() {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    let provider = SdkTracerProvider::builder().build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let subscriber = tracing_subscriber::registry()
        .with(layer.with_filter(LevelFilter::INFO))
        .with(Identity::new().with_filter(LevelFilter::DEBUG));
    tracing::subscriber::set_global_default(subscriber).unwrap();
    assert!(rpc_otel::install());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = SeenClient::new(Channel::to(SeenServer::new(Service)).await.unwrap());
        let root = tracing::info_span!("root");
        let seen = client.seen().into_owned().instrument(root.clone()).await.unwrap();
        let context = root.context();
        let span = context.span();
        let ids = span.span_context();
        assert_eq!(seen, Some(format!("00-{}-{}-01", ids.trace_id(), ids.span_id())));
    });
}
