//! Windows that start small and grow by demand (rules 8 to 10): no state is bad, whenever and
//! however often they grow, and without any one of these rules some state is.

use rpc_transport::protocol::credit::{Rules, SendQueueBudget, Window};

use crate::search::search;
use crate::world::{Config, Failure};
use crate::{NEVER, budget, failure, holds, is_deep, window};

/// Windows of both ends that start with `first` data credits.
fn from(first: u16, windows: [Window; 2]) -> Config {
    growing(first, Config::credits_only(windows))
}

fn growing(first: u16, config: Config) -> Config {
    Config { firsts: [first; 2], ..config }
}

/// The shortest failing run with a rule broken on top.
fn without(config: Config, break_rules: impl Fn(&mut Rules)) -> Option<Failure> {
    failure(&config.broken(break_rules))
}

#[test]
fn all_rules_while_windows_grow() {
    for (first, data) in [(1, 2), (2, 3), (1, 3), (2, 4), (1, 4)] {
        holds(&from(first, [window(data, 2); 2]));
    }
    holds(&from(1, [window(2, 3); 2]));
    if is_deep() {
        for (first, data) in [(2, 3), (1, 3), (2, 4), (1, 4), (1, 5), (2, 5), (3, 5)] {
            holds(&from(first, [window(data, 3); 2]));
        }
    }
}

#[test]
fn all_rules_while_unequal_windows_grow() {
    for [a, b] in [[4, 1], [3, 2]] {
        holds(&from(1, [window(a, 2), window(b, 2)]));
        holds(&from(2, [window(a, 2), window(b, 3)]));
    }
    if is_deep() {
        holds(&from(1, [window(4, 2), window(3, 2)]));
        holds(&from(2, [window(4, 2), window(3, 3)]));
    }
}

#[test]
fn all_rules_hold_while_windows_grow() {
    for interval in [1, NEVER] {
        let ends = budget(2, 1, interval);
        holds(&growing(1, Config::with_queue([window(2, 2); 2], [ends; 2])));
    }
    let larger = SendQueueBudget { ack_slots: 1, ..budget(2, 2, NEVER) };
    holds(&growing(1, Config::with_queue([window(2, 2); 2], [larger; 2])));
    if is_deep() {
        holds(&growing(1, Config::with_queue([window(3, 2); 2], [budget(2, 1, NEVER); 2])));
        holds(&growing(2, Config::with_queue([window(3, 2); 2], [budget(2, 1, NEVER); 2])));
    }
}

#[test]
fn acks_die_out_while_windows_grow() {
    for (first, data) in [(1, 2), (1, 3), (2, 4)] {
        let config = from(first, [window(data, 2); 2]);
        holds(&Config { drain: true, ..config });
    }
}

/// The search covers growth only if windows do grow, up to the offer, and the peer sees it.
#[test]
fn windows_grow_to_what_was_offered() {
    let grown = search(&from(1, [window(4, 2); 2])).expect("holds").largest;
    assert_eq!(grown, 4);
}

#[test]
fn growth_before_the_recvs_are_posted_is_rnr() {
    for (first, data) in [(1, 2), (2, 4)] {
        let config = from(first, [window(data, 2); 2]).broken(|_| ());
        let failure = failure(&Config { repost_first: false, ..config });
        assert!(matches!(failure, Some(Failure::Rnr(_))), "{failure:?}");
    }
}

#[test]
fn threshold_of_the_offer_deadlocks_before_growth() {
    for data in 2..=4 {
        let config = from(1, [window(data, 2); 2]);
        let failure = without(config, |rules| {
            rules.data_threshold = Some(window(data, 2).data_threshold());
            rules.piggyback_data = false;
        });
        assert!(matches!(failure, Some(Failure::Stuck(_))), "{data}: {failure:?}");
    }
}

#[test]
fn growth_beyond_what_was_offered_is_refused() {
    let failure = without(from(2, [window(3, 2); 2]), |rules| rules.grows_beyond_offer = true);
    assert!(matches!(failure, Some(Failure::Refused(..))), "{failure:?}");
}

/// Nothing would deadlock, but a window would grow to the whole offer at once.
#[test]
fn answering_both_equal_questions_grows_twice() {
    // The smallest window that two messages can ask for, and that may grow twice.
    let config = from(3, [window(7, 2), window(1, 2)]);
    let config = config.broken_strictly(|rules| rules.grows_twice = true);
    let failure = failure(&config);
    assert!(matches!(failure, Some(Failure::GrownTwice(_))), "{failure:?}");
}

#[test]
fn growth_in_silence_is_refused() {
    let failure = without(from(1, [window(2, 2); 2]), |rules| rules.grows_in_silence = true);
    assert!(matches!(failure, Some(Failure::Refused(..))), "{failure:?}");
}
