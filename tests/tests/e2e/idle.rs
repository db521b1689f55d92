//! Idle processes use no CPU, in every poll mode.

use std::time::Duration;

use tests::process::{Child, READY, output_there};
use tests::resources::cpu_ticks;
use tests::scheme::Scheme;
use tests::world::World;

use crate::{CLIENT, SERVER};

between_processes! {
    fifty_idle_connections_cost_no_cpu_by_events,
    fifty_idle_connections_cost_no_cpu_adaptively,
}

/// A second of CPU time has 100 ticks; a process that polls takes them all.
const FEW_TICKS: u64 = 10;

async fn fifty_idle_connections_cost_no_cpu_by_events(scheme: Scheme) {
    idle(scheme, "event").await;
}

async fn fifty_idle_connections_cost_no_cpu_adaptively(scheme: Scheme) {
    idle(scheme, "adaptive").await;
}

async fn idle(scheme: Scheme, poll_mode: &str) {
    let world = World::start_with(SERVER, scheme, &["--poll-mode", poll_mode]).await;
    let mut client = Child::start(CLIENT, ["--address", &world.address, "idle", "50", poll_mode]);
    client.expect(READY).await;
    let used = async || {
        let server = output_there("cat", &[&format!("/proc/{}/stat", world.pid())]).await;
        let client = std::fs::read_to_string(format!("/proc/{}/stat", client.pid()));
        [server, client.expect("it lives")].map(|stat| cpu_ticks(&stat))
    };
    let before = used().await;
    // The measure is the CPU time of a second, not its duration.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for (before, after) in before.into_iter().zip(used().await) {
        let ticks = after - before;
        assert!(ticks < FEW_TICKS, "{ticks} ticks of CPU time while idle");
    }
    let seen = world.client().await.add(1, 1).await;
    assert_eq!(seen, Ok(2), "and it still answers");
}
