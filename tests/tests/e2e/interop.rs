//! The cases of gRPC's public interop test descriptions that can be translated, each under its name
//! there.

use std::time::Duration;

use futures::StreamExt;
use rpc_core::{Bulk, CallError, Channel, Code, Status, stream};
use tests::limit::paced;
use tests::probe::ProbeClient;
use tests::scheme::Scheme;
use tests::world::World;

use crate::SERVER;

on_every_device! {
    empty_unary,
    large_unary,
    client_streaming,
    server_streaming,
    ping_pong,
    empty_stream,
    custom_metadata,
    status_code_and_message,
    special_status_message,
    unimplemented_method,
    unimplemented_service,
    cancel_after_begin,
    cancel_after_first_response,
    timeout_on_sleeping_server,
}

/// Sizes of the requests and of the responses in the descriptions.
const REQUESTS: [u32; 4] = [27_182, 8, 1828, 45_904];
const RESPONSES: [u32; 4] = [31_415, 9, 2653, 58_979];

/// The server with another service of the same name.
#[rpc_core::service(name = "Flow")]
trait Newer {
    fn unheard_of(&self) -> impl stream::Stream<Item = u64>;
}

/// A service that no server has.
#[rpc_core::service]
trait Nowhere {
    fn list(&self) -> impl stream::Stream<Item = u64>;
    async fn insert(&self, rows: stream::Streaming<u64>) -> u64;
}

async fn empty_unary(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    assert_eq!(world.flow().await.empty_call().await, Ok(()));
}

async fn large_unary(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let payload = Bulk::from(vec![0; 271_828]);
    let reply = world.flow().await.unary_call(payload, 314_159, None).await.expect("answered");
    assert_eq!(reply.to_vec().expect("readable"), vec![0; 314_159]);
}

async fn client_streaming(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let pieces = REQUESTS
        .map(|size| tests::flow::Piece { number: 0, content: Bulk::from(vec![0; size as usize]) });
    assert_eq!(world.flow().await.lengths(stream::iter(pieces)).await, Ok(74_922));
}

async fn server_streaming(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let items = world.flow().await.sized(&RESPONSES).await.expect("accepted");
    let lengths: Vec<_> = items.map(|item| item.expect("it comes").len()).collect().await;
    assert_eq!(lengths, RESPONSES.map(|size| size as usize));
}

async fn ping_pong(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let (requests, sent) = tokio::sync::mpsc::channel(1);
    let sent = futures::stream::unfold(sent, async |mut sent| Some((sent.recv().await?, sent)));
    let mut replies = world.flow().await.full_duplex(sent).await.expect("accepted");
    for (request, response) in REQUESTS.into_iter().zip(RESPONSES) {
        requests.send((response, vec![0; request as usize])).await.expect("the source is there");
        let reply = replies.next().await.expect("one for each").expect("it comes");
        assert_eq!(reply.len(), response as usize);
    }
    drop(requests);
    assert!(replies.next().await.is_none());
}

async fn empty_stream(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let nothing: [(u32, Vec<u8>); 0] = [];
    let mut replies =
        world.flow().await.full_duplex(stream::iter(nothing)).await.expect("accepted");
    assert!(replies.next().await.is_none());
}

async fn custom_metadata(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    let (key, value) = ("x-grpc-test-echo-initial", "test_initial_metadata_value");
    let mut values = client.metadata(key).metadata(key, value).await.expect("accepted");
    assert_eq!(values.initial_metadata().await.text(key), Some(value));
    assert_eq!(values.next().await, Some(Ok(value.as_bytes().to_vec())));
    assert_eq!(values.next().await, None);
}

fn status_of<T: std::fmt::Debug>(outcome: Result<T, CallError<Status>>) -> Status {
    match outcome.expect_err("a status") {
        CallError::Status(status) => status,
        CallError::User(status) => panic!("sent as an error of the method's: {status}"),
    }
}

async fn status_code_and_message(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    let text = "test status message";
    let unary = client.unary_call(Bulk::default(), 0, Some((2, text))).await;
    let status = status_of(unary);
    assert_eq!((status.code(), status.message()), (Code::Unknown, text));
    for after in [0, 3, 100] {
        let mut items = client.failing_with(after, 2, text).await.expect("accepted");
        for number in 0..after {
            assert_eq!(items.next().await, Some(Ok(number)));
        }
        let status = status_of(items.next().await.expect("no clean end"));
        assert_eq!((status.code(), status.message()), (Code::Unknown, text));
        assert_eq!(items.next().await, None);
    }
}

async fn special_status_message(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    let text = "\t\ntest with whitespace\r\nand Unicode BMP \u{263a} and non-BMP \u{1f608}\t\n";
    let status = status_of(client.unary_call(Bulk::default(), 0, Some((2, text))).await);
    assert_eq!((status.code(), status.message()), (Code::Unknown, text));
    let mut items = client.failing_with(0, 2, text).await.expect("accepted");
    let status = status_of(items.next().await.expect("no clean end"));
    assert_eq!((status.code(), status.message()), (Code::Unknown, text));
}

async fn channel(world: &World) -> Channel {
    world.channel_with(|builder| builder).await
}

async fn unimplemented_method(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let newer = NewerClient::new(channel(&world).await);
    let status = newer.unheard_of().await.expect_err("unknown");
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
    assert!(status.message().contains("Flow.unheard_of"), "{status}");
}

async fn unimplemented_service(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let nowhere = NowhereClient::new(channel(&world).await);
    let status = nowhere.list().await.expect_err("unknown");
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
    let status = nowhere.insert(stream::iter(0..1000)).await.expect_err("unknown");
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
    assert!(status.message().contains("Nowhere.insert"), "{status}");
    assert_eq!(ProbeClient::new(nowhere.channel().clone()).add(1, 1).await, Ok(2));
}

async fn cancel_after_begin(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    // Nothing is sent, and nothing comes back.
    let call = client.lengths(futures::stream::pending::<tests::flow::Piece>()).start();
    drop(call);
    assert_eq!(client.empty_call().await, Ok(()));
}

async fn cancel_after_first_response(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    let requests = stream::iter([(RESPONSES[0], vec![0; REQUESTS[0] as usize])]);
    let requests = requests.chain(futures::stream::pending());
    let mut replies = client.full_duplex(requests).await.expect("accepted");
    let reply = replies.next().await.expect("one").expect("it comes");
    assert_eq!(reply.len(), RESPONSES[0] as usize);
    drop(replies);
    assert_eq!(client.empty_call().await, Ok(()));
}

async fn timeout_on_sleeping_server(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    let requests = stream::iter([(0, vec![0; REQUESTS[0] as usize])]);
    let requests = requests.chain(futures::stream::pending());
    let call = client.full_duplex(requests).timeout(paced(Duration::from_millis(100)));
    let status = match call.await {
        Err(status) => status,
        Ok(mut replies) => loop {
            match replies.next().await.expect("no clean end") {
                Ok(_) => {}
                Err(error) => break status_of::<()>(Err(error)),
            }
        },
    };
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
}
