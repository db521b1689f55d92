//! One file for each peer: its echo service, its settings, and how it is connected.

#[cfg(feature = "capnp")]
pub(crate) mod capnp;
pub(crate) mod floors;
#[cfg(feature = "iceoryx2")]
pub(crate) mod iceoryx2;
pub(crate) mod ours;
pub(crate) mod ruapc;
#[cfg(feature = "tarpc")]
pub(crate) mod tarpc;
#[cfg(feature = "tonic")]
pub(crate) mod tonic;
