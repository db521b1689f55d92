//! TLS with a registry.

use std::fmt;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// How requests to a registry are encrypted, and to whom they may go.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use rpc_discovery::{Etcd, RegistryTls};
///
/// let tls = RegistryTls::new(std::fs::read("/etc/etcd/ca.pem")?)?;
/// let servers: Etcd = "etcd://etcd-0.example,etcd-1.example/rpc/kv".parse()?;
/// let servers = servers.tls(tls).user("kv", std::env::var("ETCD_PASSWORD")?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RegistryTls(pub(crate) TlsConnector);

/// Certificates or a key that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RegistryTlsError(String);

impl RegistryTls {
    /// The registry must have a certificate of one of these authorities, PEM, for the host that is
    /// in its name.
    ///
    /// # Errors
    /// [`RegistryTlsError`]: what is wrong with the certificates.
    pub fn new(authorities: impl AsRef<[u8]>) -> Result<Self, RegistryTlsError> {
        Self::build(authorities.as_ref(), None)
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
        Self::build(authorities.as_ref(), Some((chain.as_ref(), key.as_ref())))
    }

    fn build(authorities: &[u8], own: Option<(&[u8], &[u8])>) -> Result<Self, RegistryTlsError> {
        let wrong = |error: &dyn fmt::Display| RegistryTlsError(error.to_string());
        let read = |pem: &[u8], what: &str| {
            let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
            let all = all.map_err(|error| wrong(&format!("{what}: not PEM: {error:?}")))?;
            match all.is_empty() {
                true => Err(wrong(&format!("{what}: there is no certificate in it"))),
                false => Ok(all),
            }
        };
        let mut roots = RootCertStore::empty();
        for certificate in read(authorities, "the authorities")? {
            roots.add(certificate).map_err(|error| wrong(&error))?;
        }
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(&error))?
            .with_root_certificates(roots);
        let config = match own {
            None => config.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = read(chain, "the own certificate")?;
                let key = PrivateKeyDer::from_pem_slice(key);
                let key = key.map_err(|_| wrong(&"there is no private key in it, as PEM"))?;
                config.with_client_auth_cert(chain, key).map_err(|error| wrong(&error))?
            }
        };
        Ok(Self(Arc::new(config).into()))
    }
}

impl fmt::Debug for RegistryTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the key.
        f.debug_struct("RegistryTls").finish_non_exhaustive()
    }
}
