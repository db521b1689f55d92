//! Shared parts of the examples: the options that every program takes, logging, signals, and the
//! words for sizes and times. Nothing here is needed to use `rpc-core`.

pub mod logging;
pub mod options;
pub mod signals;
pub mod units;
