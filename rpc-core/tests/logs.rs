//! The log, as seen by an operator.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rpc_core::client::{Backoff, RetryPolicy};
use rpc_core::interceptor::{Ended, Inbound, ServerInterceptor};
use rpc_core::{Channel, Context, Server, Status};
use rpc_transport::user_code::HoldsShard;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

#[rpc_core::service]
trait Risky {
    async fn fail(&self, later: bool);
    async fn explain(&self) -> Result<(), Status>;
}

struct Panics;

impl Risky for Panics {
    async fn fail(&self, later: bool) {
        if later {
            tokio::task::yield_now().await;
        }
        panic!("boom");
    }

    async fn explain(&self) -> Result<(), Status> {
        Err(Status::internal("see there").with_details(vec![7; 1 << 20]))
    }
}

/// Keeps the text of each event.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(Level, String)>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("rpc_")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        // Subscribers are users' code, which may call: no lock of a shard is held.
        drop(HoldsShard::begin());
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push((*event.metadata().level(), text.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Log {
    fn with(&self, words: &str) -> Vec<(Level, String)> {
        let log = self.0.lock().unwrap();
        log.iter().filter(|(_, text)| text.contains(words)).cloned().collect()
    }
}

/// Regression: both were logged without these, or not at all.
#[test]
fn panics_name_method_and_peer() {
    let log = Log::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tracing::subscriber::with_default(log.clone(), || {
        runtime.block_on(async {
            let server = Server::builder()
                .add_service(RiskyServer::new(Panics))
                .bind("mem://logs")
                .await
                .unwrap();
            let stop = server.shutdown_handle();
            let serving = tokio::spawn(server.serve());
            let client = RiskyClient::connect("mem://logs").await.unwrap();
            for later in [false, true] {
                client.fail(later).await.unwrap_err();
            }
            client.explain().await.unwrap_err();
            stop.shutdown();
            serving.await.unwrap().unwrap();
            while client.channel().close_cause().is_none() {
                tokio::task::yield_now().await;
            }
        });
    });
    // Drivers end with their runtime at the latest.
    tracing::subscriber::with_default(log.clone(), || drop(runtime));
    let panics = log.with("a handler panicked");
    assert_eq!(panics.len(), 2, "{panics:?}");
    for (level, text) in panics {
        assert_eq!(level, Level::ERROR);
        for word in ["boom", "Risky.fail", "peer=this process"] {
            assert!(text.contains(word), "{word} is not in: {text}");
        }
    }
    assert_eq!(log.with("details of a status are too long").len(), 1);
    for (words, more) in
        [("listening", "mem://logs"), ("shutting down", "calls=0"), ("shut down", "")]
    {
        let lines = log.with(words);
        let [(level, text)] = &lines[..] else { panic!("{words}: {lines:?}") };
        assert!(*level == Level::INFO && text.contains(more), "{text}");
    }
    let begun = log.with("connection began");
    let [(level, text)] = &begun[..] else { panic!("{begun:?}") };
    assert!(*level == Level::DEBUG && text.contains("peer=this process device="), "{text}");
    let connected = log.with("path=mem://logs on");
    let [(level, text)] = &connected[..] else { panic!("{connected:?}") };
    assert!(*level == Level::INFO && text.contains("address=mem://logs "), "{text}");
    let ends = log.with("connection ended");
    assert_eq!(ends.len(), 2, "{ends:?}");
    assert!(ends.iter().all(|(_, text)| text.contains("cause=")), "{ends:?}");
    assert!(ends.iter().any(|(level, _)| *level == Level::INFO), "{ends:?}");
    assert!(ends.iter().all(|(_, text)| text.contains("peer=this process ")), "{ends:?}");
}

#[rpc_core::service]
trait Closed {
    #[rpc(idempotent)]
    async fn open(&self, succeeds: bool) -> Result<(), Status>;
}

struct Door;

impl Closed for Door {
    async fn open(&self, succeeds: bool) -> Result<(), Status> {
        if succeeds { Ok(()) } else { Err(Status::unavailable("closed").with_retryable(true)) }
    }
}

/// Regression: it prevented retries without a log line.
#[test]
fn a_retry_throttle_that_engages_is_logged_once() {
    let log = Log::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tracing::subscriber::with_default(log.clone(), || {
        runtime.block_on(async {
            let server = Server::builder().add_service(ClosedServer::new(Door));
            tokio::spawn(server.bind("mem://throttled").await.unwrap().serve());
            let policy =
                RetryPolicy::new().throttle(4, 1.0).backoff(Backoff::new().initial(Duration::ZERO));
            let builder = Channel::builder().retry(policy);
            let door = ClosedClient::new(builder.connect("mem://throttled").await.unwrap());
            for times in 1..3 {
                door.open(false).await.unwrap_err();
                assert_eq!(log.with("too many calls fail").len(), times - 1);
                for _ in 0..3 {
                    door.open(false).await.unwrap_err();
                    assert_eq!(log.with("too many calls fail").len(), times);
                }
                for _ in 0..4 {
                    door.open(true).await.unwrap();
                }
            }
        });
        drop(runtime);
    });
    for (level, text) in log.with("too many calls fail") {
        assert!(level == Level::WARN && text.contains("address=\"mem://throttled\""), "{text}");
    }
}

#[rpc_core::service]
trait Quick {
    async fn first(&self);
    async fn last(&self);
}

struct Replies;

impl Quick for Replies {
    async fn first(&self) {}

    async fn last(&self) {}
}

/// Blocks the driver before one method, and after another one.
struct Busy;

fn compute() {
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2) {
        std::hint::spin_loop();
    }
}

impl ServerInterceptor for Busy {
    fn before(&self, call: &mut Inbound<'_>) -> Result<(), Status> {
        if call.method().name == "Quick.first" {
            compute();
        }
        Ok(())
    }

    fn after(&self, _: &Context, call: &Ended<'_>) {
        if call.method().name == "Quick.last" {
            compute();
        }
    }
}

/// Regression: interceptors that block all connections were not reported.
#[test]
fn a_busy_interceptor_is_warned_of() {
    let log = Log::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tracing::subscriber::with_default(log.clone(), || {
        runtime.block_on(async {
            let server = Server::builder().interceptor(Busy).add_service(QuickServer::new(Replies));
            let server = server.bind("mem://busy-interceptor").await.unwrap();
            tokio::spawn(server.serve());
            let client = QuickClient::connect("mem://busy-interceptor").await.unwrap();
            // The first call of each method is timed.
            client.first().await.unwrap();
            client.last().await.unwrap();
        });
        drop(runtime);
    });
    let warnings = log.with("or its interceptor runs too long");
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    for ((level, text), method) in warnings.iter().zip(["Quick.first", "Quick.last"]) {
        assert_eq!(*level, Level::WARN);
        assert!(text.contains(method), "{method} is not in: {text}");
    }
}
