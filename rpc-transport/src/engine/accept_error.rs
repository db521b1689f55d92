//! [`AcceptError`]: why a connection request was not accepted.

use crate::device::ProviderError;
use crate::device::connection_error::ConnectError;
use crate::protocol::handshake::Reject;
use crate::protocol::lock::HandshakeFailure;

/// Why a connection request was not accepted.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The two sides' offers are incompatible; the peer was notified.
    #[error("the request was refused: {0}")]
    Refused(Reject),
    /// No QP could be made; the peer was notified.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The peer went away, or the transport failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The handshake of identities failed; the peer was notified.
    #[error(transparent)]
    Handshake(#[from] HandshakeFailure),
}
