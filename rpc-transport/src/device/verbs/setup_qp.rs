//! The QP of a connection that is being set up: the code that connecting and accepting share.
//!
//! Owns the handle to the id during one attempt, and the steps that both sides take.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::device::{
    Attach, CompletionQueue, CqRef, Device, ProviderError, QpCapacity, QpHandle,
    REJ_PRIVATE_DATA_BYTES,
};
use crate::memory::region::ProtectionDomain;

use super::failure::Failure;
use super::id_link::IdLink;
use super::queue::VerbsCompletionQueue;
use super::queue_pair::{PreparedQp, QpGuard, SetupQueues, granted};
use super::service::{Answer, Command, Resolved, Service, SetupQp, send_answer};
use super::tcp_port;
use super::workers;

/// One side of a connection that is being set up. Dropping it unfinished ends the attempt.
#[derive(Debug)]
pub(super) struct Attempt {
    service: &'static Service,
    link: IdLink,
    device: Arc<dyn Device>,
    resolved: Resolved,
    prepared: Option<PreparedQp>,
    qp: Option<(QpHandle, Arc<QpGuard>)>,
    is_finished: bool,
}

impl Attempt {
    pub(super) fn new(service: &'static Service, link: IdLink, resolved: Resolved) -> Self {
        let device = Arc::clone(&resolved.device) as Arc<dyn Device>;
        let (prepared, qp) = (None, None);
        Self { service, link, device, resolved, prepared, qp, is_finished: false }
    }

    pub(super) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The peer's address, if the connection manager knows it.
    pub(super) fn peer(&self) -> Option<std::net::SocketAddr> {
        self.resolved.peer
    }

    /// Whether its connect would fail because its source port is taken.
    pub(super) fn has_taken_port(&self) -> bool {
        self.resolved.device.quirks().binds_tcp_ports
            && self.resolved.local.is_some_and(tcp_port::is_taken)
    }

    /// Has a worker create the QP; the CQ's owner adopts it when it calls `create_qp`.
    pub(super) async fn prepare_qp(
        &mut self,
        cq: &CqRef,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<(), ProviderError> {
        let on = cq.get::<SetupQueues>().ok_or(ProviderError::WrongDevice("completion queue"))?;
        let device = self.resolved.device.context();
        let parents = on.parents(pd, capacity, device)?;
        let asked = granted(capacity, self.device.attributes())?;
        let (init, link) = (self.resolved.init.duplicate(), self.link.clone());
        let (answer, answered) = oneshot::channel();
        workers::run(move || {
            if answer.is_closed() {
                return;
            }
            // If nobody waits any more, the QP is destroyed with the answer.
            send_answer(answer, PreparedQp::create(&parents, asked, &init, link));
        });
        // No answer means that the worker has panicked.
        let gone = ProviderError::Unsupported("creating a queue pair after a panic");
        self.prepared = Some(answered.await.unwrap_or(Err(gone))?);
        Ok(())
    }

    /// Creates the QP, unless it is prepared. Only once.
    pub(super) fn create_qp(
        &mut self,
        cq: &mut dyn CompletionQueue,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<QpHandle, ProviderError> {
        if self.qp.is_some() {
            return Err(ProviderError::Unsupported("a second queue pair for one connection"));
        }
        let cq = VerbsCompletionQueue::of(cq)?;
        let (init, link) = (&self.resolved.init, self.link.clone());
        let device = self.resolved.device.context();
        let (handle, guard) =
            cq.create_qp(self.prepared.take(), pd, capacity, init, link, device)?;
        self.qp = Some((handle, guard));
        Ok(handle)
    }

    /// Sends a command that needs the QP, and waits for the answer. From then on the QP owns the
    /// id.
    pub(super) async fn fulfil(
        mut self,
        request: impl FnOnce(SetupQp, Answer<Vec<u8>>) -> Command + Send,
    ) -> Result<(Attach, Vec<u8>), AttemptError> {
        let Some((handle, guard)) = self.qp.take() else {
            return Err(
                ProviderError::Unsupported("connecting before a queue pair was created").into()
            );
        };
        let (answer, answered) = oneshot::channel();
        let setup = SetupQp::new(&guard, handle);
        // The caller owns the QP, and may destroy it during the wait below.
        drop(guard);
        self.service.send(request(setup, answer));
        let reply = answered.await.unwrap_or(Err(Failure::Gone))?;
        self.is_finished = true;
        let attach = Attach::new(move |cq| VerbsCompletionQueue::of(cq)?.establish(handle));
        Ok((attach, reply))
    }

    /// The thread that owns the id.
    pub(super) fn service(&self) -> &'static Service {
        self.service
    }

    /// The handle to the id.
    pub(super) fn link(&self) -> &IdLink {
        &self.link
    }

    /// Ends the attempt without closing the id: the answer that was sent has ended it.
    pub(super) fn finish(mut self) {
        self.is_finished = true;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.is_finished {
            self.link.close();
        }
    }
}

/// Why an attempt failed.
#[derive(Debug)]
pub(super) enum AttemptError {
    Failure(Failure),
    Provider(ProviderError),
}

impl From<Failure> for AttemptError {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<ProviderError> for AttemptError {
    fn from(error: ProviderError) -> Self {
        Self::Provider(error)
    }
}

/// Refuses private data that does not fit (contract rule 18).
pub(super) fn check_private_data(private_data: &[u8], limit: usize) -> Result<(), ProviderError> {
    if private_data.len() <= limit {
        return Ok(());
    }
    let (asked, limit) = (private_data.len() as u64, limit as u64);
    Err(ProviderError::Limit { what: "private data bytes", asked, limit })
}

/// Private data of a rejection. If it is too long it is left out and that is logged: the peer must
/// be refused in any case.
pub(super) fn rejection(private_data: &[u8]) -> Vec<u8> {
    match check_private_data(private_data, REJ_PRIVATE_DATA_BYTES) {
        Ok(()) => private_data.to_vec(),
        Err(error) => {
            tracing::warn!(%error, "a connection is rejected without the reason");
            Vec::new()
        }
    }
}
