//! Windows that start with less than the usual 8 data credits, for connections that are mostly idle.

use rpc_transport::device::QueueLimits;
use rpc_transport::device::fault::{FaultPlan, MLX5, PROFILES};
use rpc_transport::engine::locked_need::{channel_bytes, server_bytes};
use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::protocol::config::LinkConfig;
use tokio::time::pause;

use crate::falling::Ends;
use crate::parts::{send, shared};
use crate::world::{ByHand, Options, Pair, WIRES, pattern, run, run_on_one_thread, unspawned};

/// What an idle connection is to lock at most, bytes.
const LITTLE: u64 = 32 << 10;
/// Looks until windows have fallen from 64 to 1.
const FALL_TURNS: usize = 16;

fn starting_with(credits: u16) -> LinkConfig {
    LinkConfig::default().first_data_credits(credits)
}

/// What a connection has that is to lock little.
fn thrifty() -> LinkConfig {
    starting_with(2).receive_buffer_bytes(2 << 10).send_queue_slots(9)
}

/// Also where one end starts as always.
#[test]
fn windows_that_start_small_grow_and_fall_back_to_that() {
    run_on_one_thread("windows_that_start_small", async {
        for wire in WIRES {
            for [a, b] in [[2, 2], [1, 1], [2, 8], [8, 1], [3, 2]] {
                let configs = [starting_with(a), starting_with(b)];
                let first = [(a, b), (b, a)];
                let all = configs.each_ref().map(|config| config.window().data);
                let options = Options { configs, ..Options::default() };
                let (client, server, drivers, _listener) = unspawned(wire, &options).await;
                let mut pair =
                    Ends { ends: [client, server], drivers: drivers.map(ByHand::new), sent: 0 };
                assert_eq!(pair.windows(), first, "{wire}");
                pause();
                for _ in 0..2 {
                    while pair.windows() != [(all[0], all[1]), (all[1], all[0])] {
                        pair.echo(1, 200);
                    }
                    pair.pass(FALL_TURNS, 0).await;
                    // Each Ping uses a window of one up.
                    let rest = first.map(|(own, other)| (own.max(2), other.max(2)));
                    assert_eq!(pair.windows(), rest, "{wire}");
                }
                for end in &pair.ends {
                    assert!(end.events().closed.is_empty(), "{wire}: {:?}", end.events().closed);
                }
                tokio::time::resume();
            }
        }
    });
}

#[test]
fn calls_one_at_a_time_need_no_more_than_two_credits() {
    run("calls_one_at_a_time", async {
        for wire in WIRES {
            let pair = Pair::with(wire, &Options::alike(starting_with(2))).await;
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
fn a_thrifty_idle_connection_locks_32_kib_a_side_and_carries_everything() {
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
            // Nor need it lock more: a window that finds no memory stays as it is.
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
            assert!(to.next().await.take_tail().unwrap().to_vec() == pattern(1, 1 << 20));
        }
        pair.end().await;
    });
}
