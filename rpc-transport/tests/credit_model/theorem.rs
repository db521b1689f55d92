//! The plain strategy of document 004: Acks at the thresholds, grants in Acks only, no idle Acks.
//!
//! It deadlocks iff `I <= D / T`, where the Acks that spend an end's ack window `I` are due to the
//! *other* end's data window `D` and threshold `T`; for unequal ends, iff this holds both ways.

use rpc_transport::protocol::credit::{Rules, Window};

use crate::search::search;
use crate::world::{Config, Failure};
use crate::{is_deep, window};

/// A window and the data threshold of its owner.
type Side = (Window, u16);

fn plain(sides: [Side; 2], ack_threshold: impl Fn(Window) -> u16) -> Config {
    let mut config = Config::credits_only(sides.map(|side| side.0)).broken(|rules| {
        rules.piggyback_data = false;
        rules.piggyback_acks = false;
    });
    config.idle_acks = false;
    config.rules = sides.map(|(window, threshold)| Rules {
        data_threshold: Some(threshold),
        ack_threshold: Some(ack_threshold(window)),
        ..config.rules[0]
    });
    config
}

fn is_stuck_in_theory([(a, a_threshold), (b, b_threshold)]: [Side; 2]) -> bool {
    b.ack <= a.data / a_threshold && a.ack <= b.data / b_threshold
}

fn check(sides: [Side; 2], ack_threshold: impl Fn(Window) -> u16) {
    let is_stuck = match search(&plain(sides, ack_threshold)) {
        Ok(_) => false,
        Err(run) => {
            assert!(matches!(run.failure, Failure::Stuck(_)), "{run:?}");
            true
        }
    };
    assert_eq!(is_stuck, is_stuck_in_theory(sides), "{sides:?}");
}

#[test]
fn plain_strategy_equal_ends() {
    for data in 1..=6u16 {
        for ack in 1..=4 {
            let mut thresholds = vec![data / 2, data.div_ceil(2), data / 2 + 1];
            thresholds.retain(|t| (1..=data).contains(t));
            thresholds.dedup();
            for threshold in thresholds {
                check([(window(data, ack), threshold); 2], Window::ack_threshold);
            }
        }
    }
}

#[test]
fn plain_strategy_unequal_ends() {
    for a in sides(3) {
        for b in sides(3) {
            check([a, b], Window::ack_threshold);
        }
    }
}

/// The theorem does not mention the threshold of acks, and need not.
#[test]
fn plain_strategy_any_ack_threshold() {
    let most = if is_deep() { 3 } else { 2 };
    for a in sides(most) {
        for b in sides(most) {
            check([a, b], |_| 1);
            check([a, b], |window| window.ack);
        }
    }
}

/// Every window up to `most` data credits and 3 acks, with every threshold.
fn sides(most: u16) -> impl Iterator<Item = Side> {
    (1..=most).flat_map(|data| {
        (1..=3).flat_map(move |ack| (1..=data).map(move |t| (window(data, ack), t)))
    })
}

/// With `T = D / 2 + 1`, `D / T` is always 1; with half a window rounded down, 2 and 3 are unsafe.
#[test]
fn thresholds_of_production_satisfy_the_theorem() {
    for data in 1..=4095 {
        let window = window(data, 2);
        let threshold = window.data_threshold();
        assert!((1..=data).contains(&threshold));
        assert!(!is_stuck_in_theory([(window, threshold); 2]), "{data}");
    }
    for (data, threshold) in [(2, 1), (3, 1)] {
        assert!(is_stuck_in_theory([(window(data, 2), threshold); 2]));
    }
}
