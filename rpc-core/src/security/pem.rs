//! Certificates and keys from PEM, with errors that name the file.
//!
//! Invariant: no error and no log holds bytes of a key.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, SubjectPublicKeyInfoDer,
};
use rustls::sign::{CertifiedKey, SigningKey};

use super::der;
use super::leaf::{leaf, read};
use crate::identity::Certificate;

/// What is wrong with certificates, keys or options of [`Tls`](super::Tls), and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(pub(super) String);

/// Where PEM comes from.
#[derive(Clone)]
pub(super) enum Origin {
    File(PathBuf),
    /// The name is for errors.
    Bytes(String, Arc<[u8]>),
}

impl Origin {
    pub(super) fn file(path: impl AsRef<Path>) -> Self {
        Self::File(path.as_ref().to_owned())
    }

    pub(super) fn bytes(name: &str, bytes: &[u8]) -> Self {
        Self::Bytes(name.to_owned(), bytes.into())
    }

    pub(super) fn read(&self) -> Result<Source, TlsError> {
        match self {
            Self::File(path) => Source::file(path),
            Self::Bytes(name, bytes) => Ok(Source { name: name.clone(), bytes: bytes.to_vec() }),
        }
    }
}

/// A list of certificates that an authority has revoked.
#[derive(Clone)]
pub(super) struct RevocationList {
    pub(super) list: Arc<webpki::CertRevocationList<'static>>,
    /// For messages.
    pub(super) name: String,
    pub(super) made: SystemTime,
    pub(super) ends: SystemTime,
}

/// Bytes of a PEM file, or of none.
pub(super) struct Source {
    /// For errors.
    name: String,
    pub(super) bytes: Vec<u8>,
}

impl Source {
    fn file(path: &Path) -> Result<Self, TlsError> {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|error| {
            let advice = "check the path, and that this user may read the file";
            TlsError(format!("cannot read {name}: {error}; {advice}"))
        })?;
        Ok(Self { name, bytes })
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

    /// Lists of revoked certificates. None of them may have ended.
    pub(super) fn revocation_lists(
        &self,
        now: SystemTime,
    ) -> Result<Vec<RevocationList>, TlsError> {
        let lists: Result<Vec<_>, _> =
            CertificateRevocationListDer::pem_slice_iter(&self.bytes).collect();
        let lists = lists.map_err(|error| self.wrong(format_args!("malformed PEM: {error}")))?;
        if lists.is_empty() {
            let advice = "it must have blocks that begin with -----BEGIN X509 CRL-----";
            return Err(self.wrong(format_args!("no revocation list in it; {advice}")));
        }
        let read = |der: &CertificateRevocationListDer<'_>| {
            let list = webpki::OwnedCertRevocationList::from_der(der).map_err(|error| {
                self.wrong(format_args!("a revocation list cannot be used: {error}"))
            })?;
            let Some((made, Some(ends))) = der::list_times(der) else {
                return Err(self.wrong("a revocation list does not say when it ends"));
            };
            if ends <= now {
                let advice = "fetch a newer one from the authority";
                let ended = der::date(ends);
                return Err(self.wrong(format_args!("it ended on {ended}; {advice}")));
            }
            let (list, name) = (Arc::new(list.into()), self.name.clone());
            Ok(RevocationList { list, name, made, ends })
        };
        lists.iter().map(read).collect()
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
        Ok((certified, said))
    }
}

/// What each certificate of a PEM file says, in its order: for tools that show them. Nothing is
/// verified.
///
/// # Errors
/// [`TlsError`]: the file cannot be read, or has something else in it.
pub fn inspect(path: impl AsRef<Path>) -> Result<Vec<Certificate>, TlsError> {
    let source = Origin::file(path).read()?;
    let read = |der: &CertificateDer<'_>| {
        let unreadable = || source.wrong("a certificate in it cannot be read");
        read(der).map(|(certificate, _)| certificate).ok_or_else(unreadable)
    };
    source.certificates()?.iter().map(read).collect()
}
