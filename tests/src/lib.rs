//! Shared parts of the end-to-end tests.

use std::sync::Arc;

use rpc_core::{Channel, Codec};

/// The codecs, each of which every behaviour has to be the same with.
pub const CODECS: [Codec; 2] = [Codec::Bincode, Codec::Postcard];

/// A channel to a service in this process.
#[must_use]
pub fn in_process(service: impl rpc_core::service::Dispatch, codec: Codec) -> Channel {
    Channel::in_process(vec![Arc::new(service)], codec)
}

/// Offers a service under a `mem://` address of that name, which is given back.
///
/// # Panics
/// When the name is none.
#[must_use]
pub fn offer(name: &str, service: impl rpc_core::service::Dispatch) -> String {
    let address = format!("mem://{name}");
    in_process(service, Codec::default()).offer(&address).expect("a good name");
    address
}
