//! Shared utilities of clients and servers, unknown to the protocol.

pub(crate) mod blocking;
pub(crate) mod driver_thread;
pub(crate) mod home;
pub(crate) mod phase;
pub(crate) mod random;
pub(crate) mod timer;
pub(crate) mod watched;
