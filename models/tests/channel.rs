//! The model test of a channel's decisions.
//!
//! A failure prints its seed; `MODEL_SEED=<seed>` runs that one alone, and `MODEL_RUNS=<count>`
//! runs more than usual.

use models::channel::{Tally, run};
use models::{balancing, for_bytes, hedging};
use test_kit::{for_seeds, variable};

const RUNS: u64 = 3000;

#[test]
fn every_call_ends_once_without_a_storm() {
    let mut tally = Tally::default();
    for_seeds(0, RUNS, |rng| tally.add(&run(rng)));
    if variable("MODEL_SEED").is_none() {
        tally.check();
    }
}

#[test]
fn hedges_keep_the_budget_and_end_once() {
    let mut tally = hedging::Tally::default();
    for_seeds(0, RUNS, |rng| tally.add(&hedging::run(rng)));
    if variable("MODEL_SEED").is_none() {
        tally.check();
    }
}

#[test]
fn each_end_point_that_answers_well_gets_calls() {
    let mut tally = balancing::Tally::default();
    for_seeds(0, RUNS / 30, |rng| tally.add(&balancing::run(rng)));
    if variable("MODEL_SEED").is_none() {
        tally.check();
    }
}

#[test]
fn an_end_point_that_hangs_gets_few_calls() {
    for_seeds(0, RUNS / 10, balancing::run_hanging);
}

#[test]
fn operations_decoded_from_bytes_keep_every_promise() {
    for_bytes(RUNS / 4, 600, |rng| _ = run(rng));
    for_bytes(RUNS / 4, 600, |rng| _ = hedging::run(rng));
    for_bytes(RUNS / 40, 600, |rng| _ = balancing::run(rng));
}
