//! Certificates of the programs, from a directory as `rpcctl cert dev` writes it.

use std::path::{Path, PathBuf};

use rpc_core::security::{Tls, TlsError};

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
    /// What a channel takes, if there is TLS.
    ///
    /// # Errors
    /// [`TlsError`]: a file cannot be used.
    pub fn load(&self) -> Result<Option<Tls>, TlsError> {
        let load =
            |directory: &PathBuf| Ok(load(directory, "client")?.expect_peer(&self.expect_peer));
        self.tls.as_ref().map(load).transpose()
    }
}

/// What a server takes.
///
/// # Errors
/// [`TlsError`]: a file cannot be used.
pub fn server(directory: &Path) -> Result<Tls, TlsError> {
    load(directory, "server")
}

fn load(directory: &Path, role: &str) -> Result<Tls, TlsError> {
    let file = |name: String| directory.join(name);
    let (cert, key) = (file(format!("{role}.pem")), file(format!("{role}-key.pem")));
    Tls::from_pem(cert, key, directory.join("ca.pem"))
}
