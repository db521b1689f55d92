//! A call that is sent twice, because its types differ, is one call to everything else.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rpc_core::interceptor::{ClientInterceptor, Ended, ServerInterceptor};
use rpc_core::{Channel, Code, Context, Server, Status};
use tokio::sync::Notify;

mod old {
    #[derive(Debug, serde::Serialize, serde::Deserialize)]
    pub struct Item {
        pub id: u32,
    }

    #[rpc_core::service]
    pub trait Store {
        async fn put(&self, item: Item) -> Result<u32, rpc_core::Status>;
        async fn wait(&self, item: Item) -> u32;
    }
}

mod new {
    #[derive(Debug, serde::Serialize, serde::Deserialize)]
    pub struct Item {
        pub name: Option<String>,
        pub id: u64,
    }

    #[rpc_core::service]
    pub trait Store {
        async fn put(&self, item: Item) -> Result<u32, rpc_core::Status>;
        async fn wait(&self, item: Item) -> u32;
    }
}

#[derive(Default)]
struct Shelf {
    runs: AtomicUsize,
    deadlines: Mutex<Vec<Option<Instant>>>,
    waits: Notify,
    stopped: Arc<Notify>,
}

impl old::Store for Shelf {
    async fn put(&self, item: old::Item) -> Result<u32, Status> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        let context = Context::current();
        self.deadlines.lock().unwrap().push(context.deadline());
        assert!(context.metadata().iter().all(|(name, _)| name == "key"));
        match item.id {
            // Details as the framework's own.
            0 => Err(Status::failed_precondition("no").with_details(&b"signature\n\0argument"[..])),
            id => Ok(id),
        }
    }

    async fn wait(&self, _: old::Item) -> u32 {
        struct Stops(Arc<Notify>);
        impl Drop for Stops {
            fn drop(&mut self) {
                self.0.notify_one();
            }
        }
        let _stops = Stops(Arc::clone(&self.stopped));
        self.waits.notify_one();
        std::future::pending().await
    }
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Code>>>);

impl ClientInterceptor for Seen {
    fn after(&self, call: &Ended<'_>) {
        self.0.lock().unwrap().push(call.code());
    }
}

impl ServerInterceptor for Seen {
    fn after(&self, _: &Context, call: &Ended<'_>) {
        self.0.lock().unwrap().push(call.code());
    }
}

fn item(id: u64) -> new::Item {
    new::Item { name: Some("name".into()), id }
}

struct World {
    shelf: Arc<Shelf>,
    channel: Channel,
    at_client: Seen,
    at_server: Seen,
    stats: rpc_core::stats::StatsHandle,
}

async fn world() -> World {
    let (shelf, at_client, at_server) = (Arc::default(), Seen::default(), Seen::default());
    let [address, ..] = crate::addresses();
    let server = Server::builder()
        .interceptor(at_server.clone())
        .add_service(old::StoreServer::from_arc(Arc::clone(&shelf)))
        .bind(&*address)
        .await
        .unwrap();
    let stats = server.stats_handle();
    tokio::spawn(server.serve());
    let channel =
        Channel::builder().interceptor(at_client.clone()).connect(&*address).await.unwrap();
    World { shelf, channel, at_client, at_server, stats }
}

#[test]
fn interceptors_and_stats_see_one_call() {
    crate::run(async {
        let World { shelf, channel, at_client, at_server, stats } = world().await;
        let store = new::StoreClient::new(channel.clone());
        for id in 1..=3_u32 {
            assert_eq!(store.put(item(id.into())).metadata("key", "value").await, Ok(id));
        }
        assert_eq!(shelf.runs.load(Ordering::SeqCst), 3);
        assert_eq!(*at_client.0.lock().unwrap(), [Code::Ok; 3]);
        assert_eq!(*at_server.0.lock().unwrap(), [Code::Ok; 3]);
        for stats in [channel.stats().methods, stats.stats().methods] {
            let put = stats.iter().find(|method| method.name == "Store.put").unwrap();
            assert_eq!((put.started, put.in_flight()), (3, 0), "{put:?}");
            assert_eq!(put.ended.get(&Code::Ok), Some(&3), "{put:?}");
        }
    });
}

#[test]
fn a_status_of_the_handler_is_no_refusal() {
    crate::run(async {
        let World { shelf, channel, .. } = world().await;
        let store = new::StoreClient::new(channel);
        for runs in 1..=3 {
            let status = Status::from(store.put(item(0)).await.unwrap_err());
            assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "no"));
            assert_eq!(status.details(), b"signature\n\0argument");
            assert_eq!(shelf.runs.load(Ordering::SeqCst), runs);
        }
    });
}

#[test]
fn the_second_send_keeps_the_deadline() {
    crate::run(async {
        let World { shelf, channel, .. } = world().await;
        let store = new::StoreClient::new(channel);
        let hour = Duration::from_secs(3600);
        assert_eq!(store.put(item(1)).timeout(hour).await, Ok(1));
        assert!(shelf.deadlines.lock().unwrap()[0].is_some());
        let passed = Instant::now().checked_sub(Duration::from_millis(1)).unwrap();
        let status = Status::from(store.put(item(1)).deadline(passed).await.unwrap_err());
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert_eq!(shelf.runs.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_dropped_call_stops_its_handler() {
    crate::run(async {
        let World { shelf, channel, at_client, .. } = world().await;
        let store = new::StoreClient::new(channel);
        let waiting = {
            let store = store.clone();
            tokio::spawn(async move { store.wait(item(1)).await })
        };
        shelf.waits.notified().await;
        waiting.abort();
        shelf.stopped.notified().await;
        assert!(waiting.await.unwrap_err().is_cancelled());
        assert!(at_client.0.lock().unwrap().len() <= 1);
        assert_eq!(store.put(item(2)).await, Ok(2));
    });
}

#[test]
fn many_first_calls_at_once_all_work() {
    crate::run(async {
        let World { shelf, channel, .. } = world().await;
        let store = new::StoreClient::new(channel);
        let calls = (1..=200_u32).map(|id| {
            let call = store.put(item(id.into())).start();
            async move { assert_eq!(call.await, Ok(id)) }
        });
        futures::future::join_all(calls.collect::<Vec<_>>()).await;
        assert_eq!(shelf.runs.load(Ordering::SeqCst), 200);
    });
}

/// Both clients use one connection: one has the server's types, one has others.
#[test]
fn equal_and_changed_types_share_a_connection() {
    crate::run(async {
        let World { channel, .. } = world().await;
        let (same, other) =
            (old::StoreClient::new(channel.clone()), new::StoreClient::new(channel));
        for id in 1..=5 {
            assert_eq!(same.put(old::Item { id }).await, Ok(id));
            assert_eq!(other.put(item(id.into())).await, Ok(id));
        }
    });
}

#[test]
fn the_schema_does_not_count_as_metadata() {
    crate::run(async {
        let World { channel, .. } = world().await;
        let store = new::StoreClient::new(channel);
        let value = vec![b'x'; rpc_core::metadata::DEFAULT_MAX_BYTES - 7];
        for _ in 0..2 {
            assert_eq!(store.put(item(1)).metadata("key", value.clone()).await, Ok(1));
        }
    });
}
