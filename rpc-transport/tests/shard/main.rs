//! The movers of bytes from end to end: shards, drivers and set-up over every wire, with a small
//! protocol on top. Nothing here asserts a time; what hangs is killed.
#![allow(missing_docs, clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod ends;
mod faulty;
mod panics;
mod probe;
#[path = "../support/random.rs"]
mod random;
mod setup;
mod timers;
mod traffic;
mod world;
