//! [`Security`]: how the ends of a connection prove who they are.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::device::Device;
use crate::protocol::lock::{Exchange, HandshakeFactory, Protection};

/// What a channel or a server gives to a set-up whose peer must prove who it is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Security {
    /// Makes the handshakes.
    pub handshakes: Arc<dyn HandshakeFactory>,
    /// The name that a server must prove: from the user, or the host in the address that the user
    /// wrote. `None` if the factory knows the name, and at a server.
    pub expected_name: Option<Arc<str>>,
    /// The exchange of `auto://`. A client: the one that led to this address, if any. A server:
    /// that of its listener ([`Listener::exchange`](crate::device::Listener::exchange)).
    pub exchange: Option<Arc<Exchange>>,
    /// Set when a handshake begins: a set-up that takes too long is in it then.
    pub has_begun: Arc<AtomicBool>,
}

impl Security {
    /// For addresses without `auto://`, and a factory that knows the name.
    #[must_use]
    pub fn new(handshakes: Arc<dyn HandshakeFactory>) -> Self {
        Self { handshakes, expected_name: None, exchange: None, has_begun: Arc::default() }
    }

    /// With the name that the server must prove.
    #[must_use]
    pub fn expecting(mut self, name: impl Into<Arc<str>>) -> Self {
        self.expected_name = Some(name.into());
        self
    }

    /// What connections of a device have.
    pub(super) fn protection_on(&self, device: &dyn Device) -> Protection {
        self.handshakes.protection(device.attributes().scheme)
    }

    /// With the exchange of `auto://`.
    #[must_use]
    pub fn with_exchange(mut self, exchange: Option<Arc<Exchange>>) -> Self {
        self.exchange = exchange;
        self
    }
}
