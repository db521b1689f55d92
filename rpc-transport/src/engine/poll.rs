//! Who polls the CQ, and how it waits while nothing arrives.
//!
//! **Owns** the choice of the caller that polls instead of the driver, and the rules of waiting.
//! The [driver](crate::engine::driver) follows them; the [shard](crate::engine::shard) handles what
//! a poll finds.

mod give_way;
pub(in crate::engine) mod lead;
pub(in crate::engine) mod pacer;
mod rules;
pub mod spin;
pub(in crate::engine) mod yield_core;

pub use self::give_way::give_way;
