//! The data movers from end to end: shards, drivers and set-up over every wire, with a small
//! protocol on top. Nothing here asserts a time; a watchdog kills tests that hang.
#![allow(missing_docs, clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod bounds;
mod dropped;
mod ends;
mod faulty;
mod held_doorbells;
mod hostile;
mod large;
mod locked;
mod panics;
mod parts;
mod paused;
mod probe;
#[path = "../support/random.rs"]
#[allow(dead_code, reason = "shared with tests that use more of it")]
mod random;
mod raw;
mod secure;
mod setup;
mod shared;
mod shares_given_back;
mod slots;
mod slow_link;
mod small;
mod timers;
mod traffic;
mod windows;
mod world;
