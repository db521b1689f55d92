//! The model test of a locked connection.
//!
//! A failure prints its seed; `MODEL_SEED=<seed>` runs that one alone, and `MODEL_RUNS=<count>`
//! runs more than usual.

use models::for_bytes;
use models::locked_link::{Tally, run};
use test_kit::{for_seeds, variable};

const RUNS: u64 = 1000;

#[test]
fn a_locked_link_opens_for_its_peer_only() {
    let mut tally = Tally::default();
    for_seeds(0, RUNS, |rng| tally.add(&run(rng)));
    if variable("MODEL_SEED").is_none() {
        tally.check();
    }
}

#[test]
fn frames_decoded_from_bytes_unlock_nothing() {
    for_bytes(RUNS, 600, |rng| _ = run(rng));
}
