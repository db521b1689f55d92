//! Shared parts of the examples: the options that every program takes, serving until a signal,
//! logging, the words for sizes and times, and what their tests need. Nothing here is needed to use `rpc-core`.

pub mod channel;
pub mod logging;
pub mod metrics;
pub mod options;
pub mod serving;
pub mod signals;
pub mod testing;
pub mod units;
