//! Queues of a shard that no single connection owns stay as short as the design says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rpc_transport::connect::schemes;
use rpc_transport::engine::spin::PollMode;
use rpc_transport::protocol::config::LinkConfig;

use crate::parts::{quiet, send, shared};
use crate::probe::Habit;
use crate::world::{ByHand, End, Options, fresh_address, join, pattern, run_on_one_thread, shard};

/// `count` pairs of ends between two shards, whose drivers the test polls.
async fn pairs(count: u32, options: &Options) -> (Vec<(End, End)>, [ByHand; 2]) {
    let mut listener = schemes::listen(&fresh_address("mem")).await.unwrap();
    let resolved = schemes::resolve(&listener.local_address()).await.unwrap();
    let device = Arc::clone(resolved.outgoing.device());
    drop(resolved);
    let (near, near_driver) = shard(&device, &options.configs[0], count, options.mode);
    let (far, far_driver) = shard(&device, &options.configs[1], count, options.mode);
    let mut pairs = Vec::new();
    for _ in 0..count {
        pairs.push(join(&near, &far, &mut *listener, options).await);
    }
    (pairs, [near_driver, far_driver].map(ByHand::new))
}

/// Each connection waits in line once, however many of its messages have begun, and however often
/// more messages are submitted. All arrive.
#[test]
fn connection_with_bulk_waits_in_line_once() {
    const CONNECTIONS: u32 = 40;
    const ROUNDS: usize = 6;
    run_on_one_thread("in line", async {
        let options =
            Options { mode: PollMode::Busy, habits: [Habit::Count; 2], ..Options::alike(quiet()) };
        let (ends, [mut ours, mut theirs]) = pairs(CONNECTIONS, &options).await;
        let shard = Arc::clone(&ends[0].0.shard);
        let large = Arc::new(pattern(1, 1 << 20));
        let mut longest = 0;
        for sent in 1..=ROUNDS as u64 {
            for (near, _) in &ends {
                send(near, b"head", [shared(large.to_vec())]);
                near.send(b"small");
                longest = longest.max(shard.stats().unfinished);
            }
            while ends.iter().any(|(_, far)| far.events().received < sent) {
                let _ = ours.poll();
                longest = longest.max(shard.stats().unfinished);
                let _ = theirs.poll();
            }
        }
        while ends.iter().any(|(_, far)| far.events().received < 2 * ROUNDS as u64) {
            let _ = (ours.poll(), theirs.poll());
            longest = longest.max(shard.stats().unfinished);
        }
        assert!(longest > 1, "none had to wait: the test shows nothing");
        assert!(longest <= CONNECTIONS as usize, "{longest} in line");
        assert_eq!(shard.stats().unfinished, 0);
    });
}

/// An upper layer that sends one message between two reports of pending messages, and has several
/// at once.
#[test]
fn messages_held_back_until_a_report_follow_it() {
    const MESSAGES: u64 = 20;
    run_on_one_thread("held back", async {
        let options =
            Options { mode: PollMode::Busy, habits: [Habit::Count; 2], ..Options::alike(quiet()) };
        let (ends, [mut ours, mut theirs]) = pairs(1, &options).await;
        let (near, far) = &ends[0];
        near.with(|probe| {
            probe.per_report = 1;
            (0..MESSAGES).for_each(|_| probe.send(b"one"));
        });
        while far.events().received < MESSAGES {
            let _ = (ours.poll(), theirs.poll());
        }
    });
}

static DONE: AtomicU64 = AtomicU64::new(0);

/// A driver that has left actions for its next turn runs them before it polls again: the number of
/// waiting actions is bounded by one poll, however many messages the peer has sent.
#[test]
fn cut_batch_runs_actions_before_polling_more() {
    const POLL_BATCH: u64 = 64;
    const MESSAGES: u64 = 600;
    run_on_one_thread("cut batch", async {
        let config = LinkConfig::default().data_credits(1024).keep_alive(None);
        let options =
            Options { mode: PollMode::Busy, habits: [Habit::Count; 2], ..Options::alike(config) };
        let (ends, [mut ours, mut theirs]) = pairs(1, &options).await;
        let (near, far) = &ends[0];
        far.with(|probe| {
            probe.works = Some(|| {
                DONE.fetch_add(1, Ordering::Relaxed);
            });
        });
        for _ in 0..MESSAGES {
            near.send(b"work");
        }
        let mut most = 0;
        while DONE.load(Ordering::Relaxed) < MESSAGES {
            let _ = ours.poll();
            let _ = theirs.poll();
            most = most.max(far.events().received - DONE.load(Ordering::Relaxed));
        }
        assert!(most > 0, "no batch was cut: the test shows nothing");
        assert!(most <= POLL_BATCH, "{most} actions waited");
    });
}
