//! OpenTelemetry's layer beside another one, whose filter lets other spans through.
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
        // The call is sent inside of what only the other layer sees.
        let call = async { self.0.work().await };
        let call = call.instrument(tracing::debug_span!(target: "hidden", "hidden"));
        call.instrument(tracing::info_span!("look")).await
    }
}

struct Worker;

impl Inner for Worker {
    async fn work(&self) {}
}

/// What the other layer was told.
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

/// Runs on a thread where nothing of the server does.
fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// A call that is sent again asked whether spans are enabled and made none: what its thread logged next
/// was lost to the layer that does not see spans of calls.
#[test]
fn what_is_logged_after_a_call_that_was_sent_twice_reaches_every_layer() {
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

/// The handler's span became its parent, in place of the one that the call is made in.
#[test]
fn a_call_inside_of_a_hidden_span_is_a_child_of_the_span_around_that() {
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
