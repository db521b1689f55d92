//! When what a connection had of the receives that a shard shares is another's again.

use rpc_transport::device::fault::{FaultPlan, MLX5};
use rpc_transport::memory::budget::MemoryBudget;

use crate::probe::Habit;
use crate::shared::{Star, burst, part, sharing};
use crate::world::run;

/// A shard that always has something to do finds no poll empty.
#[test]
fn connections_ending_on_busy_shards_return_receives() {
    run("busy", async {
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

#[test]
fn early_failed_set_ups_keep_no_receives() {
    run("set-ups that fail", async {
        let limit = MemoryBudget::new(64 << 20);
        let plan = FaultPlan::new(1).profile(&MLX5).lock_limit(&limit);
        let mut star = Star::new("mem", 1, sharing(), Some(plan)).await;
        // The shared receives are there already; buffers to send from are not.
        let all = limit.reserve(limit.limit_bytes() - limit.used_bytes()).unwrap();
        for _ in 0..4 {
            let [accepted, _] = star.refused().await;
            assert!(!accepted.contains("the shared receive queue is that of"), "{accepted}");
            assert_eq!(star.shares(), (0, 0));
        }
        drop(all);
        let after = star.connect().await;
        burst(&after.0, 100).await;
        part(after).await;
        star.end().await;
    });
}
