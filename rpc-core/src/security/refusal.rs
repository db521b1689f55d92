//! Why the ends do not trust each other: from errors of rustls to reasons with what to do.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rpc_transport::protocol::lock::{FailureReason, HandshakeFailure};
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error, OtherError, PeerIncompatible};

use super::der::date;

/// Longest text of a peer that a message quotes, characters.
const MAX_QUOTED: usize = 256;

/// Why a certificate or key of a peer is refused, on its way through rustls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: FailureReason,
    /// What is wrong and what to do. The peer's words in it are [`quoted`].
    pub(super) text: String,
    /// What the peer learns: one of few words, never the text.
    told: &'static str,
}

impl Refusal {
    pub(super) fn new(reason: FailureReason, text: impl Into<String>) -> Self {
        let told = match reason {
            FailureReason::Expired => "renew it",
            FailureReason::Revoked => "issue a new certificate",
            FailureReason::UnknownAuthority => "no CA in the ca.pem here has signed it",
            FailureReason::NotYetValid => "it is not valid yet",
            FailureReason::WrongName => "it is for another name",
            FailureReason::BadCertificate => "it breaks a rule of certificates",
            _ => "",
        };
        Self { reason, text: text.into(), told }
    }

    /// Reports something more exact to the peer.
    pub(super) fn telling(mut self, told: &'static str) -> Self {
        self.told = told;
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let other = CertificateError::Other(OtherError(Arc::new(refusal)));
        Self::InvalidCertificate(other)
    }
}

/// The end of a handshake for an error of rustls, with the alert that it would send.
pub(super) fn failure(error: &Error, alert: Option<AlertDescription>) -> HandshakeFailure {
    let Refusal { reason, text, told } = refusal(error);
    // rustls does not know why a certificate is refused here.
    let of_reason = match reason {
        FailureReason::Expired => Some(AlertDescription::CertificateExpired),
        FailureReason::Revoked => Some(AlertDescription::CertificateRevoked),
        FailureReason::UnknownAuthority => Some(AlertDescription::UnknownCA),
        _ => None,
    };
    let told = match of_reason.or(alert) {
        Some(alert) if told.is_empty() => format!("tls alert {} {alert:?}", u8::from(alert)),
        Some(alert) => format!("tls alert {} {alert:?}: {told}", u8::from(alert)),
        None => "the handshake failed".to_owned(),
    };
    HandshakeFailure::new(reason, text, told)
}

fn refusal(error: &Error) -> Refusal {
    use FailureReason::{BrokenRule, NoCertificate, NothingInCommon, RefusedByPeer};
    match error {
        Error::InvalidCertificate(CertificateError::BadSignature) => Refusal::new(
            FailureReason::BadSignature,
            "the peer does not have the key of its certificate, or somebody changed a message of \
             the handshake",
        ),
        Error::InvalidCertificate(error) => of_certificate(error),
        Error::NoCertificatesPresented => Refusal::new(
            NoCertificate,
            "the peer has no certificate: give it one with `Tls::from_pem`, or let the server \
             `allow_anonymous_clients`",
        ),
        Error::AlertReceived(alert) => Refusal::new(
            RefusedByPeer,
            format!(
                "the peer refuses this end: tls alert {} {alert:?}; its log says why",
                u8::from(*alert)
            ),
        ),
        Error::NoApplicationProtocol => Refusal::new(
            NothingInCommon,
            "the peer does not speak this protocol (ALPN): use this library at both ends",
        ),
        Error::PeerIncompatible(
            PeerIncompatible::UnsolicitedCertificateTypeExtension
            | PeerIncompatible::IncorrectCertificateTypeExtension,
        ) => Refusal::new(
            NothingInCommon,
            "one end has raw keys and the other has certificates: use `Tls::raw_keys` or \
             `Tls::from_pem` at both",
        ),
        Error::PeerIncompatible(what) => Refusal::new(
            NothingInCommon,
            format!(
                "the two ends have no TLS in common ({}): use the same version of this library",
                quoted(&format!("{what:?}"))
            ),
        ),
        Error::FailedToGetRandomBytes | Error::FailedToGetCurrentTime => {
            Refusal::new(FailureReason::Internal, format!("TLS fails at this end: {error}"))
        }
        error => Refusal::new(
            BrokenRule,
            format!(
                "the peer does not follow TLS ({}): check what listens there",
                quoted(&error.to_string())
            ),
        ),
    }
}

/// What this end's own judgement says, on its way back through rustls, or what rustls finds when it
/// reads a certificate.
fn of_certificate(error: &CertificateError) -> Refusal {
    match error {
        CertificateError::Other(OtherError(other)) => match other.downcast_ref::<Refusal>() {
            Some(refusal) => refusal.clone(),
            None => bad(&quoted(&other.to_string())),
        },
        error => bad(&quoted(&error.to_string())),
    }
}

/// Why a chain is not accepted.
pub(super) fn of_chain(error: &webpki::Error) -> Refusal {
    use FailureReason::{BadCertificate, Configuration, Expired, NotYetValid, Revoked};
    let day = |time: &UnixTime| date(SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs()));
    match error {
        webpki::Error::CertExpired { time, not_after } => Refusal::new(
            Expired,
            format!(
                "the peer's certificate, or one above it, ended on {} (this clock says {}): renew \
                 it, or correct the clock",
                day(not_after),
                day(time)
            ),
        ),
        webpki::Error::CertNotValidYet { .. } => {
            let text = "the peer's certificate is not valid yet: correct the clock of one machine";
            Refusal::new(NotYetValid, text)
        }
        webpki::Error::CertRevoked => Refusal::new(
            Revoked,
            "the peer's certificate, or one above it, was revoked: issue a new one, with a new key",
        ),
        webpki::Error::CrlExpired { time, next_update } => Refusal::new(
            Revoked,
            format!(
                "this end's list of revoked certificates ended on {} (this clock says {}): fetch a \
                 newer one from the authority",
                day(next_update),
                day(time)
            ),
        ),
        webpki::Error::InvalidCrlSignatureForPublicKey | webpki::Error::IssuerNotCrlSigner => {
            Refusal::new(
                Configuration,
                "this end's list of revoked certificates is not signed by the authority that it \
                 names: fetch it again",
            )
        }
        webpki::Error::RequiredEkuNotFoundContext(_) | webpki::Error::EmptyEkuExtension => {
            Refusal::new(
                BadCertificate,
                "the peer's certificate is for the other role: a server's needs the extended key \
                 usage serverAuth, a client's clientAuth",
            )
            .telling("it is for the other role")
        }
        error => bad(&quoted(&error.to_string())),
    }
}

/// A certificate that breaks a rule.
pub(super) fn bad(what: &str) -> Refusal {
    Refusal::new(
        FailureReason::BadCertificate,
        format!("the peer's certificate is not accepted: {what}; issue a new one"),
    )
}

/// A text with bytes of a peer, for a message or a log.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted: String = text.escape_debug().take(MAX_QUOTED).collect();
    if text.escape_debug().nth(MAX_QUOTED).is_some() {
        quoted.push_str("..");
    }
    quoted
}
