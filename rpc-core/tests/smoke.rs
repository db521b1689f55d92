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
