//! When what a connection had of the receives that a shard shares is another's again.

use rpc_transport::device::fault::{FaultPlan, MLX5};
use rpc_transport::engine::establish::server_completions;
use rpc_transport::memory::budget::MemoryBudget;
use tokio::time::{pause, resume};

use crate::probe::Habit;
use crate::shared::{Star, burst, part, sharing};
use crate::windows::windows;
use crate::world::{parked, run, run_on_one_thread};

/// A shard that always has something to do finds no poll empty.
#[test]
fn connections_that_end_on_a_busy_shard_give_their_receives_back() {
    run("busy", async {
        // 96 receives, of which the busy ones keep some.
        let mut star = Star::new("shm", 6, sharing(), None).await;
        let mut busy = Vec::new();
        for _ in 0..4 {
            let pair = star.connect().await;
            pair.1.with(|probe| {
                probe.works = Some(|| (0..2_000).for_each(|_| std::hint::spin_loop()))
            });
            pair.0.shard.with(pair.0.key, |probe| {
                probe.habit = Habit::Echo;
                (0..400).for_each(|_| probe.send(b"on and on"));
            });
            busy.push(pair);
        }
        for _ in 0..40 {
            part(star.connect().await).await;
        }
        for (client, server) in busy {
            client.shard.shutdown_now();
            server.shard.release(server.key);
            server.gone().await;
        }
        star.end().await;
    });
}

/// What was leaving counted as room, and then whoever came for it was refused as busy, where the server
/// would have taken another shard.
#[test]
fn a_shard_has_no_room_before_what_leaves_has_left() {
    run_on_one_thread("room", async {
        let plan = FaultPlan::new(1).leave_late(500);
        // 16 receives, of which a grown window has 12.
        let mut star = Star::new("mem", 1, sharing(), Some(plan)).await;
        let entries = server_completions(&sharing(), &**star.server.device());
        let has_room = |star: &Star| star.server.has_room_for(1, entries, &sharing());
        let first = star.connect().await;
        while windows(&first.1).0 < 8 {
            burst(&first.0, 100).await;
        }
        part(first).await;
        assert_eq!(star.granted(), 12);
        assert!(!has_room(&star));
        // Nothing but time tells.
        pause();
        star.until_granted(0).await;
        resume();
        assert!(has_room(&star));
        part(star.connect().await).await;
        pause();
        star.end().await;
    });
}

#[test]
fn set_ups_that_fail_before_there_is_a_queue_pair_keep_no_receives() {
    run("set-ups that fail", async {
        let limit = MemoryBudget::new(64 << 20);
        let plan = FaultPlan::new(1).profile(&MLX5).lock_limit(&limit);
        let mut star = Star::new("mem", 1, sharing(), Some(plan)).await;
        // The buffers of a window that has grown are there already; those to send from are not.
        let first = star.connect().await;
        while windows(&first.1).0 < 8 {
            burst(&first.0, 100).await;
        }
        part(first).await;
        star.until_granted(0).await;
        parked(&star.server).await;
        let all = limit.reserve(limit.limit_bytes() - limit.used_bytes()).unwrap();
        for _ in 0..4 {
            let [accepted, _] = star.refused().await;
            assert!(!accepted.contains("of which other connections have"), "{accepted}");
            assert_eq!(star.granted(), 0);
        }
        drop(all);
        let after = star.connect().await;
        burst(&after.0, 100).await;
        part(after).await;
        star.end().await;
    });
}
