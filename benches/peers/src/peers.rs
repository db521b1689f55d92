//! One file for each peer: its echo service, its settings, and how it is connected.

pub(crate) mod capnp;
pub(crate) mod floors;
pub(crate) mod iceoryx2;
pub(crate) mod ours;
pub(crate) mod ruapc;
pub(crate) mod tarpc;
pub(crate) mod tonic;
