//! Whom this end trusts: authorities, what they have revoked, and raw keys.
//!
//! Owns the judgement of what a peer shows, for both roles. Never reads a clock.
//!
//! Invariant: the trust domain of a SPIFFE id picks the authorities that the certificate is
//! verified with.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use rpc_transport::protocol::lock::{FailureReason, Role};
use rustls::RootCertStore;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use webpki::{
    EndEntityCert, ExpirationPolicy, KeyUsage, RevocationOptionsBuilder, UnknownStatusPolicy,
};

use super::known::{Known, key};
use super::leaf::leaf;
use super::pem::RevocationList;
use super::provider::sha256;
use super::refusal::{Refusal, of_chain};
use crate::identity::Certificate;

/// Whose certificates and keys this end takes.
pub(super) enum Trusted {
    Authorities(Trust),
    Keys(Arc<[SubjectPublicKeyInfoDer<'static>]>),
}

/// All authorities that this end trusts, and what they have revoked.
pub(super) struct Trust {
    /// Those of `ca.pem`.
    pub(super) own: Arc<RootCertStore>,
    /// The trust domain that they are of, if that is known.
    pub(super) own_domain: Option<String>,
    /// Those of other trust domains.
    pub(super) domains: BTreeMap<String, Arc<RootCertStore>>,
    pub(super) revoked: Vec<RevocationList>,
    /// Chains of theirs.
    pub(super) known: Known,
}

impl Trust {
    /// The authorities that may have issued this certificate. `own_domain`: that of `ca.pem`, if
    /// this end has no id that says it.
    fn of(&self, peer: &Certificate, own_domain: Option<&str>) -> Result<&RootCertStore, Refusal> {
        let Some(id) = peer.spiffe() else { return Ok(&self.own) };
        let domain = id.trust_domain();
        if let Some(authorities) = self.domains.get(domain) {
            return Ok(authorities);
        }
        match self.own_domain.as_deref().or(own_domain) {
            Some(own) if own != domain => Err(Refusal::new(
                FailureReason::UnknownAuthority,
                format!(
                    "the peer is of the trust domain {domain}, whose authorities are unknown here: \
                     add them with `Tls::trust_domain`"
                ),
            )),
            _ => Ok(&self.own),
        }
    }
}

/// What verifying depends on beside what is trusted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms<'a> {
    /// The role of the peer.
    pub(super) peer: Role,
    pub(super) own_domain: Option<&'a str>,
    pub(super) now: UnixTime,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl Trusted {
    /// Whether a peer may show this, its certificate first. Names are not looked at.
    pub(super) fn check(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        terms: &Terms<'_>,
    ) -> Result<Certificate, Refusal> {
        let trust = match self {
            Self::Authorities(trust) => trust,
            Self::Keys(keys) => return check_key(keys, end_entity),
        };
        let certificate = leaf(end_entity)?;
        let roots = trust.of(&certificate, terms.own_domain)?;
        // Lists say something new with time.
        let known = trust.revoked.is_empty().then_some(&trust.known);
        let key = known.map(|known| (known, key(terms.peer, end_entity, intermediates)));
        if key.as_ref().is_some_and(|(known, key)| known.has(key, terms.now)) {
            return Ok(certificate);
        }
        let lists: Vec<_> = trust.revoked.iter().map(|list| &*list.list).collect();
        // A list says nothing of the certificates of other authorities.
        let revocation = RevocationOptionsBuilder::new(&lists).ok().map(|options| {
            options
                .with_status_policy(UnknownStatusPolicy::Allow)
                .with_expiration_policy(ExpirationPolicy::Enforce)
                .build()
        });
        let usage = match terms.peer {
            Role::Server => KeyUsage::server_auth(),
            Role::Client => KeyUsage::client_auth(),
        };
        let (algorithms, now) = (terms.algorithms.all, terms.now);
        EndEntityCert::try_from(end_entity)
            .and_then(|it| {
                let anchors = &roots.roots;
                it.verify_for_usage(
                    algorithms,
                    anchors,
                    intermediates,
                    now,
                    usage,
                    revocation,
                    None,
                )
                .map(|_| ())
            })
            .map_err(|error| of_chain(&error))?;
        if let Some((known, key)) = key {
            known.add(key, end_entity, intermediates);
        }
        Ok(certificate)
    }
}

fn check_key(
    keys: &[SubjectPublicKeyInfoDer<'static>],
    key: &CertificateDer<'_>,
) -> Result<Certificate, Refusal> {
    let certificate = Certificate::of_key(sha256(key));
    if keys.iter().any(|known| known.as_ref() == key.as_ref()) {
        return Ok(certificate);
    }
    let text = format!(
        "the peer's key ({certificate}) is unknown here: add its public key to those of \
         `Tls::raw_keys`"
    );
    Err(Refusal::new(FailureReason::UnknownAuthority, text))
}
