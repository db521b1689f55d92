//! Certificates and keys from PEM, with errors that name the file.
//!
//! Invariant: no error and no log holds bytes of a key.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{PemObject, SectionKind};
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::sign::{CertifiedKey, SigningKey};

use super::authorities::Authorities;
use super::leaf::{leaf, read};
use super::pem_lines::{Block, check_lines};
use super::{chain, der};
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

    /// The blocks of these kinds, each understood: nothing is skipped in silence.
    fn blocks(&self, allowed: &[Block]) -> Result<Vec<(SectionKind, Vec<u8>)>, TlsError> {
        let count = check_lines(&self.bytes, allowed).map_err(|what| self.wrong(what))?;
        // Errors could quote the input, so they are not shown.
        let blocks: Result<Vec<_>, _> = <_>::pem_slice_iter(&self.bytes).collect();
        let blocks = blocks.map_err(|_| self.wrong("malformed PEM: a block in it is no base64"))?;
        match blocks.len() == count {
            true => Ok(blocks),
            false => Err(self.wrong("malformed PEM: a block in it was not understood")),
        }
    }

    fn certificates(&self, allowed: &[Block]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let all = self.blocks(allowed)?.into_iter();
        let all: Vec<_> = all.filter_map(|(kind, der)| PemObject::from_pem(kind, der)).collect();
        if all.is_empty() {
            let advice = "it must have blocks that begin with -----BEGIN CERTIFICATE-----";
            return Err(self.wrong(format_args!("no certificate in it; {advice}")));
        }
        Ok(all)
    }

    /// The authorities of a bundle. At least one of them has not ended.
    pub(super) fn authorities(&self, now: SystemTime) -> Result<Authorities, TlsError> {
        let all = Authorities::new(&self.certificates(&[Block::Certificate])?)
            .map_err(|error| self.wrong(format_args!("no certificate of an authority: {error}")))?;
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        all.check(UnixTime::since_unix_epoch(now)).map_err(|error| self.wrong(error))?;
        Ok(all)
    }

    /// Lists of revoked certificates. None of them may have ended.
    pub(super) fn revocation_lists(
        &self,
        now: SystemTime,
    ) -> Result<Vec<RevocationList>, TlsError> {
        let lists = self.blocks(&[Block::RevocationList])?.into_iter();
        let lists: Vec<CertificateRevocationListDer<'_>> =
            lists.filter_map(|(kind, der)| PemObject::from_pem(kind, der)).collect();
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

    fn key_der(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let keys = self.blocks(&Block::OF_OWN)?.into_iter();
        let mut keys: Vec<PrivateKeyDer<'static>> =
            keys.filter_map(|(kind, der)| PemObject::from_pem(kind, der)).collect();
        let (key, others) = (keys.pop(), keys.len());
        let key = key.ok_or_else(|| {
            self.wrong("no private key in it; it must have a block such as PRIVATE KEY (PKCS#8)")
        })?;
        if others > 0 {
            return Err(self.wrong("more than one private key in it: leave the one to be used"));
        }
        Ok(key)
    }

    pub(super) fn private_key(
        &self,
        provider: &CryptoProvider,
    ) -> Result<Arc<dyn SigningKey>, TlsError> {
        // The errors below could quote the input, so they are not shown.
        provider.key_provider.load_private_key(self.key_der()?).map_err(|_| {
            self.wrong(
                "no key that TLS can use: it must be ECDSA P-256 or P-384, Ed25519, or RSA of at \
                 least 2048 bits",
            )
        })
    }

    /// A public key.
    pub(super) fn public_key(&self) -> Result<SubjectPublicKeyInfoDer<'static>, TlsError> {
        if self.bytes.first() == Some(&0x30) {
            return Ok(SubjectPublicKeyInfoDer::from(self.bytes.clone()));
        }
        let advice = "it must be a block PUBLIC KEY, or such a key as DER";
        let keys = self.blocks(&[Block::PublicKey])?.into_iter();
        let mut keys = keys.filter_map(|(kind, der)| PemObject::from_pem(kind, der));
        match (keys.next(), keys.next()) {
            (Some(key), None) => Ok(key),
            (None, _) => Err(self.wrong(format_args!("no public key in it; {advice}"))),
            (Some(_), Some(_)) => Err(self.wrong("more than one public key in it")),
        }
    }

    /// A certificate with its chain and its key, and what it says.
    pub(super) fn certified(
        &self,
        key: &Self,
        provider: &CryptoProvider,
    ) -> Result<(CertifiedKey, Certificate), TlsError> {
        let chain = self.certificates(&Block::OF_OWN)?;
        let signing = key.private_key(provider)?;
        let public = signing.public_key();
        if let Some(what) = public.and_then(|public| chain::wrong_order(&chain, &public)) {
            return Err(self.wrong(what));
        }
        let (own, above) = chain.split_first().ok_or_else(|| self.wrong("no certificate in it"))?;
        let said = chain::check_bounds(own, above).and_then(|()| leaf(own)).map_err(|refusal| {
            self.wrong(format_args!("peers would not accept this certificate: {refusal}"))
        })?;
        let certified = CertifiedKey::new(chain, signing);
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
    source.certificates(&Block::OF_OWN)?.iter().map(read).collect()
}

/// The certificates of authorities, read as those of [`Tls`](super::Tls): for registries.
///
/// # Errors
/// [`TlsError`].
#[doc(hidden)]
pub fn authorities_of(name: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    Origin::bytes(name, pem).read()?.certificates(&[Block::Certificate])
}

/// A certificate with those above it, and its key.
///
/// # Errors
/// [`TlsError`].
#[doc(hidden)]
pub fn own_of(
    [chain, key]: [(&str, &[u8]); 2],
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let [chain, key] = [chain, key].map(|(name, pem)| Origin::bytes(name, pem).read());
    Ok((chain?.certificates(&Block::OF_OWN)?, key?.key_der()?))
}
