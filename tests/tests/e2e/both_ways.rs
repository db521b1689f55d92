//! Calls in both directions of a connection: handlers that call their callers, services of clients,
//! and how they end.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use rpc_core::client::ConnectionHandle;
use rpc_core::stream::Stream;
use rpc_core::transport::FaultPlan;
use rpc_core::{
    Bulk, Channel, ChannelBuilder, Code, Context, ListenError, PollMode, ServerBuilder,
    ShutdownHandle, Status,
};
use tests::limit::patient_channel;
use tests::scheme::Scheme;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

on_every_device! {
    a_handler_calls_its_caller,
    payloads_and_streams_go_both_ways,
    a_connection_that_was_kept_is_called_later,
    a_client_that_serves_nothing_is_not_called,
    ending_a_call_ends_its_nested_calls,
    nested_calls_inherit_the_deadline_of_their_caller,
    both_ends_handlers_call_each_other,
    endless_mutual_calls_end_at_the_deadline,
    a_channel_serves_again_on_its_next_connection,
    a_draining_server_lets_its_own_calls_end,
    a_lost_client_ends_calls_to_it,
    services_go_with_their_channel,
    both_ways_on_a_faulty_device,
    what_a_client_serves_is_counted,
    limits_of_what_a_client_serves,
}

#[rpc_core::service]
trait Desk {
    /// Returns the caller's result.
    async fn doubled(&self, number: u32) -> Result<u32, Status>;
    /// Makes a call that is never answered.
    async fn hold_caller(&self) -> Result<(), Status>;
    async fn remaining_at_caller(&self) -> Result<Option<u64>, Status>;
    /// Makes the caller call again.
    async fn back_and_forth(&self, deep: u32) -> Result<u32, Status>;
    async fn sum_of_caller(&self, to: u32) -> Result<u64, Status>;
    async fn lengths_at_caller(&self, bytes: Bulk) -> Result<Bulk, Status>;
    async fn subscribe(&self);
    async fn add(&self, left: u32, right: u32) -> u32;
}

#[rpc_core::service]
trait Phone {
    async fn double(&self, number: u32) -> u32;
    async fn hold(&self);
    async fn wait_for_gate(&self) -> u32;
    async fn remaining(&self) -> Option<u64>;
    async fn forth_and_back(&self, deep: u32) -> Result<u32, Status>;
    async fn sum_via_desk(&self, left: u32) -> Result<u32, Status>;
    fn numbers(&self, to: u32) -> impl Stream<Item = u32>;
    async fn reversed(&self, bytes: Bulk) -> Bulk;
}

struct Clerk(UnboundedSender<ConnectionHandle>);

fn caller() -> PhoneClient {
    PhoneClient::new(Context::current().connection().expect("in a handler").channel())
}

impl Desk for Clerk {
    async fn doubled(&self, number: u32) -> Result<u32, Status> {
        caller().double(number).await
    }
    async fn hold_caller(&self) -> Result<(), Status> {
        caller().hold().await
    }
    async fn remaining_at_caller(&self) -> Result<Option<u64>, Status> {
        caller().remaining().await
    }
    async fn back_and_forth(&self, deep: u32) -> Result<u32, Status> {
        if deep == 0 { Ok(0) } else { Ok(1 + caller().forth_and_back(deep - 1).await?) }
    }
    async fn sum_of_caller(&self, to: u32) -> Result<u64, Status> {
        let phone = caller();
        let mut numbers = phone.numbers(to).await?;
        let mut sum = 0;
        while let Some(number) = numbers.try_next().await? {
            sum += u64::from(number);
        }
        Ok(sum)
    }
    async fn lengths_at_caller(&self, bytes: Bulk) -> Result<Bulk, Status> {
        caller().reversed(bytes).await
    }
    async fn subscribe(&self) {
        let _ = self.0.send(Context::current().connection().expect("in a handler"));
    }
    async fn add(&self, left: u32, right: u32) -> u32 {
        left + right
    }
}

/// Events at a client.
#[derive(Debug, PartialEq)]
enum News {
    Held,
    Dropped,
}

struct Handset {
    news: UnboundedSender<News>,
    gate: Arc<Notify>,
}

/// Reports that a handler has been dropped.
struct ReportsDrop<'a>(&'a UnboundedSender<News>);

impl Drop for ReportsDrop<'_> {
    fn drop(&mut self) {
        let _ = self.0.send(News::Dropped);
    }
}

fn desk() -> DeskClient {
    DeskClient::new(Context::current().connection().expect("in a handler").channel())
}

impl Phone for Handset {
    async fn double(&self, number: u32) -> u32 {
        2 * number
    }
    async fn hold(&self) {
        let _reports = ReportsDrop(&self.news);
        let _ = self.news.send(News::Held);
        pending().await
    }
    async fn wait_for_gate(&self) -> u32 {
        let _ = self.news.send(News::Held);
        self.gate.notified().await;
        7
    }
    async fn remaining(&self) -> Option<u64> {
        Context::current()
            .remaining()
            .map(|left| u64::try_from(left.as_micros()).unwrap_or(u64::MAX))
    }
    async fn forth_and_back(&self, deep: u32) -> Result<u32, Status> {
        if deep == 0 { Ok(0) } else { Ok(1 + desk().back_and_forth(deep - 1).await?) }
    }
    async fn sum_via_desk(&self, left: u32) -> Result<u32, Status> {
        desk().add(left, 1).await
    }
    fn numbers(&self, to: u32) -> impl Stream<Item = u32> {
        futures::stream::iter(0..to)
    }
    async fn reversed(&self, bytes: Bulk) -> Bulk {
        let mut bytes = bytes.to_vec().expect("readable");
        bytes.reverse();
        Bulk::from(bytes)
    }
}

/// A server, and the connections that its clients asked it to keep.
struct Office {
    address: String,
    kept: UnboundedReceiver<ConnectionHandle>,
    shutdown: ShutdownHandle,
    serving: JoinHandle<()>,
}

impl Office {
    async fn open(scheme: Scheme) -> Self {
        Self::open_at(&scheme.fresh_address(), |builder| builder).await
    }

    async fn open_at(address: &str, with: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Self {
        Self::try_open_at(address, with).await.expect("a fresh address")
    }

    async fn try_open_at(
        address: &str,
        with: impl FnOnce(ServerBuilder) -> ServerBuilder,
    ) -> Result<Self, ListenError> {
        let (send, kept) = unbounded_channel();
        let server = tests::device::server()
            .add_service(DeskServer::new(Clerk(send)))
            .poll_mode(PollMode::Event);
        let server = with(server).bind(address).await?;
        let (address, shutdown) = (server.local_address().to_string(), server.shutdown_handle());
        let serving = tokio::spawn(async move { server.serve().await.expect("it serves") });
        Ok(Self { address, kept, shutdown, serving })
    }

    async fn call(&self) -> Line {
        self.call_with(|builder| builder).await
    }

    async fn call_with(&self, with: impl FnOnce(ChannelBuilder) -> ChannelBuilder) -> Line {
        let (send, news) = unbounded_channel();
        let gate = Arc::new(Notify::new());
        let handset = Handset { news: send, gate: Arc::clone(&gate) };
        let builder = with(patient_channel().serve(PhoneServer::new(handset)));
        let channel = builder.connect(&self.address).await.expect("it serves");
        Line { desk: DeskClient::new(channel.clone()), channel, news, gate }
    }

    async fn keeps(&mut self) -> ConnectionHandle {
        self.kept.recv().await.expect("it serves")
    }
}

/// A client that can be called.
struct Line {
    desk: DeskClient,
    channel: Channel,
    news: UnboundedReceiver<News>,
    gate: Arc<Notify>,
}

fn status<T: std::fmt::Debug>(ended: Result<T, impl Into<Status>>) -> Status {
    ended.map_err(Into::into).expect_err("it fails")
}

async fn a_handler_calls_its_caller(scheme: Scheme) {
    let mut office = Office::open(scheme).await;
    let line = office.call().await;
    for number in 0..50 {
        assert_eq!(line.desk.doubled(number).await.expect("answered"), 2 * number);
    }
    // Arbitrarily deep, while there is room.
    assert_eq!(line.desk.back_and_forth(20).await.expect("answered"), 20);
    line.desk.subscribe().await.expect("kept");
    line.desk.subscribe().await.expect("kept");
    let (first, second) = (office.keeps().await, office.keeps().await);
    assert_eq!(first, second, "of one connection");
    assert!(first.close_cause().is_none() && !first.is_draining());
    let other = office.call().await;
    other.desk.subscribe().await.expect("kept");
    assert_ne!(office.keeps().await, first);
    assert!(Context::current().connection().is_none(), "outside of a handler");
}

async fn payloads_and_streams_go_both_ways(scheme: Scheme) {
    let office = Office::open(scheme).await;
    let line = office.call().await;
    let bytes: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
    let back = line.desk.lengths_at_caller(Bulk::from(bytes.clone())).await.expect("answered");
    assert!(back.to_vec().expect("readable").iter().eq(bytes.iter().rev()));
    let sums = join_all((0..20).map(|_| line.desk.sum_of_caller(1000))).await;
    assert!(sums.into_iter().all(|sum| sum.expect("answered") == 499_500));
}

async fn a_connection_that_was_kept_is_called_later(scheme: Scheme) {
    let mut office = Office::open(scheme).await;
    let line = office.call().await;
    line.desk.subscribe().await.expect("kept");
    let kept = office.keeps().await;
    let phone = PhoneClient::new(kept.channel());
    assert_eq!(phone.double(21).await, Ok(42));
    // A handler of the client calls back over the same connection.
    assert_eq!(phone.sum_via_desk(1).await.expect("answered"), 2);
    drop(line);
    let channel = kept.channel();
    channel.closed().await;
    assert!(kept.close_cause().is_some());
    let status = status(phone.double(21).await);
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.is_retryable() && status.message().contains("the peer"), "{status}");
    // A new channel does not help.
    drop((phone, channel));
    let status = self::status(PhoneClient::new(kept.channel()).double(21).await);
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

async fn a_client_that_serves_nothing_is_not_called(scheme: Scheme) {
    let mut office = Office::open(scheme).await;
    let channel = patient_channel().connect(&office.address).await.expect("it serves");
    let desk = DeskClient::new(channel);
    let status = status(desk.doubled(1).await);
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
    assert!(status.message().contains("ChannelBuilder::serve"), "{status}");
    // A client that serves something else names it.
    let line = office
        .call_with(|_| patient_channel().serve(DeskServer::new(Clerk(unbounded_channel().0))))
        .await;
    line.desk.subscribe().await.expect("kept");
    let phone = PhoneClient::new(office.keeps().await.channel());
    let status = self::status(phone.double(1).await);
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
    assert!(status.message().contains("Desk"), "{status}");
}

async fn ending_a_call_ends_its_nested_calls(scheme: Scheme) {
    let office = Office::open(scheme).await;
    let mut line = office.call().await;
    let call = line.desk.hold_caller().start();
    assert_eq!(line.news.recv().await, Some(News::Held));
    drop(call);
    assert_eq!(line.news.recv().await, Some(News::Dropped));
    assert_eq!(line.desk.doubled(1).await.expect("goes on"), 2);
}

async fn nested_calls_inherit_the_deadline_of_their_caller(scheme: Scheme) {
    let office = Office::open(scheme).await;
    let mut line = office.call().await;
    assert_eq!(line.desk.remaining_at_caller().await.expect("answered"), None);
    let hour = Duration::from_secs(3600);
    let left = line.desk.remaining_at_caller().timeout(hour).await.expect("answered");
    let left = Duration::from_micros(left.expect("a deadline"));
    assert!(left <= hour && left > hour / 2, "{left:?}");
    let status = status(line.desk.hold_caller().timeout(Duration::from_millis(200)).await);
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_eq!(line.desk.doubled(1).await.expect("goes on"), 2);
    // On a slow machine it may not have reached the caller in time.
    if line.news.try_recv().is_ok() {
        assert_eq!(line.news.recv().await, Some(News::Dropped));
    }
}

async fn both_ends_handlers_call_each_other(scheme: Scheme) {
    for (at_desk, at_phone) in [(1, 1), (2, 3), (5, 1)] {
        let few = |builder: ServerBuilder| builder.max_calls_per_connection(at_desk);
        let mut office = Office::open_at(&scheme.fresh_address(), few).await;
        let (send, _news) = unbounded_channel();
        let handset = Handset { news: send, gate: Arc::default() };
        let served = tests::device::served()
            .add_service(PhoneServer::new(handset))
            .max_calls_per_connection(at_phone);
        let line = office.call_with(|builder| builder.serve_with(served)).await;
        line.desk.subscribe().await.expect("kept");
        let phone = PhoneClient::new(office.keeps().await.channel());
        let there = (0..200).map(|at| {
            let desk = line.desk.clone();
            async move { desk.doubled(at).await.map_err(Status::from) }
        });
        let back = (0..200).map(|at| {
            let phone = phone.clone();
            async move { phone.sum_via_desk(at).await.map_err(Status::from) }
        });
        let (there, back) = tokio::join!(join_all(there), join_all(back));
        let mut answered = 0;
        for ended in there.into_iter().chain(back) {
            match ended {
                Ok(_) => answered += 1,
                Err(status) => assert_eq!(status.code(), Code::ResourceExhausted, "{status}"),
            }
        }
        assert!(answered > 0 || (at_desk, at_phone) == (1, 1), "{answered} answered");
        // Nothing is left behind.
        assert_eq!(line.desk.doubled(4).await.expect("answered"), 8);
        assert_eq!(phone.sum_via_desk(4).await.expect("answered"), 5);
    }
}

async fn endless_mutual_calls_end_at_the_deadline(scheme: Scheme) {
    let few = |builder: ServerBuilder| builder.max_calls_per_connection(4);
    let office = Office::open_at(&scheme.fresh_address(), few).await;
    let line = office.call().await;
    let call = line.desk.back_and_forth(1_000_000).timeout(Duration::from_millis(300));
    let status = status(call.await);
    let codes = [Code::DeadlineExceeded, Code::ResourceExhausted];
    assert!(codes.contains(&status.code()), "{status}");
    assert_eq!(line.desk.doubled(4).await.expect("answered"), 8);
}

async fn a_channel_serves_again_on_its_next_connection(scheme: Scheme) {
    let office = Office::open(scheme).await;
    let line = office.call().await;
    assert_eq!(line.desk.doubled(1).await.expect("answered"), 2);
    office.serving.abort();
    assert!(office.serving.await.is_err());
    line.channel.closed().await;
    // Tasks of the aborted server may still be ending.
    let mut office = loop {
        match Office::try_open_at(&office.address, |builder| builder).await {
            Ok(office) => break office,
            Err(error) => assert!(matches!(error, ListenError::InUse { .. }), "{error}"),
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(line.desk.doubled(2).wait_for_ready(true).await.expect("answered"), 4);
    line.desk.subscribe().await.expect("kept");
    assert_eq!(PhoneClient::new(office.keeps().await.channel()).double(3).await, Ok(6));
}

async fn a_draining_server_lets_its_own_calls_end(scheme: Scheme) {
    let patient = |builder: ServerBuilder| builder.grace(Duration::from_secs(86_400));
    let mut office = Office::open_at(&scheme.fresh_address(), patient).await;
    let mut line = office.call().await;
    line.desk.subscribe().await.expect("kept");
    let kept = office.keeps().await;
    let phone = PhoneClient::new(kept.channel());
    let call = phone.wait_for_gate().start();
    assert_eq!(line.news.recv().await, Some(News::Held));
    office.shutdown.shutdown();
    // The client is notified.
    let refused = loop {
        if let Err(status) = line.desk.add(1, 1).await {
            break status;
        }
    };
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(kept.is_draining());
    // And it still receives calls.
    assert_eq!(phone.double(4).await, Ok(8));
    assert!(!office.serving.is_finished());
    line.gate.notify_one();
    assert_eq!(call.await, Ok(7));
    office.serving.await.expect("it has drained");
}

async fn a_lost_client_ends_calls_to_it(scheme: Scheme) {
    let mut office = Office::open(scheme).await;
    let mut line = office.call().await;
    line.desk.subscribe().await.expect("kept");
    let phone = PhoneClient::new(office.keeps().await.channel());
    let (held, waits) = (phone.hold().start(), phone.wait_for_gate().start());
    assert_eq!(line.news.recv().await, Some(News::Held));
    assert_eq!(line.news.recv().await, Some(News::Held));
    let Line { desk, channel, mut news, .. } = line;
    drop((desk, channel));
    for ended in [held.await.map(|()| 0), waits.await] {
        let status = status(ended);
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(!status.is_retryable(), "they ran: {status}");
    }
    // And their handlers.
    assert_eq!(news.recv().await, Some(News::Dropped));
}

async fn services_go_with_their_channel(scheme: Scheme) {
    let mut office = Office::open(scheme).await;
    let line = office.call().await;
    line.desk.subscribe().await.expect("kept");
    let kept = office.keeps().await;
    let (channel, Line { desk, channel: own, mut news, .. }) = (kept.channel(), line);
    drop((desk, own));
    // The service holds the sender.
    assert_eq!(news.recv().await, None);
    channel.closed().await;
}

async fn both_ways_on_a_faulty_device(scheme: Scheme) {
    let late = || {
        FaultPlan::new(11)
            .delay_completions(6)
            .interleave_queues(true)
            .poison_receives(true)
            .touch_memory_late(6)
    };
    let office = Office::open_at(&scheme.fresh_address(), |server| server.faults(late())).await;
    let line = office.call_with(|client| client.faults(late())).await;
    let calls = join_all((0..100).map(|number| line.desk.doubled(number))).await;
    for (number, ended) in (0..).zip(calls) {
        assert_eq!(ended.expect("answered"), 2 * number);
    }
}

async fn what_a_client_serves_is_counted(scheme: Scheme) {
    let office = Office::open(scheme).await;
    let line = office.call().await;
    for number in 0..3 {
        assert_eq!(line.desk.doubled(number).await.expect("answered"), 2 * number);
    }
    let stats = line.channel.stats();
    let of = |name: &str| stats.served.iter().find(|method| method.name == name);
    assert_eq!(of("Phone.double").expect("served").started, 3);
    assert!(stats.methods.iter().any(|method| method.name == "Desk.doubled"));
    let text = stats.prometheus_text();
    assert!(text.contains(r#"rpc_server_call_started_total{method="Phone.double"} 3"#), "{text}");
}

async fn limits_of_what_a_client_serves(scheme: Scheme) {
    let office = Office::open(scheme).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let (send, _news) = unbounded_channel();
    let handset = Handset { news: send, gate: Arc::default() };
    let served = tests::device::served()
        .layer(move |inner| {
            log.lock().push(inner.descriptor().name);
            inner
        })
        .add_service(PhoneServer::new(handset));
    let line = office.call_with(|builder| builder.serve_with(served)).await;
    assert_eq!(line.desk.doubled(1).await.expect("answered"), 2);
    assert_eq!(*seen.lock(), ["Phone"]);
    // Inconsistent configuration is reported when the channel is built.
    let twice = patient_channel()
        .serve(DeskServer::new(Clerk(unbounded_channel().0)))
        .serve(DeskServer::new(Clerk(unbounded_channel().0)));
    let error = twice.connect(&office.address).await.expect_err("one service twice");
    assert!(error.to_string().contains("add each service once"), "{error}");
}
