//! The model test of a channel's decisions.
//!
//! A failure prints its seed; `MODEL_SEED=<seed>` runs that one alone, and `MODEL_RUNS=<count>` runs
//! more than usual.

use models::channel::{Tally, run};
use models::{for_bytes, hedging};
use test_kit::{for_seeds, variable};

const RUNS: u64 = 3000;

#[test]
fn every_call_ends_once_and_is_executed_at_most_once_without_a_storm() {
    let mut tally = Tally::default();
    for_seeds(0, RUNS, |rng| tally.add(&run(rng)));
    if variable("MODEL_SEED").is_none() {
        tally.check();
    }
}

#[test]
fn second_attempts_keep_to_the_budget_and_every_race_has_one_end() {
    let mut tally = hedging::Tally::default();
    for_seeds(0, RUNS, |rng| tally.add(&hedging::run(rng)));
    if variable("MODEL_SEED").is_none() {
        tally.check();
    }
}

#[test]
fn operations_decoded_from_bytes_keep_every_promise() {
    for_bytes(RUNS / 4, 600, |rng| _ = run(rng));
    for_bytes(RUNS / 4, 600, |rng| _ = hedging::run(rng));
}
