//! `--tls`: certificates of the programs, from a directory as `rpcctl cert dev` writes it. Programs
//! that are built without the feature `tls` lack the option.

use std::ffi::OsString;
#[cfg(feature = "tls")]
use std::path::{Path, PathBuf};
#[cfg(feature = "tls")]
use std::time::Duration;

#[cfg(feature = "tls")]
use rpc_core::security::{Tls, TlsError};
use rpc_core::{ChannelBuilder, ConnectError, ListenError, ServerBuilder};

#[cfg(feature = "tls")]
const RELOAD_EVERY: Duration = Duration::from_secs(30);

/// The client's end of `--tls`, and both ends of a program that has two.
#[derive(Debug, Clone, clap::Args)]
pub struct ClientTls {
    /// Connect with TLS: a directory with client.pem, client-key.pem and ca.pem, and those of the
    /// server if this program starts it
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "DIR", help_heading = "Connection")]
    tls: Option<PathBuf>,

    /// The SPIFFE id that the server must prove
    #[cfg(feature = "tls")]
    #[arg(
        long,
        value_name = "SPIFFE_ID",
        default_value = "spiffe://dev.local/server",
        help_heading = "Connection"
    )]
    expect_peer: String,
}

impl ClientTls {
    /// A channel that connects with TLS, if that is wanted.
    ///
    /// # Errors
    /// [`ConnectError::Config`]: a file cannot be used.
    pub fn secure(&self, channel: ChannelBuilder) -> Result<ChannelBuilder, ConnectError> {
        #[cfg(feature = "tls")]
        if let Some(directory) = &self.tls {
            let tls = load(directory, "client");
            let tls = tls.map_err(|error| ConnectError::Config(error.to_string()))?;
            return Ok(channel.tls(tls.expect_peer(&self.expect_peer)));
        }
        Ok(channel)
    }

    /// The other end, from the same directory.
    #[must_use]
    pub fn of_server(&self) -> ServerTls {
        ServerTls {
            #[cfg(feature = "tls")]
            tls: self.tls.clone(),
        }
    }

    /// Arguments that say the same to another process.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        #[cfg_attr(not(feature = "tls"), expect(unused_mut, reason = "nothing to say"))]
        let mut arguments = self.of_server().arguments();
        #[cfg(feature = "tls")]
        arguments.extend(["--expect-peer".into(), (&self.expect_peer).into()]);
        arguments
    }
}

/// The server's end of `--tls`.
#[derive(Debug, clap::Args)]
pub struct ServerTls {
    /// Serve with TLS: a directory with server.pem, server-key.pem and ca.pem
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "DIR")]
    tls: Option<PathBuf>,
}

impl ServerTls {
    /// A server that takes connections with TLS alone, if that is wanted.
    ///
    /// # Errors
    /// [`ListenError::Config`]: a file cannot be used.
    pub fn secure(&self, server: ServerBuilder) -> Result<ServerBuilder, ListenError> {
        #[cfg(feature = "tls")]
        if let Some(directory) = &self.tls {
            let tls = load(directory, "server");
            let tls = tls.map_err(|error| ListenError::Config(error.to_string()))?;
            return Ok(server.tls(tls));
        }
        Ok(server)
    }

    /// Arguments that say the same to another process.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        #[cfg(feature = "tls")]
        if let Some(directory) = &self.tls {
            return vec!["--tls".into(), directory.into()];
        }
        Vec::new()
    }
}

#[cfg(feature = "tls")]
fn load(directory: &Path, role: &str) -> Result<Tls, TlsError> {
    let file = |name: String| directory.join(name);
    let (cert, key) = (file(format!("{role}.pem")), file(format!("{role}-key.pem")));
    let tls = Tls::from_pem(cert, key, directory.join("ca.pem"))?;
    Ok(tls.reload_every(RELOAD_EVERY))
}
