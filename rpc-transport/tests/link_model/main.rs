//! The model test of the link: two ends joined by two in-order wires under virtual time, driven by
//! random legal operations, checked against an oracle that knows every message.
//!
//! A failure prints its seed; `MODEL_SEED=<seed>` runs that one alone, and
//! `MODEL_RUNS=<count>` runs more than usual.

mod oracle;
#[path = "../support/random.rs"]
mod random;
mod world;

use self::random::{for_seeds, variable};
use self::world::{Seen, World};

const RUNS: u64 = 1000;
const STEPS: u64 = 400;

#[test]
fn every_message_that_is_not_revoked_arrives_once_intact_and_in_lane_order() {
    let mut overtakes = 0;
    let mut seen = Seen::default();
    for_seeds(1, RUNS, |random| {
        let mut world = World::new(random);
        for _ in 0..random.below(STEPS) {
            world.step(random);
        }
        world.drain(random);
        world.check_quiescent();
        overtakes += world.overtakes();
        world.count_given_up();
        seen.add(world.seen);
    });
    if variable("MODEL_SEED").is_none() {
        // The run means nothing if the interesting cases did not occur.
        assert!(overtakes > 100, "small messages overtook bulk {overtakes} times");
        for (name, count) in seen.all() {
            assert!(*count > 30, "{count} {name}");
        }
    }
}

#[test]
fn close_at_any_moment_is_the_last_frame_and_overruns_nothing() {
    for_seeds(1_000_000, RUNS, |random| {
        let mut world = World::new(random);
        for _ in 0..random.below(STEPS / 4) {
            world.step(random);
        }
        world.close(random.below(2) == 0);
        if random.below(2) == 0 {
            for _ in 0..random.below(STEPS / 4) {
                world.step(random);
            }
        }
        world.drain(random);
        world.check_closed();
    });
}

#[test]
fn what_is_still_queued_when_the_link_closes_is_known() {
    for_seeds(2_000_000, RUNS, |random| {
        let mut world = World::new(random);
        for _ in 0..random.below(STEPS / 4) {
            world.step(random);
        }
        world.close(true);
        world.close(false);
        world.drain(random);
        world.revoke_all();
        world.check_all_delivered_or_revoked();
    });
}
