//! The model test of the two pure layers together.
//!
//! A failure prints its seed; `MODEL_SEED=<seed>` runs that one alone, and `MODEL_RUNS=<count>`
//! runs more than usual.

use models::calls::{Seen, run};
use models::for_bytes;
use test_kit::{for_seeds, variable};

const RUNS: u64 = 600;

#[test]
fn abandoned_streaming_calls_cost_only_themselves() {
    let mut seen = Seen::default();
    for_seeds(0, RUNS, |rng| seen.add(run(rng)));
    if variable("MODEL_SEED").is_none() {
        // A run proves nothing if the interesting cases did not occur.
        for (name, count) in seen.all() {
            assert!(*count > 30, "{count} {name}");
        }
    }
}

#[test]
fn calls_decoded_from_bytes_keep_the_same_promises() {
    for_bytes(RUNS / 4, 1000, |rng| _ = run(rng));
}
