//! Transfers that are cancelled at random steps, concurrently with others: late writes of the peer
//! land in no other call's memory, neither in an arena nor in a reply slot.
//!
//! The seed is printed; `RPC_TEST_SEED` repeats a run.

use std::future::Future;
use std::pin::Pin;

use rpc_core::{Bulk, Status};
use test_kit::Rng;
use tests::probe::ProbeClient;
use tests::scheme::Scheme;
use tests::service::pattern;
use tests::world::World;

use crate::SERVER;
use crate::random_frames::seed_word;

on_every_device! {
    aborted_transfers_write_into_no_other_call,
}

const WAVES: u64 = 8;
/// Calls of a wave that are cancelled, and as many before and after them that are not.
const CALLS: u64 = 6;
/// Waves whose payloads are kept and checked again: a late write would change a payload that was
/// right before.
const KEPT_WAVES: usize = 2;
const LARGEST: u64 = 400_000;

/// A started call, and the payload that it returns.
struct Transfer {
    call: Pin<Box<dyn Future<Output = Result<Bulk, Status>>>>,
    size: usize,
    seed: u64,
}

impl Transfer {
    /// Of a random size, down or in both directions, into a slot or into any memory.
    fn start(client: &ProbeClient, random: &mut Rng) -> Self {
        let size = usize::try_from(20_000 + random.below(LARGEST)).expect("small");
        let seed = random.below(u64::MAX);
        let slot = || client.channel().bulk_pool().slot(size).expect("a slot");
        let produce = || client.produce_bulk(size as u64, seed);
        let produced = |bulk: Option<Bulk>| bulk.expect("a handler has a pool");
        let bulk = || client.bulk(Bulk::from(pattern(size, seed)));
        let call: Pin<Box<dyn Future<Output = _>>> = match random.below(4) {
            0 => {
                let call = produce().start();
                Box::pin(async move { call.await.map(produced) })
            }
            1 => {
                let call = produce().into(slot()).start();
                Box::pin(async move { call.await.map(produced) })
            }
            2 => Box::pin(bulk().start()),
            _ => Box::pin(bulk().into(slot()).start()),
        };
        Self { call, size, seed }
    }
}

/// A payload that has arrived, and the contents that it must keep.
struct Arrived {
    bulk: Bulk,
    size: usize,
    seed: u64,
}

fn check(arrived: &[Arrived], when: &str) {
    for Arrived { bulk, size, seed } in arrived {
        assert!(*bulk == pattern(*size, *seed), "{size} bytes of seed {seed} differ {when}");
    }
}

async fn aborted_transfers_write_into_no_other_call(scheme: Scheme) {
    let mut random = Rng::new(seed_word());
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let mut kept: Vec<Vec<Arrived>> = Vec::new();
    for wave in 0..WAVES {
        let mut start = || Transfer::start(&client, &mut random);
        let mut honest: Vec<Transfer> = (0..CALLS).map(|_| start()).collect();
        let mut given_up: Vec<Transfer> = (0..CALLS).map(|_| start()).collect();
        while !given_up.is_empty() {
            // Small calls pass the large ones, so each number of them cancels at another step.
            for a in 0..random.below(4) {
                assert_eq!(client.add(a, 1).await, Ok(a + 1));
            }
            let at = usize::try_from(random.below(given_up.len() as u64)).expect("small");
            drop(given_up.swap_remove(at));
            // Takes the available memory.
            honest.push(Transfer::start(&client, &mut random));
        }
        let mut arrived = Vec::new();
        for Transfer { call, size, seed } in honest {
            let bulk = call.await.expect("nobody gave this one up");
            arrived.push(Arrived { bulk, size, seed });
            check(&arrived[arrived.len() - 1..], "on arrival");
        }
        kept.push(arrived);
        kept.iter().for_each(|arrived| check(arrived, "later"));
        if kept.len() > KEPT_WAVES {
            kept.remove(0);
        }
        println!("wave {wave}: all right");
    }
    assert!(client.channel().close_cause().is_none(), "nothing of this breaks a rule");
}
