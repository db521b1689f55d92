//! The part of the device contract that makes connections: from an address to a QP connected to a
//! peer.
//!
//! Owns contract rule 18. Everything here may wait, so it is async; no message passes through it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;

use super::{CompletionQueue, CqRef, Device, ProviderError, QpCapacity, QpHandle};
use crate::connect::address::Address;
use crate::connect::error::{ConnectError, ListenError};
use crate::memory::region::ProtectionDomain;

/// Private data of a connection request, bytes (InfiniBand CM REQ with RDMA IP CM service header).
pub const REQ_PRIVATE_DATA_BYTES: usize = 56;
/// Private data of an accepting reply, bytes (CM REP).
pub const REP_PRIVATE_DATA_BYTES: usize = 196;
/// Private data of a rejection, bytes (CM REJ).
pub const REJ_PRIVATE_DATA_BYTES: usize = 148;

/// Who is at the other end, as far as the device knows.
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
    /// A network address.
    Network(SocketAddr),
    /// This process itself (`mem://`).
    SameProcess,
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, uid, .. } => write!(f, "process {pid} of user {uid}"),
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

    /// Does what of [`Outgoing::create_qp`] waits for the device, with the same arguments, while
    /// the CQ's owner goes on. To be awaited before it; without that `create_qp` does the waiting.
    /// Default: nothing, for devices on which nothing waits.
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

/// Accepts connections at one address.
#[async_trait]
pub trait Listener: Send + fmt::Debug {
    /// The bound address, with the actual port.
    fn local_address(&self) -> Address;

    /// The next connection request. Cancel-safe.
    ///
    /// # Errors
    /// [`ListenError`] when the listener is dead. Failures that concern one peer are logged only.
    async fn incoming(&mut self) -> Result<Box<dyn Incoming>, ListenError>;
}

/// A connection request. Dropping it refuses the peer without a reason.
#[async_trait]
pub trait Incoming: Send + fmt::Debug {
    /// The device that the request came in on.
    fn device(&self) -> &Arc<dyn Device>;

    /// The peer's private data, zero-padded to [`REQ_PRIVATE_DATA_BYTES`].
    fn private_data(&self) -> &[u8];

    /// Who requests the connection.
    fn peer(&self) -> PeerIdentity;

    /// As [`Outgoing::prepare_qp`].
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
