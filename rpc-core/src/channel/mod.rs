//! The decisions of a channel: when to reconnect, which end point gets a call, and whether a call
//! is retried or hedged.
//!
//! Pure: no clock, no I/O, no thread, no async, no random numbers. Time and chance are arguments,
//! so that the same code runs in production and, under virtual time, in the model tests. The
//! decisions are carried out in [`client`](crate::client).

pub mod backoff;
pub mod balancing;
pub mod connectivity;
pub mod endpoint;
pub mod hedging;
pub mod membership;
pub mod outliers;
pub mod picker;
pub mod plan;
pub mod quick;
pub mod rendezvous;
pub mod resolution;
pub mod retry;
pub mod standing;
pub mod throttle;
