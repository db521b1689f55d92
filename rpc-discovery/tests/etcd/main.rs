//! The resolver and the registry against an etcd of their own: `apt-get install etcd-server
//! etcd-client`.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod cluster;
mod fleet;
mod process;
mod proxy;
mod registration;
mod survival;
mod watched;
