//! Set-up code shared by all software wires.
//!
//! Owns the limits of set-up, the QP of a connection until it has its wire, and the steps that
//! every connector and listener takes. Never talks to a peer: each wire does that in its own
//! module.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::device::connection_error::{ConnectError, ListenError};
use crate::device::{
    Attach, CompletionQueue, Device, Established, Incoming, Outgoing, PeerIdentity, ProviderError,
    QpCapacity, QpHandle, REJ_PRIVATE_DATA_BYTES, REP_PRIVATE_DATA_BYTES, REQ_PRIVATE_DATA_BYTES,
};
use crate::memory::region::ProtectionDomain;

use super::cq::SoftCompletionQueue;
use super::wire::Wire;

/// Time limit for the peer's answer to a connector.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The QP of a connection that is being set up.
#[derive(Debug, Default)]
struct SetupQp(Option<QpHandle>);

impl SetupQp {
    /// Creates the QP. Only once.
    fn create(
        &mut self,
        cq: &mut dyn CompletionQueue,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<QpHandle, ProviderError> {
        if self.0.is_some() {
            return Err(ProviderError::Unsupported("a second queue pair for one connection"));
        }
        let handle = SoftCompletionQueue::of(cq)?.create_qp(pd, capacity)?;
        self.0 = Some(handle);
        Ok(handle)
    }

    /// The QP; an error if it has not been created.
    fn created(&self) -> Result<QpHandle, ProviderError> {
        self.0.ok_or(ProviderError::Unsupported("connecting before a queue pair was created"))
    }
}

/// The connecting side of one kind of wire.
#[async_trait]
pub(super) trait Dial: fmt::Debug + Send {
    fn device(&self) -> &'static Arc<dyn Device>;

    /// Sends the request, with private data of [`REQ_PRIVATE_DATA_BYTES`]. Returns the private data
    /// of the answer, the peer's identity, and the wire to it.
    async fn dial(
        self,
        private_data: Vec<u8>,
    ) -> Result<(Vec<u8>, PeerIdentity, Wire), ConnectError>;
}

/// A connection requested by this side.
#[derive(Debug)]
pub(super) struct Dialing<D> {
    dial: D,
    qp: SetupQp,
}

impl<D: Dial + 'static> Dialing<D> {
    pub(super) fn boxed(dial: D) -> Box<dyn Outgoing> {
        Box::new(Self { dial, qp: SetupQp::default() })
    }
}

#[async_trait]
impl<D: Dial> Outgoing for Dialing<D> {
    fn device(&self) -> &Arc<dyn Device> {
        self.dial.device()
    }

    fn create_qp(
        &mut self,
        cq: &mut dyn CompletionQueue,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<QpHandle, ProviderError> {
        self.qp.create(cq, pd, capacity)
    }

    async fn connect(self: Box<Self>, private_data: &[u8]) -> Result<Established, ConnectError> {
        let qp = self.qp.created()?;
        let private_data = pad(private_data, REQ_PRIVATE_DATA_BYTES)?;
        let (private_data, peer, wire) = self.dial.dial(private_data).await?;
        Ok(Established { private_data, peer, attach: attach(qp, wire) })
    }
}

/// The listening side of one kind of wire, once a valid request has arrived.
#[async_trait]
pub(super) trait Answer: fmt::Debug + Send {
    fn device(&self) -> &'static Arc<dyn Device>;

    fn private_data(&self) -> &[u8];

    fn peer(&self) -> PeerIdentity;

    /// Accepts, with private data of [`REP_PRIVATE_DATA_BYTES`].
    async fn accept(self, private_data: Vec<u8>) -> Result<Wire, ConnectError>;

    /// Refuses, with private data of [`REJ_PRIVATE_DATA_BYTES`]. A peer that has given up gets no
    /// answer.
    async fn reject(self, private_data: Vec<u8>);
}

/// A connection requested by a peer.
#[derive(Debug)]
pub(super) struct Answering<A> {
    answer: A,
    qp: SetupQp,
}

impl<A: Answer + 'static> Answering<A> {
    pub(super) fn boxed(answer: A) -> Box<dyn Incoming> {
        Box::new(Self { answer, qp: SetupQp::default() })
    }
}

#[async_trait]
impl<A: Answer> Incoming for Answering<A> {
    fn device(&self) -> &Arc<dyn Device> {
        self.answer.device()
    }

    fn private_data(&self) -> &[u8] {
        self.answer.private_data()
    }

    fn peer(&self) -> PeerIdentity {
        self.answer.peer()
    }

    fn create_qp(
        &mut self,
        cq: &mut dyn CompletionQueue,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<QpHandle, ProviderError> {
        self.qp.create(cq, pd, capacity)
    }

    async fn accept(self: Box<Self>, private_data: &[u8]) -> Result<Established, ConnectError> {
        let qp = self.qp.created()?;
        let private_data = pad(private_data, REP_PRIVATE_DATA_BYTES)?;
        let peer = self.answer.peer();
        let wire = self.answer.accept(private_data).await?;
        Ok(Established { private_data: Vec::new(), peer, attach: attach(qp, wire) })
    }

    async fn reject(self: Box<Self>, private_data: &[u8]) {
        let private_data = pad(private_data, REJ_PRIVATE_DATA_BYTES).unwrap_or_else(|error| {
            // The peer must be refused in any case.
            tracing::warn!(%error, "a connection is rejected without the reason");
            vec![0; REJ_PRIVATE_DATA_BYTES]
        });
        self.answer.reject(private_data).await;
    }
}

/// The set-up step that gives a QP its wire.
fn attach(qp: QpHandle, wire: Wire) -> Attach {
    Attach::new(move |cq| SoftCompletionQueue::of(cq)?.attach(qp, wire))
}

/// Private data as the peer sees it: zero-padded to `limit` bytes (contract rule 18).
pub(super) fn pad(private_data: &[u8], limit: usize) -> Result<Vec<u8>, ProviderError> {
    if private_data.len() > limit {
        let (asked, limit) = (private_data.len() as u64, limit as u64);
        return Err(ProviderError::Limit { what: "private data bytes", asked, limit });
    }
    let mut padded = private_data.to_vec();
    padded.resize(limit, 0);
    Ok(padded)
}

/// Fails outside a tokio runtime, which set-up over sockets needs.
pub(super) fn need_runtime(scheme: &'static str) -> Result<(), ListenError> {
    tokio::runtime::Handle::try_current().map(drop).map_err(|_| {
        let reason = "listening needs a tokio runtime; call it from async code".to_owned();
        ListenError::Unavailable { scheme, reason }
    })
}

/// The reason why two versions do not connect. The listener sends it to the connector, so it reads
/// the same at both ends.
pub(super) fn other_version(theirs: u8, ours: u8) -> String {
    format!(
        "set-up versions {theirs} (peer) and {ours} (this end) are incompatible; build both ends \
         from the same release"
    )
}
