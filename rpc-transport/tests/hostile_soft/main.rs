//! Hostile peers of the software device: contract rule 19, for each wire.
//!
//! The peers here speak the wire formats themselves, byte by byte, and lie. Everything they do must
//! end in an error of their own connection: no panic, no hang, no access to memory of this process,
//! and an honest connection on the same CQ continues undisturbed.

#![allow(missing_docs, unsafe_code, dead_code, reason = "tests; parts of a shared fixture")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "../conformance/fixture.rs"]
mod fixture;
mod mem;
mod shm;
mod tcp;
mod victim;
