//! Certificates of the programs, from a directory as `rpcctl cert dev` writes it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rpc_core::security::{Tls, TlsError};
use rpc_core::{ChannelBuilder, ConnectError, ListenError, ServerBuilder};

const RELOAD_EVERY: Duration = Duration::from_secs(30);

/// The client's end of `--tls`.
#[derive(Debug, clap::Args)]
pub struct ClientTls {
    /// Connect with TLS: a directory with client.pem, client-key.pem and ca.pem
    #[arg(long, value_name = "DIR", help_heading = "Connection")]
    pub tls: Option<PathBuf>,

    /// The SPIFFE id that the server must prove
    #[arg(
        long,
        value_name = "SPIFFE_ID",
        default_value = "spiffe://dev.local/server",
        help_heading = "Connection"
    )]
    pub expect_peer: String,
}

impl ClientTls {
    /// A channel that connects with TLS, if that is wanted.
    ///
    /// # Errors
    /// [`ConnectError::Config`]: a file cannot be used.
    pub fn secure(&self, channel: ChannelBuilder) -> Result<ChannelBuilder, ConnectError> {
        let Some(directory) = &self.tls else { return Ok(channel) };
        let tls = load(directory, "client").map_err(|it| ConnectError::Config(it.to_string()))?;
        Ok(channel.tls(tls.expect_peer(&self.expect_peer)))
    }
}

/// The server's end of `--tls`.
#[derive(Debug, clap::Args)]
pub struct ServerTls {
    /// Serve with TLS: a directory with server.pem, server-key.pem and ca.pem
    #[arg(long, value_name = "DIR")]
    pub tls: Option<PathBuf>,
}

impl ServerTls {
    /// A server that takes connections with TLS alone, if that is wanted.
    ///
    /// # Errors
    /// [`ListenError::Config`]: a file cannot be used.
    pub fn secure(&self, server: ServerBuilder) -> Result<ServerBuilder, ListenError> {
        let Some(directory) = &self.tls else { return Ok(server) };
        let tls = load(directory, "server").map_err(|it| ListenError::Config(it.to_string()))?;
        Ok(server.tls(tls))
    }
}

fn load(directory: &Path, role: &str) -> Result<Tls, TlsError> {
    let file = |name: String| directory.join(name);
    let (cert, key) = (file(format!("{role}.pem")), file(format!("{role}-key.pem")));
    let tls = Tls::from_pem(cert, key, directory.join("ca.pem"))?;
    Ok(tls.reload_every(RELOAD_EVERY))
}
