//! What registries say and what is done about it, without clock, socket or runtime.
//!
//! Time and random numbers are arguments. The other folders ask, listen and write.

pub(crate) mod base64;
pub(crate) mod entry;
pub(crate) mod etcd_follow;
pub(crate) mod etcd_messages;
pub(crate) mod jitter;
pub(crate) mod lease;
pub(crate) mod lines;
pub(crate) mod problems;
pub(crate) mod reach;
