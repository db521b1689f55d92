//! Windows of less than the usual 8 data credits, for connections that are mostly idle.

use rpc_transport::device::QueueLimits;
use rpc_transport::device::fault::{FaultPlan, MLX5, PROFILES};
use rpc_transport::engine::locked_need::{channel_bytes, server_bytes};
use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::protocol::config::LinkConfig;

use crate::parts::{send, shared};
use crate::world::{Options, Pair, WIRES, pattern, run};

/// Most memory that an idle connection may lock, bytes.
const LITTLE: u64 = 32 << 10;
/// The configuration of a connection that is to lock little.
fn thrifty() -> LinkConfig {
    LinkConfig::default().data_credits(2).receive_buffer_bytes(2 << 10).send_queue_slots(9)
}

#[test]
fn sequential_calls_need_two_credits() {
    run("calls_one_at_a_time", async {
        for wire in WIRES {
            let pair =
                Pair::with(wire, &Options::alike(LinkConfig::default().data_credits(2))).await;
            for turn in 1..=300 {
                pair.client.send(b"one at a time");
                pair.client.received(turn).await;
            }
            for end in [&pair.client, &pair.server] {
                assert_eq!(crate::windows::windows(end), (2, 2), "{wire}");
            }
            pair.end().await;
        }
    });
}

#[test]
fn thrifty_idle_connection_locks_32_kib_per_side() {
    const CONNECTIONS: u32 = 64;
    assert!(channel_bytes(&thrifty()) <= LITTLE);
    let of_server = server_bytes(&thrifty(), CONNECTIONS, 1, QueueLimits::UNLIMITED);
    assert!(of_server <= LITTLE * u64::from(CONNECTIONS), "{of_server}");
    run("a_thrifty_idle_connection", async {
        for profile in PROFILES.into_iter().filter(|profile| profile.has_rc) {
            let limits = [(); 2].map(|()| MemoryBudget::new(LITTLE));
            let plan = |limit| FaultPlan::new(1).profile(profile).lock_limit(limit);
            let faults = Some(limits.each_ref().map(plan));
            let pair = Pair::with("mem", &Options { faults, ..Options::alike(thrifty()) }).await;
            let idle = limits.each_ref().map(MemoryBudget::used_bytes);
            assert_eq!(idle, [channel_bytes(&thrifty()); 2], "{}", profile.driver);
            for (from, to) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
                let before = to.events().received;
                from.with(|probe| (0..200).for_each(|_| probe.send(b"many at once")));
                to.received(before + 200).await;
            }
            pair.end().await;
        }
        let limits = [(); 2].map(|()| MemoryBudget::new(LITTLE));
        let plan = |limit| FaultPlan::new(1).profile(&MLX5).lock_limit(limit);
        let faults = Some(limits.each_ref().map(plan));
        let options = Options { faults, habits: crate::parts::KEEP, ..Options::alike(thrifty()) };
        let pair = Pair::with("mem", &options).await;
        for (from, to) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
            send(from, b"large", [shared(pattern(1, 1 << 20))]);
            assert!(to.next().await.take_tail().unwrap().to_vec().unwrap() == pattern(1, 1 << 20));
        }
        pair.end().await;
    });
}
