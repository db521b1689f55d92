//! The limit of unsent messages on a connection, as a caller sees it. On one thread, so that
//! nothing is sent between two consecutive starts of calls.

use rpc_core::transport::WhenFull;
use rpc_core::{Bulk, Channel, Code, LinkConfig, Server};

#[rpc_core::service]
trait Sink {
    async fn count(&self, data: Bulk) -> u64;
    async fn echo(&self, data: &str) -> String;
}

struct Count;

impl Sink for Count {
    async fn count(&self, data: Bulk) -> u64 {
        data.len()
    }

    async fn echo(&self, data: &str) -> String {
        data.to_owned()
    }
}

async fn connect(name: &str, server: LinkConfig, client: LinkConfig) -> SinkClient {
    let server = Server::builder().add_service(SinkServer::new(Count)).link(server);
    tokio::spawn(server.bind(name).await.expect("the name is free").serve());
    let channel = Channel::builder().link(client).connect(name).await;
    SinkClient::new(channel.expect("the server listens"))
}

#[tokio::test]
async fn a_full_queue_refuses_callers_that_cannot_wait() {
    let link = LinkConfig::default().queued_bytes(1).when_full(WhenFull::Refuse);
    let sink = connect("mem://refuses-when-full", LinkConfig::default(), link).await;
    let data = Bulk::from(vec![7; 8 << 20]);
    let first = sink.count(data.clone()).start();
    let status = sink.count(data.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("`queued_bytes`"), "{status}");
    assert!(status.is_retryable());
    // Small ones pass by.
    assert_eq!(sink.count(Bulk::from(vec![1; 10])).await, Ok(10));
    assert_eq!(first.await, Ok(8 << 20));
    assert_eq!(sink.count(data).await, Ok(8 << 20));
}

/// Regression: with receive buffers above 16 KiB, messages above that size were counted when they
/// passed, and the count was never taken back if nothing had to wait.
#[tokio::test]
async fn sent_messages_no_longer_count_as_waiting() {
    let link = LinkConfig::default()
        .receive_buffer_bytes(64 << 10)
        .arena_threshold_bytes(64 << 10)
        .queued_bytes(100_000);
    let data = "x".repeat(30_000);
    // The caller is refused, or the reply waits with its handler.
    for (name, when_full) in
        [("mem://left-refuse", WhenFull::Refuse), ("mem://left-wait", WhenFull::Wait)]
    {
        let sink = connect(name, link.clone(), link.clone().when_full(when_full)).await;
        for _ in 0..20 {
            assert_eq!(sink.echo(&data).await.as_ref(), Ok(&data));
        }
    }
}

#[tokio::test]
async fn by_default_calls_wait_and_all_are_answered() {
    let link = LinkConfig::default().queued_bytes(1);
    let sink = connect("mem://waits-when-full", link.clone(), link).await;
    let data = Bulk::from(vec![7; 1 << 20]);
    let calls: Vec<_> = (0..100).map(|_| sink.count(data.clone()).start()).collect();
    for call in calls {
        assert_eq!(call.await, Ok(1 << 20));
    }
}

#[tokio::test]
async fn a_request_without_memory_fails_alone() {
    let server = Server::builder().add_service(SinkServer::new(Count)).memory_budget(4 << 20);
    tokio::spawn(server.bind("mem://small-budget").await.unwrap().serve());
    let sink = SinkClient::connect("mem://small-budget").await.unwrap();
    for _ in 0..3 {
        let status = sink.count(Bulk::from(vec![7; 8 << 20])).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.message().contains("`memory_budget`"), "{status}");
        assert!(status.is_retryable(), "it never ran");
        assert_eq!(sink.count(Bulk::from(vec![7; 1 << 20])).await, Ok(1 << 20));
    }
}

/// Regression: values beyond the limits of a message were accepted and silently cut.
#[tokio::test]
async fn limits_beyond_the_wire_are_refused() {
    let most_calls = 1 << 24;
    for (channel, server, named) in [
        (
            Channel::builder().max_metadata_bytes(65_536),
            Server::builder().max_metadata_bytes(65_536),
            "max_metadata_bytes is 65536, allowed is 0 to 65535",
        ),
        (
            Channel::builder().max_calls(most_calls + 1),
            Server::builder().max_calls_per_connection(most_calls + 1),
            "is 16777217, allowed is 0 to 16777216",
        ),
        (
            Channel::builder().max_waiting_calls(u32::MAX),
            Server::builder().max_calls_per_connection(u32::MAX),
            "is 4294967295, allowed is 0 to 16777216",
        ),
    ] {
        let serving = Channel::builder().serve_with(server.clone());
        let error = serving.connect_lazy("mem://limits").expect_err("of what it serves");
        assert!(error.to_string().contains(named), "{error}");
        let error = channel.connect_lazy("mem://limits").expect_err("of the channel");
        assert!(error.to_string().contains(named), "{error}");
        let error = server.bind("mem://limits").await.expect_err("of the server");
        assert!(error.to_string().contains(named), "{error}");
    }
    let most = Channel::builder().max_metadata_bytes(65_535).max_calls(most_calls);
    assert!(most.connect_lazy("mem://limits").is_ok());
}
