//! Shared parts of the examples: the options that every program takes, serving until a signal,
//! logging, the words for sizes and times, and helpers for their tests. `rpc-core` can be used
//! without any of this.

pub mod channel;
pub mod logging;
pub mod options;
pub mod serving;
pub mod testing;
pub mod tls;
pub mod units;
