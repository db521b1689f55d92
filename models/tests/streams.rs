//! The model test of streams: two sessions, their streams, and tasks that sleep until woken.
//!
//! A failure prints its seed; `MODEL_SEED=<seed>` runs that one alone, and `MODEL_RUNS=<count>` runs
//! more than usual.

use std::panic::{AssertUnwindSafe, catch_unwind};

use models::for_bytes;
use models::streams::{Tally, run, run_hostile};
use rpc_core::session::Broken;
use test_kit::{Rng, for_seeds, variable};

const RUNS: u64 = 2000;

#[test]
fn random_operations_keep_every_promise() {
    let mut tally = Tally::default();
    for_seeds(0, RUNS, |rng| tally.add(run(rng, None)));
    if variable("MODEL_SEED").is_none() {
        tally.check();
    }
}

#[test]
fn operations_decoded_from_bytes_keep_every_promise() {
    for_bytes(RUNS / 4, 600, |rng| _ = run(rng, None));
}

#[test]
fn a_peer_that_says_what_it_likes_is_taken_or_told_and_leaves_nothing() {
    let mut taken = 0;
    for_seeds(0, RUNS, |rng| taken += run_hostile(rng));
    if variable("MODEL_SEED").is_none() {
        assert!(taken > 8 * RUNS, "{taken} frames in {RUNS} runs");
    }
}

/// Whether the model notices that a rule is broken.
fn is_noticed(broken: Broken) -> bool {
    let fails = |seed| {
        let run = || run(&mut Rng::new(seed), Some(broken));
        catch_unwind(AssertUnwindSafe(run)).is_err()
    };
    (0..300).any(fails)
}

#[test]
fn items_that_do_not_wait_for_credit_are_noticed() {
    assert!(is_noticed(Broken::ItemsWaitForCredit));
}

#[test]
fn an_item_that_waits_for_credit_for_all_of_its_bytes_is_noticed() {
    assert!(is_noticed(Broken::OneItemMayOverdraw));
}

#[test]
fn a_grant_for_whole_windows_only_is_noticed() {
    assert!(is_noticed(Broken::HalfAWindowIsGranted));
}

#[test]
fn a_grant_that_is_never_made_is_noticed() {
    assert!(is_noticed(Broken::ConsumedIsGranted));
}

#[test]
fn a_receiver_that_is_dropped_in_silence_is_noticed() {
    assert!(is_noticed(Broken::DroppedReceiversStop));
}
