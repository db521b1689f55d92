//! `mem://`: connections inside one process.
//!
//! Owns the names that have a listener, and the set-up between two tasks. Never touches a ring once
//! both sides are connected.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use crate::address::Address;
use crate::device::connection_error::{ConnectError, ListenError, SetUpPhase};
use crate::device::{Connector, Device, Incoming, Listener, Outgoing, PeerIdentity};
use crate::lock::Mutex;
use crate::memory::process::{OfProcess, PerProcess};

use super::advice;
use super::ring::DEFAULT_SLOTS;
use super::setup::{Answer, Answering, CONNECT_TIMEOUT, Dial, Dialing};
use super::wire::Wire;
use super::wire_ring::RingWire;

/// Most connection requests that wait at one listener.
const BACKLOG: usize = 128;

/// A child of `fork(2)` has none of its parent's listeners: the threads that would answer there are
/// missing.
static LISTENERS: PerProcess<Mutex<HashMap<String, mpsc::Sender<Request>>>> = PerProcess::new();

/// A connection request, passed from connector to listener.
#[derive(Debug)]
struct Request {
    private_data: Vec<u8>,
    wire: RingWire,
    reply: oneshot::Sender<Reply>,
}

#[derive(Debug)]
enum Reply {
    Accepted(Vec<u8>),
    Rejected(Vec<u8>),
}

/// Connects to `mem://` addresses.
#[derive(Debug, Clone, Copy, Default)]
pub struct MemConnector;

#[async_trait]
impl Connector for MemConnector {
    async fn resolve(&self, address: &Address) -> Result<Box<dyn Outgoing>, ConnectError> {
        let Address::Mem(name) = address else {
            let reason = "the mem connector only accepts mem:// addresses".to_owned();
            return Err(ConnectError::Unreachable { address: address.clone(), reason });
        };
        let listener = LISTENERS.get().lock().get(name).cloned();
        let listener = listener.ok_or_else(|| {
            refused(
                address,
                match name.as_str() {
                    "" => {
                        "an address without a name is only for listening; connect to the server's \
                       `local_address`"
                    }
                    _ => "no listener has this name",
                },
            )
        })?;
        Ok(Dialing::boxed(MemOutgoing { address: address.clone(), listener }))
    }
}

fn refused(address: &Address, reason: &str) -> ConnectError {
    ConnectError::Refused { address: address.clone(), reason: reason.to_owned() }
}

#[derive(Debug)]
struct MemOutgoing {
    address: Address,
    listener: mpsc::Sender<Request>,
}

#[async_trait]
impl Dial for MemOutgoing {
    fn device(&self) -> &'static Arc<dyn Device> {
        super::mem_device()
    }

    async fn dial(
        self,
        private_data: Vec<u8>,
    ) -> Result<(Vec<u8>, PeerIdentity, Wire), ConnectError> {
        let (near, far) = RingWire::pair(DEFAULT_SLOTS)
            .map_err(|error| advice::out_of_resources("making a connection", &error))?;
        let (reply, answer) = oneshot::channel();
        let request = Request { private_data, wire: far, reply };
        let gone = || refused(&self.address, "the listener is gone");
        let exchange = async {
            self.listener.send(request).await.map_err(|_| gone())?;
            answer.await.map_err(|_| ConnectError::Rejected {
                address: self.address.clone(),
                reason: "the request was dropped".to_owned(),
                private_data: Vec::new(),
            })
        };
        let reply = tokio::time::timeout(CONNECT_TIMEOUT, exchange).await.map_err(|_| {
            ConnectError::TimedOut {
                address: self.address.clone(),
                after: CONNECT_TIMEOUT,
                phase: SetUpPhase::Connecting,
            }
        })??;
        match reply {
            Reply::Accepted(private_data) => {
                Ok((private_data, PeerIdentity::SameProcess, Wire::Ring(Box::new(near))))
            }
            Reply::Rejected(private_data) => Err(ConnectError::Rejected {
                address: self.address.clone(),
                reason: "the application refused".to_owned(),
                private_data,
            }),
        }
    }
}

/// Listens at `mem://name`, or at an unused name if it is empty. The name is free again when the
/// listener is dropped.
///
/// # Errors
/// [`ListenError::InUse`] when the name is taken.
pub fn listen_mem(name: &str) -> Result<Box<dyn Listener>, ListenError> {
    let (sender, requests) = mpsc::channel(BACKLOG);
    let mut listeners = LISTENERS.get().lock();
    if name.is_empty() {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = loop {
            let name = format!("anonymous-{}", NEXT.fetch_add(1, Ordering::Relaxed));
            if !listeners.contains_key(&name) {
                break name;
            }
        };
        listeners.insert(name.clone(), sender);
        return Ok(Box::new(MemListener { name, requests: OfProcess::new(requests) }));
    }
    if listeners.contains_key(name) {
        let reason = "another listener of this process has this name; choose another".to_owned();
        return Err(ListenError::InUse { address: Address::Mem(name.to_owned()), reason });
    }
    listeners.insert(name.to_owned(), sender);
    let requests = OfProcess::new(requests);
    Ok(Box::new(MemListener { name: name.to_owned(), requests }))
}

#[derive(Debug)]
struct MemListener {
    name: String,
    requests: OfProcess<mpsc::Receiver<Request>>,
}

impl Drop for MemListener {
    fn drop(&mut self) {
        // In a child of `fork(2)` the name may be that of another listener.
        if self.requests.is_here() {
            LISTENERS.get().lock().remove(&self.name);
        }
    }
}

#[async_trait]
impl Listener for MemListener {
    fn local_address(&self) -> Address {
        Address::Mem(self.name.clone())
    }

    async fn incoming(&mut self) -> Result<Box<dyn Incoming>, ListenError> {
        match self.requests.recv().await {
            Some(request) => {
                let address = self.local_address();
                Ok(Answering::boxed(MemIncoming { request, address }))
            }
            None => Err(ListenError::Failed {
                address: self.local_address(),
                reason: "the listener was closed".to_owned(),
            }),
        }
    }
}

#[derive(Debug)]
struct MemIncoming {
    request: Request,
    address: Address,
}

#[async_trait]
impl Answer for MemIncoming {
    fn device(&self) -> &'static Arc<dyn Device> {
        super::mem_device()
    }

    fn private_data(&self) -> &[u8] {
        &self.request.private_data
    }

    fn peer(&self) -> PeerIdentity {
        PeerIdentity::SameProcess
    }

    async fn accept(self, private_data: Vec<u8>) -> Result<Wire, ConnectError> {
        let Request { wire, reply: answer, .. } = self.request;
        answer
            .send(Reply::Accepted(private_data))
            .map_err(|_| refused(&self.address, "the peer gave up"))?;
        Ok(Wire::Ring(Box::new(wire)))
    }

    async fn reject(self, private_data: Vec<u8>) {
        // Sending fails only if the peer has given up, and such a peer needs no answer.
        let _ = self.request.reply.send(Reply::Rejected(private_data));
    }
}
