//! Every poll mode gives the same answers.

use futures::future::poll_immediate;
use rpc_core::PollMode;
use test_kit::Rng;
use tests::scheme::Scheme;
use tests::service::{checksum, pattern};
use tests::world::World;

use crate::SERVER;

between_processes! {
    a_busy_client_and_a_busy_server,
    an_adaptive_client_spins_and_parks,
    an_event_client_of_a_busy_server,
    dropped_calls_that_spin_block_nobody,
}

async fn a_busy_client_and_a_busy_server(scheme: Scheme) {
    calls(scheme, "busy", PollMode::Busy).await;
}

async fn an_adaptive_client_spins_and_parks(scheme: Scheme) {
    calls(scheme, "adaptive", PollMode::Adaptive).await;
}

async fn an_event_client_of_a_busy_server(scheme: Scheme) {
    calls(scheme, "busy", PollMode::Event).await;
}

async fn calls(scheme: Scheme, server_mode: &str, client_mode: PollMode) {
    let world = World::start_with(SERVER, scheme, &["--poll-mode", server_mode]).await;
    let client = world.client_with(|builder| builder.poll_mode(client_mode)).await;
    for a in 0..300 {
        assert_eq!(client.add(a, 1).await, Ok(a + 1));
    }
    let sums = futures::future::join_all((0..300).map(|a| client.add_slowly(a, 2, 2))).await;
    assert!((0..).zip(sums).all(|(a, sum)| sum == Ok(a + 2)));
    let data = pattern(300_000, 1);
    assert_eq!(client.digest(&data).await, Ok((300_000, checksum(&data))));
    // Long enough for every thread to park; a thread that has not parked must be right as well.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert_eq!(client.add(1, 1).await, Ok(2));
}

/// Callers poll in place of the driver: here the polling caller is dropped, or never polled again.
async fn dropped_calls_that_spin_block_nobody(scheme: Scheme) {
    let world = World::start_with(SERVER, scheme, &["--poll-mode", "adaptive"]).await;
    let mut rng = Rng::new(7);
    for mode in [PollMode::Adaptive, PollMode::Busy] {
        let client = world.client_with(|builder| builder.poll_mode(mode)).await;
        for round in 0..100 {
            let mut awaited = Vec::new();
            for a in 0..8 {
                let turns = u32::from(rng.below(3) == 0);
                let mut call = Box::pin(client.add_slowly(a, round, turns).start());
                let mut answer = None;
                for _ in 0..rng.below(4) {
                    if answer.is_none() {
                        answer = poll_immediate(&mut call).await;
                    }
                }
                match (rng.below(64), answer) {
                    (_, Some(sum)) => assert_eq!(sum, Ok(a + round)),
                    (0, None) => std::mem::forget(call),
                    (1..16, None) => drop(call),
                    (_, None) => awaited.push(async move { assert_eq!(call.await, Ok(a + round)) }),
                }
            }
            futures::future::join_all(awaited).await;
        }
    }
}
