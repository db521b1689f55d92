//! The unit tests of `fleet`, as a target of their own: see those of `kv`.

#[allow(dead_code, reason = "the program's own build reports what is unused")]
#[path = "main.rs"]
mod fleet;
