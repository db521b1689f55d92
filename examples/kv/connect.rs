//! Connecting a command to its server.

use std::time::Duration;

use rpc_core::Channel;
use rpc_core::LinkConfig;

use super::cli::ConnectArgs;
use super::error::CommandError;
use super::service::{KvClient, MAX_MESSAGE_BYTES};

/// Both ends accept the largest value in one message.
pub(crate) fn link() -> LinkConfig {
    // A value is kept in memory, so it is reassembled there, whatever its size.
    LinkConfig::default().max_message_bytes(MAX_MESSAGE_BYTES).assembly_bytes(MAX_MESSAGE_BYTES)
}

/// Connects. Calls end after the requested timeout.
pub(crate) async fn connect(args: &ConnectArgs) -> Result<KvClient, CommandError> {
    connect_with(args, Some(args.timeout)).await
}

/// Connects for calls without a time limit.
pub(crate) async fn connect_for_ever(args: &ConnectArgs) -> Result<KvClient, CommandError> {
    connect_with(args, None).await
}

async fn connect_with(
    args: &ConnectArgs,
    timeout: Option<Duration>,
) -> Result<KvClient, CommandError> {
    let builder = Channel::builder()
        .codec(args.codec.into())
        .poll_mode(args.poll.into())
        .link(link())
        .default_timeout(timeout);
    let builder = args.tls.secure(builder).map_err(CommandError::Connect)?;
    let channel = if args.wait {
        args.address.connect_lazy(builder.wait_for_ready(true))
    } else {
        // The command ends with its connection.
        args.address.connect(builder.reconnect(None)).await
    };
    Ok(KvClient::new(channel.map_err(CommandError::Connect)?))
}
