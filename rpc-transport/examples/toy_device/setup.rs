//! Set-up: from a name to two QPs that know each other. Contract rule 18.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use parking_lot::Mutex;
use rpc_transport::address::Address;
use rpc_transport::device::connection_error::{ConnectError, ListenError};
use rpc_transport::device::{
    Attach, CompletionQueue, Connector, Device, Established, Incoming, Listener, Outgoing,
    PeerIdentity, ProviderError, QpCapacity, QpHandle, REJ_PRIVATE_DATA_BYTES,
    REP_PRIVATE_DATA_BYTES, REQ_PRIVATE_DATA_BYTES,
};
use rpc_transport::memory::region::ProtectionDomain;
use tokio::sync::{mpsc, oneshot};

use crate::device::{self, DEVICE, ToyQueue};

/// Listeners by name.
static LISTENERS: LazyLock<Mutex<HashMap<String, mpsc::UnboundedSender<Request>>>> =
    LazyLock::new(Mutex::default);

struct Request {
    private_data: Vec<u8>,
    qp: QpHandle,
    /// The reply's private data, or that of the rejection.
    answer: oneshot::Sender<Result<Vec<u8>, Vec<u8>>>,
}

/// Pads with zeros to the length that the other side sees.
fn pad(bytes: &[u8], limit: usize) -> Result<Vec<u8>, ProviderError> {
    device::check("private data bytes", bytes.len() as u64, limit as u64)?;
    let mut padded = bytes.to_vec();
    padded.resize(limit, 0);
    Ok(padded)
}

fn established(qp: QpHandle, private_data: Vec<u8>) -> Established {
    let attach = Attach::new(move |cq| ToyQueue::attach(cq, qp));
    Established { private_data, peer: PeerIdentity::SameProcess, attach }
}

const NO_QP: ProviderError = ProviderError::Unsupported("connecting without a queue pair");

/// Connects to names.
#[derive(Debug)]
pub(crate) struct ToyConnector;

#[async_trait]
impl Connector for ToyConnector {
    async fn resolve(&self, address: &Address) -> Result<Box<dyn Outgoing>, ConnectError> {
        Ok(Box::new(ToyOutgoing { address: address.clone(), qp: None }))
    }
}

#[derive(Debug)]
struct ToyOutgoing {
    address: Address,
    qp: Option<QpHandle>,
}

#[async_trait]
impl Outgoing for ToyOutgoing {
    fn device(&self) -> &Arc<dyn Device> {
        &DEVICE
    }

    fn create_qp(
        &mut self,
        cq: &mut dyn CompletionQueue,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<QpHandle, ProviderError> {
        Ok(*self.qp.insert(ToyQueue::create_qp(cq, pd, capacity)?))
    }

    async fn connect(self: Box<Self>, private_data: &[u8]) -> Result<Established, ConnectError> {
        let Self { address, qp } = *self;
        let qp = qp.ok_or(NO_QP)?;
        let private_data = pad(private_data, REQ_PRIVATE_DATA_BYTES)?;
        let (answer, answered) = oneshot::channel();
        let listener = LISTENERS.lock().get(&address.to_string()).cloned();
        let sent = listener.and_then(|to| to.send(Request { private_data, qp, answer }).ok());
        if sent.is_none() {
            return Err(ConnectError::Refused { address, reason: "nobody listens".to_owned() });
        }
        let rejected = |reason: &str, private_data| ConnectError::Rejected {
            address,
            reason: reason.to_owned(),
            private_data,
        };
        match answered.await {
            Ok(Ok(private_data)) => Ok(established(qp, private_data)),
            Ok(Err(private_data)) => Err(rejected("the application refused", private_data)),
            Err(_) => Err(rejected("the request was dropped", Vec::new())),
        }
    }
}

/// Listens at a name.
pub(crate) fn listen(address: Address) -> Box<dyn Listener> {
    let (sender, requests) = mpsc::unbounded_channel();
    LISTENERS.lock().insert(address.to_string(), sender);
    Box::new(ToyListener { address, requests })
}

#[derive(Debug)]
struct ToyListener {
    address: Address,
    requests: mpsc::UnboundedReceiver<Request>,
}

impl Drop for ToyListener {
    fn drop(&mut self) {
        LISTENERS.lock().remove(&self.address.to_string());
    }
}

#[async_trait]
impl Listener for ToyListener {
    fn local_address(&self) -> Address {
        self.address.clone()
    }

    async fn incoming(&mut self) -> Result<Box<dyn Incoming>, ListenError> {
        let request = self.requests.recv().await.ok_or_else(|| ListenError::Failed {
            address: self.address.clone(),
            reason: "another listener has taken the name".to_owned(),
        })?;
        Ok(Box::new(ToyIncoming { address: self.address.clone(), request, qp: None }))
    }
}

struct ToyIncoming {
    address: Address,
    request: Request,
    qp: Option<QpHandle>,
}

impl std::fmt::Debug for ToyIncoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ToyIncoming").field("qp", &self.qp).finish_non_exhaustive()
    }
}

#[async_trait]
impl Incoming for ToyIncoming {
    fn device(&self) -> &Arc<dyn Device> {
        &DEVICE
    }

    fn private_data(&self) -> &[u8] {
        &self.request.private_data
    }

    fn peer(&self) -> PeerIdentity {
        PeerIdentity::SameProcess
    }

    fn create_qp(
        &mut self,
        cq: &mut dyn CompletionQueue,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<QpHandle, ProviderError> {
        Ok(*self.qp.insert(ToyQueue::create_qp(cq, pd, capacity)?))
    }

    async fn accept(self: Box<Self>, private_data: &[u8]) -> Result<Established, ConnectError> {
        let Self { address, request, qp } = *self;
        let qp = qp.ok_or(NO_QP)?;
        let reply = pad(private_data, REP_PRIVATE_DATA_BYTES)?;
        let reason = "the peer has given up".to_owned();
        if !device::join(qp, request.qp) || request.answer.send(Ok(reply)).is_err() {
            return Err(ConnectError::Refused { address, reason });
        }
        Ok(established(qp, Vec::new()))
    }

    async fn reject(self: Box<Self>, private_data: &[u8]) {
        let end = private_data.len().min(REJ_PRIVATE_DATA_BYTES);
        let reason = pad(&private_data[..end], REJ_PRIVATE_DATA_BYTES).unwrap_or_default();
        // A peer that has given up needs no answer.
        let _ = self.request.answer.send(Err(reason));
    }
}
