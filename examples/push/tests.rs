//! The unit tests of `push`, as a target of their own: Cargo builds an example either as a program
//! or with the test harness, and the end-to-end tests need the program.

#[allow(dead_code, reason = "the program's own build reports what is unused")]
#[path = "main.rs"]
mod push;
