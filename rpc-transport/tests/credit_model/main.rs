//! The model checker of `credit.rs`: two ends, each with the production [`Credits`], in every state
//! that they can reach.
//!
//! - here: with all rules no state is bad, and without any one of them some state is;
//! - [`growth`]: windows that grow: no state is bad there either;
//! - [`pool`]: two connections that have the RECVs of one end together;
//! - [`theorem`]: the plain strategy of document 004 is stuck exactly where the theorem says;
//! - [`walk`]: random steps with windows too large to search.
//!
//! `RPC_MODEL_DEEP=1` adds the spaces that take minutes and gigabytes (use `--release`).
//! `RPC_MODEL_SEED=n` walks from one seed.
//!
//! [`Credits`]: rpc_transport::protocol::credit::Credits

mod fifo;
mod growth;
mod pool;
mod search;
mod theorem;
mod walk;
mod world;

use rpc_transport::protocol::credit::{Rules, SendQueueBudget, Window};

use crate::search::search;
use crate::world::{Config, Failure};

/// No WR is signaled because of the interval.
const NEVER: u16 = 1000;

fn is_deep() -> bool {
    std::env::var_os("RPC_MODEL_DEEP").is_some_and(|value| value != "0")
}

fn window(data: u16, ack: u16) -> Window {
    Window { data, ack }
}

fn budget(data_slots: u16, message_slots: u16, signal_interval: u16) -> SendQueueBudget {
    SendQueueBudget { data_slots, ack_slots: 2, message_slots, signal_interval }
}

fn holds(config: &Config) {
    match search(config) {
        Ok(report) => {
            let [a, b] = config.windows.map(|w| (w.data, w.ack));
            println!("{a:?} {b:?}: {} states, {} quiescent", report.states, report.quiescent);
        }
        Err(counterexample) => panic!("{counterexample:?}"),
    }
}

/// The failure of the shortest failing run.
fn failure(config: &Config) -> Option<Failure> {
    search(config).err().map(|counterexample| counterexample.failure)
}

macro_rules! assert_fails {
    ($config:expr, $kind:pat) => {
        let failure = failure(&$config);
        assert!(matches!(failure, Some($kind)), "{failure:?} of {:?}", $config);
    };
}

#[test]
fn all_rules_credits_alone_equal_ends() {
    let most = if is_deep() { 5 } else { 4 };
    for data in 1..=most {
        for ack in 2..=3 {
            holds(&Config::credits_only([window(data, ack); 2]));
        }
    }
}

#[test]
fn all_rules_credits_alone_unequal_ends() {
    let most = if is_deep() { 5 } else { 4 };
    let windows = || (1..=most).flat_map(|data| [window(data, 2), window(data, 3)]);
    for a in windows() {
        for b in windows().filter(|b| (b.data, b.ack) < (a.data, a.ack)) {
            holds(&Config::credits_only([a, b]));
        }
    }
}

#[test]
fn all_rules_with_send_queue() {
    for data in 1..=3 {
        for slots in 1..=2 {
            for interval in [1, NEVER] {
                let ends = budget(slots, 1, interval);
                holds(&Config::with_queue([window(data, 2); 2], [ends; 2]));
            }
        }
    }
    if is_deep() {
        holds(&Config::with_queue([window(3, 2); 2], [budget(2, 1, 2); 2]));
        holds(&Config::with_queue([window(3, 3); 2], [budget(2, 1, NEVER); 2]));
        holds(&Config::with_queue([window(3, 2); 2], [budget(3, 1, NEVER); 2]));
        holds(&Config::with_queue([window(4, 2); 2], [budget(2, 1, NEVER); 2]));
    }
}

#[test]
fn all_rules_with_unequal_send_queues() {
    let few = SendQueueBudget { ack_slots: 1, ..budget(1, 1, 2) };
    holds(&Config::with_queue([window(3, 2), window(2, 2)], [budget(2, 1, NEVER), few]));
    let many = SendQueueBudget { ack_slots: 1, ..budget(3, 2, 2) };
    if is_deep() {
        holds(&Config::with_queue([window(3, 2), window(1, 3)], [budget(2, 1, NEVER), many]));
        holds(&Config::with_queue([window(3, 2), window(2, 3)], [budget(2, 1, NEVER), many]));
    }
}

/// Messages of one slot and of `message_slots` (WRITEs + SEND), in any order.
#[test]
fn all_rules_with_messages_of_several_slots() {
    holds(&Config::with_queue([window(2, 2); 2], [budget(2, 2, NEVER); 2]));
    let few_acks = SendQueueBudget { ack_slots: 1, ..budget(3, 2, NEVER) };
    holds(&Config::with_queue([window(2, 2); 2], [few_acks; 2]));
    if is_deep() {
        for interval in [1, 2, NEVER] {
            holds(&Config::with_queue([window(2, 2); 2], [budget(3, 2, interval); 2]));
        }
        holds(&Config::with_queue([window(3, 2); 2], [budget(2, 2, NEVER); 2]));
        holds(&Config::with_queue([window(2, 2); 2], [budget(4, 3, NEVER); 2]));
    }
}

/// Fewer ack slots than the peer's ack window only delay Acks.
#[test]
fn all_rules_with_one_ack_slot() {
    for data in 1..=3 {
        let ends = SendQueueBudget { ack_slots: 1, ..budget(1, 1, NEVER) };
        holds(&Config::with_queue([window(data, 2); 2], [ends; 2]));
    }
}

/// With all credits in data headers even one ack credit is live, but then Acks answer Acks.
#[test]
fn one_ack_credit_is_live_but_never_quiet() {
    for data in 1..=4 {
        holds(&Config::credits_only([window(data, 1); 2]).broken_strictly(|_| ()));
        let config = Config::credits_only([window(data, 1); 2]).broken(|_| ());
        assert_fails!(Config { drain: true, ..config }, Failure::EndlessAcks);
    }
}

#[test]
fn acks_die_out() {
    for data in 1..=3 {
        for ack in 2..=3 {
            let config = Config::credits_only([window(data, ack); 2]);
            holds(&Config { drain: true, ..config });
        }
        let config = Config::with_queue([window(data, 2); 2], [budget(1, 1, NEVER); 2]);
        holds(&Config { drain: true, ..config });
    }
}

#[test]
fn ack_threshold_of_one_is_endless() {
    for ack in 2..=3 {
        let config = Config::credits_only([window(2, ack); 2]);
        let config = config.broken(|rules| rules.ack_threshold = Some(1));
        assert_fails!(Config { drain: true, ..config }, Failure::EndlessAcks);
    }
}

#[test]
fn no_pump_after_send_completion_is_stuck() {
    for data in 1..=3 {
        for slots in 1..=2 {
            for interval in [1, NEVER] {
                let ends = [budget(slots, 1, interval); 2];
                let config = Config::with_queue([window(data, 2); 2], ends).broken(|_| ());
                assert_fails!(Config { pump_on_completion: false, ..config }, Failure::Stuck(_));
            }
        }
    }
}

#[test]
fn no_signal_at_last_slot_deadlocks() {
    for data in 1..=3 {
        for slots in 1..=2 {
            let config = Config::with_queue([window(data, 2); 2], [budget(slots, 1, NEVER); 2]);
            let slots_only = config.clone().broken(|rules| rules.slot_reserve = Some(0));
            assert_fails!(slots_only, Failure::Stuck(_));
            let both = config.broken(|rules| {
                rules.slot_reserve = Some(0);
                rules.signal_last_credit = false;
            });
            assert_fails!(both, Failure::Stuck(_));
        }
    }
}

/// Slots are counted apart from the credits, so progress does not need this rule; but the buffers
/// of a whole window would stay in the SQ while the end waits for the peer.
#[test]
fn no_signal_at_the_last_credit_is_unswept() {
    let without = |rules: &mut Rules| rules.signal_last_credit = false;
    for data in 1..=3 {
        let config = Config::with_queue([window(data, 2); 2], [budget(2, 1, NEVER); 2]);
        assert_fails!(config.clone().broken_strictly(without), Failure::Unswept(_));
        if data < 3 || is_deep() {
            holds(&config.broken(without));
        }
    }
}

/// The literal "signal the WR that takes the last slot": one slot is left, nothing is signaled, and
/// a message of two slots waits without end.
#[test]
fn signal_at_very_last_slot_deadlocks() {
    for data in 2..=3 {
        for slots in 2..=3 {
            let config = Config::with_queue([window(data, 2); 2], [budget(slots, 2, NEVER); 2]);
            let config = config.broken(|rules| rules.slot_reserve = Some(1));
            assert_fails!(config, Failure::Stuck(_));
        }
    }
}

#[test]
fn early_acks_without_header_credits_deadlock() {
    for (data, ack, is_stuck) in [(2, 2, false), (3, 2, true), (4, 2, true), (3, 3, false)] {
        let config = Config::credits_only([window(data, ack); 2]);
        let config = config.broken(|rules| rules.piggyback_acks = false);
        if is_stuck {
            assert_fails!(config, Failure::Stuck(_));
        } else {
            holds(&config);
        }
        holds(&Config { idle_acks: false, ..config });
    }
}

#[test]
fn one_ack_credit_without_header_credits_deadlocks() {
    for data in 1..=4 {
        let config = Config::credits_only([window(data, 1); 2]);
        let config = config.broken(|rules| rules.piggyback_acks = false);
        assert_fails!(config, Failure::Stuck(_));
        assert_fails!(Config { idle_acks: false, ..config }, Failure::Stuck(_));
    }
}

#[test]
fn credit_before_repost_is_rnr() {
    for data in 1..=3 {
        for ack in 2..=3 {
            let config = Config::credits_only([window(data, ack); 2]).broken(|_| ());
            assert_fails!(Config { repost_first: false, ..config }, Failure::Rnr(_));
        }
    }
}

#[test]
fn half_threshold_without_grants_in_headers_is_stuck() {
    for data in [2, 3, 4, 5] {
        let config = Config::credits_only([window(data, 2); 2]).broken(|rules| {
            rules.piggyback_data = false;
            rules.piggyback_acks = false;
            rules.data_threshold = Some(data / 2);
        });
        assert_fails!(Config { idle_acks: false, ..config }, Failure::Stuck(_));
    }
}

/// Nothing deadlocks, but a window may rest at less than its half: the due Ack has no credit.
#[test]
fn last_ack_credit_on_idle_ack_is_thin() {
    let (data, ack) = if is_deep() { (5, 2) } else { (3, 1) };
    let config = Config::credits_only([window(data, ack); 2]);
    holds(&config.clone().broken_strictly(|_| ()));
    let config = config.broken_strictly(|rules| rules.idle_spends_last = true);
    assert_fails!(config, Failure::ThinWindow(_));
}
