//! Certificates of rows with TLS: one authority, a server and a client.

use std::path::{Path, PathBuf};

use anyhow::Result;
use test_kit::certificates::Authority;

use crate::row::Row;

/// The name in the certificate of the server.
pub(crate) const SERVER_NAME: &str = "localhost";

/// A directory with certificates as `rpcctl cert dev` names them. Removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Certificates(Option<PathBuf>);

impl Certificates {
    /// New ones, if the row has TLS.
    pub(crate) fn of(row: Row) -> Result<Self> {
        if !row.over.ends_with("-tls") {
            return Ok(Self(None));
        }
        let name = format!("peers-{}-{}", std::process::id(), row.peer);
        let directory = Self(Some(std::env::temp_dir().join(name)));
        let authority = Authority::new("peers");
        let (server, client) = (authority.issue(&[SERVER_NAME]), authority.issue(&["client"]));
        std::fs::create_dir_all(directory.place())?;
        for (name, content) in [
            ("ca", authority.pem()),
            ("server", server.cert),
            ("server-key", server.key),
            ("client", client.cert),
            ("client-key", client.key),
        ] {
            std::fs::write(file(directory.place(), name), content)?;
        }
        Ok(directory)
    }

    /// The directory; empty for rows without TLS.
    pub(crate) fn place(&self) -> &str {
        self.0.as_deref().and_then(Path::to_str).unwrap_or_default()
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        if let Some(directory) = &self.0 {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

fn file(directory: &str, name: &str) -> PathBuf {
    Path::new(directory).join(format!("{name}.pem"))
}

/// One of the files.
#[cfg(feature = "tonic")]
pub(crate) fn read(directory: &str, name: &str) -> Result<String> {
    use anyhow::Context as _;

    let path = file(directory, name);
    std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}
