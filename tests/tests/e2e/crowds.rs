//! Many clients at once: 256 channels of four processes, each calling, all answers right.

use std::time::Duration;

use tests::limit::paced;
use tests::process::{Child, READY};
use tests::scheme::Scheme;
use tests::world::World;

use crate::{CLIENT, SERVER};

between_processes! {
    many_clients_call_at_once,
    many_clients_on_four_shards,
}

const PROCESSES: usize = 4;
const CALLS_EACH: u32 = 20;

async fn many_clients_call_at_once(scheme: Scheme) {
    crowd(scheme, "1").await;
}

async fn many_clients_on_four_shards(scheme: Scheme) {
    crowd(scheme, "4").await;
}

async fn crowd(scheme: Scheme, shards: &str) {
    let patience = paced(Duration::from_secs(15)).as_millis().to_string();
    let options = ["--shards", shards, "--keep-alive-ms", &patience];
    let world = World::start_with(SERVER, scheme, &options).await;
    // Handshakes of debug builds take milliseconds, and set-up ends after 15 seconds.
    let channels_each = if tests::device::has_tls() { 16 } else { 64 };
    let (channels_text, calls_text) = (channels_each.to_string(), CALLS_EACH.to_string());
    let start = || {
        let arguments = ["--address", &world.address, "many", &channels_text, &calls_text];
        Child::start(CLIENT, arguments)
    };
    let mut clients: Vec<Child> = (0..PROCESSES).map(|_| start()).collect();
    for client in &mut clients {
        client.expect(READY).await;
    }
    for client in &mut clients {
        // The client has checked every answer: rounds of 2 calls.
        let calls = channels_each * CALLS_EACH * 2;
        assert_eq!(client.expect("DONE").await, calls.to_string());
    }
    assert_eq!(world.client().await.add(1, 1).await, Ok(2));
}
