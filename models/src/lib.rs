//! Worlds that drive the pure protocol by operations, legal ones in any order, against oracles that
//! know the expected results.
//!
//! Owns the worlds and the sources of their random numbers: a seed for tests, a byte string for
//! fuzzing. Never opens a socket or reads a clock: time is a number that a world adds to.
//!
//! | world | what it drives |
//! |---|---|
//! | [`link`] | two links joined by two in-order wires, with arenas, slots and streams |
//! | [`balancing`] | the choice among end points that become slow, hang and come back |
//! | [`calls`] | two sessions over two links: the assumptions of one layer about the other |
//! | [`channel`] | a channel's decisions: reconnecting, and second attempts |
//! | [`hedging`] | second attempts of calls whose first one runs: the budget, and races |
//! | [`locked_link`] | one end of a locked connection, with a peer that lies |
//! | [`session`] | two sessions, over a wire that delays, reorders and takes messages back |
//! | [`streams`] | two sessions and their streams, with tasks that sleep until they are woken |
//!
//! A fuzz target is one line, such as `models::link::run(&mut Rng::from_bytes(data))`.

// A world fails by panicking, which a test notices.
#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::return_self_not_must_use
)]

pub mod balancing;
pub mod calls;
pub mod channel;
pub mod hedging;
pub mod link;
pub mod locked_link;
pub mod session;
pub mod streams;

use test_kit::Rng;

/// The length of a run: as long as there are bytes, or up to a number of steps of a seed.
struct Steps {
    left: Option<u64>,
}

impl Steps {
    fn new(rng: &mut Rng, most: u64) -> Self {
        Self { left: (!rng.has_bytes()).then(|| rng.below(most)) }
    }

    /// Whether there is another step.
    fn next(&mut self, rng: &Rng) -> bool {
        match &mut self.left {
            None => rng.has_bytes(),
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }
}

/// Runs `body` for many byte strings of up to `len` bytes, as a fuzzer would.
pub fn for_bytes(runs: u64, len: u64, mut body: impl FnMut(&mut Rng)) {
    test_kit::for_seeds(0, runs, |rng| {
        let len = rng.index(usize::try_from(len).expect("small"));
        body(&mut Rng::from_bytes(&rng.bytes(len)));
    });
}
