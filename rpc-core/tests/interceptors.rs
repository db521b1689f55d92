//! Reports to interceptors when the two ends disagree.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::{Arc, Mutex};

use rpc_core::health::{HealthClient, HealthReporter, ServingStatus};
use rpc_core::interceptor::{ClientInterceptor, Ended, Inbound, ServerInterceptor};
use rpc_core::reflect::ReflectClient;
use rpc_core::service::{Dispatch, Handler, Request, ServiceDescriptor};
use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::{Channel, Code, Context, Server, Status};
use test_kit::Watchdog;

#[rpc_core::service]
trait Desk {
    async fn echo(&self, text: &str) -> String;
    async fn longest_metadata(&self) -> Option<usize>;
    async fn add(&self, numbers: Streaming<u32>) -> u32;
    fn double(&self, numbers: Streaming<u32>) -> impl Stream<Item = Result<u32, Status>>;
}

struct Clerk;

impl Desk for Clerk {
    async fn echo(&self, text: &str) -> String {
        assert!(text != "panic", "on purpose");
        text.to_owned()
    }
    async fn longest_metadata(&self) -> Option<usize> {
        Context::current().metadata().iter().map(|(_, value)| value.len()).max()
    }
    /// Takes the arguments of all calls.
    async fn add(&self, mut numbers: Streaming<u32>) -> u32 {
        let mut sum = 0;
        while let Ok(Some(number)) = numbers.try_next().await {
            sum += number;
        }
        sum
    }
    fn double(&self, mut numbers: Streaming<u32>) -> impl Stream<Item = Result<u32, Status>> {
        stream::try_stream(async move |mut out| {
            while let Ok(Some(number)) = numbers.try_next().await {
                out.send(number * 2).await?;
            }
            Ok(())
        })
    }
}

/// Keeps the codes of ended calls.
#[derive(Clone, Default)]
struct Codes(Arc<Mutex<Vec<Code>>>);

impl ClientInterceptor for Codes {
    fn after(&self, call: &Ended<'_>) {
        self.0.lock().unwrap().push(call.code());
    }
}

impl ServerInterceptor for Codes {
    fn after(&self, _: &Context, call: &Ended<'_>) {
        self.0.lock().unwrap().push(call.code());
    }
}

impl Codes {
    fn take(&self) -> Vec<Code> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn one_and_an_error() -> impl Stream<Item = Result<u32, Status>> + Send {
    stream::iter([Ok(1), Err(Status::data_loss("the disk is broken"))])
}

/// The server takes the stream's reset for its end, so its code is `Ok`.
#[tokio::test]
async fn interceptors_see_a_failed_source() {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    let codes = Codes::default();
    let channel = Channel::builder().interceptor(codes.clone());
    let client = DeskClient::new(channel.to(DeskServer::new(Clerk)).await.unwrap());
    let status = client.add(one_and_an_error()).await.unwrap_err();
    assert_eq!((status.code(), codes.take()), (Code::DataLoss, vec![Code::DataLoss]));

    let mut doubles = client.double(one_and_an_error()).await.unwrap();
    let status = loop {
        match doubles.try_next().await {
            Ok(item) => assert!(item.is_some(), "the stream has come to an end"),
            Err(error) => break Status::from(error),
        }
    };
    assert_eq!((status.code(), codes.take()), (Code::DataLoss, vec![Code::DataLoss]));
}

struct Panics(Arc<dyn Dispatch>);

impl Dispatch for Panics {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        self.0.descriptor()
    }

    fn dispatch(&self, method: usize, request: Request) -> Handler {
        assert!(request.context.metadata().text("panic").is_none(), "on purpose");
        self.0.dispatch(method, request)
    }
}

/// Regression: the caller got an internal error, but interceptors saw a cancelled call.
#[tokio::test]
async fn interceptors_see_a_panicked_layer() {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    let codes = Codes::default();
    let server =
        Server::builder().interceptor(codes.clone()).layer(|inner| Arc::new(Panics(inner)));
    let server = server.add_service(DeskServer::new(Clerk));
    let server = server.bind("mem://interceptors-layer-panics").await.unwrap();
    tokio::spawn(server.serve());
    let client = DeskClient::connect("mem://interceptors-layer-panics").await.unwrap();
    let status = client.echo("x").metadata("panic", "now").await.unwrap_err();
    assert_eq!((status.code(), codes.take()), (Code::Internal, vec![Code::Internal]));
    assert_eq!(client.echo("x").await.unwrap(), "x");
    assert_eq!(codes.take(), [Code::Ok]);
}

/// A layer's handler polls that of the inner interceptors; the outer ones are run by the server.
#[tokio::test]
async fn interceptors_around_a_layer_see_the_same() {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    let (before, behind) = (Codes::default(), Codes::default());
    let server = Server::builder().interceptor(before.clone());
    let server = server.layer(|inner| Arc::new(Panics(inner))).interceptor(behind.clone());
    let server = server.add_service(DeskServer::new(Clerk));
    let server = server.bind("mem://interceptors-both-sides").await.unwrap();
    tokio::spawn(server.serve());
    let client = DeskClient::connect("mem://interceptors-both-sides").await.unwrap();
    let both_are =
        |code: Code| assert_eq!((before.take(), behind.take()), (vec![code], vec![code]));
    assert_eq!(client.echo("x").await.unwrap(), "x");
    both_are(Code::Ok);
    let status = client.echo("panic").await.unwrap_err();
    assert_eq!(status.message(), "the handler panicked");
    both_are(Code::Internal);
    // Its handler waits, so it is polled again.
    assert_eq!(client.add(stream::iter([1, 2, 3])).await.unwrap(), 6);
    both_are(Code::Ok);
    client.echo("x").metadata("panic", "now").await.unwrap_err();
    assert_eq!((before.take(), behind.take()), (vec![Code::Internal], vec![]));
}

/// Its name is only called after it has panicked.
struct Nameless;

impl ClientInterceptor for Nameless {
    fn name(&self) -> &str {
        panic!("on purpose")
    }
    fn before(&self, call: &mut rpc_core::interceptor::Outbound<'_>) -> Result<(), Status> {
        assert!(call.metadata().text("panic").is_none(), "on purpose");
        Ok(())
    }
}

#[tokio::test]
async fn an_interceptors_panicking_name_fails_its_call() {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    let server = Server::builder().add_service(DeskServer::new(Clerk));
    let server = server.bind("mem://interceptors-name-panics").await.unwrap();
    tokio::spawn(server.serve());
    let channel = Channel::builder().interceptor(Nameless);
    let channel = channel.connect("mem://interceptors-name-panics").await.unwrap();
    let client = DeskClient::new(channel);
    assert_eq!(client.echo("x").await.unwrap(), "x");
    let status = client.echo("x").metadata("panic", "now").await.unwrap_err();
    assert_eq!(status.message(), "Desk.echo: an interceptor panicked");
}

#[tokio::test]
async fn a_channels_server_accepts_the_channels_metadata() {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    let channel = Channel::builder().max_metadata_bytes(40_000);
    let client = DeskClient::new(channel.to(DeskServer::new(Clerk)).await.unwrap());
    let long = client.longest_metadata().metadata("long", vec![b'.'; 30_000]);
    assert_eq!(long.await.unwrap(), Some(30_000));
}

/// Attaches a value to each call whose drop panics.
struct Bomber;

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

impl ServerInterceptor for Bomber {
    fn before(&self, call: &mut Inbound<'_>) -> Result<(), Status> {
        call.insert(Bomb);
        Err(Status::permission_denied("not you"))
    }
}

/// Regression: the panic replaced the refusal.
#[tokio::test]
async fn a_panic_while_dropping_keeps_the_refusal() {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    let server = Server::builder().interceptor(Bomber).add_service(DeskServer::new(Clerk));
    let server = server.bind("mem://interceptors-bomb").await.unwrap();
    tokio::spawn(server.serve());
    let client = DeskClient::connect("mem://interceptors-bomb").await.unwrap();
    for _ in 0..2 {
        assert_eq!(client.echo("x").await.unwrap_err().message(), "not you");
    }
}

/// Refuses every call.
#[derive(Debug)]
struct Closed;

impl ServerInterceptor for Closed {
    fn before(&self, _: &mut Inbound<'_>) -> Result<(), Status> {
        Err(Status::unauthenticated("a token is wanted"))
    }
}

/// Regression: a health probe needed the token of ordinary callers.
#[tokio::test]
async fn open_health_answers_without_a_token() {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    for (is_open, address) in [(true, "mem://health-is-open"), (false, "mem://health-is-closed")] {
        let reporter = HealthReporter::new();
        let server = Server::builder().interceptor(Closed).layer(|inner| Arc::new(Panics(inner)));
        let server = server.interceptor(Closed).add_service(DeskServer::new(Clerk)).reflection();
        let server = match is_open {
            true => server.open_health(&reporter),
            false => server.health(&reporter),
        };
        tokio::spawn(server.bind(address).await.unwrap().serve());
        let channel = Channel::builder().metadata("panic", "now").connect(address).await.unwrap();
        let refused = DeskClient::new(channel.clone()).echo("a").await;
        assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
        let refused = ReflectClient::new(channel.clone()).services().await;
        assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
        let health = HealthClient::new(channel);
        let check = health.check("Desk").await.map_err(|error| Status::from(error).code());
        let watch = health.watch("").await.map_err(|error| Status::from(error).code());
        let expected =
            if is_open { Ok(ServingStatus::Serving) } else { Err(Code::Unauthenticated) };
        assert_eq!(check, expected);
        assert_eq!(watch.is_ok(), is_open);
    }
    // It is listed like every other service.
    let reporter = HealthReporter::new();
    let server = Server::builder().open_health(&reporter).reflection();
    tokio::spawn(server.bind("mem://health-is-listed").await.unwrap().serve());
    let services = ReflectClient::connect("mem://health-is-listed").await.unwrap().services().await;
    assert!(services.unwrap().iter().any(|service| service.name == "rpc.Health"));
}
