//! The model test of streams: two sessions, their streams, and tasks that sleep until woken.
//!
//! A failure prints its seed; `MODEL_SEED=<seed>` runs that one alone, and `MODEL_RUNS=<count>`
//! runs more than usual.

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
fn arbitrary_peer_is_served_or_refused_without_leftovers() {
    let mut taken = 0;
    for_seeds(0, RUNS, |rng| taken += run_hostile(rng));
    if variable("MODEL_SEED").is_none() {
        assert!(taken > 8 * RUNS, "{taken} frames in {RUNS} runs");
    }
}

/// Whether the model detects a broken rule.
fn is_noticed(broken: Broken) -> bool {
    let fails = |seed| {
        let run = || run(&mut Rng::new(seed), Some(broken));
        catch_unwind(AssertUnwindSafe(run)).is_err()
    };
    (0..300).any(fails)
}

#[test]
fn items_sent_without_credit_are_detected() {
    assert!(is_noticed(Broken::ItemsWaitForCredit));
}

#[test]
fn waiting_for_whole_item_credit_is_detected() {
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
fn silently_dropped_receiver_is_detected() {
    assert!(is_noticed(Broken::DroppedReceiversStop));
}

#[test]
fn room_that_does_not_come_back_is_noticed() {
    assert!(is_noticed(Broken::RoomComesBack));
}
