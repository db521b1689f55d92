//! What the tests of all crates share.
//!
//! | module | idea |
//! |---|---|
//! | `rng` | random numbers from a seed that a failure prints, or from the bytes of a fuzzer |
//! | `watchdog` | a hard end for a test that is stuck |
//! | `clock` | time that passes when the test says so |
//! | `hostile` | peers that speak the wires byte by byte, and lie |
//!
//! Knows none of the crates under test: a peer that shared their code would share their mistakes.

mod clock;
pub mod hostile;
mod rng;
mod watchdog;

pub use self::clock::Clock;
pub use self::rng::{PrintSeed, Rng, for_seeds, variable};
pub use self::watchdog::Watchdog;
