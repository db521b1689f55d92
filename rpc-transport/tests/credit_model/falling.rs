//! Windows that fall again when they are not used (rules 11 to 13): no state is bad, whenever and however
//! often they grow and fall, and without any one of these rules some state is.

use rpc_transport::protocol::credit::{CreditError, Rules, Window};

use crate::search::search;
use crate::world::{Config, Failure};
use crate::{NEVER, budget, failure, holds, is_deep, window};

/// Windows of both ends that start with `first` data credits, grow and fall.
fn from(first: u16, windows: [Window; 2]) -> Config {
    falling(first, Config::credits_only(windows))
}

fn falling(first: u16, config: Config) -> Config {
    Config { falls: true, firsts: [first; 2], ..config }
}

/// The shortest failing run with a rule broken as well.
fn without(config: Config, break_rules: impl Fn(&mut Rules)) -> Option<Failure> {
    failure(&config.broken(break_rules))
}

#[test]
fn all_rules_while_windows_grow_and_fall() {
    for (first, data) in [(1, 2), (2, 3), (1, 3), (2, 4)] {
        holds(&from(first, [window(data, 2); 2]));
    }
    if is_deep() {
        for (first, data) in [(1, 2), (2, 3), (1, 3), (2, 4), (1, 4), (2, 5), (3, 5)] {
            holds(&from(first, [window(data, 3); 2]));
        }
        holds(&from(1, [window(4, 2); 2]));
    }
}

#[test]
fn all_rules_while_unequal_windows_grow_and_fall() {
    holds(&from(1, [window(4, 2), window(1, 2)]));
    holds(&from(1, [window(3, 2), window(2, 2)]));
    if is_deep() {
        holds(&from(1, [window(4, 2), window(3, 2)]));
        holds(&from(2, [window(4, 2), window(3, 3)]));
    }
}

/// One end that starts with as few as it may, as behind a shared receive queue, and one that does not, or
/// whose window always has one size.
#[test]
fn all_rules_while_windows_of_different_beginnings_grow_and_fall() {
    for (firsts, a, b) in [([2, 1], 4, 2), ([2, 2], 4, 1), ([1, 2], 4, 2), ([2, 8], 4, 3)] {
        let config = from(1, [window(a, 2), window(b, 2)]);
        holds(&Config { firsts, ..config });
    }
    if is_deep() {
        for firsts in [[2, 1], [2, 8]] {
            holds(&Config { firsts, ..from(1, [window(4, 2), window(4, 2)]) });
        }
    }
}

#[test]
fn all_rules_while_windows_grow_and_fall_over_a_send_queue() {
    for interval in [1, NEVER] {
        let ends = budget(2, 1, interval);
        holds(&falling(1, Config::with_queue([window(2, 2); 2], [ends; 2])));
    }
    if is_deep() {
        holds(&falling(1, Config::with_queue([window(3, 2); 2], [budget(2, 1, NEVER); 2])));
    }
}

#[test]
fn acks_die_out_while_windows_fall() {
    for (first, data) in [(1, 2), (1, 3)] {
        let config = from(first, [window(data, 2); 2]);
        holds(&Config { drain: true, ..config });
    }
}

/// The search is of windows that fall only if they do.
#[test]
fn windows_do_fall() {
    let fallen = |falls| search(&Config { falls, ..from(1, [window(2, 2); 2]) }).expect("holds");
    assert!(fallen(true).falling > 0);
    assert_eq!(fallen(false).falling, 0);
}

#[test]
fn a_fall_while_messages_or_grants_are_on_their_way_is_refused() {
    for (first, data) in [(2, 3), (1, 3), (2, 4)] {
        let config = from(first, [window(data, 2); 2]);
        let failure = without(config, |rules| rules.returns_early = true);
        let refused = CreditError::ReturnedWhileOwed { owed: 1 };
        assert!(
            matches!(failure, Some(Failure::Refused(_, error)) if error == refused),
            "{failure:?}"
        );
    }
}

#[test]
fn an_answer_behind_the_grant_of_its_question_meets_a_window_that_falls() {
    let config = from(1, [window(4, 2); 2]);
    let failure = without(config, |rules| rules.answers_late = true);
    assert!(matches!(failure, Some(Failure::NotConserved(_))), "{failure:?}");
}

#[test]
fn a_fall_in_silence_loses_credits() {
    let config = from(1, [window(2, 2); 2]);
    let failure = without(config, |rules| rules.returns_in_silence = true);
    assert!(matches!(failure, Some(Failure::NotConserved(_))), "{failure:?}");
}

#[test]
fn credits_that_were_given_back_and_are_spent_overrun_the_receiver() {
    let config = from(1, [window(2, 2); 2]);
    let failure = without(config, |rules| rules.keeps_returned = true);
    assert!(matches!(failure, Some(Failure::Rnr(_) | Failure::NotConserved(_))), "{failure:?}");
}

#[test]
fn the_threshold_of_a_window_that_has_fallen_is_stuck() {
    let config = Config { idle_acks: false, ..from(1, [window(4, 2); 2]) };
    let failure = without(config, |rules| {
        rules.keeps_threshold = true;
        rules.piggyback_data = false;
    });
    assert!(matches!(failure, Some(Failure::Stuck(_))), "{failure:?}");
}
