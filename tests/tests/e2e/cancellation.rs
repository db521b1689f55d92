//! Calls that end early: dropped, past their deadline, or by a handler that panics.

use std::time::Duration;

use futures::future::join_all;
use rpc_core::service::Dispatch;
use rpc_core::{Code, Status};
use tests::hostile::{Heard, HostilePeer, bytes};
use tests::journal::Journal;
use tests::probe::{Mark, ProbeServer};
use tests::scheme::Scheme;
use tests::service::ProbeService;
use tests::world::{World, marked};

use crate::SERVER;

on_every_scheme! {
    dropping_a_started_call_cancels_its_handler,
    select_drops_the_loser_and_its_handler,
    dropping_an_unsent_call_runs_nothing,
    a_deadline_ends_the_call_and_its_handler,
    the_server_enforces_deadlines_by_itself,
    a_deadline_in_the_past_is_never_sent,
    a_method_without_cancel_runs_to_its_end,
    a_spawned_method_runs_in_a_task,
    a_thousand_cancelled_calls_leave_the_connection_usable,
    a_panic_is_internal_and_the_connection_lives,
}

between_processes! {
    the_client_enforces_deadlines_by_itself,
    a_blocking_handler_stops_nobody_else,
}

async fn dropping_a_started_call_cancels_its_handler(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let call = client.hold(1).start();
    marked(&client, 1, Mark::Started, 1).await;
    drop(call);
    assert_eq!(marked(&client, 1, Mark::Cancelled, 1).await, 1);
    client.open(1).await.expect("opened");
    assert_eq!(client.marks(1, Mark::Finished).await, Ok(0));
    assert_eq!(client.add(1, 1).await, Ok(2));
}

async fn select_drops_the_loser_and_its_handler(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let (client, other) = (world.client().await, world.client().await);
    let sum = tokio::select! {
        held = client.hold(1) => panic!("nobody opens the gate, and yet {held:?}"),
        sum = async {
            marked(&other, 1, Mark::Started, 1).await;
            other.add(1, 2).await
        } => sum,
    };
    assert_eq!(sum, Ok(3));
    assert_eq!(marked(&other, 1, Mark::Cancelled, 1).await, 1);
    assert_eq!(client.add(2, 2).await, Ok(4));
}

async fn dropping_an_unsent_call_runs_nothing(scheme: Scheme) {
    let world = World::start_with(SERVER, scheme, &["--max-calls", "2"]).await;
    let (client, other) = (world.client().await, world.client().await);
    drop(client.hold(1));
    // Both slots are taken, so a call started now waits on this side.
    let running = [client.hold(2).start(), client.hold(2).start()];
    marked(&other, 2, Mark::Started, 2).await;
    drop(client.hold(1).start());
    let waiting = client.add(3, 4).start();
    other.open(2).await.expect("opened");
    assert!(join_all(running).await.into_iter().all(|held| held == Ok(2)));
    assert_eq!(waiting.await, Ok(7));
    assert_eq!(client.marks(1, Mark::Started).await, Ok(0));
}

async fn a_deadline_ends_the_call_and_its_handler(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let status = client.hold(1).timeout(Duration::from_millis(200)).await.expect_err("held");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.message().contains("Probe.hold"), "{status}");
    let started = client.marks(1, Mark::Started).await.expect("the connection lives");
    assert_eq!(marked(&client, 1, Mark::Cancelled, started).await, started);
    client.open(1).await.expect("opened");
    assert_eq!(client.marks(1, Mark::Finished).await, Ok(0));
    // A deadline that is met changes nothing.
    assert_eq!(client.add(1, 1).timeout(Duration::from_secs(3600)).await, Ok(2));
}

/// The method `hold` of the trait.
fn hold_method() -> &'static rpc_core::service::MethodDescriptor {
    let server = ProbeServer::new(ProbeService::new(Journal::default().into(), None));
    let methods = server.descriptor().methods;
    methods.iter().find(|method| method.name == "Probe.hold").expect("it is there")
}

async fn the_server_enforces_deadlines_by_itself(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let witness = world.client().await;
    // A caller that names a deadline and never cancels. Tag 1 is one byte in the codec.
    let Some(mut caller) = connect_below(&world).await else { return };
    caller.send(&bytes::data(&bytes::hello(0)));
    let request = bytes::request(0, 1, hold_method(), Some(200_000), &[1]);
    caller.send(&bytes::data(&request));
    let response = loop {
        match caller.hear().await {
            Heard::Frame(frame, _) => match bytes::session_of(&frame) {
                Some((3, status, slot)) => break (status, slot),
                _ => continue,
            },
            Heard::Gone => panic!("the server closed the connection"),
        }
    };
    assert_eq!(response, (Code::DeadlineExceeded.number(), 0));
    let started = witness.marks(1, Mark::Started).await.expect("the server answers");
    assert_eq!(marked(&witness, 1, Mark::Cancelled, started).await, started);
}

/// A peer below the link. `auto://` has no such level of its own: it resolves to another scheme.
async fn connect_below(world: &World) -> Option<HostilePeer> {
    if world.scheme == Scheme::Auto {
        return None;
    }
    Some(HostilePeer::connect(&world.address).await.expect("an honest handshake"))
}

async fn the_client_enforces_deadlines_by_itself(scheme: Scheme) {
    let mut world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    assert_eq!(client.add(1, 1).await, Ok(2));
    // A server that no longer does anything.
    world.process().stop();
    let status = client.add(2, 2).timeout(Duration::from_millis(100)).await.expect_err("stopped");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    world.process().resume();
    assert_eq!(client.add(3, 3).await, Ok(6));
}

async fn a_deadline_in_the_past_is_never_sent(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let status = client.hold(1).timeout(Duration::ZERO).await.expect_err("too late");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(client.marks(1, Mark::Started).await, Ok(0));
}

async fn a_method_without_cancel_runs_to_its_end(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let dropped = client.hold_to_the_end(1).start();
    marked(&client, 1, Mark::Started, 1).await;
    drop(dropped);
    let late = client.hold_to_the_end(1).timeout(Duration::from_millis(50));
    let status = late.await.expect_err("nobody opens the gate in time");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    let started = client.marks(1, Mark::Started).await.expect("the server answers");
    client.open(1).await.expect("opened");
    assert_eq!(marked(&client, 1, Mark::Finished, started).await, started);
    assert_eq!(client.marks(1, Mark::Cancelled).await, Ok(0));
}

async fn a_spawned_method_runs_in_a_task(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    // Handlers that are polled inline run in the driver's task, and so would share one id.
    let first = client.task_of_its_own().await.expect("answered");
    let second = client.task_of_its_own().await.expect("answered");
    assert_ne!(first, second);
    assert_ne!(first, "none");
}

async fn a_blocking_handler_stops_nobody_else(scheme: Scheme) {
    let world = World::start_with(SERVER, scheme, &["--workers", "4"]).await;
    let client = world.client().await;
    let blocked = client.block(1).start();
    // Handlers that complete at once need no task, which might have been queued on the blocked
    // thread.
    for a in 0..100 {
        assert_eq!(client.add(a, 1).await, Ok(a + 1));
    }
    client.open(1).await.expect("opened");
    assert_eq!(blocked.await, Ok(1));
}

async fn a_thousand_cancelled_calls_leave_the_connection_usable(scheme: Scheme) {
    let world = World::start_with(SERVER, scheme, &["--max-calls", "32"]).await;
    let (client, other) = (world.client().await, world.client().await);
    for round in 0..10 {
        let calls: Vec<_> = (0..100).map(|_| client.hold(round).start()).collect();
        marked(&other, round, Mark::Started, 1).await;
        drop(calls);
        // All 32 slots have been returned when 32 new calls run at once.
        let tag = 100 + round;
        let calls: Vec<_> = (0..32).map(|_| client.hold(tag).start()).collect();
        assert_eq!(marked(&other, tag, Mark::Started, 32).await, 32);
        other.open(tag).await.expect("opened");
        assert!(join_all(calls).await.into_iter().all(|held| held == Ok(tag)));
        let started = other.marks(round, Mark::Started).await.expect("the server answers");
        assert_eq!(marked(&other, round, Mark::Cancelled, started).await, started);
    }
}

async fn a_panic_is_internal_and_the_connection_lives(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let waiting = client.hold(1).start();
    for late in [false, true] {
        let status: Status = client.panic("a secret", late).await.expect_err("it panics");
        assert_eq!(status.code(), Code::Internal);
        assert!(!status.message().contains("secret"), "{status}");
        assert!(status.message().contains("panicked"), "{status}");
    }
    client.open(1).await.expect("opened");
    assert_eq!(waiting.await, Ok(1));
}
