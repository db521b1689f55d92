//! Every way of waiting gives the same answers.

use rpc_core::PollMode;
use tests::scheme::Scheme;
use tests::service::{checksum, pattern};
use tests::world::World;

use crate::SERVER;

between_processes! {
    a_busy_client_and_a_busy_server,
    an_adaptive_client_spins_and_parks,
    an_event_client_of_a_busy_server,
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
    // Long enough for everybody to park; whoever has not, must be right as well.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert_eq!(client.add(1, 1).await, Ok(2));
}
