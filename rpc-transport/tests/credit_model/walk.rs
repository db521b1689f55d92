//! Random steps with windows that are too large to search.
//!
//! Owns the choice of steps. They come in bursts of one kind at one end, from a single step to a
//! whole window, so that an end may send all it can without polling, or poll one queue only. The
//! checks of the search run after each burst, and now and then both ends have to come to rest.

use std::ops::Range;

use rpc_transport::protocol::credit::{SendQueueBudget, Window};
use test_kit::Rng;

use crate::world::{Config, Failure, Large, Step, World};
use crate::{NEVER, budget, is_deep, window};

const BURSTS: u32 = 4000;

/// Bursts are of 1 to 2^n steps, with n below this.
const BURST_BITS: u16 = 14;

fn walk(config: &Config, seed: u64) -> Result<(), Failure> {
    let mut random = Rng::new(seed);
    let mut below = |bound: u16| u16::try_from(random.below(bound.into())).expect("a u16");
    let mut world = World::<Large>::new(config);
    for _ in 0..BURSTS {
        let end = usize::from(below(2));
        let kind = below(11);
        let bits = below(BURST_BITS);
        for _ in 0..=below(1 << bits) {
            let slots = 1 + below(config.budgets[end].message_slots);
            let first = slots * below(2);
            let step = match kind {
                0..3 => Step::Send { end, slots },
                3..6 => Step::Receive { end, first, grows: kind == 3 },
                6..8 => Step::Complete { end, first },
                8 => Step::IdleAck { end },
                9 => Step::Grow { end, first },
                _ => Step::Repost { end },
            };
            if !world.step(config, step)? {
                break;
            }
        }
        world.check(config)?;
        if below(200) == 0 {
            world.drain(config)?;
            world.check(config)?;
        }
    }
    Ok(())
}

fn configs() -> Vec<Config> {
    let windows: [[Window; 2]; 6] = [
        [window(64, 2); 2],
        [window(4095, 2); 2],
        [window(4095, 4095); 2],
        [window(4095, 2), window(1, 2)],
        [window(100, 3), window(7, 9)],
        [window(33, 4), window(256, 2)],
    ];
    let small = SendQueueBudget { ack_slots: 1, ..budget(17, 17, NEVER) };
    let large = SendQueueBudget { ack_slots: 4, ..budget(5000, 9, 64) };
    let budgets = [[budget(128, 17, 32); 2], [budget(1, 1, 1); 2], [small, large], [large, large]];
    let pairs = windows.iter().flat_map(|w| budgets.iter().map(move |b| (*w, *b)));
    pairs.map(|(windows, budgets)| Config::with_queue(windows, budgets)).collect()
}

fn seeds() -> Range<u64> {
    let chosen = std::env::var("RPC_MODEL_SEED").ok();
    match chosen.map(|seed| seed.parse().expect("RPC_MODEL_SEED is a number")) {
        Some(seed) => seed..seed + 1,
        None => 1..if is_deep() { 200 } else { 4 },
    }
}

#[test]
fn random_walks() {
    println!("seeds {:?}", seeds());
    for seed in seeds() {
        for config in configs() {
            let result = walk(&config, seed);
            assert_eq!(result, Ok(()), "RPC_MODEL_SEED={seed}, {config:?}");
        }
    }
}

/// The walk is effective: within a few seeds it finds the failures that the search finds.
#[test]
fn random_walks_find_broken_rules() {
    let found = |config: &Config| (1..20).find_map(|seed| walk(config, seed).err());
    let ends = SendQueueBudget { ack_slots: 1, ..budget(64, 9, NEVER) };
    let good = Config::with_queue([window(8, 2); 2], [ends; 2]);
    let late_repost = Config { repost_first: false, ..good.clone().broken(|_| ()) };
    assert!(matches!(found(&late_repost), Some(Failure::Rnr(_))));
    let no_pump = Config { pump_on_completion: false, ..good.clone() };
    assert!(matches!(found(&no_pump), Some(Failure::AckNotSent(_))));
    let very_last_slot = good.clone().broken(|rules| rules.slot_reserve = Some(1));
    assert!(matches!(found(&very_last_slot), Some(Failure::Stuck(_))));
    let acks_answer_acks = good.broken(|rules| rules.ack_threshold = Some(1));
    assert!(matches!(found(&acks_answer_acks), Some(Failure::EndlessAcks)));
}
