//! One call over `mem://`, through every layer.

use rpc_core::{PollMode, Server};

#[rpc_core::service]
trait Greeter {
    async fn greet(&self, name: &str) -> String;
}

struct Polite;

impl Greeter for Polite {
    async fn greet(&self, name: &str) -> String {
        format!("Good day, {name}")
    }
}

#[tokio::test]
async fn a_call_goes_through_every_layer() {
    let server = Server::builder()
        .add_service(GreeterServer::new(Polite))
        .poll_mode(PollMode::Event)
        .bind("mem://smoke")
        .await
        .unwrap();
    let stop = server.shutdown_handle();
    let serving = tokio::spawn(server.serve());
    let greeter = GreeterClient::connect("mem://smoke").await.unwrap();
    assert_eq!(greeter.greet("Ada").await.unwrap(), "Good day, Ada");
    let calls = (0..200).map(|i| {
        let greeter = greeter.clone();
        tokio::spawn(async move { greeter.greet(&i.to_string()).await })
    });
    for (i, call) in calls.enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), format!("Good day, {i}"));
    }
    stop.shutdown();
    serving.await.unwrap().unwrap();
}

/// Types that users keep in their structs and share between tasks and threads.
#[test]
fn handles_can_be_shared_and_sent() {
    fn is_shared<T: Send + Sync + 'static>() {}
    fn is_sent<T: Send + 'static>() {}
    is_shared::<rpc_core::Channel>();
    is_shared::<rpc_core::client::blocking::BlockingChannel>();
    is_shared::<rpc_core::client::ConnectionHandle>();
    is_shared::<rpc_core::ShutdownHandle>();
    is_shared::<rpc_core::stats::StatsHandle>();
    is_shared::<rpc_core::health::HealthReporter>();
    is_shared::<rpc_core::Context>();
    is_shared::<rpc_core::Metadata>();
    is_shared::<rpc_core::Status>();
    is_shared::<rpc_core::CallError<String>>();
    is_shared::<rpc_core::BulkPool>();
    is_shared::<rpc_core::Bulk>();
    is_shared::<rpc_core::bulk::BulkMut>();
    is_shared::<rpc_core::bulk::BulkReader>();
    is_shared::<rpc_core::bulk::ReplySlot>();
    is_shared::<rpc_core::ServerBuilder>();
    is_shared::<rpc_core::ChannelBuilder>();
    is_shared::<rpc_core::client::StartedCall<String>>();
    is_shared::<rpc_core::client::StreamCall<'static, String>>();
    is_shared::<rpc_core::stream::Streaming<String>>();
    is_shared::<rpc_core::stream::BlockingStreaming<String>>();
    is_shared::<rpc_core::stream::Sender<String>>();
    is_sent::<rpc_core::Server>();
    is_sent::<rpc_core::service::Handler>();
    // Items need not be `Sync` to be sent.
    is_sent::<rpc_core::stream::Streaming<std::cell::Cell<u8>>>();
    is_sent::<rpc_core::client::StartedCall<std::cell::Cell<u8>>>();
}
