//! Connecting a command to its server.

use rpc_core::Channel;
use rpc_core::LinkConfig;

use super::cli::ConnectArgs;
use super::error::CommandError;
use super::service::FilesClient;

/// Receive buffers of both ends, bytes: a block then travels in few segments.
const RECEIVE_BUFFER_BYTES: u32 = 64 << 10;

/// What both ends use.
pub(crate) fn link() -> LinkConfig {
    LinkConfig::default().receive_buffer_bytes(RECEIVE_BUFFER_BYTES)
}

/// Connects. Calls have no deadline, since how long a large file takes nobody knows: that a server is
/// gone is found by the connection.
pub(crate) async fn connect(args: &ConnectArgs) -> Result<FilesClient, CommandError> {
    let channel = Channel::builder()
        .codec(args.codec.into())
        .poll_mode(args.poll.into())
        .link(link())
        .connect(args.address.to_string())
        .await
        .map_err(CommandError::Connect)?;
    Ok(FilesClient::new(channel))
}
