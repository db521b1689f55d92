//! TLS with a registry.
//!
//! Invariant: files that cannot be read or understood leave what was read before.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rpc_core::security::{authorities_of, own_of};
use rpc_transport::lock::Mutex;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// How requests to a registry are encrypted, and to whom they may go.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use rpc_discovery::{Etcd, RegistryTls};
///
/// let tls = RegistryTls::from_files("/etc/etcd/ca.pem")?;
/// let servers: Etcd = "etcd://etcd-0.example,etcd-1.example/rpc/kv".parse()?;
/// let servers = servers.tls(tls).user("kv", std::env::var("ETCD_PASSWORD")?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RegistryTls(Arc<Source>);

/// Certificates or a key that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RegistryTlsError(String);

enum Source {
    Fixed(TlsConnector),
    /// Looked at for each new connection.
    Files {
        files: Files,
        last: Mutex<Last>,
    },
}

struct Files {
    authorities: PathBuf,
    own: Option<[PathBuf; 2]>,
}

/// What was read last.
#[derive(Clone)]
struct Last {
    contents: Contents,
    /// Of these contents, or of older ones if these cannot be used.
    connector: TlsConnector,
}

/// Authorities, own chain and key, each with its name for errors.
type Contents = Vec<(String, Vec<u8>)>;

impl RegistryTls {
    /// The registry must have a certificate of one of these authorities, PEM, for the host that is
    /// in its name.
    ///
    /// # Errors
    /// [`RegistryTlsError`]: what is wrong with the certificates.
    pub fn new(authorities: impl AsRef<[u8]>) -> Result<Self, RegistryTlsError> {
        Self::fixed(&[("the authorities", authorities.as_ref())])
    }

    /// The same, and shows the registry this certificate: a chain and its key, PEM. For etcd it
    /// must not have a common name (CN): its JSON gateway refuses such clients.
    ///
    /// # Errors
    /// [`RegistryTlsError`]: what is wrong with the certificates or the key.
    pub fn with_certificate(
        authorities: impl AsRef<[u8]>,
        chain: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> Result<Self, RegistryTlsError> {
        Self::fixed(&[
            ("the authorities", authorities.as_ref()),
            ("the own certificate", chain.as_ref()),
            ("the own key", key.as_ref()),
        ])
    }

    /// As [`new`](Self::new), from a file, which is read again for each new connection. If it
    /// cannot be used then, what was read before goes on, and a warning is logged.
    ///
    /// # Errors
    /// [`RegistryTlsError`]: the file cannot be read, or what is wrong with the certificates.
    pub fn from_files(authorities: impl Into<PathBuf>) -> Result<Self, RegistryTlsError> {
        Self::of(Files { authorities: authorities.into(), own: None })
    }

    /// As [`with_certificate`](Self::with_certificate), from files, which are read again as those
    /// of [`from_files`](Self::from_files): a program may live longer than its certificate.
    ///
    /// # Errors
    /// [`RegistryTlsError`]: a file cannot be read, or what is wrong with it.
    pub fn from_files_with_certificate(
        authorities: impl Into<PathBuf>,
        chain: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Result<Self, RegistryTlsError> {
        let own = Some([chain.into(), key.into()]);
        Self::of(Files { authorities: authorities.into(), own })
    }

    fn fixed(contents: &[(&str, &[u8])]) -> Result<Self, RegistryTlsError> {
        Ok(Self(Arc::new(Source::Fixed(build(contents)?))))
    }

    fn of(files: Files) -> Result<Self, RegistryTlsError> {
        let contents = files.read()?;
        let connector = build(&borrowed(&contents))?;
        let last = Mutex::new(Last { contents, connector });
        Ok(Self(Arc::new(Source::Files { files, last })))
    }

    /// For a new connection.
    pub(crate) async fn connector(&self) -> TlsConnector {
        let this = self.clone();
        match &*self.0 {
            Source::Fixed(connector) => connector.clone(),
            // Reading blocks.
            Source::Files { last, .. } => tokio::task::spawn_blocking(move || this.read_again())
                .await
                .unwrap_or_else(|_| last.lock().connector.clone()),
        }
    }

    fn read_again(&self) -> TlsConnector {
        let (files, last) = match &*self.0 {
            Source::Fixed(connector) => return connector.clone(),
            Source::Files { files, last } => (files, last),
        };
        let known = last.lock().clone();
        let read = files.read().and_then(|contents| {
            if contents == known.contents {
                return Ok(known.clone());
            }
            // One warning for each change.
            last.lock().contents.clone_from(&contents);
            let connector = build(&borrowed(&contents))?;
            Ok(Last { contents, connector })
        });
        match read {
            Ok(read) => {
                let connector = read.connector.clone();
                let _old = std::mem::replace(&mut *last.lock(), read);
                connector
            }
            Err(error) => {
                tracing::warn!(%error, "the certificates for a registry stay as they are");
                known.connector
            }
        }
    }
}

impl Files {
    fn read(&self) -> Result<Contents, RegistryTlsError> {
        let read = |path: &Path| {
            let name = path.display().to_string();
            let bytes = std::fs::read(path);
            let bytes = bytes.map_err(|error| RegistryTlsError(format!("{name}: {error}")))?;
            Ok((name, bytes))
        };
        let all = [&self.authorities].into_iter().chain(self.own.iter().flatten());
        all.map(|path| read(path)).collect()
    }
}

fn borrowed(contents: &Contents) -> Vec<(&str, &[u8])> {
    contents.iter().map(|(name, bytes)| (&**name, &**bytes)).collect()
}

/// From authorities, and a chain with its key if this end shows one.
fn build(contents: &[(&str, &[u8])]) -> Result<TlsConnector, RegistryTlsError> {
    let wrong = |error: &dyn fmt::Display| RegistryTlsError(error.to_string());
    let mut roots = RootCertStore::empty();
    for (name, authorities) in contents.iter().take(1) {
        for certificate in authorities_of(name, authorities).map_err(|error| wrong(&error))? {
            roots.add(certificate).map_err(|error| wrong(&format!("{name}: {error}")))?;
        }
    }
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error))?
        .with_root_certificates(roots);
    let config = match contents {
        [_, chain, key] => {
            let (chain, key) = own_of([*chain, *key]).map_err(|error| wrong(&error))?;
            config.with_client_auth_cert(chain, key).map_err(|error| wrong(&error))?
        }
        _ => config.with_no_client_auth(),
    };
    Ok(Arc::new(config).into())
}

impl fmt::Debug for RegistryTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the key.
        f.debug_struct("RegistryTls").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use test_kit::certificates::Authority;

    use super::*;

    fn config(tls: &RegistryTls) -> *const ClientConfig {
        Arc::as_ptr(tls.read_again().config())
    }

    #[test]
    fn files_are_read_again_if_they_changed() {
        let folder = std::env::temp_dir().join(format!("rpc-registry-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [ca, cert, key] = ["ca", "cert", "key"].map(|name| folder.join(name));
        let ours = Authority::new("ours");
        let write = |leaf: &test_kit::certificates::Leaf| {
            std::fs::write(&cert, &leaf.cert).unwrap();
            std::fs::write(&key, &leaf.key).unwrap();
        };
        std::fs::write(&ca, ours.pem()).unwrap();
        let old = ours.issue(&["a.example"]);
        write(&old);
        let tls = RegistryTls::from_files_with_certificate(&ca, &cert, &key).unwrap();
        let first = config(&tls);
        assert_eq!(config(&tls), first, "nothing has changed");
        // Half of a change, and files that are broken or missing.
        let new = ours.issue(&["a.example"]);
        std::fs::write(&key, &new.key).unwrap();
        assert_eq!(config(&tls), first);
        std::fs::write(&cert, "").unwrap();
        assert_eq!(config(&tls), first);
        std::fs::remove_file(&cert).unwrap();
        assert_eq!(config(&tls), first);
        write(&new);
        let second = config(&tls);
        assert_ne!(second, first);
        // A list that is joined to another one is not skipped in silence.
        let joined = ours.pem().trim_end().to_owned() + &Authority::new("other").pem();
        std::fs::write(&ca, &joined).unwrap();
        assert_eq!(config(&tls), second);
        assert!(RegistryTls::new(joined).unwrap_err().to_string().contains("BEGIN or END"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
