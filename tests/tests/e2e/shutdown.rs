//! Orderly shutdown: calls in flight complete, new calls are refused unsent, and the server ends.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use rpc_core::{Code, ListenError, PollMode, Server, Status};
use rustix::process::Signal;
use tests::journal::Journal;
use tests::limit;
use tests::probe::{Mark, ProbeClient, ProbeServer};
use tests::process::{OPEN, SHUTDOWN, STOPPED};
use tests::scheme::Scheme;
use tests::service::ProbeService;
use tests::world::{World, marked};

use crate::SERVER;

between_processes! {
    calls_in_flight_finish_new_ones_fail,
    an_idle_server_stops_at_once,
    a_stuck_handler_is_cut_after_grace,
    waiting_calls_are_never_sent,
    a_stopped_client_does_not_block_shutdown,
    handlers_may_still_call_others_during_shutdown,
    a_terminated_server_loses_no_call,
    a_server_that_is_interrupted_finishes_its_calls,
    an_idle_stopped_client_uses_no_grace,
}

/// Calls until one is refused.
async fn refused(client: &ProbeClient) -> Status {
    loop {
        if let Err(status) = client.add(1, 1).await {
            return status;
        }
    }
}

fn check_never_sent(status: &Status) {
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.is_retryable(), "it was never sent: {status}");
    assert!(status.message().contains("shutting down"), "{status}");
}

async fn calls_in_flight_finish_new_ones_fail(scheme: Scheme) {
    let mut world = World::start(SERVER, scheme).await;
    let (client, other) = (world.client().await, world.client().await);
    let calls: Vec<_> = (0..50).map(|_| client.hold(1).start()).collect();
    marked(&other, 1, Mark::Started, 50).await;
    world.process().command(SHUTDOWN).await;
    // Both connections are notified.
    check_never_sent(&refused(&client).await);
    check_never_sent(&refused(&other).await);
    // No new connections either.
    let late = ProbeClient::connect(&world.address).await;
    assert!(late.is_err(), "a server that shuts down takes no connections");
    world.process().command(&format!("{OPEN} 1")).await;
    for held in join_all(calls).await {
        assert_eq!(held, Ok(1));
    }
    assert_eq!(world.process().expect(STOPPED).await, "ok");
    assert!(world.process().wait().await.success());
}

/// A client would mistake a file without a listener for a server.
#[test]
fn a_shutdown_leaves_no_socket_file() {
    limit::run(async {
        let mut world = World::start(SERVER, Scheme::ShmPath).await;
        let path = world.address.strip_prefix("shm://").expect("a path").to_owned();
        assert!(std::fs::exists(&path).expect("it can be looked for"), "{path}");
        world.process().command(SHUTDOWN).await;
        assert_eq!(world.process().expect(STOPPED).await, "ok");
        assert!(!std::fs::exists(&path).expect("it can be looked for"), "{path} was left");
    });
}

async fn an_idle_server_stops_at_once(scheme: Scheme) {
    let mut world = World::start_with(SERVER, scheme, &["--grace-ms", "86400000"]).await;
    let clients = join_all((0..10).map(|_| world.client())).await;
    for client in &clients {
        assert_eq!(client.add(1, 1).await, Ok(2));
    }
    // Within the test's limit: not at the end of a day of grace.
    world.process().command(SHUTDOWN).await;
    assert_eq!(world.process().expect(STOPPED).await, "ok");
    let status = refused(&clients[0]).await;
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("shut"), "{status}");
}

async fn a_stuck_handler_is_cut_after_grace(scheme: Scheme) {
    let mut world = World::start_with(SERVER, scheme, &["--grace-ms", "300"]).await;
    let client = world.client().await;
    let held = client.hold(1).start();
    marked(&client, 1, Mark::Started, 1).await;
    world.process().command(SHUTDOWN).await;
    let status = held.await.expect_err("nobody opens the gate");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(!status.is_retryable(), "it ran: {status}");
    assert!(status.message().contains("shut down"), "{status}");
    assert_eq!(world.process().expect(STOPPED).await, "ok");
}

async fn waiting_calls_are_never_sent(scheme: Scheme) {
    let mut world = World::start_with(SERVER, scheme, &["--max-calls", "1"]).await;
    let (client, other) = (world.client().await, world.client().await);
    let held = client.hold(1).start();
    marked(&other, 1, Mark::Started, 1).await;
    let waiting: Vec<_> = (0..20).map(|_| client.hold(1).start()).collect();
    world.process().command(SHUTDOWN).await;
    for waiting in join_all(waiting).await {
        check_never_sent(&waiting.expect_err("there is no slot"));
    }
    world.process().command(&format!("{OPEN} 1")).await;
    assert_eq!(held.await, Ok(1));
    assert_eq!(world.process().expect(STOPPED).await, "ok");
}

async fn a_stopped_client_does_not_block_shutdown(scheme: Scheme) {
    let mut world = World::start_with(SERVER, scheme, &["--grace-ms", "300"]).await;
    let mut silent = tests::process::Child::start(
        crate::CLIENT,
        ["--address", &world.address, "hold", "1", "3"],
    );
    silent.expect(tests::process::READY).await;
    let witness = world.client().await;
    marked(&witness, 1, Mark::Started, 3).await;
    silent.stop();
    world.process().command(SHUTDOWN).await;
    assert_eq!(world.process().expect(STOPPED).await, "ok");
    silent.resume();
}

async fn handlers_may_still_call_others_during_shutdown(scheme: Scheme) {
    let last = World::start(SERVER, scheme).await;
    let mut first = World::start_with(SERVER, scheme, &["--next", &last.address]).await;
    let (client, witness) = (first.client().await, last.client().await);
    let held = client.hold_at_next(1).start();
    marked(&witness, 1, Mark::Started, 1).await;
    first.process().command(SHUTDOWN).await;
    check_never_sent(&refused(&client).await);
    witness.open(1).await.expect("opened");
    assert_eq!(held.await, Ok(1));
    assert_eq!(first.process().expect(STOPPED).await, "ok");
}

async fn a_server_that_is_interrupted_finishes_its_calls(scheme: Scheme) {
    let mut world = World::start(SERVER, scheme).await;
    let (client, other) = (world.client().await, world.client().await);
    let held = client.hold(1).start();
    marked(&other, 1, Mark::Started, 1).await;
    world.process().interrupt();
    check_never_sent(&refused(&other).await);
    world.process().command(&format!("{OPEN} 1")).await;
    assert_eq!(held.await, Ok(1));
    assert_eq!(world.process().expect(STOPPED).await, "ok");
}

/// Its signal handlers stay, which does not harm the process of other tests.
#[test]
fn a_shutdown_waits_for_each_signal_in_turn() {
    limit::run_single(async {
        let this = rustix::process::getpid();
        let raise = |signal| rustix::process::kill_process(this, signal).expect("it is this one");
        let mut shutdown = rpc_core::signal::shutdown();
        for signal in [Signal::TERM, Signal::INT, Signal::TERM] {
            assert_eq!((&mut shutdown).now_or_never(), None, "before {signal:?}");
            raise(signal);
            (&mut shutdown).await;
        }
        let mut terminated = std::pin::pin!(shutdown.terminated());
        raise(Signal::INT);
        let mut other = rpc_core::signal::shutdown();
        raise(Signal::INT);
        (&mut other).await;
        assert_eq!(terminated.as_mut().now_or_never(), None, "SIGINT is another's");
        raise(Signal::TERM);
        terminated.await;
    });
}

/// Calls of a worker until it is refused; returns the number of answered ones.
async fn work(client: ProbeClient) -> u64 {
    for number in 0.. {
        match client.add_slowly(number, 1, 3).await {
            Ok(sum) => assert_eq!(sum, number + 1),
            Err(status) => {
                check_never_sent(&status);
                return number;
            }
        }
    }
    0
}

async fn a_terminated_server_loses_no_call(scheme: Scheme) {
    let mut world = World::start(SERVER, scheme).await;
    let other = World::start(SERVER, scheme).await;
    let witness = world.client().await;
    let held: Vec<_> = (0..20).map(|_| witness.hold(1).start()).collect();
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(tokio::spawn(work(world.client().await)));
    }
    marked(&witness, 1, Mark::Started, 20).await;
    world.process().terminate();
    for worker in workers {
        let answered = worker.await.expect("each call is answered or was never sent");
        // The refused call is made at another server.
        let elsewhere = other.client().await.add_slowly(answered, 1, 3).await;
        assert_eq!(elsewhere, Ok(answered + 1));
    }
    check_never_sent(&refused(&witness).await);
    world.process().command(&format!("{OPEN} 1")).await;
    for held in join_all(held).await {
        assert_eq!(held, Ok(1));
    }
    assert_eq!(world.process().expect(STOPPED).await, "ok");
    assert!(world.process().wait().await.success());
}

/// A regression: an idle peer that does not answer the go-away held up a shutdown until the end of
/// grace.
async fn an_idle_stopped_client_uses_no_grace(scheme: Scheme) {
    let mut world = World::start_with(SERVER, scheme, &["--grace-ms", "86400000"]).await;
    let mut silent = tests::process::Child::start(
        crate::CLIENT,
        ["--address", &world.address, "idle", "1", "event"],
    );
    silent.expect(tests::process::READY).await;
    silent.stop();
    world.process().command(SHUTDOWN).await;
    // Within the test's limit: not at the end of a day of grace.
    assert_eq!(world.process().expect(STOPPED).await, "ok");
    silent.resume();
}

/// A server in this process, for its own API.
async fn serve_here(address: &str) -> (Server, Arc<Journal>) {
    let journal = Arc::new(Journal::default());
    let service = ProbeService::new(Arc::clone(&journal), None);
    let server = tests::device::server()
        .add_service(ProbeServer::new(service))
        .poll_mode(PollMode::Event)
        .grace(Duration::from_millis(200))
        .bind(address)
        .await
        .expect("the address is free");
    (server, journal)
}

async fn connect(address: &str) -> ProbeClient {
    let builder = tests::limit::patient_channel();
    ProbeClient::new(builder.connect(address).await.expect("the server is up"))
}

#[test]
fn serve_until_ends_with_its_signal() {
    limit::run(async {
        let address = Scheme::Mem.fresh_address();
        let (server, journal) = serve_here(&address).await;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(server.serve_until(async {
            let _ = stopped.await;
        }));
        let client = connect(&address).await;
        let held = client.hold(1).start();
        journal.wait_for(1, Mark::Started, 1).await;
        stop.send(()).expect("it waits");
        check_never_sent(&refused(&client).await);
        journal.open(1);
        assert_eq!(held.await, Ok(1));
        serving.await.expect("no panic").expect("an orderly end");
    });
}

#[test]
fn dropping_serve_ends_connections_and_handlers_at_once() {
    limit::run(async {
        let address = Scheme::Mem.fresh_address();
        let (server, journal) = serve_here(&address).await;
        let serving = tokio::spawn(server.serve());
        let client = connect(&address).await;
        let held = client.hold(1).start();
        journal.wait_for(1, Mark::Started, 1).await;
        serving.abort();
        let status = held.await.expect_err("the server is gone");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        journal.wait_for(1, Mark::Cancelled, 1).await;
        // The address is free again, once the tasks that listened are gone.
        let _ = serving.await;
        while let Err(error) = tests::device::server().bind(&address).await {
            assert!(matches!(error, ListenError::InUse { .. }), "{error}");
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_shutdown_before_serving_returns_at_once() {
    limit::run(async {
        let address = Scheme::Mem.fresh_address();
        let (server, _) = serve_here(&address).await;
        server.shutdown_handle().shutdown();
        server.serve().await.expect("an orderly end");
    });
}
