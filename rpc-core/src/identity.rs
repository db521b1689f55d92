//! Who is at the other end of a connection.

mod certificate;
mod spiffe;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use rpc_transport::device::PeerIdentity;
use rpc_transport::protocol::lock::Secured;
pub use rpc_transport::protocol::lock::{FailureReason, Protection};

pub use self::certificate::Certificate;
pub(crate) use self::spiffe::SpiffePattern;
pub use self::spiffe::{SpiffeError, SpiffeId};
use crate::text::printable;

/// Who is at the other end of a connection, as far as this end knows: handlers and interceptors
/// find their caller's in [`Context::identity`](crate::Context::identity).
///
/// It is that of the last hop: a proxy between caller and server is the caller.
///
/// ```
/// use rpc_core::{Code, Context, Status};
///
/// fn only_root() -> Result<(), Status> {
///     let context = Context::current();
///     match context.identity().and_then(|caller| caller.unix()) {
///         Some(user) if user.uid == 0 => Ok(()),
///         _ => Err(Status::permission_denied("root alone may do this")),
///     }
/// }
/// # assert_eq!(only_root().unwrap_err().code(), Code::PermissionDenied);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    peer: PeerIdentity,
    name: Option<Arc<str>>,
    proof: Option<Arc<Proof>>,
}

/// What a handshake has proven about the peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Proof {
    /// `None`: it has none, and this end allows that.
    pub(crate) certificate: Option<Certificate>,
    pub(crate) protection: Protection,
    /// The name of the cipher suite.
    pub(crate) suite: &'static str,
    /// What it was verified by; `None` if the peer has shown nothing.
    pub(crate) shown: Option<Arc<Shown>>,
    /// Of what this end trusted, at the beginning of the handshake.
    pub(crate) generation: u64,
    pub(crate) binding: Option<Binding>,
}

/// Certificates, as DER: that of the peer first, then those between it and an authority. Or its raw
/// key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shown(pub(crate) Vec<Vec<u8>>);

/// Bytes that only the two ends of a connection have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Binding(pub(crate) [u8; 32]);

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Binding(..)")
    }
}

impl Proof {
    /// What a connection keeps of its handshake.
    pub(crate) fn of(secured: &Secured) -> Option<Arc<Self>> {
        Arc::clone(&secured.proof).downcast().ok()
    }

    #[cfg(test)]
    pub(crate) fn with_id(id: &str) -> Self {
        let certificate = Some(Certificate::of_key([0; 32]).with_spiffe(id));
        let protection = Protection::Authenticate;
        Self { certificate, protection, suite: "", shown: None, generation: 0, binding: None }
    }
}

/// The user and the process at the other end of `shm://`, as the kernel reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnixUser {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Process id, for logs: another process may have it soon.
    pub pid: u32,
}

impl Identity {
    /// What the transport knows: the address, or the process.
    #[must_use]
    pub fn peer(&self) -> &PeerIdentity {
        &self.peer
    }

    /// The name that a server's [`authenticate`](crate::ServerBuilder::authenticate) has given to
    /// the caller because of its credentials.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The peer with what its credentials say.
    pub(crate) fn with(&self, verified: &Verified) -> Self {
        Self { name: Some(Arc::from(&*verified.name)), ..self.clone() }
    }

    /// The peer with what its handshake has proven.
    pub(crate) fn proven(self, proof: Option<Arc<Proof>>) -> Self {
        Self { proof, ..self }
    }

    #[cfg(feature = "tls")]
    pub(crate) fn proof(&self) -> Option<&Arc<Proof>> {
        self.proof.as_ref()
    }

    /// Bytes that only the two ends of this connection have, and no other connection, where it has
    /// TLS (a TLS exporter). A token that is made for them is of no use on another
    /// connection to a peer that sees it.
    #[must_use]
    pub fn channel_binding(&self) -> Option<&[u8; 32]> {
        Some(&self.proof.as_ref()?.binding.as_ref()?.0)
    }

    /// The verified certificate or key of the peer, where the connection has TLS.
    #[must_use]
    pub fn certificate(&self) -> Option<&Certificate> {
        self.proof.as_ref()?.certificate.as_ref()
    }

    /// The name that the peer has proven, for logs: by its credentials, else by its certificate.
    pub(crate) fn id(&self) -> Option<String> {
        let name = self.name().map(|name| printable(name).to_string());
        name.or_else(|| self.certificate().map(ToString::to_string))
    }

    /// The SPIFFE id in the verified certificate of the peer.
    #[must_use]
    pub fn spiffe(&self) -> Option<&SpiffeId> {
        self.certificate()?.spiffe()
    }

    /// The cipher suite of the connection, such as `TLS13_AES_128_GCM_SHA256`. `None` without TLS.
    #[must_use]
    pub fn cipher_suite(&self) -> Option<&'static str> {
        Some(self.proof.as_ref()?.suite)
    }

    /// How the connection is protected. `None` without TLS.
    #[must_use]
    pub fn protection(&self) -> Option<Protection> {
        Some(self.proof.as_ref()?.protection)
    }

    /// The address, over `tcp://` and `rdma://`. It does not prove who calls.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match self.peer {
            PeerIdentity::Network(address) => Some(address),
            _ => None,
        }
    }

    /// The user, over `shm://`.
    #[must_use]
    pub fn unix(&self) -> Option<UnixUser> {
        match self.peer {
            PeerIdentity::Process { uid, gid, pid } => Some(UnixUser { uid, gid, pid }),
            _ => None,
        }
    }
}

/// What a transport knows, for contexts made by hand.
impl From<PeerIdentity> for Identity {
    fn from(peer: PeerIdentity) -> Self {
        Self { peer, name: None, proof: None }
    }
}

/// For people: the name and that of the certificate, if there are such, before what
/// [`PeerIdentity`] shows.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.certificate()) {
            (Some(name), Some(certificate)) => {
                write!(f, "{} ({certificate}) at {}", printable(name), self.peer)
            }
            (Some(name), None) => write!(f, "{} at {}", printable(name), self.peer),
            (None, Some(certificate)) => write!(f, "{certificate} at {}", self.peer),
            (None, None) => self.peer.fmt(f),
        }
    }
}

/// What [`ServerBuilder::authenticate`](crate::ServerBuilder::authenticate) has found out about a
/// caller.
#[derive(Debug, Clone)]
#[must_use]
pub struct Verified {
    name: String,
}

impl Verified {
    /// The caller's name: what its [`Identity::name`] is to be.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }
}

/// What a client shows a server to prove who it is: a token, for example. Its bytes are in no log
/// and no `Debug`.
///
/// ```
/// use rpc_core::identity::Credentials;
///
/// let credentials = Credentials::from("s3cret");
/// assert!(credentials.matches(b"s3cret") && !credentials.matches(b"guess"));
/// assert_eq!(format!("{credentials:?}"), "Credentials(..)");
/// ```
#[derive(Clone)]
pub struct Credentials(Arc<[u8]>);

impl Credentials {
    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, if they are text.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// Whether they are equal to a secret. How long that takes says nothing about the secret's
    /// bytes, only about its length.
    #[must_use]
    pub fn matches(&self, secret: &[u8]) -> bool {
        let differ = |so_far, (own, other): (&u8, &u8)| std::hint::black_box(so_far | own ^ other);
        self.0.len() == secret.len() && self.0.iter().zip(secret).fold(0, differ) == 0
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

impl From<&[u8]> for Credentials {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl From<Vec<u8>> for Credentials {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<&str> for Credentials {
    fn from(text: &str) -> Self {
        text.as_bytes().into()
    }
}

impl From<String> for Credentials {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}
