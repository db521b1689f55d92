//! The model test of the link: two ends joined by two in-order wires under virtual time, driven by
//! random legal operations, checked against an oracle that knows every message.
//!
//! A failure prints its seed; `LINK_MODEL_SEED=<seed>` runs that one alone, and
//! `LINK_MODEL_RUNS=<count>` runs more than usual.

mod oracle;
mod random;
mod world;

use self::random::{PrintSeed, Random};
use self::world::World;

const RUNS: u64 = 1500;
const STEPS: u64 = 400;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs `body` for many seeds, or for the one that is asked for.
fn for_seeds(base: u64, mut body: impl FnMut(&mut Random)) {
    let mut run = |seed| {
        let _print = PrintSeed(seed);
        body(&mut Random::new(seed));
    };
    match variable("LINK_MODEL_SEED") {
        Some(seed) => run(seed),
        None => (base..base + variable("LINK_MODEL_RUNS").unwrap_or(RUNS)).for_each(run),
    }
}

#[test]
fn every_message_that_is_not_revoked_arrives_once_intact_and_in_lane_order() {
    let mut overtakes = 0;
    let mut aborts = 0;
    let mut pings = 0;
    for_seeds(1, |random| {
        let mut world = World::new(random);
        for _ in 0..random.below(STEPS) {
            world.step(random);
        }
        world.drain(random);
        world.check_quiescent();
        overtakes += world.overtakes();
        aborts += world.aborts;
        pings += world.pings;
    });
    if variable("LINK_MODEL_SEED").is_none() {
        // The run means nothing if the interesting cases did not occur.
        assert!(overtakes > 100, "small messages overtook bulk {overtakes} times");
        assert!(aborts > 100, "{aborts} aborts");
        assert!(pings > 100, "{pings} pings");
    }
}

#[test]
fn close_at_any_moment_is_the_last_frame_and_overruns_nothing() {
    for_seeds(1_000_000, |random| {
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
    for_seeds(2_000_000, |random| {
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
