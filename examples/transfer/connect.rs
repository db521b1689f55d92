//! Connecting a command to its server.

use rpc_core::Channel;

use super::cli::ConnectArgs;
use super::error::CommandError;
use super::service::FilesClient;

/// Connects. Calls have no deadline, since nobody knows how long a large file takes: the connection
/// detects that a server is gone.
pub(crate) async fn connect(args: &ConnectArgs) -> Result<FilesClient, CommandError> {
    let builder = Channel::builder()
        .codec(args.codec.into())
        .poll_mode(args.poll.into())
        // The knowledge of the other side's files ends with the connection.
        .reconnect(None);
    let builder = args.tls.secure(builder).map_err(CommandError::Connect)?;
    let channel = builder.connect(args.address.to_string()).await;
    Ok(FilesClient::new(channel.map_err(CommandError::Connect)?))
}
