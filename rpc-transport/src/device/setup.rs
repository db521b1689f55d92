//! The part of the device contract that makes connections: from an address to a QP connected to a
//! peer.
//!
//! Owns contract rule 18. Everything here may wait, so it is async; no message passes through it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;

use super::{CompletionQueue, CqRef, Device, ProviderError, QpCapacity, QpHandle};
use crate::address::Address;
use crate::device::connection_error::{ConnectError, ListenError};
use crate::memory::region::ProtectionDomain;

/// Private data of a connection request, bytes (InfiniBand CM REQ with RDMA IP CM service header).
pub const REQ_PRIVATE_DATA_BYTES: usize = 56;
/// Private data of an accepting reply, bytes (CM REP).
pub const REP_PRIVATE_DATA_BYTES: usize = 196;
/// Private data of a rejection, bytes (CM REJ).
pub const REJ_PRIVATE_DATA_BYTES: usize = 148;

/// The identity of the peer, as far as the device knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerIdentity {
    /// A process on this machine, with credentials attested by the kernel.
    Process {
        /// Process id.
        pid: u32,
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
    },
    /// A network address. An IPv4 peer always has an IPv4 address, never the mapped form
    /// (`::ffff:10.0.0.7`).
    Network(SocketAddr),
    /// This process itself (`mem://`).
    SameProcess,
}

impl PeerIdentity {
    /// The peer at a network address.
    #[must_use]
    pub fn network(address: SocketAddr) -> Self {
        Self::Network(canonical(address))
    }
}

/// The address in the form that lists of addresses use: a socket that listens at `[::]` reports
/// IPv4 peers in IPv6's mapped form.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        // Keeps its zone.
        IpAddr::V6(_) => address,
    }
}

/// For people: `10.0.0.7:40312`, `pid 16231 uid 1000`, `this process`.
impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, uid, .. } => write!(f, "pid {pid} uid {uid}"),
            Self::Network(address) => address.fmt(f),
            Self::SameProcess => f.write_str("this process"),
        }
    }
}

/// Opens connections to addresses of one scheme.
#[async_trait]
pub trait Connector: Send + Sync + fmt::Debug {
    /// Resolves an address to a device and a route.
    ///
    /// # Errors
    /// [`ConnectError`]: bad address, no device, nothing listening.
    async fn resolve(&self, address: &Address) -> Result<Box<dyn Outgoing>, ConnectError>;
}

/// An outgoing connection: the device is known, the peer has not been contacted yet. Dropping it,
/// or the future of `connect`, ends the attempt.
#[async_trait]
pub trait Outgoing: Send + fmt::Debug {
    /// The device that reaches the address.
    fn device(&self) -> &Arc<dyn Device>;

    /// Does the part of [`Outgoing::create_qp`] that waits for the device, with the same arguments,
    /// while the CQ's owner continues. Await it before `create_qp`; otherwise `create_qp` does the
    /// waiting. Default: nothing, for devices whose set-up never waits.
    ///
    /// # Errors
    /// [`ProviderError`]; a later `create_qp` starts anew.
    async fn prepare_qp(
        &mut self,
        cq: &CqRef,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<(), ProviderError> {
        let _ = (cq, pd, capacity);
        Ok(())
    }

    /// Creates the QP (state INIT) on a CQ of [`Outgoing::device`]. Only once.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn create_qp(
        &mut self,
        cq: &mut dyn CompletionQueue,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<QpHandle, ProviderError>;

    /// Connects the created QP. On success it is in RTS **once [`Established::attach`] has run**
    /// with access to the CQ.
    ///
    /// # Errors
    /// [`ConnectError`]; the caller must still destroy the QP.
    async fn connect(self: Box<Self>, private_data: &[u8]) -> Result<Established, ConnectError>;
}

/// The result of a successful set-up: the peer has agreed.
#[derive(Debug)]
pub struct Established {
    /// Private data of the reply, zero-padded to [`REP_PRIVATE_DATA_BYTES`] (client side), or
    /// empty (server side).
    pub private_data: Vec<u8>,
    /// Who the peer is.
    pub peer: PeerIdentity,
    /// Completes the transition to RTS on the CQ; run it once with the CQ the QP was created on.
    pub attach: Attach,
}

/// The last step of set-up, run by the CQ's owner.
pub struct Attach(Box<AttachFn>);

type AttachFn = dyn FnOnce(&mut dyn CompletionQueue) -> Result<(), ProviderError> + Send;

impl Attach {
    /// Wraps the step.
    pub fn new(
        step: impl FnOnce(&mut dyn CompletionQueue) -> Result<(), ProviderError> + Send + 'static,
    ) -> Self {
        Self(Box::new(step))
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`ProviderError`] when the QP is gone or the CQ is another device's.
    pub fn run(self, cq: &mut dyn CompletionQueue) -> Result<(), ProviderError> {
        (self.0)(cq)
    }
}

impl fmt::Debug for Attach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attach")
    }
}

/// The exchange of `auto://`, as sent over TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// The client's question.
    pub question: Vec<u8>,
    /// The server's answer.
    pub answer: Vec<u8>,
}

/// Accepts connections at one address.
#[async_trait]
pub trait Listener: Send + fmt::Debug {
    /// The bound address, with the actual port.
    fn local_address(&self) -> Address;

    /// The exchange by which clients choose among its transports, if it has several. Default: none.
    fn exchange(&self) -> Option<Arc<Exchange>> {
        None
    }

    /// The next connection request. Cancel-safe.
    ///
    /// # Errors
    /// [`ListenError`] when the listener is dead. Failures that concern one peer are logged only.
    async fn incoming(&mut self) -> Result<Box<dyn Incoming>, ListenError>;
}

/// A connection request. Dropping it refuses the peer without a reason.
#[async_trait]
pub trait Incoming: Send + fmt::Debug {
    /// The device that received the request.
    fn device(&self) -> &Arc<dyn Device>;

    /// The peer's private data, zero-padded to [`REQ_PRIVATE_DATA_BYTES`].
    fn private_data(&self) -> &[u8];

    /// The identity of the peer.
    fn peer(&self) -> PeerIdentity;

    /// Like [`Outgoing::prepare_qp`].
    ///
    /// # Errors
    /// [`ProviderError`]; a later `create_qp` starts anew.
    async fn prepare_qp(
        &mut self,
        cq: &CqRef,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<(), ProviderError> {
        let _ = (cq, pd, capacity);
        Ok(())
    }

    /// Creates the QP (state INIT) on a CQ of [`Incoming::device`]. Only once.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn create_qp(
        &mut self,
        cq: &mut dyn CompletionQueue,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<QpHandle, ProviderError>;

    /// Accepts. RECVs must have been posted before (rule 18).
    ///
    /// # Errors
    /// [`ConnectError`] when the peer is gone; the caller must still destroy the QP.
    async fn accept(self: Box<Self>, private_data: &[u8]) -> Result<Established, ConnectError>;

    /// Refuses, with a reason for the peer.
    async fn reject(self: Box<Self>, private_data: &[u8]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A regression: lists of allowed addresses missed IPv4 clients of servers at `[::]`.
    #[test]
    fn ipv4_peers_have_ipv4_addresses() {
        for (from, to) in [
            ("[::ffff:127.0.0.1]:7", "127.0.0.1:7"),
            ("10.0.0.7:8", "10.0.0.7:8"),
            ("[::1]:7", "[::1]:7"),
            ("[fe80::1%3]:7", "[fe80::1%3]:7"),
        ] {
            let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            assert_eq!(PeerIdentity::network(from), PeerIdentity::Network(to));
        }
    }
}
