//! Whom this end trusts: authorities, what they have revoked, and raw keys.
//!
//! Owns the judgement of what a peer shows, for both roles. Never reads a clock.
//!
//! Invariant: the trust domain of a SPIFFE id picks the authorities that the certificate is
//! verified with.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use rpc_transport::protocol::lock::{FailureReason, Role};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use webpki::{
    EndEntityCert, ExpirationPolicy, KeyUsage, RevocationOptionsBuilder, UnknownStatusPolicy,
    VerifiedPath,
};

use super::authorities::{Authorities, Standing};
use super::chain;
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
    pub(super) own: Arc<Authorities>,
    /// The trust domain that they are of, if that is known.
    pub(super) own_domain: Option<String>,
    /// Those of other trust domains.
    pub(super) domains: BTreeMap<String, Arc<Authorities>>,
    pub(super) revoked: Vec<RevocationList>,
    /// Chains of theirs.
    pub(super) known: Known,
}

impl Trust {
    /// The authorities that may have issued this certificate. `own_domain`: that of `ca.pem`, if
    /// this end has no id that says it.
    fn of(&self, peer: &Certificate, own_domain: Option<&str>) -> Result<&Authorities, Refusal> {
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
            )
            .telling("its trust domain is unknown here")),
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
        // Before anything that costs a signature.
        chain::check_bounds(end_entity, intermediates)?;
        let certificate = leaf(end_entity)?;
        let roots = trust.of(&certificate, terms.own_domain)?;
        // Lists say something new with time.
        let known = trust.revoked.is_empty().then_some(&trust.known);
        let key = known.map(|known| (known, key(terms.peer, end_entity, intermediates)));
        if key.as_ref().is_some_and(|(known, key)| known.has(key, terms.now)) {
            return Ok(certificate);
        }
        let valid = verify(roots, &trust.revoked, end_entity, intermediates, terms)?;
        if let Some((known, key)) = key {
            known.add(key, end_entity, intermediates, valid);
        }
        Ok(certificate)
    }
}

/// Verifies a chain; the seconds within which its authority is valid.
fn verify(
    roots: &Authorities,
    revoked: &[RevocationList],
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    terms: &Terms<'_>,
) -> Result<[u64; 2], Refusal> {
    let lists: Vec<_> = revoked.iter().map(|list| &*list.list).collect();
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
    let (idle, valid) = (Cell::new(None), Cell::new(None));
    let judge = |path: &VerifiedPath<'_>| {
        let number = roots.number(path.anchor()).ok_or(webpki::Error::UnknownIssuer)?;
        let Standing::Valid(dates) = roots.standing(number, now) else {
            idle.set(Some(number));
            // Another authority may have signed it as well.
            return Err(webpki::Error::UnknownIssuer);
        };
        valid.set(Some(dates));
        Ok(())
    };
    let found = EndEntityCert::try_from(end_entity).and_then(|it| {
        let (anchors, judge) = (roots.anchors(), Some(&judge as &dyn Fn(&VerifiedPath<'_>) -> _));
        it.verify_for_usage(algorithms, anchors, intermediates, now, usage, revocation, judge)
            .map(|_| ())
    });
    match (found, idle.get(), valid.get()) {
        (Ok(()), _, Some(valid)) => Ok(valid),
        (_, Some(idle), _) => Err(roots.refusal(idle, now)),
        // An authority with the name of a trusted one and another key is unknown as well.
        (
            Err(webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey)
            | Ok(()),
            ..,
        ) => Err(chain::no_authority(end_entity, intermediates, roots)),
        (Err(error), ..) => Err(of_chain(&error)),
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
