//! Values at both ends while types differ, whenever a handler ends, in crowds of calls: each is
//! what was sent, or the call fails. Fields have moved, so that bytes of the other version decode.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use rpc_core::client::HedgingPolicy;
use rpc_core::client::resolve::StaticList;
use rpc_core::service::Dispatch;
use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::{Channel, Server};
use tokio::sync::Notify;

use crate::addresses;

/// What is between the two fields of an order.
const APART: u32 = 1_000_000;

/// When a handler ends.
const ENDS: [&str; 5] = ["in its first poll", "yields", "blocks", "is woken", "sleeps"];

async fn pause(how: u8) {
    match ENDS[usize::from(how)] {
        "yields" => tokio::task::yield_now().await,
        "blocks" => tokio::task::spawn_blocking(|| ()).await.unwrap(),
        "is woken" => {
            let (wakes, woken) = tokio::sync::oneshot::channel();
            tokio::spawn(async { wakes.send(()).unwrap() });
            woken.await.unwrap();
        }
        "sleeps" => tokio::time::sleep(Duration::from_micros(100)).await,
        _ => {}
    }
}

#[derive(Default)]
struct Desk {
    /// Orders that were read by the wrong types.
    wrong: AtomicUsize,
    kept: AtomicUsize,
    has_kept: Notify,
    /// How many calls of `slow` hang from now on, of all desks that share this.
    hangs: Arc<AtomicUsize>,
}

impl Desk {
    fn look(&self, is_right: bool) {
        self.wrong.fetch_add(usize::from(!is_right), Ordering::SeqCst);
    }
}

macro_rules! version {
    ($name:ident, $first:ident, $second:ident) => {
        mod $name {
            use super::*;

            #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
            pub struct Order {
                pub $first: u32,
                pub $second: u32,
            }

            impl Order {
                pub fn of(key: u32) -> Self {
                    Self { a: key, b: key + APART }
                }
                fn is_right(&self) -> bool {
                    self.b == self.a + APART
                }
            }

            #[rpc_core::service]
            pub trait Orders {
                async fn get(&self, how: u8, key: u32) -> Order;
                async fn try_get(&self, how: u8, key: u32) -> Result<(), Order>;
                async fn put(&self, how: u8, order: Order) -> Order;
                #[rpc(spawn)]
                async fn spawned(&self, how: u8, key: u32) -> Order;
                fn list(&self, how: u8, key: u32) -> impl Stream<Item = Order>;
                async fn upload(&self, how: u8, orders: Streaming<Order>) -> Order;
                #[rpc(idempotent)]
                async fn slow(&self, order: Order) -> Order;
                #[rpc(no_cancel)]
                async fn keep(&self, order: Order);
            }

            impl Orders for Arc<Desk> {
                async fn get(&self, how: u8, key: u32) -> Order {
                    pause(how).await;
                    Order::of(key)
                }
                async fn try_get(&self, how: u8, key: u32) -> Result<(), Order> {
                    pause(how).await;
                    Err(Order::of(key))
                }
                async fn put(&self, how: u8, order: Order) -> Order {
                    self.look(order.is_right());
                    pause(how).await;
                    order
                }
                async fn spawned(&self, how: u8, key: u32) -> Order {
                    pause(how).await;
                    Order::of(key)
                }
                fn list(&self, how: u8, key: u32) -> impl Stream<Item = Order> {
                    stream::iter(key..key + 2).then(move |key| async move {
                        pause(how).await;
                        Order::of(key)
                    })
                }
                async fn upload(&self, how: u8, mut orders: Streaming<Order>) -> Order {
                    let mut last = Order::of(0);
                    while let Ok(Some(order)) = orders.try_next().await {
                        self.look(order.is_right());
                        last = order;
                    }
                    pause(how).await;
                    last
                }
                async fn slow(&self, order: Order) -> Order {
                    self.look(order.is_right());
                    let hangs = |left: usize| left.checked_sub(1);
                    if self.hangs.fetch_update(Ordering::SeqCst, Ordering::SeqCst, hangs).is_ok() {
                        std::future::pending().await
                    }
                    order
                }
                async fn keep(&self, order: Order) {
                    self.look(order.is_right());
                    self.kept.fetch_add(1, Ordering::SeqCst);
                    self.has_kept.notify_one();
                }
            }
        }
    };
}

version! { old, a, b }
version! { copy, a, b }
version! { new, b, a }

async fn serve(address: &str, service: impl Dispatch) -> String {
    let server = Server::builder().add_service(service).bind(address).await.unwrap();
    let address = server.local_address().to_string();
    tokio::spawn(server.serve());
    address
}

/// One crowd of calls of each kind, and what of them is wrong.
async fn crowd(client: &old::OrdersClient, desk: &Desk, how: u8, size: u32) {
    let what = ENDS[usize::from(how)];
    let right = |key, found: old::Order| assert_eq!(found, old::Order::of(key), "{what}");
    join_all((0..size).map(async |key| {
        right(key, client.get(how, key).await.unwrap());
        match client.try_get(how, key).await.unwrap_err() {
            rpc_core::CallError::User(error) => right(key, error),
            error => panic!("{what}: {error}"),
        }
        right(key, client.put(how, old::Order::of(key)).await.unwrap());
        right(key, client.spawned(how, key).await.unwrap());
        let listed: Vec<_> = client.list(how, key).await.unwrap().collect().await;
        for (key, found) in (key..).zip(listed) {
            right(key, found.unwrap());
        }
        let orders = stream::iter([old::Order::of(key + 1), old::Order::of(key)]);
        right(key, client.upload(how, orders).await.unwrap());
    }))
    .await;
    assert_eq!(desk.wrong.load(Ordering::SeqCst), 0, "{what}: read wrong at the server");
}

/// Fault A: a handler that was spawned, and was ready at once, answered before its types were
/// recorded as accepted.
#[test]
fn values_are_right_whenever_a_handler_ends() {
    crate::run(async {
        for address in addresses() {
            let desk = Arc::<Desk>::default();
            let address = serve(&address, new::OrdersServer::new(Arc::clone(&desk))).await;
            for how in 0..5 {
                for size in [1, 100] {
                    let channel = Channel::connect(&*address).await.unwrap();
                    crowd(&old::OrdersClient::new(channel), &desk, how, size).await;
                }
            }
        }
    });
}

/// With one thread, the driver's turn ends between a handler's first poll and its end.
#[test]
fn values_are_right_on_one_thread() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let desk = Arc::<Desk>::default();
        let [address, ..] = addresses();
        serve(&address, new::OrdersServer::new(Arc::clone(&desk))).await;
        let channel = Channel::connect(&*address).await.unwrap();
        let client = old::OrdersClient::new(channel);
        for round in 0..10 {
            let keys = round * 1000..round * 1000 + 1000;
            let found = join_all(keys.clone().map(|key| client.get(1, key))).await;
            for (key, found) in keys.zip(found) {
                assert_eq!(found.unwrap(), old::Order::of(key));
            }
        }
    });
}

/// Fault B: the second attempt carried the schema of the first to another server, and later calls
/// there were read by its own types.
#[test]
fn a_hedged_first_call_leaves_no_wrong_types() {
    crate::run(async {
        for _ in 0..10 {
            // One of them hangs, whichever is called first.
            let hangs = Arc::new(AtomicUsize::new(1));
            let desk = || Arc::new(Desk { hangs: Arc::clone(&hangs), ..Desk::default() });
            let desks = [desk(), desk()];
            let mut at = Vec::new();
            for desk in &desks {
                let [address, ..] = addresses();
                at.push(serve(&address, new::OrdersServer::new(Arc::clone(desk))).await);
            }
            let channel =
                Channel::builder().connect_balanced(StaticList::new(at).unwrap()).unwrap();
            let client = old::OrdersClient::new(channel);
            // Both are connected, and of this method it is known that its types differ.
            for key in 0..20 {
                client.get(0, key).wait_for_ready(true).await.unwrap();
            }
            let policy = HedgingPolicy::new().delay(Duration::from_millis(2)).budget(1.0);
            let first = client.slow(old::Order::of(1)).hedging(policy).await;
            assert_eq!(first.unwrap(), old::Order::of(1));
            for key in 0..20 {
                assert_eq!(client.slow(old::Order::of(key)).await.unwrap(), old::Order::of(key));
            }
            for desk in &desks {
                assert_eq!(desk.wrong.load(Ordering::SeqCst), 0, "read wrong at the server");
            }
        }
    });
}

/// Fault C: of two traits with the same old types on one connection, the second was read by own
/// types.
#[test]
fn two_copies_of_a_trait_share_a_connection() {
    crate::run(async {
        for address in addresses() {
            let desk = Arc::<Desk>::default();
            let address = serve(&address, new::OrdersServer::new(Arc::clone(&desk))).await;
            let channel = Channel::connect(&*address).await.unwrap();
            let (one, two) =
                (old::OrdersClient::new(channel.clone()), copy::OrdersClient::new(channel));
            for key in 0..10 {
                assert_eq!(one.get(0, key).await.unwrap(), old::Order::of(key));
                assert_eq!(two.get(0, key).await.unwrap(), copy::Order::of(key));
                assert_eq!(one.put(0, old::Order::of(key)).await.unwrap(), old::Order::of(key));
                assert_eq!(two.put(0, copy::Order::of(key)).await.unwrap(), copy::Order::of(key));
                let orders = stream::iter([copy::Order::of(key)]);
                assert_eq!(two.upload(0, orders).await.unwrap(), copy::Order::of(key));
            }
            assert_eq!(desk.wrong.load(Ordering::SeqCst), 0, "read wrong at the server");
        }
    });
}

/// Fault E: nobody sent a call again that was refused for its types after its caller had gone.
#[test]
fn a_dropped_no_cancel_call_runs() {
    crate::run(async {
        for address in addresses() {
            let desk = Arc::<Desk>::default();
            let address = serve(&address, new::OrdersServer::new(Arc::clone(&desk))).await;
            for waits in [false, true] {
                let channel = Channel::connect(&*address).await.unwrap();
                let client = old::OrdersClient::new(channel);
                let call = client.keep(old::Order::of(1)).start();
                if waits {
                    // The refusal is here before the call is dropped.
                    client.get(0, 1).await.unwrap();
                }
                drop(call);
                desk.has_kept.notified().await;
            }
            assert_eq!(desk.kept.swap(0, Ordering::SeqCst), 2, "each once");
            assert_eq!(desk.wrong.load(Ordering::SeqCst), 0, "read wrong at the server");
        }
    });
}

/// Fault F: of two uploads that began on a new connection, one waited for ever; here with equal
/// types.
#[test]
fn uploads_that_begin_together_all_end() {
    crate::run(async {
        for address in addresses() {
            let desk = Arc::<Desk>::default();
            let server = Server::builder()
                .max_calls_per_connection(4)
                .add_service(old::OrdersServer::new(Arc::clone(&desk)));
            let server = server.bind(&*address).await.unwrap();
            let address = server.local_address().to_string();
            tokio::spawn(server.serve());
            for round in 0..20_u32 {
                let channel = Channel::connect(&*address).await.unwrap();
                let client = old::OrdersClient::new(channel);
                let uploads = (0..8).map(async |key| {
                    // They begin at different moments of the first one.
                    for _ in 0..(key * round) % 23 {
                        tokio::task::yield_now().await;
                    }
                    let orders = stream::iter([old::Order::of(key)]);
                    assert_eq!(client.upload(0, orders).await.unwrap(), old::Order::of(key));
                });
                join_all(uploads).await;
            }
        }
    });
}
