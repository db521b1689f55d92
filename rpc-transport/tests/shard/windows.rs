//! Windows that start small and grow by demand, and the receive buffers behind them.

use std::time::Duration;

use rpc_transport::device::fault::{FaultPlan, MLX5, PROFILES};
use rpc_transport::engine::locked_need::{channel_bytes, registered_bytes};
use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::memory::region::BufferPool;
use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::credit::FIRST_DATA_CREDITS;

use crate::probe::Habit;
use tokio::time::{advance, pause};

use crate::world::{ByHand, End, Options, Pair, WIRES, pattern, run, run_on_one_thread, unspawned};

/// An end's current offer, and the other end's offer as last seen.
pub(crate) fn windows(end: &End) -> (u16, u16) {
    let counters = end.shard.link_metrics(end.key).expect("it is up").counters;
    (counters.local_window, counters.remote_window)
}

/// Receive buffers outside their pool: posted, kept back or lent.
pub(crate) fn out(end: &End, config: &LinkConfig) -> usize {
    let pool = receive_pool(end, config);
    pool.count() as usize - pool.free_count()
}

fn receive_pool(end: &End, config: &LinkConfig) -> BufferPool {
    let is_receive = |pool: &BufferPool| pool.count() > config.window().rq_len();
    end.pools().into_iter().find(is_receive).expect("a pool of receive buffers")
}

#[test]
fn lightly_used_connection_keeps_its_first_window() {
    run("a_connection_that_works_lightly", async {
        for wire in WIRES {
            let options = Options::default();
            let pair = Pair::with(wire, &options).await;
            for turn in 1..=300 {
                pair.client.send(b"one at a time");
                pair.client.received(turn).await;
            }
            for (end, config) in [&pair.client, &pair.server].into_iter().zip(&options.configs) {
                assert_eq!(windows(end), (FIRST_DATA_CREDITS, FIRST_DATA_CREDITS), "{wire}");
                let first = config.first_window().rq_len() + 1;
                assert_eq!(out(end, config), first as usize, "{wire}");
            }
            pair.end().await;
        }
    });
}

#[test]
fn exhausted_windows_grow_up_to_the_offer() {
    run("windows_grow_to_what_was_offered", async {
        for wire in WIRES {
            for credits in [64, 100] {
                let config = LinkConfig::default().keep_alive(None).data_credits(credits);
                let config = config.send_queue_slots(200);
                let pair = Pair::with(wire, &Options::alike(config.clone())).await;
                let mut sent = 0;
                while windows(&pair.client).1 < credits {
                    pair.client.with(|probe| (0..200).for_each(|_| probe.send(b"many at once")));
                    sent += 200;
                    pair.client.received(sent).await;
                }
                assert_eq!(windows(&pair.server).0, credits, "{wire}");
                let all = config.window().rq_len() + 1;
                assert_eq!(out(&pair.server, &config), all as usize, "{wire}");
                pair.end().await;
            }
        }
    });
}

#[test]
fn lent_buffers_do_not_stop_window_growth() {
    run("buffers_that_are_lent", async {
        for wire in WIRES {
            let config = LinkConfig::default().keep_alive(None);
            let habits = [Habit::Keep; 2];
            let pair = Pair::with(wire, &Options { habits, ..Options::alike(config) }).await;
            let long = vec![7; 6000];
            let mut sent = 0;
            // More than can be lent, one at a time, so that the window keeps its first size.
            for _ in 0..100 {
                pair.client.send(&long);
                sent += 1;
                pair.server.received(sent).await;
            }
            while windows(&pair.server).0 < 64 {
                pair.client.with(|probe| (0..200).for_each(|_| probe.send(&long)));
                sent += 200;
                pair.server.received(sent).await;
            }
            drop(pair.server.with(|probe| std::mem::take(&mut probe.inbox)));
            pair.end().await;
        }
    });
}

/// Pages behind the receive buffers of an end.
pub(crate) fn pages(end: &End) -> usize {
    receive_pool(end, &LinkConfig::default()).resident_pages()
}

/// A regression: Pings and Pongs were written to one receive buffer after the other, so that an
/// idle connection came to hold the memory of all of them.
#[test]
fn quiet_connection_releases_receive_buffer_pages() {
    const QUIET_TURNS: u32 = 30;
    run_on_one_thread("a_connection_that_is_quiet", async {
        for wire in WIRES {
            let options = Options::alike(LinkConfig::default());
            let (client, server, drivers, _listener) = unspawned(wire, &options).await;
            let [mut ours, mut theirs] = drivers.map(ByHand::new);
            let mut both = || {
                ours.until_parked(&client.shard);
                theirs.until_parked(&server.shard);
            };
            let mut sent = 0;
            let mut echo = |both: &mut dyn FnMut(), count, bytes: &[u8]| {
                for _ in 0..count {
                    client.send(bytes);
                    sent += 1;
                    while client.events().received < sent {
                        both();
                    }
                    let echoed = client.with(|probe| probe.inbox.pop_front());
                    assert!(echoed.is_some_and(|echoed| *echoed == *bytes), "{wire}");
                }
            };
            pause();
            for len in [100, 8_000] {
                echo(&mut both, 100, &pattern(1, len));
                // Each buffer of the first window has been written.
                assert!([&client, &server].iter().all(|end| pages(end) >= 12), "{wire}");
                for _ in 0..QUIET_TURNS {
                    advance(Duration::from_secs(15)).await;
                    (0..4).for_each(|_| both());
                }
                for end in [&client, &server] {
                    assert!(pages(end) <= 5, "{wire}: {} pages", pages(end));
                    assert!(end.events().closed.is_empty(), "{wire}: {:?}", end.events().closed);
                }
            }
            echo(&mut both, 100, &pattern(2, 8_000));
            tokio::time::resume();
        }
    });
}

/// A regression: a connection pinned the receive buffers of the largest window from set-up on.
#[test]
fn nic_receive_buffers_are_pinned_on_window_growth() {
    run("receive_buffers_are_pinned", async {
        let config = LinkConfig::default().keep_alive(None);
        let limits = [(); 2].map(|()| MemoryBudget::new(64 << 20));
        let plan = |limit| FaultPlan::new(1).profile(&MLX5).lock_limit(limit);
        let faults = Some(limits.each_ref().map(plan));
        let pair = Pair::with("mem", &Options { faults, ..Options::alike(config.clone()) }).await;
        let idle = limits[1].used_bytes();
        assert_eq!(idle, channel_bytes(&config));
        // 8 data credits, 2 acks, a Close, one whose repost waits; and 2 to send from.
        assert_eq!(registered_bytes(&config), (8 + 2 + 1 + 1 + 2) * (4 << 10));

        let burst = async |sent: &mut u64| {
            pair.client.with(|probe| (0..200).for_each(|_| probe.send(b"many at once")));
            *sent += 200;
            pair.client.received(*sent).await;
        };
        let mut sent = 0;
        let taken = limits[1].reserve(limits[1].limit_bytes() - idle).expect("it is free");
        burst(&mut sent).await;
        assert_eq!(windows(&pair.server).0, FIRST_DATA_CREDITS, "there is no memory");
        drop(taken);
        while windows(&pair.server).0 < 64 {
            burst(&mut sent).await;
        }
        assert!(limits[1].used_bytes() >= idle + 56 * (4 << 10));
        pair.end().await;
        assert_eq!(limits.map(|limit| limit.used_bytes()), [0, 0]);
    });
}

/// Bytes that a NIC locks for a connection with a completion queue of its own that is idle, or has
/// one short message in flight at a time.
const IDLE_BYTES: u64 = 108 << 10;

/// A regression: four send buffers were kept ready, and all of them had 8 KiB.
#[test]
fn idle_connection_locks_little_on_every_nic() {
    run("an_idle_connection_locks_little", async {
        for profile in PROFILES.into_iter().filter(|profile| profile.has_rc) {
            let config = LinkConfig::default().keep_alive(None);
            let limits = [(); 2].map(|()| MemoryBudget::new(64 << 20));
            let plan = |limit| FaultPlan::new(1).profile(profile).lock_limit(limit);
            let faults = Some(limits.each_ref().map(plan));
            let pair = Pair::with("mem", &Options { faults, ..Options::alike(config) }).await;
            let idle = limits.each_ref().map(MemoryBudget::used_bytes);
            assert!(idle.iter().all(|bytes| *bytes <= IDLE_BYTES), "{}: {idle:?}", profile.driver);
            for turn in 1..=100 {
                pair.client.send(b"one at a time");
                pair.client.received(turn).await;
            }
            // A device without inline data sends from buffers, and then has some more of them.
            if profile.max_inline_bytes > 0 {
                let used = limits.each_ref().map(MemoryBudget::used_bytes);
                assert_eq!(used, idle, "{}", profile.driver);
            }
            pair.end().await;
        }
    });
}

/// Number of frames for `bytes` between two ends that nobody drives yet, so that no credit comes
/// back.
async fn frames(configs: [&LinkConfig; 2], faults: Option<&FaultPlan>, bytes: usize) -> u16 {
    let faults = faults.map(|plan| [plan.clone(), plan.clone()]);
    let options = Options { configs: configs.map(Clone::clone), faults, ..Options::default() };
    let (client, server, drivers, _listener) = unspawned("mem", &options).await;
    let credits = || client.shard.link_metrics(client.key).expect("it is up").counters.data_credits;
    let before = credits();
    client.send(&vec![7; bytes]);
    let spent = before - credits();
    let drivers = drivers.map(tokio::spawn);
    server.received(1).await;
    for end in [&client, &server] {
        end.leave().await;
        end.shard.shutdown();
    }
    for driver in drivers {
        driver.await.unwrap();
    }
    spent
}

#[test]
fn frame_length_follows_the_smaller_ends_buffers() {
    run("frames_are_as_long", async {
        let default = LinkConfig::default().keep_alive(None);
        let [short, long] =
            [4 << 10, 8 << 10].map(|bytes| default.clone().receive_buffer_bytes(bytes));
        let nic = FaultPlan::new(1).profile(&MLX5);
        for (configs, faults, wanted) in [
            ([&default, &default], None, 1),
            ([&default, &short], None, 2),
            ([&default, &default], Some(&nic), 2),
            ([&default, &long], Some(&nic), 2),
            ([&long, &default], Some(&nic), 2),
            ([&long, &long], Some(&nic), 1),
        ] {
            let on = faults.is_some();
            assert_eq!(frames(configs, faults, 8_000).await, wanted, "{configs:?}, NIC: {on}");
            assert_eq!(frames(configs, faults, 4_000).await, 1, "{configs:?}, NIC: {on}");
        }
    });
}
