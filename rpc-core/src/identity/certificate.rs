//! What a certificate says about its owner.

use std::fmt;
use std::net::IpAddr;
use std::time::SystemTime;

use super::spiffe::SpiffeId;
use crate::text::printable;

/// What the certificate of a peer says, or the bare key of a peer that has no certificate. Found in
/// [`Identity::certificate`](super::Identity::certificate), where it has been verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    pub(crate) spiffe: Option<SpiffeId>,
    pub(crate) dns: Vec<String>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) common_name: Option<String>,
    pub(crate) key_sha256: [u8; 32],
    pub(crate) not_before: Option<SystemTime>,
    pub(crate) not_after: Option<SystemTime>,
    pub(crate) is_authority: bool,
}

impl Certificate {
    #[cfg(test)]
    pub(crate) fn with_spiffe(self, id: &str) -> Self {
        Self { spiffe: Some(id.parse().expect("an id")), ..self }
    }

    /// A bare key.
    #[cfg(any(test, feature = "tls"))]
    pub(crate) fn of_key(key_sha256: [u8; 32]) -> Self {
        Self {
            spiffe: None,
            dns: Vec::new(),
            addresses: Vec::new(),
            common_name: None,
            key_sha256,
            not_before: None,
            not_after: None,
            is_authority: false,
        }
    }

    /// The SPIFFE id, if the certificate has one.
    #[must_use]
    pub fn spiffe(&self) -> Option<&SpiffeId> {
        self.spiffe.as_ref()
    }

    /// The DNS names of the subject alternative name, as they are written there.
    #[must_use]
    pub fn dns_names(&self) -> &[String] {
        &self.dns
    }

    /// The IP addresses of the subject alternative name.
    #[must_use]
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// The common name of the subject, for people to read. Nothing here compares it with anything,
    /// and rules do not know it.
    #[must_use]
    pub fn common_name(&self) -> Option<&str> {
        self.common_name.as_deref()
    }

    /// SHA-256 of the public key as DER (`SubjectPublicKeyInfo`).
    #[must_use]
    pub fn key_sha256(&self) -> [u8; 32] {
        self.key_sha256
    }

    /// When the certificate begins to be valid. A bare key has no such time.
    #[must_use]
    pub fn not_before(&self) -> Option<SystemTime> {
        self.not_before
    }

    /// When the certificate ends. A bare key has no such time.
    #[must_use]
    pub fn not_after(&self) -> Option<SystemTime> {
        self.not_after
    }

    /// Whether it is the certificate of an authority, which may issue others.
    #[must_use]
    pub fn is_authority(&self) -> bool {
        self.is_authority
    }
}

/// The owner's name: the SPIFFE id, else the first DNS name or address, else the key's hash.
impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(id) = &self.spiffe {
            return id.fmt(f);
        }
        if let Some(name) = self.dns.first() {
            return write!(f, "{}", printable(name));
        }
        if let Some(address) = self.addresses.first() {
            return address.fmt(f);
        }
        f.write_str("sha256:")?;
        self.key_sha256.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
