//! Why a handshake of identities failed.
//!
//! Owns the closed set of reasons. The texts are made where the failure is found.

/// Why a handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureReason {
    /// The server does not offer security, and this channel requires it.
    NotOffered,
    /// A setting of this end does not go with security.
    Configuration,
    /// The peer proved another name than the expected one.
    WrongName,
    /// No authority that this end trusts has signed the peer's certificate.
    UnknownAuthority,
    /// The peer's certificate has ended.
    Expired,
    /// The peer's certificate is not valid yet.
    NotYetValid,
    /// The peer's certificate, or one above it, was revoked; or the list of these is too old.
    Revoked,
    /// The peer gave no certificate.
    NoCertificate,
    /// The peer's certificate is malformed, or not made for this use.
    BadCertificate,
    /// The peer does not have the key of its certificate.
    BadSignature,
    /// Both ends have no version, suite or protocol name in common.
    NothingInCommon,
    /// Both ends saw different set-ups: somebody between them changed it.
    SetUpChanged,
    /// The ends insist on different levels of protection.
    OtherProtection,
    /// The user's hook denies the peer.
    Denied,
    /// The peer broke a rule of the handshake.
    BrokenRule,
    /// The server knows who this client is, and refuses it. Its text is authenticated.
    DeniedByPeer,
    /// The server does not accept what this client has shown. Its text is authenticated.
    CertificateRefusedByPeer,
    /// The peer ended the handshake. Its text is not authenticated and decides nothing.
    RefusedByPeer,
    /// This end failed.
    Internal,
}

impl FailureReason {
    /// Whether this end found it out about its peer or itself, so that another attempt, address or
    /// transport must not be tried instead. False for what anybody on the way could have forged.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::RefusedByPeer | Self::BrokenRule | Self::Internal)
    }
}

/// A handshake that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct HandshakeFailure {
    /// The reason, for programs.
    pub reason: FailureReason,
    /// What is wrong, and what to do, for people at this end. Texts and names of the peer in it
    /// must be [`printable`](crate::text::printable).
    pub text: String,
    /// The text that the peer receives, at most 100 bytes, such as "tls alert 48 unknown_ca".
    pub told: String,
}

impl HandshakeFailure {
    /// A failure with separate texts for this end and the peer.
    pub fn new(reason: FailureReason, text: impl Into<String>, told: impl Into<String>) -> Self {
        Self { reason, text: text.into(), told: told.into() }
    }
}
