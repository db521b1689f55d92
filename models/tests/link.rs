//! The model test of the link: two ends joined by two in-order wires under virtual time, driven by
//! legal operations in any order, checked against an oracle that knows every message.
//!
//! A failure prints its seed; `MODEL_SEED=<seed>` runs that one alone, and
//! `MODEL_RUNS=<count>` runs more than usual.

use models::for_bytes;
use models::link::{Seen, run, run_closing, run_left_behind};
use test_kit::{for_seeds, variable};

const RUNS: u64 = 1000;

#[test]
fn messages_arrive_once_intact_in_lane_order() {
    let mut overtakes = 0;
    let mut seen = Seen::default();
    for_seeds(1, RUNS, |rng| {
        let met = run(rng);
        overtakes += met.overtakes;
        seen.add(met.seen);
    });
    if variable("MODEL_SEED").is_none() {
        // A run proves nothing if the interesting cases did not occur.
        assert!(overtakes > 100, "small messages overtook bulk {overtakes} times");
        for (name, count) in seen.all() {
            assert!(*count > 30, "{count} {name}");
        }
    }
}

#[test]
fn close_is_last_and_overruns_nothing() {
    for_seeds(1_000_000, RUNS, run_closing);
}

#[test]
fn messages_queued_at_close_are_known() {
    for_seeds(2_000_000, RUNS, run_left_behind);
}

#[test]
fn operations_decoded_from_bytes_keep_the_same_promises() {
    for_bytes(RUNS / 8, 1000, |rng| _ = run(rng));
    for_bytes(RUNS / 4, 400, run_closing);
    for_bytes(RUNS / 4, 400, run_left_behind);
}
