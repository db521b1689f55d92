//! Helpers shared by the tests of all crates.
//!
//! | module | idea |
//! |---|---|
//! | `rng` | random numbers from a seed that a failure prints, or from the bytes of a fuzzer |
//! | `watchdog` | a hard time limit for a test that hangs |
//! | `clock` | time that passes when the test advances it |
//! | `daemon` | programs of the system, such as etcd, that end with the test |
//! | `sandbox` | system calls that are refused to a thread |
//! | `certificates` | authorities, and certificates that are wrong in one way |
//! | `hostile` | peers that speak the wires byte by byte, and lie |
//!
//! Depends on none of the crates under test: a peer that shared their code would share their
//! mistakes.

#[cfg(feature = "certificates")]
pub mod certificates;
mod clock;
pub mod daemon;
pub mod hostile;
mod rng;
pub mod sandbox;
mod watchdog;

pub use self::clock::Clock;
pub use self::rng::{PrintSeed, Rng, for_seeds, variable};
pub use self::watchdog::Watchdog;
