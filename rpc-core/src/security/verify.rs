//! The verifiers that rustls asks, for both roles.
//!
//! Owns what a client expects of its server's name. Whether what a peer shows is trusted is judged
//! elsewhere, by what was read of the files last.
//!
//! Invariant: a client compares the server's names with the one that its user wrote. Common names
//! count nowhere.

use std::fmt;
use std::sync::Arc;

use rpc_transport::protocol::lock::{FailureReason, Role};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{verify_tls13_signature, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use super::live::Live;
use super::refusal::{Refusal, quoted};
use super::trust::Terms;
use crate::identity::{Certificate, SpiffeId};

/// The name that a client expects of its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expected {
    Host(ServerName<'static>),
    Spiffe(SpiffeId),
}

impl Expected {
    /// That of a SPIFFE id.
    pub(super) fn trust_domain(&self) -> Option<&str> {
        match self {
            Self::Host(_) => None,
            Self::Spiffe(id) => Some(id.trust_domain()),
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(name) => f.write_str(&name.to_str()),
            Self::Spiffe(id) => id.fmt(f),
        }
    }
}

/// Verifies the peers of one server or of one channel, by what is trusted when they come.
#[derive(Clone)]
pub(super) struct Verifier {
    pub(super) live: Arc<Live>,
    /// The name that a server must prove. `None`: keys suffice, or the peers are clients.
    pub(super) expected: Option<Expected>,
    /// Whether a client without a certificate is refused.
    pub(super) is_mandatory: bool,
}

impl Verifier {
    fn check(
        &self,
        peer: Role,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<Certificate, Refusal> {
        let own_domain = self.expected.as_ref().and_then(Expected::trust_domain);
        let algorithms = self.live.algorithms();
        let terms = Terms { peer, own_domain, now, algorithms };
        self.live.current().trusted.check(end_entity, intermediates, &terms)
    }
}

/// Both roles prove that they have their keys in the same way.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("only TLS 1.3 is used".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            shown: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = self.live.algorithms();
            if self.live.has_raw_keys() {
                let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
                return verify_tls13_signature_with_raw_key(message, &key, signed, &algorithms);
            }
            verify_tls13_signature(message, shown, signed, &algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.live.algorithms().supported_schemes()
        }

        fn requires_raw_public_keys(&self) -> bool {
            self.live.has_raw_keys()
        }
    };
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = self.check(Role::Server, end_entity, intermediates, now)?;
        let is_expected = match &self.expected {
            None => true,
            Some(Expected::Host(name)) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, name).is_ok()
            }
            Some(Expected::Spiffe(id)) => certificate.spiffe() == Some(id),
        };
        match &self.expected {
            Some(expected) if !is_expected => Err(wrong_name(&certificate, expected).into()),
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    signatures!();
}

impl ClientCertVerifier for Verifier {
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
        self.check(Role::Client, end_entity, intermediates, now)?;
        Ok(ClientCertVerified::assertion())
    }

    signatures!();
}

fn wrong_name(certificate: &Certificate, expected: &Expected) -> Refusal {
    let ids = certificate.spiffe().map(ToString::to_string);
    let addresses = certificate.addresses().iter().map(ToString::to_string);
    let names = certificate.dns_names().iter().cloned();
    let all: Vec<_> = ids.into_iter().chain(names).chain(addresses).collect();
    let presented = quoted(&all.join(", "));
    if let Expected::Host(ServerName::IpAddress(_)) = expected
        && certificate.dns_names().contains(&expected.to_string())
    {
        let text = format!(
            "the peer's certificate has the address {expected} as a DNS name, not as an address: \
             issue one whose subject alternative name is IP:{expected}, not DNS:{expected}"
        );
        return Refusal::new(FailureReason::WrongName, text);
    }
    let text = format!(
        "the peer presents a certificate for {presented}; this channel expects {expected}: \
         correct the address, or `expect_peer` or `server_name`"
    );
    Refusal::new(FailureReason::WrongName, text)
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").field("expected", &self.expected).finish_non_exhaustive()
    }
}
