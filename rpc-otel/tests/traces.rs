//! One trace through several services, as OpenTelemetry sees it.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod kept;

use std::sync::{Arc, LazyLock, Mutex};

use opentelemetry::trace::{SpanId, SpanKind, Status as SpanStatus, TraceId, TracerProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;
use rpc_core::{CallError, Code, Context, Server, Status};
use test_kit::Watchdog;
use tracing::Instrument;
use tracing_subscriber::layer::SubscriberExt;

use self::kept::{Keep, attribute, ended, find, is_child, trace_of};

#[rpc_core::service]
trait Orders {
    /// The trace as seen by the stock service.
    async fn place(&self, article: &str) -> Result<Vec<String>, CallError<()>>;
    /// From a task without a span.
    async fn place_later(&self) -> Result<Vec<String>, CallError<()>>;
    /// In a trace that the call names.
    async fn place_named(&self, parent: &str) -> Result<Vec<String>, CallError<()>>;
}

#[rpc_core::service]
trait Stock {
    async fn take(&self, article: &str) -> Result<Vec<String>, CallError<()>>;
}

struct Shop(StockClient);

impl Orders for Shop {
    async fn place(&self, article: &str) -> Result<Vec<String>, CallError<()>> {
        tokio::task::yield_now().await;
        self.0.take(article).into_owned().instrument(tracing::info_span!("look")).await
    }

    async fn place_later(&self) -> Result<Vec<String>, CallError<()>> {
        let call = self.0.take("tea").into_owned();
        tokio::spawn(Context::current().scope(call)).await.unwrap()
    }

    async fn place_named(&self, parent: &str) -> Result<Vec<String>, CallError<()>> {
        self.0.take("tea").metadata("traceparent", parent.to_owned()).await
    }
}

struct Shelf;

impl Stock for Shelf {
    async fn take(&self, article: &str) -> Result<Vec<String>, CallError<()>> {
        if article.is_empty() {
            return Err(Status::not_found("no such article").into());
        }
        let context = Context::current();
        let metadata = context.metadata().iter();
        Ok(metadata
            .map(|(name, value)| format!("{name}={}", str::from_utf8(value).unwrap()))
            .collect())
    }
}

/// Two chained services, the first of them over every scheme that needs no device.
fn run<F: Future<Output = ()>>(name: &str, test: impl Fn(OrdersClient) -> F) {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    static INSTALLED: LazyLock<()> = LazyLock::new(|| {
        let provider = SdkTracerProvider::builder().with_span_processor(Keep).build();
        let layer = rpc_otel::layer(provider.tracer("test"));
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::set_global_default(subscriber).unwrap();
        assert!(rpc_otel::install());
        assert!(!rpc_otel::install(), "the first one stays");
    });
    LazyLock::force(&INSTALLED);
    for scheme in ["mem", "shm", "tcp"] {
        let at = |service| match scheme {
            "tcp" => "tcp://127.0.0.1:0".to_owned(),
            _ => format!("{scheme}://otel-{name}-{service}-{}", std::process::id()),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stock = StockServer::new(Shelf);
            let stock = Server::builder().add_service(stock).bind(&at("stock")).await.unwrap();
            let address = stock.local_address().to_string();
            tokio::spawn(stock.serve());
            let stock = StockClient::connect(&address).await.unwrap();
            let shop = OrdersServer::new(Shop(stock));
            let shop = Server::builder().add_service(shop).bind(&at("shop")).await.unwrap();
            let address = shop.local_address().to_string();
            tokio::spawn(shop.serve());
            test(OrdersClient::connect(&address).await.unwrap()).await;
        });
    }
}

#[test]
fn a_call_through_two_services_is_one_trace() {
    run("one", |orders| async move {
        let root = tracing::info_span!("order");
        let seen = orders.place("tea").into_owned().instrument(root.clone()).await.unwrap();
        let trace = trace_of(&root);
        drop(root);

        let spans = ended(trace, 6).await;
        let root = find(&spans, "order", SpanKind::Internal);
        let place = find(&spans, "Orders.place", SpanKind::Client);
        let placed = find(&spans, "Orders.place", SpanKind::Server);
        let look = find(&spans, "look", SpanKind::Internal);
        let take = find(&spans, "Stock.take", SpanKind::Client);
        let taken = find(&spans, "Stock.take", SpanKind::Server);
        assert_eq!(root.parent_span_id, SpanId::INVALID);
        is_child(place, root, false);
        is_child(placed, place, true);
        is_child(look, placed, false);
        is_child(take, look, false);
        is_child(taken, take, true);
        assert_eq!(seen, [format!("traceparent=00-{trace}-{}-01", take.span_context.span_id())]);

        for (span, service, method) in [
            (place, "Orders", "place"),
            (placed, "Orders", "place"),
            (take, "Stock", "take"),
            (taken, "Stock", "take"),
        ] {
            assert_eq!(attribute(span, "rpc.system"), "rpc_over_rdma");
            assert_eq!(attribute(span, "rpc.service"), service);
            assert_eq!(attribute(span, "rpc.method"), method);
            assert_eq!(attribute(span, "rpc.response.status_code"), "Ok");
            assert_eq!(attribute(span, "trace_id"), trace.to_string(), "as in the logs");
            assert_eq!(attribute(span, "span_id"), span.span_context.span_id().to_string());
            assert_eq!(span.status, SpanStatus::Unset);
            // The recorded parent is the actual parent.
            let said = span.attributes.iter().find(|it| it.key.as_str() == "parent_span_id");
            let said = said.map(|it| it.value.to_string());
            let is_remote = span.parent_span_is_remote;
            assert_eq!(said, is_remote.then(|| span.parent_span_id.to_string()), "{span:#?}");
        }
        assert!(!attribute(placed, "network.peer.address").contains('('), "{placed:#?}");
    });
}

#[test]
fn a_failed_call_marks_all_its_spans() {
    run("error", |orders| async move {
        let root = tracing::info_span!("order");
        let failed = orders.place("").into_owned().instrument(root.clone()).await.unwrap_err();
        assert!(matches!(failed, CallError::Status(status) if status.code() == Code::NotFound));
        let trace = trace_of(&root);
        drop(root);
        let spans = ended(trace, 6).await;
        for span in spans.iter().filter(|span| span.span_kind != SpanKind::Internal) {
            assert_eq!(attribute(span, "rpc.response.status_code"), "NotFound");
            assert_eq!(span.status, SpanStatus::error(""));
        }
    });
}

#[test]
fn a_spanless_tasks_call_joins_the_handlers_span() {
    run("later", |orders| async move {
        let root = tracing::info_span!("order");
        orders.place_later().into_owned().instrument(root.clone()).await.unwrap();
        let trace = trace_of(&root);
        drop(root);
        let spans = ended(trace, 5).await;
        let handler = find(&spans, "Orders.place_later", SpanKind::Server);
        let take = find(&spans, "Stock.take", SpanKind::Client);
        is_child(take, handler, true);
        is_child(find(&spans, "Stock.take", SpanKind::Server), take, true);
    });
}

/// The request of a caller without OpenTelemetry: the test disables its own spans.
async fn place_blind(orders: &OrdersClient, metadata: &[(&str, String)]) -> Vec<String> {
    let mut call = orders.place("tea");
    for (name, value) in metadata {
        call = call.metadata(name, value.clone());
    }
    let call = tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::new(), || {
        call.start()
    });
    call.await.unwrap()
}

/// The trace and the span received by the stock service.
fn told(seen: &[String]) -> (TraceId, SpanId, &str) {
    let text = seen[0].strip_prefix("traceparent=00-").unwrap();
    let parts: Vec<_> = text.split('-').collect();
    let [trace, span, flags] = &parts[..] else { panic!("{seen:?}") };
    (TraceId::from_hex(trace).unwrap(), SpanId::from_hex(span).unwrap(), flags)
}

#[test]
fn a_missing_or_malformed_trace_starts_anew() {
    run("none", |orders| async move {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        for parent in [
            None,
            Some(String::new()),
            Some("00-nonsense".to_owned()),
            Some(good.to_uppercase()),
            Some(good.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32))),
            Some(format!("{good}-more")),
            Some("ü".repeat(30)),
        ] {
            let metadata: Vec<_> = parent.iter().map(|it| ("traceparent", it.clone())).collect();
            let seen = place_blind(&orders, &metadata).await;
            let (trace, span, flags) = told(&seen);
            assert_eq!((seen.len(), flags), (1, "01"), "{seen:?}");
            let spans = ended(trace, 4).await;
            let server = find(&spans, "Orders.place", SpanKind::Server);
            assert_eq!(server.parent_span_id, SpanId::INVALID, "{parent:?}");
            let take = find(&spans, "Stock.take", SpanKind::Client);
            assert_eq!(take.span_context.span_id(), span);
            is_child(take, find(&spans, "look", SpanKind::Internal), false);
        }
    });
}

#[test]
fn a_foreign_callers_trace_and_state_continue() {
    // A separate trace for each scheme, as all spans are kept in one place.
    let number = Arc::new(Mutex::new(0x0af7_6519_u32));
    run("other", move |orders| {
        let number = Arc::clone(&number);
        async move {
            let trace = {
                let mut number = number.lock().unwrap();
                *number += 1;
                format!("{:08x}16cd43dd8448eb211c80319c", *number)
            };
            for (state, expected) in [("a=1,b=2", Some("tracestate=a=1,b=2")), ("nonsense", None)] {
                let parent = format!("00-{trace}-b7ad6b7169203331-01");
                let metadata = [("traceparent", parent.clone()), ("tracestate", state.to_owned())];
                let seen = place_blind(&orders, &metadata).await;
                let (found, ..) = told(&seen);
                assert_eq!(found.to_string(), trace);
                assert_eq!(seen.get(1).map(String::as_str), expected);
            }
            let spans = ended(TraceId::from_hex(&trace).unwrap(), 8).await;
            let servers = spans.iter().filter(|span| span.name == "Orders.place");
            for server in servers {
                assert_eq!(server.parent_span_id.to_string(), "b7ad6b7169203331");
                assert!(server.parent_span_is_remote);
            }
        }
    });
}

/// Regression: it was assigned to the trace that the call names.
#[test]
fn a_state_stays_with_its_trace() {
    run("state", |orders| async move {
        let root = tracing::info_span!("other");
        let trace = trace_of(&root);
        drop(root);
        let parent = format!("00-{trace}-b7ad6b7169203331-01");
        let of_caller = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let call = orders.place_named(&parent).metadata("traceparent", of_caller);
        let seen = call.metadata("tracestate", "a=1").await.unwrap();
        assert_eq!(seen, [format!("traceparent={parent}")]);
        let spans = ended(trace, 3).await;
        let take = find(&spans, "Stock.take", SpanKind::Client);
        assert_eq!(take.parent_span_id.to_string(), "b7ad6b7169203331");
        assert_eq!(take.span_context.trace_state().header(), "");
    });
}

#[test]
fn what_the_caller_does_not_record_nobody_records() {
    run("unsampled", |orders| async move {
        let trace = "0af7651916cd43dd8448eb211c80319d";
        let parent = format!("00-{trace}-b7ad6b7169203331-00");
        let seen = place_blind(&orders, &[("traceparent", parent)]).await;
        let (found, _, flags) = told(&seen);
        assert_eq!((found.to_string().as_str(), flags), (trace, "00"), "told, all the same");
        // A later span on the same path: those would have ended before it.
        let root = tracing::info_span!("order");
        orders.place("tea").into_owned().instrument(root.clone()).await.unwrap();
        let next = trace_of(&root);
        drop(root);
        ended(next, 6).await;
        ended(TraceId::from_hex(trace).unwrap(), 0).await;
    });
}
