//! Seeded random numbers, under the names that these tests use.

#[allow(unused_imports, reason = "not every test that shares this file needs all of them")]
pub(crate) use test_kit::{PrintSeed, Rng as Random, for_seeds, variable};
