//! One id of the connection manager, and the state of its conversation.
//!
//! Owns the id, and the channel to the caller that waits for an answer. Carries out single actions
//! of the table; the [`dispatcher`](super::dispatcher) asks the table for them.
//!
//! Invariants:
//! 1. An answer is given once; a caller that stops waiting for it closes the id.
//! 2. A QP is held weakly: its owner may destroy it at any time.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::device::QpEvent;

use super::cm::{Action, State};
use super::cm_id::{CmId, ConnParam, Dial};
use super::device::VerbsDevice;
use super::failure::{CONNECT, Failure, RESOLVE_ADDRESS, RESOLVE_ROUTE};
use super::options::SetupOptions;
use super::queue_pair::{QpGuard, ReadDepths, ReadyTerms, Transition};
use super::reaper::InUse;
use super::service::{Answer, Request, Resolved, SetupQp, send_answer};

/// One id and its conversation.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) id: CmId,
    pub(super) state: State,
    pub(super) options: Arc<SetupOptions>,
    /// Deadline of the current step, and how long the step was given.
    pub(super) deadline: Option<(Instant, Duration)>,
    device: Option<Arc<VerbsDevice>>,
    /// READ depths that the peer offers (passive).
    depths: Option<ReadDepths>,
    /// Private data to send with the REQ, REP or REJ.
    pub(super) private_data: Vec<u8>,
    /// Private data of the REP.
    pub(super) reply: Vec<u8>,
    pub(super) qp: Option<SetupQp>,
    pub(super) waiting: Waiting,
    /// Why it failed; becomes part of the answer.
    pub(super) failure: Option<Failure>,
}

/// The caller that waits for an answer.
#[derive(Debug)]
pub(super) enum Waiting {
    Nobody,
    Resolve(Answer<Resolved>),
    Outcome(Answer<Vec<u8>>),
    Listener(mpsc::Sender<Result<Request, Failure>>),
}

impl Conversation {
    /// A new conversation.
    pub(super) fn new(id: CmId, state: State, options: Arc<SetupOptions>) -> Self {
        Self {
            id,
            state,
            options,
            deadline: None,
            device: None,
            depths: None,
            private_data: Vec::new(),
            reply: Vec::new(),
            qp: None,
            waiting: Waiting::Nobody,
            failure: None,
        }
    }

    /// Carries out one action. The error names the attempted step.
    pub(super) fn carry_out(&mut self, action: Action) -> Result<(), (&'static str, io::Error)> {
        let failed = |what| move |error| (what, error);
        match action {
            Action::ResolveRoute => {
                let limit = self.options.resolve_timeout;
                self.id.resolve_route(limit).map_err(failed(RESOLVE_ROUTE))?;
            }
            Action::ReportResolved => self.report_resolved()?,
            Action::SendConnect => {
                let param = self.parameters().map_err(failed(CONNECT))?;
                self.id.connect(param).map_err(failed(CONNECT))?;
            }
            Action::Establish => self.id.establish().map_err(failed("establish"))?,
            Action::SendAccept => {
                let param = self.parameters().map_err(failed("accept"))?;
                self.id.accept(param).map_err(failed("accept"))?;
            }
            Action::SendReject => ignore("reject", self.id.reject(&self.private_data)),
            Action::SendDisconnect => ignore("disconnect", self.id.disconnect()),
            Action::ReportUp => self.report(Ok(())),
            Action::ReportFailure => self.report(Err(())),
            Action::ReportDisconnected => {
                // If the QP is gone, there is nobody to notify.
                if let Some(qp) = &self.qp
                    && let Some(guard) = qp.in_use()
                {
                    guard.mailbox().put(QpEvent::Disconnected(qp.handle));
                }
            }
            Action::ReportListenerDead => {
                let waiting = std::mem::replace(&mut self.waiting, Waiting::Nobody);
                if let Waiting::Listener(requests) = waiting {
                    // If the queue is full, dropping the sender has the same effect.
                    let _ = requests.try_send(Err(self.failure.take().unwrap_or(Failure::Gone)));
                }
            }
            // The dispatcher carries these out, since it owns the conversation and its listener,
            // and has workers.
            Action::DeliverRequest | Action::Destroy | Action::MakeReady => {}
        }
        Ok(())
    }

    /// The inputs of [`Action::MakeReady`]: the QP, and its transitions in order.
    pub(super) fn to_make_ready(&self) -> io::Result<(InUse<QpGuard>, [Transition; 3])> {
        let terms = ReadyTerms {
            read_depths: self.agreed_depths(),
            allows_reads: self.wanted_depths().peer > 0,
            timers: self.options.timers(),
        };
        Ok((self.live_qp()?, self.id.ready_transitions(terms)?))
    }

    /// Whether [`Action::SendConnect`] needs a thread of its own.
    pub(super) fn waits_in_connect(&self) -> bool {
        self.device.as_ref().is_some_and(|device| device.quirks().waits_in_connect)
    }

    /// Whether destroying the id may wait for the peer
    /// ([`cm::waits_for_peer`](super::cm::waits_for_peer)).
    pub(super) fn waits_in_destroy(&self) -> bool {
        self.device.as_ref().is_some_and(|device| device.quirks().waits_in_destroy)
    }

    /// The work of [`Action::SendConnect`], for another thread.
    pub(super) fn dial(&self) -> io::Result<Dial> {
        Ok(self.id.dial(self.parameters()?, self.live_qp()?.into_inner()))
    }

    /// Stores the peer's offer, and the device on which it arrived.
    pub(super) fn set_offer(&mut self, depths: ReadDepths, device: Option<Arc<VerbsDevice>>) {
        self.depths = Some(depths);
        self.device = device;
    }

    fn report_resolved(&mut self) -> Result<(), (&'static str, io::Error)> {
        let resolved = resolve_device(&self.id, &self.options).and_then(|resolved| {
            let (device, port) = (&resolved.device, self.id.port());
            if device.is_down(port) {
                let device = device.context().name().to_owned();
                return Err(Failure::PortDown { device, port });
            }
            Ok(resolved)
        });
        let waiting = std::mem::replace(&mut self.waiting, Waiting::Nobody);
        self.device = resolved.as_ref().ok().map(|resolved| Arc::clone(&resolved.device));
        let is_usable = resolved.is_ok();
        if let Waiting::Resolve(answer) = waiting {
            // Sending fails only if the caller has given up; the caller then closes the id.
            send_answer(answer, resolved);
        }
        if is_usable { Ok(()) } else { Err((RESOLVE_ADDRESS, io::ErrorKind::NotFound.into())) }
    }

    /// The QP, unless its owner has destroyed it.
    fn live_qp(&self) -> io::Result<InUse<QpGuard>> {
        let qp = self.qp.as_ref().and_then(SetupQp::in_use);
        qp.ok_or_else(|| io::Error::other("the queue pair is destroyed"))
    }

    /// The READ depths that this side supports.
    fn wanted_depths(&self) -> ReadDepths {
        let limit = self.device.as_ref().map_or(0, |device| device.max_reads());
        let depth = self.options.read_depth.min(limit);
        ReadDepths { own: depth, peer: depth }
    }

    /// Passive: the READ depths that both sides support.
    fn agreed_depths(&self) -> Option<ReadDepths> {
        self.depths.map(|offered| self.wanted_depths().min(offered))
    }

    fn parameters(&self) -> io::Result<ConnParam<'_>> {
        Ok(ConnParam {
            private_data: &self.private_data,
            qp_number: self.live_qp()?.number(),
            depths: self.agreed_depths().unwrap_or_else(|| self.wanted_depths()),
            retry_count: self.options.timers().retry_count,
        })
    }

    fn report(&mut self, outcome: Result<(), ()>) {
        let waiting = std::mem::replace(&mut self.waiting, Waiting::Nobody);
        let failure = self.failure.take().unwrap_or(Failure::Gone);
        // Sending fails only if the caller has given up; the caller then closes the id.
        match (waiting, outcome) {
            (Waiting::Outcome(answer), Ok(())) => {
                send_answer(answer, Ok(std::mem::take(&mut self.reply)));
            }
            (Waiting::Outcome(answer), Err(())) => {
                send_answer(answer, Err(failure));
            }
            (Waiting::Resolve(answer), Err(())) => {
                send_answer(answer, Err(failure));
            }
            (waiting, _) => self.waiting = waiting,
        }
    }
}

/// Collects the facts that the owner of a resolved id needs.
pub(super) fn resolve_device(id: &CmId, options: &SetupOptions) -> Result<Resolved, Failure> {
    let device = id.open_device()?;
    let init = id
        .init_transition(options.read_depth.min(device.max_reads()) > 0)
        .map_err(|error| Failure::Call { what: "ask for queue pair attributes", error })?;
    Ok(Resolved { device, init, local: id.local_address(), peer: id.peer_address() })
}

/// Logs the failure of a call whose failure changes nothing (invariant 1 of the dispatcher): the
/// peer or the device has already ended the connection.
pub(super) fn ignore(what: &'static str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(%error, what, "call refused");
    }
}
