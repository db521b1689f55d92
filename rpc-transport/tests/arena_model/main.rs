//! The model test of the arena: an owner and a writer joined by two in-order wires, driven by
//! random operations, checked against an oracle that knows the contents of every chunk.
//!
//! A failure prints its seed; `MODEL_SEED=<seed>` runs that one alone, and `MODEL_RUNS=<count>`
//! runs more than usual.

#[path = "../support/random.rs"]
mod random;
mod world;

use self::random::{for_seeds, variable};
use self::world::World;

const RUNS: u64 = 1500;
const STEPS: u64 = 500;

#[test]
fn chunks_are_never_shared_lost_or_misplaced() {
    let mut seen = world::Seen::default();
    for_seeds(1, RUNS, |random| {
        let mut world = World::new(random);
        for _ in 0..random.below(STEPS) {
            world.step(random);
        }
        // The application keeps what it holds; the rest must still get through.
        world.drain(random);
        world.check_all_delivered();
        world.release_all();
        world.drain(random);
        world.check_all_home();
        seen.add(&world.seen);
    });
    if variable("MODEL_SEED").is_none() {
        seen.check();
    }
}
