//! Errors of setting a connection up, and the one cause with which a connection ends.
//!
//! Owns the messages that a person reads when a peer cannot be reached or was lost: what failed,
//! where, and what to do. Protocol violations are named by the layer that finds them and arrive
//! here as [`CloseCause::Protocol`].

use std::fmt;
use std::sync::Arc;

use crate::address::{Address, AddressError};
use crate::device::handshake_failure::HandshakeFailure;
use crate::device::{ProviderError, Status};

/// Why a connection could not be set up.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address is not valid.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Nothing listens there.
    #[error(
        "nothing is listening at {address}: {reason}; start the server there, or correct the address"
    )]
    Refused {
        /// The address.
        address: Address,
        /// The error of the system.
        reason: String,
    },
    /// The host cannot be found or reached.
    #[error("cannot reach {address}: {reason}")]
    Unreachable {
        /// The address.
        address: Address,
        /// The error of the system.
        reason: String,
    },
    /// No answer in time.
    #[error("{address} {phase} within {after:?}: {}", phase.cause())]
    TimedOut {
        /// The address.
        address: Address,
        /// The limit.
        after: std::time::Duration,
        /// What was not done in time.
        phase: SetUpPhase,
    },
    /// The peer refused, with a reason.
    #[error("{address} refused the connection: {reason}")]
    Rejected {
        /// The address.
        address: Address,
        /// The device's reason: the application refused, or its listener dropped the request.
        reason: String,
        /// Private data of the rejection, zero-padded to
        /// [`REJ_PRIVATE_DATA_BYTES`](crate::device::REJ_PRIVATE_DATA_BYTES). Empty when the peer's
        /// device refused without its application.
        private_data: Vec<u8>,
    },
    /// The peer's answer does not follow the protocol.
    #[error("{address} does not speak this protocol: {reason}")]
    Protocol {
        /// The address.
        address: Address,
        /// What was wrong.
        reason: String,
    },
    /// The handshake that proves both ends' identities failed.
    #[error("{address}: {failure}")]
    Handshake {
        /// The address.
        address: Address,
        /// The reason, and what to do.
        failure: HandshakeFailure,
    },
    /// The scheme needs something that this machine or build lacks.
    #[error("{scheme}:// is not available here: {reason}")]
    Unavailable {
        /// The scheme.
        scheme: &'static str,
        /// What is missing and what to do.
        reason: String,
    },
    /// A configuration value is out of range.
    #[error("bad configuration: {0}")]
    Config(String),
    /// The device refused.
    #[error(transparent)]
    Provider(#[from] ProviderError),
}

/// A part of a connection's set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetUpPhase {
    /// The peer's answer to the request of a connection.
    Connecting,
    /// The TLS handshake, on a connection that the peer has accepted.
    Handshake,
}

impl SetUpPhase {
    const fn cause(self) -> &'static str {
        match self {
            Self::Connecting => {
                "the program listening there hangs or speaks another protocol, or a firewall drops \
                 the packets"
            }
            Self::Handshake => {
                "the program there hangs or has too much to do, or somebody on the way drops the \
                 packets"
            }
        }
    }
}

impl fmt::Display for SetUpPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connecting => "did not answer",
            Self::Handshake => "accepted the connection, then did not finish the TLS handshake",
        })
    }
}

/// Why a listener could not be opened, or died.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address is not valid.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Another listener has the address.
    #[error("{address} is in use: {reason}")]
    InUse {
        /// The address.
        address: Address,
        /// The error of the system, and what to do.
        reason: String,
    },
    /// The server belongs to the parent of this process.
    #[error("the server {}", crate::memory::process::FORKED)]
    Forked,
    /// The system refused.
    #[error("cannot listen at {address}: {reason}")]
    Failed {
        /// The address.
        address: Address,
        /// The error of the system.
        reason: String,
    },
    /// The scheme needs something that this machine or build lacks.
    #[error("{scheme}:// is not available here: {reason}")]
    Unavailable {
        /// The scheme.
        scheme: &'static str,
        /// What is missing and what to do.
        reason: String,
    },
    /// A configuration value is out of range.
    #[error("bad configuration: {0}")]
    Config(String),
    /// The device refused.
    #[error(transparent)]
    Provider(#[from] ProviderError),
}

/// Why a connection ended. Every pending call of the connection gets the same cause.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CloseCause {
    /// This side closed it.
    #[error("the connection was closed")]
    Local,
    /// The peer closed it in order, with its reason.
    #[error("the peer closed the connection: {0}")]
    Peer(Arc<str>),
    /// The peer is gone: process death, host or device lost.
    #[error("the peer is gone")]
    Disconnected,
    /// The peer is gone, and this process had not run for this long just before: it was stopped, or
    /// its runtime was blocked. Peers give up a connection that is silent for that long.
    #[error(
        "the peer is gone, after this process did not run for {0:?}: it was stopped, or its \
         runtime was blocked, and the peer may have given up the connection"
    )]
    OwnSilence(std::time::Duration),
    /// A work request failed.
    #[error("a work request failed: {0:?}{1}")]
    WorkRequest(Status, VendorError),
    /// The peer broke the protocol; the text names the rule.
    #[error("the peer broke the protocol: {0}")]
    Protocol(Arc<str>),
    /// The peer says that this side broke the protocol; the text names the rule, cut to the 100
    /// bytes that are sent.
    #[error("the peer closed the connection because this side broke the protocol: {0}")]
    Accused(Arc<str>),
    /// The peer does not answer pings.
    #[error("the peer did not answer a ping within {0:?}")]
    PingTimeout(std::time::Duration),
    /// The device or CQ died.
    #[error("the device failed: {0}")]
    Device(Arc<str>),
    /// The layer above panicked, which is a bug in this framework: its state cannot be trusted.
    #[error("a panic destroyed the state of the connection")]
    Panicked,
    /// The connection belongs to the parent of this process, which goes on using it.
    #[error(
        "this process was made by fork(2), and the connection belongs to its parent: make a new \
         channel in the child"
    )]
    Forked,
    /// The runtime that drove this connection has shut down.
    #[error("the runtime that drove the connection has shut down")]
    DriverGone,
}

/// The vendor's error number of a failed work request (`vendor_err`), for the vendor's
/// documentation and support; 0 where the device gives none. Displayed after a status; empty for 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VendorError(pub u32);

impl fmt::Display for VendorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            number => write!(f, " (vendor error {number:#x})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_work_request_names_the_vendor_error() {
        let cause = |number| CloseCause::WorkRequest(Status::RemoteAccess, VendorError(number));
        assert_eq!(
            cause(0x88).to_string(),
            "a work request failed: RemoteAccess (vendor error 0x88)"
        );
        assert_eq!(cause(0).to_string(), "a work request failed: RemoteAccess");
    }
}
