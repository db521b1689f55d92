//! Certificates and keys from PEM, with errors that name the file.
//!
//! Invariant: no error and no log holds bytes of a key.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer};
use rustls::sign::{CertifiedKey, SigningKey};

use super::der;
use super::verify::{leaf, read};
use crate::identity::Certificate;

/// What is wrong with certificates, keys or options of [`Tls`](super::Tls), and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(pub(super) String);

/// Bytes of a PEM file, or of none.
pub(super) struct Source {
    /// For errors.
    name: String,
    bytes: Vec<u8>,
}

impl Source {
    pub(super) fn file(path: &Path) -> Result<Self, TlsError> {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|error| {
            let advice = "check the path, and that this user may read the file";
            TlsError(format!("cannot read {name}: {error}; {advice}"))
        })?;
        Ok(Self { name, bytes })
    }

    pub(super) fn bytes(name: &str, bytes: &[u8]) -> Self {
        Self { name: name.to_owned(), bytes: bytes.to_vec() }
    }

    /// The file that an environment variable names.
    pub(super) fn variable(name: &str) -> Result<PathBuf, TlsError> {
        let missing = || TlsError(format!("{name} is not set: it must be the path of a PEM file"));
        std::env::var_os(name)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
            .ok_or_else(missing)
    }

    fn wrong(&self, what: impl fmt::Display) -> TlsError {
        TlsError(format!("{}: {what}", self.name))
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        let all = all.map_err(|error| self.wrong(format_args!("malformed PEM: {error}")))?;
        if all.is_empty() {
            let advice = "it must have blocks that begin with -----BEGIN CERTIFICATE-----";
            return Err(self.wrong(format_args!("no certificate in it; {advice}")));
        }
        Ok(all)
    }

    /// The authorities of a bundle.
    pub(super) fn authorities(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|error| {
                self.wrong(format_args!("no certificate of an authority: {error}"))
            })?;
        }
        Ok(roots)
    }

    pub(super) fn private_key(
        &self,
        provider: &CryptoProvider,
    ) -> Result<Arc<dyn SigningKey>, TlsError> {
        // The errors below could quote the input, so they are not shown.
        let key = PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|_| {
            self.wrong("no private key in it; it must have a block such as PRIVATE KEY (PKCS#8)")
        })?;
        provider.key_provider.load_private_key(key).map_err(|_| {
            self.wrong("no key that TLS can use: it must be ECDSA P-256 or P-384, Ed25519 or RSA")
        })
    }

    /// A public key.
    pub(super) fn public_key(&self) -> Result<SubjectPublicKeyInfoDer<'static>, TlsError> {
        if self.bytes.first() == Some(&0x30) {
            return Ok(SubjectPublicKeyInfoDer::from(self.bytes.clone()));
        }
        let advice = "it must be a block PUBLIC KEY, or such a key as DER";
        SubjectPublicKeyInfoDer::from_pem_slice(&self.bytes)
            .map_err(|error| self.wrong(format_args!("no public key in it: {error}; {advice}")))
    }

    /// A certificate with its chain and its key, and what it says.
    pub(super) fn certified(
        &self,
        key: &Self,
        provider: &CryptoProvider,
    ) -> Result<(CertifiedKey, Certificate), TlsError> {
        let chain = self.certificates()?;
        let said = leaf(&chain[0]).map_err(|refusal| {
            self.wrong(format_args!("peers would not accept this certificate: {refusal}"))
        })?;
        let certified = CertifiedKey::new(chain, key.private_key(provider)?);
        certified.keys_match().map_err(|_| {
            let advice = "give the key for which this certificate was issued";
            TlsError(format!("the key in {} does not belong to {}; {advice}", key.name, self.name))
        })?;
        if let Some(end) = said.not_after.filter(|end| *end < std::time::SystemTime::now()) {
            let (file, ended) = (&self.name, der::date(end));
            tracing::warn!(file, ended, "this certificate has ended: peers refuse it");
        }
        Ok((certified, said))
    }
}

/// What each certificate of a PEM file says, in its order: for tools that show them. Nothing is
/// verified.
///
/// # Errors
/// [`TlsError`]: the file cannot be read, or has something else in it.
pub fn inspect(path: impl AsRef<Path>) -> Result<Vec<Certificate>, TlsError> {
    let source = Source::file(path.as_ref())?;
    let read = |der: &CertificateDer<'_>| {
        let unreadable = || source.wrong("a certificate in it cannot be read");
        read(der).map(|(certificate, _)| certificate).ok_or_else(unreadable)
    };
    source.certificates()?.iter().map(read).collect()
}
