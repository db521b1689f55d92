//! Who the peer is, and whether this end trusts it.
//!
//! Owns the verifiers of both roles. Chains, times, purposes and signatures are checked by rustls;
//! the rules of SPIFFE are here.
//!
//! Invariants:
//! 1. The trust domain of a SPIFFE id picks the authorities that the certificate is verified with.
//! 2. A certificate with a URI has exactly one, which is a SPIFFE id with a path, and belongs to no
//!    authority.
//! 3. A client compares the server's names with the one that its user wrote. Common names count
//!    nowhere.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use rpc_transport::protocol::lock::FailureReason;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};

use super::der;
use super::provider::sha256;
use super::refusal::{Refusal, bad, quoted};
use crate::identity::{Certificate, SpiffeId};

/// The name that a client expects of its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expected {
    Host(ServerName<'static>),
    Spiffe(SpiffeId),
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(name) => f.write_str(&name.to_str()),
            Self::Spiffe(id) => id.fmt(f),
        }
    }
}

/// The authorities of one trust domain.
#[derive(Clone)]
pub(super) struct Authorities {
    roots: Arc<RootCertStore>,
    for_clients: Arc<dyn ClientCertVerifier>,
}

impl Authorities {
    pub(super) fn new(
        roots: RootCertStore,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, rustls::server::VerifierBuilderError> {
        let roots = Arc::new(roots);
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider);
        let for_clients = verifier.clear_root_hint_subjects().build()?;
        Ok(Self { roots, for_clients })
    }
}

/// All authorities that this end trusts.
#[derive(Clone)]
pub(super) struct Trust {
    /// Those of `ca.pem`.
    pub(super) own: Authorities,
    /// The trust domain that they are of, if that is known.
    pub(super) own_domain: Option<String>,
    /// Those of other trust domains.
    pub(super) domains: BTreeMap<String, Authorities>,
}

impl Trust {
    /// The authorities that may have issued this certificate.
    fn of(&self, certificate: &Certificate) -> Result<&Authorities, Refusal> {
        let Some(id) = certificate.spiffe() else { return Ok(&self.own) };
        let domain = id.trust_domain();
        if let Some(authorities) = self.domains.get(domain) {
            return Ok(authorities);
        }
        match &self.own_domain {
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

/// What a certificate says.
pub(super) fn read(der: &[u8]) -> Option<(Certificate, der::Fields<'_>)> {
    let fields = der::fields(der)?;
    let certificate = Certificate {
        spiffe: fields.uris.first().and_then(|uri| uri.parse().ok()),
        dns: fields.dns.iter().map(|name| (*name).to_owned()).collect(),
        addresses: fields.addresses.clone(),
        common_name: fields.common_name.map(ToOwned::to_owned),
        key_sha256: sha256(fields.key),
        not_before: fields.not_before,
        not_after: fields.not_after,
        is_authority: fields.is_authority,
    };
    Some((certificate, fields))
}

/// What the certificate of a peer says, if it keeps the rules of identities (invariant 2).
pub(super) fn leaf(der: &[u8]) -> Result<Certificate, Refusal> {
    let Some((certificate, fields)) = read(der) else {
        return Err(bad("it is no X.509 certificate that can be read here"));
    };
    match &fields.uris[..] {
        [] if fields.dns.is_empty() && fields.addresses.is_empty() => {
            return Err(bad("it has no subject alternative name"));
        }
        [] => {}
        [uri] => match uri.parse::<SpiffeId>() {
            Ok(id) if id.path().is_empty() => {
                return Err(bad("its SPIFFE id is that of a whole trust domain"));
            }
            Ok(_) => {}
            Err(error) => return Err(bad(&quoted(&error.to_string()))),
        },
        more => return Err(bad(&format!("it has {} URIs, where one is allowed", more.len()))),
    }
    if fields.is_authority || !fields.uris.is_empty() && fields.signs_others {
        return Err(bad("it is that of an authority"));
    }
    Ok(certificate)
}

/// Verifies servers, for one client.
#[derive(Clone)]
pub(super) struct ServerVerifier {
    pub(super) trust: Trust,
    pub(super) expected: Expected,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = leaf(end_entity)?;
        let authorities = self.trust.of(&certificate)?;
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let (roots, algorithms) = (&authorities.roots, self.algorithms.all);
        verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms)
            .map_err(of_chain)?;
        let is_expected = match &self.expected {
            Expected::Host(name) => verify_server_name(&parsed, name).is_ok(),
            Expected::Spiffe(id) => certificate.spiffe() == Some(id),
        };
        if is_expected {
            return Ok(ServerCertVerified::assertion());
        }
        let (presented, expected) = (names(&certificate), &self.expected);
        let text = format!(
            "the peer presents a certificate for {presented}; this channel expects {expected}: \
             correct the address, or `expect_peer` or `server_name`"
        );
        Err(Refusal::new(FailureReason::WrongName, text).into())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General(ONLY_1_3.to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

const ONLY_1_3: &str = "only TLS 1.3 is used";

/// An authority with the name of a trusted one and another key is unknown as well.
fn of_chain(error: Error) -> Error {
    match error {
        Error::InvalidCertificate(CertificateError::BadSignature) => {
            Error::InvalidCertificate(CertificateError::UnknownIssuer)
        }
        error => error,
    }
}

/// The names of a certificate, for a message.
fn names(certificate: &Certificate) -> String {
    let ids = certificate.spiffe().map(ToString::to_string);
    let addresses = certificate.addresses().iter().map(ToString::to_string);
    let names = certificate.dns_names().iter().cloned();
    let all: Vec<_> = ids.into_iter().chain(names).chain(addresses).collect();
    quoted(&all.join(", "))
}

/// Verifies clients, for a server.
#[derive(Clone)]
pub(super) struct ClientVerifier {
    pub(super) trust: Trust,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
    /// Whether a client without a certificate is refused.
    pub(super) is_mandatory: bool,
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let certificate = leaf(end_entity)?;
        let authorities = self.trust.of(&certificate)?;
        let verifier = &authorities.for_clients;
        verifier.verify_client_cert(end_entity, intermediates, now).map_err(of_chain)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General(ONLY_1_3.to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Verifies raw keys of either role: the peer's must be one of a list.
#[derive(Clone)]
pub(super) struct KeyVerifier {
    pub(super) keys: Arc<[SubjectPublicKeyInfoDer<'static>]>,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl KeyVerifier {
    fn check(&self, key: &[u8]) -> Result<(), Refusal> {
        if self.keys.iter().any(|known| known.as_ref() == key) {
            return Ok(());
        }
        let hash: String = sha256(key).iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!(
            "the peer's key (sha256:{hash}) is unknown here: add its public key to those of \
             `Tls::raw_keys`"
        );
        Err(Refusal::new(FailureReason::UnknownAuthority, text))
    }

    fn check_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }
}

impl ServerCertVerifier for KeyVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General(ONLY_1_3.to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, key, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for KeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General(ONLY_1_3.to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, key, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

macro_rules! debug_without_content {
    ($($name:ident)*) => {
        $(impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        })*
    };
}
debug_without_content!(ServerVerifier ClientVerifier KeyVerifier Trust);
