//! OpenTelemetry's layer together with another one that has a different filter.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod kept;

use std::fmt::Debug;
use std::sync::{LazyLock, Mutex};

use opentelemetry::trace::{SpanKind, TracerProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;
use rpc_core::{Channel, Server, Status};
use test_kit::Watchdog;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Instrument, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, SubscriberExt};

use self::kept::{Keep, attribute, ended, find, is_child, trace_of};

#[rpc_core::service]
trait Outer {
    async fn ask(&self) -> Result<(), Status>;
}

#[rpc_core::service]
trait Inner {
    async fn work(&self);
}

struct Asked(InnerClient);

impl Outer for Asked {
    async fn ask(&self) -> Result<(), Status> {
        // The call is sent inside a span that only the other layer sees.
        let call = async { self.0.work().await };
        let call = call.instrument(tracing::debug_span!(target: "hidden", "hidden"));
        call.instrument(tracing::info_span!("look")).await
    }
}

struct Worker;

impl Inner for Worker {
    async fn work(&self) {}
}

/// The spans seen by the other layer.
static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Log;

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut Words);
    }
}

struct Words;

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            LOGGED.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

fn install() {
    static INSTALLED: LazyLock<()> = LazyLock::new(|| {
        let provider = SdkTracerProvider::builder().with_span_processor(Keep).build();
        let others = Targets::new()
            .with_default(LevelFilter::INFO)
            .with_target("hidden", LevelFilter::DEBUG);
        let subscriber = tracing_subscriber::registry()
            .with(rpc_otel::layer(provider.tracer("test")))
            .with(Log.with_filter(others));
        tracing::subscriber::set_global_default(subscriber).unwrap();
        assert!(rpc_otel::install());
    });
    LazyLock::force(&INSTALLED);
}

/// Runs on a thread without server code.
fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// Regression: a call that is sent again checked whether spans are enabled but created none, so the
/// next log line of its thread was lost to the layer that does not see spans of calls.
#[test]
fn logs_after_a_resent_call_reach_every_layer() {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    install();
    let server = tokio::runtime::Runtime::new().unwrap();
    let bound = Server::builder().add_service(InnerServer::new(Worker)).bind("tcp://127.0.0.1:0");
    let bound = server.block_on(bound).unwrap();
    let address = bound.local_address().to_string();
    server.spawn(bound.serve());
    block_on(async {
        let channel = Channel::builder().connect_lazy(&address).unwrap();
        InnerClient::new(channel).work().await.unwrap();
        tracing::info!("after the call");
    });
    assert!(LOGGED.lock().unwrap().iter().any(|words| words == "after the call"));
}

/// Regression: the handler's span became the parent, instead of the current span.
#[test]
fn a_call_skips_a_hidden_span() {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    install();
    block_on(async {
        let inner = Channel::to(InnerServer::new(Worker)).await.unwrap();
        let outer = OuterServer::new(Asked(InnerClient::new(inner)));
        let outer = OuterClient::new(Channel::to(outer).await.unwrap());
        let root = tracing::info_span!("root");
        outer.ask().into_owned().instrument(root.clone()).await.unwrap();
        let trace = trace_of(&root);
        drop(root);
        let spans = ended(trace, 6).await;
        let work = find(&spans, "Inner.work", SpanKind::Client);
        is_child(work, find(&spans, "look", SpanKind::Internal), false);
        assert_eq!(attribute(work, "trace_id"), trace.to_string());
    });
}
