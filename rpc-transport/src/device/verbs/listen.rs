//! Listening: from connection requests to QPs in RTS.
//!
//! Owns the queue of requests that wait to be accepted. A request that is dropped unanswered is
//! refused.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use crate::address::{Address, HostPort};
use crate::device::connection_error::{ConnectError, ListenError};
use crate::device::{
    CompletionQueue, CqRef, Device, Established, Incoming, Listener, PeerIdentity, ProviderError,
    QpCapacity, QpHandle, REP_PRIVATE_DATA_BYTES,
};
use crate::memory::region::ProtectionDomain;

use super::connect::look_up;
use super::dispatcher;
use super::failure::Failure;
use super::id_link::{IdKey, IdLink};
use super::local_end;
use super::options::SetupOptions;
use super::preflight;
use super::service::{Command, Request, Service};
use super::setup_qp::{Attempt, AttemptError, check_private_data, rejection};

/// Listens at an `rdma://` address. `0.0.0.0` and `[::]` mean all devices (`[::]` IPv4 as well);
/// with port 0 the system chooses a port. With `?dev=..` a wildcard means all addresses of that
/// device.
///
/// # Errors
/// [`ListenError`]: no device, no such local address, or the port is in use.
pub async fn listen(
    address: &Address,
    options: SetupOptions,
) -> Result<Box<dyn Listener>, ListenError> {
    let Address::Rdma(at, local) = address else {
        let reason = "verbs can only listen at rdma:// addresses".to_owned();
        return Err(ListenError::Failed { address: address.clone(), reason });
    };
    let service = dispatcher::service().map_err(|error| {
        let reason = preflight::why_unavailable(&error);
        ListenError::Unavailable { scheme: "rdma", reason }
    })?;
    let failed = |reason| ListenError::Failed { address: address.clone(), reason };
    let found = look_up(at).await.map_err(failed)?;
    let at = found.first().copied().ok_or_else(|| failed("the name has no address".to_owned()))?;
    let ends = local_end::to_listen_at(local, at).await.map_err(failed)?;
    let options = Arc::new(options);
    let (requests, incoming) = mpsc::channel(usize::from(options.backlog.max(1)));
    let (mut links, mut first) = (Vec::new(), None::<SocketAddr>);
    for mut end in ends {
        // The port that the system chose applies to all addresses.
        end.set_port(first.map_or(end.port(), |first| first.port()));
        let (answer, answered) = oneshot::channel();
        let link = IdLink::new(service, IdKey::fresh());
        let (key, options, requests) = (link.key(), Arc::clone(&options), requests.clone());
        service.send(Command::Listen { key, at: end, options, requests, answer });
        let bound = answered.await.unwrap_or(Err(Failure::Gone));
        let bound = bound.map_err(|failure| failure.into_listen_error(address))?;
        first.get_or_insert(bound);
        links.push(link);
    }
    let bound = first.ok_or_else(|| failed("no address to listen at".to_owned()))?;
    let address = Address::Rdma(HostPort::from(bound), Box::default());
    Ok(Box::new(VerbsListener { address, service, incoming, _links: links }))
}

#[derive(Debug)]
struct VerbsListener {
    address: Address,
    service: &'static Service,
    incoming: mpsc::Receiver<Result<Request, Failure>>,
    /// One link for each address; dropping them closes the ids.
    _links: Vec<IdLink>,
}

#[async_trait]
impl Listener for VerbsListener {
    fn local_address(&self) -> Address {
        self.address.clone()
    }

    async fn incoming(&mut self) -> Result<Box<dyn Incoming>, ListenError> {
        let request = self.incoming.recv().await.unwrap_or(Err(Failure::Gone));
        let request = request.map_err(|failure| failure.into_listen_error(&self.address))?;
        let Request { link, resolved, private_data } = request;
        let attempt = Attempt::new(self.service, link, resolved);
        Ok(Box::new(VerbsIncoming { private_data, attempt }))
    }
}

#[derive(Debug)]
struct VerbsIncoming {
    private_data: Vec<u8>,
    attempt: Attempt,
}

impl VerbsIncoming {
    /// The peer's address. The connection manager needs it to answer, so it always knows it.
    fn peer_address(&self) -> std::net::SocketAddr {
        self.attempt.peer().unwrap_or_else(|| ([0, 0, 0, 0], 0).into())
    }
}

#[async_trait]
impl Incoming for VerbsIncoming {
    fn device(&self) -> &Arc<dyn Device> {
        self.attempt.device()
    }

    fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn peer(&self) -> PeerIdentity {
        PeerIdentity::network(self.peer_address())
    }

    async fn prepare_qp(
        &mut self,
        cq: &CqRef,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<(), ProviderError> {
        self.attempt.prepare_qp(cq, pd, capacity).await
    }

    fn create_qp(
        &mut self,
        cq: &mut dyn CompletionQueue,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<QpHandle, ProviderError> {
        self.attempt.create_qp(cq, pd, capacity)
    }

    async fn accept(self: Box<Self>, private_data: &[u8]) -> Result<Established, ConnectError> {
        check_private_data(private_data, REP_PRIVATE_DATA_BYTES)?;
        let peer = self.peer_address();
        let key = self.attempt.link().key();
        let private_data = private_data.to_vec();
        let accepted = self
            .attempt
            .fulfil(|qp, answer| Command::Accept { key, qp, private_data, answer })
            .await;
        let (attach, _) = accepted.map_err(|error| match error {
            AttemptError::Failure(failure) => {
                failure.into_connect_error(&Address::Rdma(HostPort::from(peer), Box::default()))
            }
            AttemptError::Provider(error) => error.into(),
        })?;
        Ok(Established { private_data: Vec::new(), peer: PeerIdentity::network(peer), attach })
    }

    async fn reject(self: Box<Self>, private_data: &[u8]) {
        let private_data = rejection(private_data);
        let (done, is_done) = oneshot::channel();
        let key = self.attempt.link().key();
        self.attempt.service().send(Command::Reject { key, private_data, done });
        self.attempt.finish();
        // An error would mean that the thread has ended, and with it the id.
        let _ = is_done.await;
    }
}
