//! What a channel decides, apart from the doing: when to connect again, which end point a call goes
//! to, and whether a call may be tried again or twice at once.
//!
//! Pure: no clock, no I/O, no thread, no async, no random numbers. Time and chance are arguments, so
//! that the same code runs in production and, under virtual time, in the model tests. The doing is
//! in [`client`](crate::client).

pub mod backoff;
pub mod connectivity;
pub mod hedging;
pub mod picker;
pub mod retry;
pub mod throttle;
