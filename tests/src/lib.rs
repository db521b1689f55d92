//! Shared parts of the end-to-end tests.

use std::sync::atomic::{AtomicU64, Ordering};

use rpc_core::service::Dispatch;
use rpc_core::{Channel, Codec, PollMode, Server};

/// Serves `service` over `mem://` under a name of its own, on the current runtime, and connects.
///
/// # Panics
/// When the server cannot be bound or connected.
pub async fn in_process(service: impl Dispatch, codec: Codec) -> Channel {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    let address = format!("mem://in-process-{}", NAMES.fetch_add(1, Ordering::Relaxed));
    let server = Server::builder()
        .add_service(service)
        .poll_mode(PollMode::Event)
        .bind(&address)
        .await
        .expect("a fresh mem:// name can be bound");
    tokio::spawn(server.serve());
    Channel::builder()
        .codec(codec)
        .poll_mode(PollMode::Event)
        .connect(&address)
        .await
        .expect("a server that has been bound can be connected")
}
