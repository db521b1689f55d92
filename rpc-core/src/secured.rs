//! The TLS of a channel or a server, for those who know no TLS.
//!
//! Owns the rules of which addresses may be used with it. Exists without the feature `tls`, too;
//! nobody can make one then.

use std::fmt;
use std::sync::Arc;

use rpc_transport::address::Address;
use rpc_transport::device::PeerIdentity;
use rpc_transport::engine::security::Security;
use rpc_transport::protocol::config::{ConfigError, LinkConfig};
use rpc_transport::protocol::lock::{HandshakeFactory, HandshakeFailure, Protection};

use crate::endpoint::connection_context::ConnectionContext;
use crate::endpoint::ended::OnEvent;
use crate::identity::Identity;

/// How the connections of a channel or a server are secured.
#[derive(Debug, Clone)]
pub(crate) struct Secured {
    pub(crate) keeper: Arc<dyn Keep>,
    pub(crate) expected: ExpectedName,
    /// A server takes plain connections, too.
    pub(crate) is_optional: bool,
    /// Over `shm://` the kernel says who the peer is, and there is no handshake.
    pub(crate) trusts_kernel: bool,
}

/// What goes on behind the handshakes of a channel or a server.
pub(crate) trait Keep: fmt::Debug + Send + Sync {
    /// Starts it, if it does not run. To be called in a runtime, before the first handshake there.
    fn begin(self: Arc<Self>);

    /// Makes handshakes; with a client, if the user is to be asked about it in them.
    fn handshakes(&self, peer: Option<&PeerIdentity>) -> Arc<dyn HandshakeFactory>;

    /// Asks the user about a server.
    ///
    /// # Errors
    /// Why it is refused.
    fn ask(&self, peer: &Identity) -> Result<(), HandshakeFailure>;

    /// Watches over a connection from now on. `owner`: the channel of it, which makes another one
    /// when it learns that the peer goes away.
    fn keep(&self, connection: &Arc<ConnectionContext>, owner: Option<OnEvent>);
}

/// The source of the name that a server must prove. All of them are words of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "nobody can make one"))]
pub(crate) enum ExpectedName {
    /// The options of TLS: no address matters. Also at servers, which expect no name.
    OfOptions,
    /// The host of each address.
    OfAddress,
    /// This host, of which the addresses were looked up.
    Host(String),
}

impl Secured {
    /// Whether this address may be used.
    ///
    /// # Errors
    /// What is missing, and what to do.
    pub(crate) fn check(&self, address: &Address) -> Result<(), String> {
        if self.is_plain(address) {
            return Ok(());
        }
        let has_name = match &self.expected {
            ExpectedName::OfOptions | ExpectedName::Host(_) => true,
            ExpectedName::OfAddress => host(address).is_some(),
        };
        if has_name {
            return Ok(());
        }
        Err(format!(
            "the name that the server at {address} must prove is not known: say \
             `Tls::expect_peer` or `Tls::server_name`"
        ))
    }

    /// Whether a channel connects to this address, as its user wrote it, without a handshake.
    pub(crate) fn is_plain(&self, address: &Address) -> bool {
        self.trusts_kernel && address.scheme() == "shm"
    }

    /// Whether connections to this address are encrypted.
    pub(crate) fn encrypts(&self, address: &Address) -> bool {
        self.keeper.handshakes(None).protection(address.scheme()) >= Protection::Encrypt
    }

    /// Checks a configuration of the link that both ends of a secured connection depend on.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub(crate) fn check_link(&self, link: &LinkConfig) -> Result<(), ConfigError> {
        link.validate_secure()
    }

    /// For a connection to an address, as the user wrote it.
    pub(crate) fn security(&self, address: &Address) -> Security {
        let security = Security::new(self.keeper.handshakes(None));
        let name = match &self.expected {
            ExpectedName::OfAddress => host(address),
            ExpectedName::Host(host) => Some(host.as_str()),
            ExpectedName::OfOptions => None,
        };
        match name {
            Some(name) => security.expecting(name),
            None => security,
        }
    }
}

/// The host in an address.
fn host(address: &Address) -> Option<&str> {
    match address {
        Address::Tcp(at) | Address::Rdma(at, _) | Address::Auto(at, _) => Some(&at.host),
        _ => None,
    }
}
