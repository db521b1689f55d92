//! What a running service tells of itself: counts ([`stats`]) and spans ([`trace`]).

pub mod stats;
pub mod trace;
pub(crate) mod trace_parent;
