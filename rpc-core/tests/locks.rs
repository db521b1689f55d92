//! Nothing is logged under a lock: a subscriber may access the objects that log.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rpc_core::client::resolve::{Endpoint, Resolve, ResolveError, Resolving};
use rpc_core::stats::StatsHandle;
use rpc_core::{Channel, Server};
use rpc_transport::user_code::holds_lock;
use test_kit::Watchdog;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

#[rpc_core::service]
trait Counter {
    async fn count(&self) -> u64;
}

#[derive(Default)]
struct Calls(AtomicU64);

impl Counter for Calls {
    async fn count(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// Reads the state of a channel and a server whenever something is logged.
#[derive(Default)]
struct Looks {
    at: Mutex<Option<(Channel, StatsHandle)>>,
    seen: Mutex<Vec<String>>,
    under_lock: Mutex<Vec<String>>,
}

impl Looks {
    fn look(&self, metadata: &Metadata<'_>) {
        let place = format!("{}:{:?}", metadata.target(), metadata.line());
        if holds_lock() {
            // Reading would deadlock with itself.
            self.under_lock.lock().unwrap().push(place);
            return;
        }
        self.seen.lock().unwrap().push(place);
        let at = self.at.lock().unwrap().clone();
        if let Some((channel, server)) = at {
            let _ = (channel.state(), channel.stats(), format!("{channel:?}"), server.stats());
        }
    }
}

struct Shared(Arc<Looks>);

impl Subscriber for Shared {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("rpc_")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        self.0.look(attributes.metadata());
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.0.look(event.metadata());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Fails, names nobody, then too many, then the server.
struct Moody(AtomicU64);

impl Resolve for Moody {
    fn name(&self) -> String {
        "moody".into()
    }

    fn resolve(&self) -> Resolving<'_> {
        let named = |count: u16| -> Vec<Endpoint> {
            (0..count).map(|number| format!("mem://locks-{number}").parse().unwrap()).collect()
        };
        let answer = match self.0.fetch_add(1, Ordering::SeqCst) {
            0 => Err(ResolveError::new("moody", "not yet")),
            1 => Ok(Vec::new()),
            2 => Ok(named(1100)),
            _ => Ok(named(1)),
        };
        Box::pin(async move { answer })
    }
}

#[test]
fn nothing_is_logged_under_a_lock() {
    let _watchdog = Watchdog::start("logs");
    let looks = Arc::new(Looks::default());
    tracing::subscriber::set_global_default(Shared(Arc::clone(&looks))).unwrap();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(async {
        for _ in 0..2 {
            let service = CounterServer::new(Calls::default());
            let server =
                Server::builder().add_service(service).bind("mem://locks-0").await.unwrap();
            let (stop, stats) = (server.shutdown_handle(), server.stats_handle());
            let serving = tokio::spawn(server.serve());
            let channel = Channel::builder().connect_balanced(Moody(AtomicU64::new(0))).unwrap();
            *looks.at.lock().unwrap() = Some((channel.clone(), stats));
            let client = CounterClient::new(channel);
            client.count().await.unwrap_err();
            client.count().wait_for_ready(true).await.unwrap();
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_secs(2)).await;
                client.channel().kick();
            }
            client.count().wait_for_ready(true).await.unwrap();
            stop.shutdown();
            serving.await.unwrap().unwrap();
            client.count().await.unwrap_err();
        }
    });
    let (seen, under_lock) = (looks.seen.lock().unwrap(), looks.under_lock.lock().unwrap());
    assert!(under_lock.is_empty(), "{under_lock:?}");
    for part in ["balancer", "connection", "acceptor"] {
        assert!(
            seen.iter().any(|place| place.contains(part)),
            "{part} has logged nothing: {seen:?}"
        );
    }
}
