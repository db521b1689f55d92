//! The model test of the session.
//!
//! A failure prints its seed; `MODEL_SEED=<seed>` runs that one alone, and `MODEL_RUNS=<count>`
//! runs more than usual.

use models::for_bytes;
use models::session::{Tally, run};
use test_kit::{for_seeds, variable};

const RUNS: u64 = 4000;

#[test]
fn random_operations_keep_every_promise() {
    let mut tally = Tally::default();
    for_seeds(0, RUNS, |rng| tally.add(&run(rng)));
    if variable("MODEL_SEED").is_none() {
        tally.check();
    }
}

#[test]
fn operations_decoded_from_bytes_keep_every_promise() {
    for_bytes(RUNS / 4, 600, |rng| _ = run(rng));
}
