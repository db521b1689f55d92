//! Retries, hedges, interceptors and calls in the other direction, when each server has types of
//! its own.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use rpc_core::client::HedgingPolicy;
use rpc_core::client::resolve::StaticList;
use rpc_core::interceptor::{ClientInterceptor, Ended, Inbound, Outbound, ServerInterceptor};
use rpc_core::service::Dispatch;
use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::{Channel, ChannelBuilder, Code, Context, Server, Status};
use tokio::sync::Notify;

/// A version of the service: a first server answers a name with an item, a second is asked back.
macro_rules! version {
    ($name:ident, { $($fields:tt)* }) => {
        mod $name {
            use super::*;

            #[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
            pub struct Item {
                $($fields)*
            }

            #[rpc_core::service]
            pub trait Shop {
                #[rpc(idempotent)]
                async fn show(&self, item: Item) -> Result<Item, Status>;
                fn pass(&self, items: Streaming<Item>) -> impl Stream<Item = Item>;
                /// Asks the caller.
                async fn ask_back(&self, item: Item) -> Result<Item, Status>;
            }

            #[rpc_core::service]
            pub trait Buyer {
                async fn show(&self, item: Item) -> Item;
            }

            impl Shop for Arc<Shelf> {
                async fn show(&self, item: Item) -> Result<Item, Status> {
                    self.serve().await?;
                    Ok(item)
                }
                fn pass(&self, items: Streaming<Item>) -> impl Stream<Item = Item> {
                    items.filter_map(async |item| item.ok())
                }
                async fn ask_back(&self, item: Item) -> Result<Item, Status> {
                    let caller = Context::current().connection().expect("in a handler").channel();
                    BuyerClient::new(caller).show(item).await
                }
            }

            impl Buyer for Arc<Shelf> {
                async fn show(&self, item: Item) -> Item {
                    self.calls.fetch_add(1, Ordering::SeqCst);
                    item
                }
            }
        }
    };
}

version! { first, { id: u32, name: String } }
version! { second, { pub name: String, #[serde(default)] pub count: u8, pub id: u64 } }
version! { third, { pub note: Option<String>, pub id: u16, pub name: String } }

fn item(id: u16) -> third::Item {
    third::Item { note: Some("third".into()), id, name: format!("item {id}") }
}

#[derive(Default)]
struct Shelf {
    calls: AtomicUsize,
    refuses: AtomicBool,
    hangs: AtomicBool,
    given_up: Arc<Notify>,
}

impl Shelf {
    async fn serve(&self) -> Result<(), Status> {
        struct Stops(Arc<Notify>);
        impl Drop for Stops {
            fn drop(&mut self) {
                self.0.notify_one();
            }
        }
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.hangs.load(Ordering::SeqCst) {
            let _stops = Stops(Arc::clone(&self.given_up));
            std::future::pending().await
        }
        match self.refuses.load(Ordering::SeqCst) {
            true => Err(Status::unavailable("try another one").with_retryable(true)),
            false => Ok(()),
        }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

async fn serve(service: impl Dispatch) -> String {
    let [address, ..] = crate::addresses();
    let server = Server::builder().add_service(service).bind(&*address).await.unwrap();
    tokio::spawn(server.serve());
    address
}

/// Servers of the first and the second version, and a client of the third.
async fn pair(builder: ChannelBuilder) -> ([Arc<Shelf>; 2], third::ShopClient) {
    let shelves: [Arc<Shelf>; 2] = Default::default();
    let [one, two] = shelves.each_ref().map(Arc::clone);
    let addresses =
        [serve(first::ShopServer::new(one)).await, serve(second::ShopServer::new(two)).await];
    let channel = builder.connect_balanced(StaticList::new(addresses).unwrap()).unwrap();
    (shelves, third::ShopClient::new(channel))
}

#[track_caller]
fn check<E: std::fmt::Debug>(found: Result<third::Item, E>, id: u16) {
    let found = found.unwrap();
    assert_eq!((found.id, found.name), (id, format!("item {id}")));
    // Neither server has a note.
    assert_eq!(found.note, None);
}

#[test]
fn retries_read_each_server_by_its_types() {
    crate::run(async {
        let (shelves, client) = pair(Channel::builder()).await;
        for shelf in &shelves {
            shelf.refuses.store(true, Ordering::SeqCst);
            let before = shelf.calls();
            // The balancer avoids the refusing server soon, whichever it tries first, and tries one
            // that it avoids after some time, not after some calls.
            for id in (1..100).cycle() {
                check(client.show(item(id)).await, id);
                if shelf.calls() > before {
                    break;
                }
            }
            shelf.refuses.store(false, Ordering::SeqCst);
        }
    });
}

#[test]
fn hedges_read_each_server_by_its_types() {
    crate::run(async {
        // First calls may be hedged, too: a server may meet these types by a second attempt.
        let policy = HedgingPolicy::new().delay(Duration::from_millis(5)).budget(1.0);
        let (shelves, client) = pair(Channel::builder()).await;
        // Both are connected, and calls that may be hedged have filled the budget.
        let mut calls = 0;
        while calls < 50 || shelves.iter().any(|shelf| shelf.calls() == 0) {
            check(client.show(item(7)).hedging(policy).await, 7);
            calls += 1;
        }
        for shelf in &shelves {
            shelf.hangs.store(true, Ordering::SeqCst);
            let before = shelf.calls();
            // The balancer tries it after some time, not after some calls.
            for id in (1..100).cycle() {
                check(client.show(item(id)).hedging(policy).await, id);
                if shelf.calls() > before {
                    break;
                }
            }
            // The attempt that lost is stopped.
            shelf.given_up.notified().await;
            shelf.hangs.store(false, Ordering::SeqCst);
        }
    });
}

#[derive(Clone, Default)]
struct Seen {
    begun: Arc<AtomicUsize>,
    ended: Arc<Mutex<Vec<Code>>>,
}

impl ClientInterceptor for Seen {
    fn before(&self, _: &mut Outbound<'_>) -> Result<(), Status> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn after(&self, call: &Ended<'_>) {
        self.ended.lock().unwrap().push(call.code());
    }
}

impl ServerInterceptor for Seen {
    fn before(&self, _: &mut Inbound<'_>) -> Result<(), Status> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn after(&self, _: &Context, call: &Ended<'_>) {
        self.ended.lock().unwrap().push(call.code());
    }
}

#[test]
fn interceptors_and_stats_see_one_stream() {
    crate::run(async {
        let (at_client, at_server) = (Seen::default(), Seen::default());
        let [address, ..] = crate::addresses();
        let server = Server::builder()
            .interceptor(at_server.clone())
            .add_service(first::ShopServer::new(Arc::<Shelf>::default()))
            .bind(&*address)
            .await
            .unwrap();
        let at_end = server.stats_handle();
        tokio::spawn(server.serve());
        let builder = Channel::builder().interceptor(at_client.clone());
        let channel = builder.connect(&*address).await.unwrap();
        let client = third::ShopClient::new(channel.clone());
        for _ in 0..3 {
            let items = client.pass(stream::iter((1..=40).map(item))).await.unwrap();
            let items: Vec<_> = items.collect().await;
            assert_eq!(items.len(), 40);
            for (id, item) in (1..).zip(items) {
                check(item, id);
            }
        }
        for stats in [channel.stats().methods, at_end.stats().methods] {
            let pass = stats.iter().find(|method| method.name == "Shop.pass").unwrap();
            assert_eq!((pass.started, pass.in_flight()), (3, 0), "{pass:?}");
            assert_eq!(pass.ended.get(&Code::Ok), Some(&3), "{pass:?}");
        }
        for seen in [at_client, at_server] {
            assert_eq!(seen.begun.load(Ordering::SeqCst), 3);
            assert_eq!(*seen.ended.lock().unwrap(), [Code::Ok; 3]);
        }
    });
}

#[test]
fn calls_to_clients_are_read_by_name() {
    crate::run(async {
        for address in crate::addresses() {
            let server = first::ShopServer::new(Arc::<Shelf>::default());
            let server = Server::builder().add_service(server).bind(&*address).await.unwrap();
            let address = server.local_address().to_string();
            tokio::spawn(server.serve());
            // The buyer has the second version, and calls as the third.
            let buyer = Arc::<Shelf>::default();
            let builder = Channel::builder().serve(second::BuyerServer::new(Arc::clone(&buyer)));
            let client = third::ShopClient::new(builder.connect(&address).await.unwrap());
            for id in 1..=3 {
                check(client.ask_back(item(id)).await, id);
            }
            assert_eq!(buyer.calls(), 3);
        }
    });
}
