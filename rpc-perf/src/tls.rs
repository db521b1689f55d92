//! Certificates of both ends, from a directory as `rpcctl cert dev` writes it.

use std::path::Path;

use anyhow::Result;
use rpc_core::security::{Tls, TlsError};
use rpc_core::{ChannelBuilder, ServerBuilder};

use crate::options::MeasureOptions;

/// A server that takes connections with TLS alone, if there is a directory.
pub(crate) fn serve(server: ServerBuilder, directory: Option<&Path>) -> Result<ServerBuilder> {
    let Some(directory) = directory else { return Ok(server) };
    Ok(server.tls(load(directory, "server")?))
}

/// A channel that connects with TLS, if that is wanted.
pub(crate) fn connect(channel: ChannelBuilder, options: &MeasureOptions) -> Result<ChannelBuilder> {
    let Some(directory) = &options.tls else { return Ok(channel) };
    Ok(channel.tls(load(directory, "client")?.expect_peer(&options.expect_peer)))
}

fn load(directory: &Path, role: &str) -> Result<Tls, TlsError> {
    let file = |name: String| directory.join(name);
    let (cert, key) = (file(format!("{role}.pem")), file(format!("{role}-key.pem")));
    Tls::from_pem(cert, key, directory.join("ca.pem"))
}
