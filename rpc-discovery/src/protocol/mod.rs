//! What registries say and what is done about it, without clock, socket or runtime.
//!
//! Time and random numbers are arguments. The other folders ask, listen and write.

#[cfg(feature = "etcd")]
pub(crate) mod base64;
#[cfg(feature = "etcd")]
pub(crate) mod entry;
#[cfg(feature = "etcd")]
pub(crate) mod etcd_follow;
#[cfg(feature = "etcd")]
pub(crate) mod etcd_messages;
pub(crate) mod jitter;
#[cfg(feature = "etcd")]
pub(crate) mod lease;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
pub(crate) mod lines;
pub(crate) mod problems;
pub(crate) mod reach;
#[cfg(feature = "dns-srv")]
pub(crate) mod records;
#[cfg(feature = "kubernetes")]
pub(crate) mod slices;
