//! More calls than the limit of a connection: they queue or fail, as configured. Over `mem://` and
//! virtual time.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use rpc_core::client::blocking::BlockingChannel;
use rpc_core::transport::WhenFull;
use rpc_core::{Channel, ChannelBuilder, Code, Context, LinkConfig, Server, ServerBuilder, Status};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

#[rpc_core::service]
trait Line {
    /// Returns its number once the gate opens.
    async fn pass(&self, number: u32) -> u32;
    /// As `pass`, with a stream of results.
    fn passing(&self, number: u32) -> impl Stream<Item = u32>;
}

/// The calls that arrived, in order.
struct Gate {
    came: Mutex<Vec<u32>>,
    open: Semaphore,
}

impl Gate {
    fn new() -> Arc<Self> {
        Arc::new(Self { came: Mutex::default(), open: Semaphore::new(0) })
    }

    fn came(&self) -> Vec<u32> {
        self.came.lock().clone()
    }

    async fn until(&self, count: usize) {
        let mut turns = 0;
        while self.came.lock().len() < count {
            turns += 1;
            assert!(turns < 100_000, "stuck at {:?}", self.came());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

struct Keeper(Arc<Gate>);

impl Line for Keeper {
    async fn pass(&self, number: u32) -> u32 {
        self.0.came.lock().push(number);
        self.0.open.acquire().await.unwrap().forget();
        number
    }

    fn passing(&self, number: u32) -> impl Stream<Item = u32> {
        futures::stream::once(self.pass(number))
    }
}

async fn serve(name: &str, gate: &Arc<Gate>, server: ServerBuilder) -> JoinHandle<()> {
    let server = server.add_service(LineServer::new(Keeper(Arc::clone(gate))));
    let server = server.bind(name).await.unwrap();
    tokio::spawn(async move { server.serve().await.unwrap() })
}

async fn start(name: &str, builder: ChannelBuilder) -> (Arc<Gate>, JoinHandle<()>, LineClient) {
    let gate = Gate::new();
    let server = serve(name, &gate, Server::builder()).await;
    let client = LineClient::new(builder.connect(name).await.unwrap());
    // The server's limit is known from here on.
    gate.open.add_permits(1);
    assert_eq!(client.pass(0).await, Ok(0));
    gate.came.lock().clear();
    (gate, server, client)
}

fn refused(status: &Status, knob: &str) {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.is_retryable() && status.message().contains(knob), "{status}");
}

#[tokio::test(start_paused = true)]
async fn calls_above_the_limit_wait_in_line() {
    let (gate, _server, client) = start("mem://in-line", Channel::builder().max_calls(2)).await;
    let mut calls: Vec<_> = (1..=6).map(|number| Some(client.pass(number).start())).collect();
    gate.until(2).await;
    // Two are dropped in the queue, one runs out of time.
    calls[2] = None;
    calls[3] = None;
    let hurried = client.pass(7).timeout(Duration::from_secs(3)).start();
    let status = hurried.await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_eq!(gate.came(), [1, 2], "nobody else is let in");
    gate.open.add_permits(1);
    gate.until(3).await;
    assert_eq!(gate.came(), [1, 2, 5]);
    gate.open.add_permits(100);
    let numbers = join_all(calls.into_iter().flatten()).await;
    assert_eq!(numbers, [Ok(1), Ok(2), Ok(5), Ok(6)]);
    assert_eq!(gate.came(), [1, 2, 5, 6]);
    // All slots are free again.
    let (one, two) = (client.pass(8).start(), client.pass(9).when_full(WhenFull::Refuse).start());
    assert_eq!((one.await, two.await), (Ok(8), Ok(9)));
}

#[tokio::test(start_paused = true)]
async fn no_more_calls_wait_in_line_than_may() {
    let builder = Channel::builder().max_calls(2).max_waiting_calls(3);
    let (gate, _server, client) = start("mem://long-line", builder).await;
    let calls: Vec<_> = (1..=5).map(|number| client.pass(number).start()).collect();
    refused(&client.pass(6).await.unwrap_err(), "`max_waiting_calls`");
    drop(calls);
    gate.open.add_permits(100);
    let calls: Vec<_> = (11..=15).map(|number| client.pass(number).start()).collect();
    assert_eq!(join_all(calls).await, (11..=15).map(Ok).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_must_not_wait_is_refused() {
    let builder = Channel::builder().max_calls(1).when_full(WhenFull::Refuse);
    let (gate, _server, client) = start("mem://no-line", builder).await;
    let first = client.pass(1).start();
    refused(&client.pass(2).await.unwrap_err(), "`max_calls`");
    refused(&client.passing(3).await.err().unwrap(), "`when_full` is set to refuse");
    let waits = client.pass(4).when_full(WhenFull::Wait).start();
    gate.open.add_permits(100);
    assert_eq!((first.await, waits.await), (Ok(1), Ok(4)));
    let mut stream = client.passing(5).await.unwrap();
    assert_eq!(stream.try_next().await, Ok(Some(5)));
    drop(stream);
    assert_eq!(gate.came(), [1, 4, 5], "the others never left");
}

#[tokio::test(start_paused = true)]
async fn the_servers_limit_is_one_as_well() {
    let gate = Gate::new();
    let _server =
        serve("mem://servers-line", &gate, Server::builder().max_calls_per_connection(1)).await;
    let link = LinkConfig::default().when_full(WhenFull::Refuse);
    let client = Channel::builder().link(link).connect("mem://servers-line").await.unwrap();
    let client = LineClient::new(client);
    gate.open.add_permits(1);
    assert_eq!(client.pass(0).await, Ok(0));
    let first = client.pass(1).start();
    refused(&client.pass(2).await.unwrap_err(), "`max_calls_per_connection`");
    gate.open.add_permits(1);
    assert_eq!(first.await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn queued_calls_survive_a_lost_connection() {
    let builder = Channel::builder().max_calls(2).wait_for_ready(true);
    let (gate, server, client) = start("mem://lost-line", builder).await;
    let mut calls: Vec<_> = (1..=6).map(|number| client.pass(number).start()).collect();
    gate.until(2).await;
    let waiting = calls.split_off(2);
    server.abort();
    let _ = server.await;
    for call in calls {
        let status = call.await.unwrap_err();
        assert_eq!((status.code(), status.is_retryable()), (Code::Unavailable, false), "{status}");
    }
    let gate = Gate::new();
    gate.open.add_permits(100);
    let _server = serve("mem://lost-line", &gate, Server::builder()).await;
    assert_eq!(join_all(waiting).await, [Ok(3), Ok(4), Ok(5), Ok(6)]);
}

#[test]
fn blocking_clients_choose_as_well() {
    let servers =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let gate = Gate::new();
    let _server = servers.block_on(serve("mem://blocking-line", &gate, Server::builder()));
    let connecting = async { Channel::builder().max_calls(1).connect("mem://blocking-line").await };
    let channel = BlockingChannel::connect_with(connecting).unwrap();
    let waits = LineBlockingClient::new(channel.clone());
    let refuses = LineBlockingClient::new(channel.with_when_full(WhenFull::Refuse));
    gate.open.add_permits(1);
    assert_eq!(waits.pass(0), Ok(0));
    let first = std::thread::spawn({
        let waits = waits.clone();
        move || waits.pass(1)
    });
    servers.block_on(gate.until(2));
    refused(&refuses.pass(2).unwrap_err(), "`max_calls`");
    gate.open.add_permits(2);
    assert_eq!(waits.pass(3), Ok(3));
    assert_eq!(first.join().unwrap(), Ok(1));
}

/// Calls its client the requested number of times.
#[rpc_core::service]
trait Often {
    /// The number of answered calls, once the others were refused.
    async fn call_me(&self, times: u32) -> u32;
}

struct Caller(Arc<Gate>);

impl Often for Caller {
    async fn call_me(&self, times: u32) -> u32 {
        let client = Context::current().connection().unwrap().channel();
        // Not nested in this call: nested calls are limited by those of the client.
        let calling = tokio::spawn({
            let gate = Arc::clone(&self.0);
            async move {
                let client = LineClient::new(client);
                let mut calls = FuturesUnordered::new();
                for number in 0..times {
                    calls.push(client.pass(number).start());
                }
                let (mut answered, mut refused) = (0, 0);
                while let Some(outcome) = calls.next().await {
                    match outcome {
                        Ok(_) => answered += 1,
                        Err(status) => {
                            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                            assert!(status.is_retryable());
                            refused += 1;
                        }
                    }
                    if refused + 6 == times {
                        gate.open.add_permits(6);
                    }
                }
                answered
            }
        });
        calling.await.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn calls_to_a_client_are_bounded() {
    let _watchdog = test_kit::Watchdog::within(test_kit::Watchdog::LIMIT);
    let gate = Gate::new();
    let server = Server::builder().max_calls_to_client(3);
    let server = server.add_service(OftenServer::new(Caller(Arc::clone(&gate))));
    tokio::spawn(server.bind("mem://calls-to-a-client").await.unwrap().serve());
    let channel = Channel::builder().serve(LineServer::new(Keeper(gate)));
    let client = OftenClient::new(channel.connect("mem://calls-to-a-client").await.unwrap());
    // Three in flight, and three that wait.
    assert_eq!(client.call_me(10_000).await.unwrap(), 6);
}
