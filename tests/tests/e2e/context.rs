//! A handler's view of its call: metadata, deadline, peer, method; and what it passes to its own
//! calls.

use std::time::{Duration, Instant};

use rpc_core::{CallError, Code};
use tests::probe::{Mark, ProbeError, SeenPeer};
use tests::scheme::Scheme;
use tests::world::{World, marked};

use crate::SERVER;

on_every_scheme! {
    metadata_arrives_or_is_refused,
    a_handler_knows_method_and_peer,
    nested_calls_inherit_the_deadline,
    a_nested_call_ends_with_its_parent,
    the_earliest_of_several_deadlines_counts,
}

async fn metadata_arrives_or_is_refused(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    assert_eq!(client.seen().await.expect("seen").metadata, vec![]);
    let call = client.seen().metadata("trace-id", "0af7").metadata("bin", vec![0, 159, 255]);
    let expected =
        vec![("bin".to_owned(), vec![0, 159, 255]), ("trace-id".to_owned(), b"0af7".to_vec())];
    assert_eq!(call.await.expect("seen").metadata, expected);
    // Metadata longer than one receive buffer may accompany the arguments.
    let long = vec![7; 8000];
    let seen = client.seen().metadata("long", long.clone()).await.expect("seen");
    assert_eq!(seen.metadata, vec![("long".to_owned(), long)]);

    let bad_key = client.seen().metadata("Trace Id", "x").await.expect_err("a bad key");
    assert_eq!(bad_key.code(), Code::InvalidArgument);
    let too_long = client.seen().metadata("k", vec![0; 9000]).await.expect_err("too long");
    assert_eq!(too_long.code(), Code::InvalidArgument);
    assert_eq!(client.seen().await.expect("the next is as before").metadata, vec![]);
}

async fn a_handler_knows_method_and_peer(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let seen = client.seen().await.expect("seen");
    assert_eq!(seen.method, "Probe.seen");
    assert_eq!(seen.pid, world.pid());
    let (pid, uid, gid) = (
        std::process::id(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    match (scheme, seen.peer) {
        (Scheme::Mem, peer) => assert_eq!(peer, SeenPeer::SameProcess),
        (Scheme::Tcp, SeenPeer::Network(address)) => {
            assert!(address.starts_with("127.0.0.1:"), "{address}");
        }
        #[cfg(feature = "verbs")]
        (Scheme::Rdma, SeenPeer::Network(address)) => {
            let (host, _) = address.rsplit_once(':').expect("a port");
            assert_eq!(host, tests::scheme::rdma_host().to_string());
        }
        // On one host auto:// uses shared memory.
        (Scheme::ShmName | Scheme::ShmPath | Scheme::Auto, peer) => {
            assert_eq!(peer, SeenPeer::Process { pid, uid, gid });
        }
        (_, peer) => panic!("{scheme:?} has peer {peer:?}"),
    }
}

/// Two servers; the first calls the second.
async fn chain(scheme: Scheme) -> (World, World) {
    let last = World::start(SERVER, scheme).await;
    let first = World::start_with(SERVER, scheme, &["--next", &last.address]).await;
    (first, last)
}

async fn nested_calls_inherit_the_deadline(scheme: Scheme) {
    let (first, last) = chain(scheme).await;
    let client = first.client().await;
    let free = client.seen_by_next().await.expect("seen");
    assert_eq!((free.remaining_micros, free.pid), (None, last.pid()));

    let hour = Duration::from_secs(3600);
    let seen = client.seen_by_next().timeout(hour).await.expect("seen");
    let remaining = Duration::from_micros(seen.remaining_micros.expect("a deadline"));
    assert!(remaining <= hour, "{remaining:?}");
    assert!(remaining > hour / 2, "{remaining:?}");
    assert_eq!(seen.pid, last.pid());
    assert_eq!(seen.method, "Probe.seen");
}

async fn a_nested_call_ends_with_its_parent(scheme: Scheme) {
    let (first, last) = chain(scheme).await;
    let (client, witness) = (first.client().await, last.client().await);
    client.seen_by_next().await.expect("the two servers are connected");
    // By its deadline, which the nested call has inherited.
    let call = client.hold_at_next(1).timeout(Duration::from_millis(300)).start();
    let error = call.await.expect_err("nobody opens the gate");
    match &error {
        CallError::Status(status) => assert_eq!(status.code(), Code::DeadlineExceeded),
        // The nested call's end may arrive first.
        CallError::User(ProbeError::Nested(text)) => assert!(text.contains("deadline"), "{text}"),
        CallError::User(other) => panic!("{other}"),
    }
    let started = witness.marks(1, Mark::Started).await.expect("the server answers");
    assert_eq!(marked(&witness, 1, Mark::Cancelled, started).await, started);
    assert_eq!(witness.marks(1, Mark::Finished).await, Ok(0));
    // By being dropped.
    let call = client.hold_at_next(2).start();
    marked(&witness, 2, Mark::Started, 1).await;
    drop(call);
    assert_eq!(marked(&witness, 2, Mark::Cancelled, 1).await, 1);
}

async fn the_earliest_of_several_deadlines_counts(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let hours = |count: u64| Duration::from_secs(3600 * count);
    let default = Some(hours(2));
    let client = world.client_with(|builder| builder.default_timeout(default)).await;
    let remaining = |seen: tests::probe::Seen| {
        Duration::from_micros(seen.remaining_micros.expect("a deadline"))
    };
    let by_default = remaining(client.seen().await.expect("seen"));
    assert!(by_default <= hours(2) && by_default > hours(1), "{by_default:?}");
    let longer = remaining(client.seen().timeout(hours(4)).await.expect("seen"));
    assert!(longer <= hours(4) && longer > hours(3), "its own holds: {longer:?}");
    assert_eq!(client.seen().no_timeout().await.expect("seen").remaining_micros, None);
    let call = client.seen().timeout(hours(1)).deadline(Instant::now() + hours(4));
    let shorter = remaining(call.await.expect("seen"));
    assert!(shorter <= hours(1), "{shorter:?}");
}
