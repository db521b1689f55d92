//! A client that serves, and stops in order.

use std::sync::Arc;
use std::time::Duration;

use rpc_core::client::ConnectionHandle;
use rpc_core::client::blocking::BlockingChannel;
use rpc_core::client::resolve::StaticList;
use rpc_core::{Channel, Code, Context, PollMode, Status};
use tests::limit::patient_channel;
use tests::scheme::Scheme;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

on_every_device! {
    a_departing_client_ends_and_refuses_calls,
    a_departed_client_tells_its_next_server,
    an_early_departed_client_tells_a_server,
    a_client_without_services_stops_nothing,
    an_endless_call_is_not_waited_for,
    a_blocking_client_goes_away,
}

/// Longer than any of this takes.
const GRACE: Duration = Duration::from_secs(600);

#[rpc_core::service]
trait Desk {
    async fn subscribe(&self) -> u32;
}

#[rpc_core::service]
trait Reader {
    async fn article(&self) -> u32;
    async fn hold(&self) -> bool;
    async fn until_draining(&self) -> u32;
}

struct Paper(UnboundedSender<ConnectionHandle>);

impl Desk for Paper {
    async fn subscribe(&self) -> u32 {
        self.0.send(Context::current().connection().expect("in a handler")).expect("it listens");
        7
    }
}

#[derive(Clone, Default)]
struct Reading {
    began: Arc<Notify>,
    go: Arc<Notify>,
}

impl Reader for Reading {
    async fn article(&self) -> u32 {
        1
    }
    async fn hold(&self) -> bool {
        self.began.notify_one();
        self.go.notified().await;
        Context::current().is_draining()
    }
    async fn until_draining(&self) -> u32 {
        self.began.notify_one();
        Context::current().draining().await;
        2
    }
}

struct World {
    address: String,
    callers: UnboundedReceiver<ConnectionHandle>,
    server: rpc_core::ShutdownHandle,
}

async fn serve(address: &str) -> World {
    let (paper, callers) = unbounded_channel();
    let server = tests::device::server()
        .poll_mode(PollMode::Event)
        .add_service(DeskServer::new(Paper(paper)));
    let server = server.bind(address).await.expect("a fresh address");
    let (address, handle) = (server.local_address().to_string(), server.shutdown_handle());
    tokio::spawn(server.serve());
    World { address, callers, server: handle }
}

impl World {
    async fn subscribed(&mut self, channel: &Channel) -> ReaderClient {
        assert_eq!(DeskClient::new(channel.clone()).subscribe().await, Ok(7));
        ReaderClient::new(self.callers.recv().await.expect("it called").channel())
    }
}

fn refused(outcome: Result<u32, Status>) {
    let status = outcome.expect_err("it takes no calls");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.is_retryable(), "{status}");
    assert!(status.message().contains("accepts no new calls"), "{status}");
}

async fn a_departing_client_ends_and_refuses_calls(scheme: Scheme) {
    let mut world = serve(&scheme.fresh_address()).await;
    let reading = Reading::default();
    let channel = patient_channel().serve(ReaderServer::new(reading.clone()));
    let channel = channel.connect(&world.address).await.expect("it listens");
    let reader = world.subscribed(&channel).await;
    let held = reader.hold().start();
    reading.began.notified().await;
    let draining = reader.until_draining().start();
    reading.began.notified().await;
    assert_eq!(reader.article().await, Ok(1));

    let going = channel.clone();
    let gone = tokio::spawn(async move { going.stop_serving(GRACE).await });
    // That handler completes on request; from then on the server knows too.
    assert_eq!(draining.await, Ok(2));
    refused(reader.article().await);
    assert_eq!(DeskClient::new(channel.clone()).subscribe().await, Ok(7), "its own calls go on");
    assert!(!gone.is_finished(), "a call runs");
    reading.go.notify_one();
    assert_eq!(held.await, Ok(true), "what runs ends well");
    assert!(gone.await.expect("no panic"));
    refused(reader.article().await);
    assert_eq!(DeskClient::new(channel.clone()).subscribe().await, Ok(7));
    assert!(channel.stop_serving(GRACE).await, "once more changes nothing");
}

async fn a_departed_client_tells_its_next_server(scheme: Scheme) {
    let mut world = serve(&scheme.fresh_address()).await;
    let channel =
        patient_channel().wait_for_ready(true).serve(ReaderServer::new(Reading::default()));
    let channel = channel.connect(&world.address).await.expect("it listens");
    assert_eq!(world.subscribed(&channel).await.article().await, Ok(1));
    assert!(channel.stop_serving(GRACE).await);
    world.server.shutdown();
    channel.closed().await;
    // At the same address.
    let mut next = loop {
        let (paper, callers) = unbounded_channel();
        let server = tests::device::server().poll_mode(PollMode::Event);
        match server.add_service(DeskServer::new(Paper(paper))).bind(&world.address).await {
            Ok(server) => {
                let handle = server.shutdown_handle();
                tokio::spawn(server.serve());
                break World { address: world.address.clone(), callers, server: handle };
            }
            Err(_) => tokio::task::yield_now().await,
        }
    };
    until_refused(&next.subscribed(&channel).await).await;
    next.server.shutdown();
}

/// The go-away has arrived before the call that introduced the reader, or soon after.
async fn until_refused(reader: &ReaderClient) {
    loop {
        match reader.article().await {
            Ok(_) => tokio::task::yield_now().await,
            outcome => break refused(outcome),
        }
    }
}

async fn an_early_departed_client_tells_a_server(scheme: Scheme) {
    let mut world = serve(&scheme.fresh_address()).await;
    let servers = StaticList::new([&world.address]).expect("an address");
    let channel = patient_channel().serve(ReaderServer::new(Reading::default()));
    let channel = channel.connect_balanced(servers).expect("a good channel");
    assert!(channel.stop_serving(GRACE).await, "nobody has called");
    until_refused(&world.subscribed(&channel).await).await;
}

async fn a_client_without_services_stops_nothing(scheme: Scheme) {
    let mut world = serve(&scheme.fresh_address()).await;
    let channel = patient_channel().connect(&world.address).await.expect("it listens");
    let reader = world.subscribed(&channel).await;
    assert!(channel.stop_serving(GRACE).await);
    let status = reader.article().await.expect_err("it serves nothing");
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
}

async fn an_endless_call_is_not_waited_for(scheme: Scheme) {
    let mut world = serve(&scheme.fresh_address()).await;
    let reading = Reading::default();
    let channel = patient_channel().serve(ReaderServer::new(reading.clone()));
    let channel = channel.connect(&world.address).await.expect("it listens");
    let reader = world.subscribed(&channel).await;
    let held = reader.hold().start();
    reading.began.notified().await;
    assert!(!channel.stop_serving(Duration::ZERO).await, "it runs on");
    drop(channel);
    let status = held.await.expect_err("its connection has ended");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

async fn a_blocking_client_goes_away(scheme: Scheme) {
    let mut world = serve(&scheme.fresh_address()).await;
    let reading = Reading::default();
    let builder = patient_channel().serve(ReaderServer::new(reading.clone()));
    let address = world.address.clone();
    let blocking = |run: fn(BlockingChannel) -> bool, channel: BlockingChannel| {
        tokio::task::spawn_blocking(move || run(channel))
    };
    let channel = tokio::task::spawn_blocking(move || {
        BlockingChannel::connect_with(builder.connect(address)).expect("it listens")
    });
    let channel = channel.await.expect("no panic");
    let is_seven = |channel| DeskBlockingClient::new(channel).subscribe() == Ok(7);
    assert!(blocking(is_seven, channel.clone()).await.expect("no panic"));
    let reader = ReaderClient::new(world.callers.recv().await.expect("it called").channel());
    let held = reader.hold().start();
    reading.began.notified().await;
    let cut = blocking(|channel| channel.stop_serving(Duration::ZERO), channel.clone());
    assert!(!cut.await.expect("no panic"), "it runs on");
    let gone = blocking(|channel| channel.stop_serving(GRACE), channel.clone());
    reading.go.notify_one();
    assert_eq!(held.await, Ok(true), "what runs ends well");
    assert!(gone.await.expect("no panic"));
    refused(reader.article().await);
    assert!(blocking(is_seven, channel).await.expect("no panic"), "its own calls go on");
}
