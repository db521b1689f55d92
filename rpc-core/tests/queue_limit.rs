//! What may wait to leave on a connection, as a caller sees it. One thread, so that nothing leaves
//! between two calls that are started in a row.

use rpc_core::{Bulk, Channel, Code, LinkConfig, Server, WhenFull};

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
async fn a_caller_that_does_not_want_to_wait_is_told_that_the_queue_is_full() {
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

/// Receive buffers of more than 16 KiB: messages above that were counted when they were let through,
/// and the count was never taken back where nothing had to wait.
#[tokio::test]
async fn what_has_left_is_counted_as_waiting_no_more() {
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
async fn a_request_that_the_server_has_no_memory_for_fails_alone_and_says_which_knob() {
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
