//! The handshake of a locked connection, on a task of its own.
//!
//! Owns the exchange of its frames between [`LockedLink`] and the connection. Runs without the
//! shard's lock, which is taken only to post frames and to take those that arrived. A task of this
//! module that ends early leaves the connection locked, for set-up to end it.
//!
//! Invariants:
//! 1. A process computes for as many handshakes at once as half of its cores, and holds no turn
//!    while it waits for a peer or runs a hook of the user.
//! 2. A handshake goes on while the future of its set-up is not polled, and ends with that future.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinSet;
use tracing::Instrument;

use crate::address::Address;
use crate::device::connection_error::{CloseCause, ConnectError};
use crate::device::{PeerIdentity, ProviderError};
use crate::engine::accept_error::AcceptError;
use crate::engine::clock;
use crate::engine::connection::{Arrived, Connection};
use crate::engine::connection_key::ConnectionKey;
use crate::engine::security::Security;
use crate::engine::shard::Shard;
use crate::engine::turns::{Source, compute};
use crate::engine::upper::UpperLayer;
use crate::place::Place;
use crate::protocol::config::LinkConfig;
use crate::protocol::handshake::{Agreed, Offer};
use crate::protocol::link::Link;
use crate::protocol::lock::{
    FailureReason, HandshakeFailure, LockedLink, Opener, Parameters, Protection, Role, Sealer,
    Secured, SetUp,
};

/// Longest time to wait until a peer has a failure's reason.
const REFUSAL_LIMIT: Duration = Duration::from_secs(1);

/// A connection whose handshake is due, and the set-up that it authenticates.
pub(super) struct Unlocking {
    pub(super) key: ConnectionKey,
    pub(super) config: LinkConfig,
    pub(super) agreed: Agreed,
    pub(super) peer: PeerIdentity,
    pub(super) security: Security,
    /// Of this end; that of the peer was agreed on.
    pub(super) offer: Offer,
    /// Private data.
    pub(super) request: Vec<u8>,
    pub(super) reply: Vec<u8>,
}

/// What a handshake leaves.
struct Unlocked {
    secured: Secured,
    /// The frame that a server must send first.
    frame: Vec<u8>,
    /// For all frames behind that one, if they are sealed.
    sealing: Option<(Sealer, Opener)>,
}

/// What the exchange waits for.
enum Until {
    /// The next frame has arrived.
    Frame,
    /// All frames are sent, and their work requests have completed.
    Sent,
}

/// Runs the rest of a set-up on a task, which ends when this future is dropped.
async fn on_own_task<T, E>(
    rest: impl Future<Output = Result<T, E>> + Send + 'static,
    failed: impl FnOnce(HandshakeFailure) -> E,
) -> Result<T, E>
where
    T: Send + 'static,
    E: Send + 'static,
{
    let mut task = JoinSet::new();
    task.spawn(rest.in_current_span());
    match task.join_next().await {
        Some(Ok(outcome)) => outcome,
        Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Some(Err(_)) | None => {
            let text = "the runtime that the handshake ran on has ended";
            Err(failed(HandshakeFailure::new(FailureReason::Internal, text, "")))
        }
    }
}

impl<P: UpperLayer> Shard<P> {
    /// Unlocks a client's connection, which has a link from then on.
    ///
    /// # Errors
    /// [`ConnectError`]; the peer was notified, where that was possible.
    pub(super) async fn unlock_client(
        self: &Arc<Self>,
        unlocking: Unlocking,
        address: &Address,
    ) -> Result<Secured, ConnectError> {
        unlocking.security.has_begun.store(true, Ordering::Relaxed);
        let (this, at) = (Arc::clone(self), address.clone());
        let failed = |address, failure| ConnectError::Handshake { address, failure };
        let rest = async move {
            let unlocked = this.unlock(Role::Client, Source::Own, &unlocking).await;
            let unlocked = unlocked.map_err(|failure| failed(at.clone(), failure))?;
            let (secured, mut sealing) = (unlocked.secured, unlocked.sealing);
            let opened = this.on_unlocked(&unlocking, &secured, &mut sealing);
            opened.map(|()| secured).map_err(|error| {
                // The reason of a server that left right behind UNLOCKED.
                let opener = sealing.take().map(|(_, opener)| opener);
                let parting = this.parting(unlocking.key, opener);
                parting.map_or(error, |cause| failed(at, ended(cause)))
            })
        };
        on_own_task(rest, |failure| failed(address.clone(), failure)).await
    }

    /// Unlocks a server's connection, which has a link from then on, and notifies the client.
    ///
    /// # Errors
    /// [`AcceptError`]; the peer was notified, where that was possible.
    pub(super) async fn unlock_server(
        self: &Arc<Self>,
        unlocking: Unlocking,
    ) -> Result<Secured, AcceptError> {
        unlocking.security.has_begun.store(true, Ordering::Relaxed);
        let this = Arc::clone(self);
        let rest = async move {
            let source = Source::from(&unlocking.peer);
            let unlocked = this.unlock(Role::Server, source, &unlocking).await?;
            let secured = unlocked.secured.clone();
            this.send_unlocked(&unlocking, unlocked)?;
            Ok(secured)
        };
        on_own_task(rest, AcceptError::Handshake).await
    }

    async fn unlock(
        &self,
        role: Role,
        source: Source,
        unlocking: &Unlocking,
    ) -> Result<Unlocked, HandshakeFailure> {
        let Unlocking { key, agreed, security, offer, request, reply, .. } = unlocking;
        let (key, exchange) = (*key, security.exchange.as_deref());
        let scheme = self.device().attributes().scheme;
        let place = if scheme == "shm" { Place::here().to_string() } else { String::new() };
        let protection = security.handshakes.protection(scheme);
        let set_up = SetUp { request, reply, scheme, place: &place, protection, exchange };
        let parameters = Parameters::new(role, &set_up);
        let (factory, name) = (&*security.handshakes, security.expected_name.as_deref());
        let offers = [offer, &agreed.remote];
        let begin = || LockedLink::new(factory, parameters, name, offers);
        let mut link = match compute(source, begin).await {
            Ok(link) => link,
            Err(failure) => {
                self.refuse(key, crate::protocol::lock::refusal_in_clear(&failure)).await;
                return Err(failure);
            }
        };
        let is_sealed = protection >= Protection::Encrypt;
        match self.run(key, (role, source), &mut link).await {
            Ok((secured, frame)) => {
                let sealing = is_sealed.then(|| link.sealing()).transpose()?;
                Ok(Unlocked { secured, frame, sealing })
            }
            // The server left right behind UNLOCKED.
            Err(failure) if role == Role::Client && link.is_unlocked() => {
                let sealing = is_sealed.then(|| link.sealing()).transpose()?;
                let parting = self.parting(key, sealing.map(|(_, opener)| opener));
                Err(parting.map_or(failure, ended))
            }
            Err(failure) => {
                // Who has closed reads no more.
                let is_by_peer = matches!(
                    failure.reason,
                    FailureReason::RefusedByPeer
                        | FailureReason::DeniedByPeer
                        | FailureReason::CertificateRefusedByPeer
                );
                if !is_by_peer {
                    self.refuse(key, link.refusal(&failure)).await;
                }
                Err(failure)
            }
        }
    }

    async fn run(
        &self,
        key: ConnectionKey,
        (role, source): (Role, Source),
        link: &mut LockedLink,
    ) -> Result<(Secured, Vec<u8>), HandshakeFailure> {
        let (mut secured, mut outbox) = (None, VecDeque::new());
        loop {
            outbox.extend(std::iter::from_fn(|| link.poll_transmit()));
            if link.is_finish_due() {
                secured = Some(link.finish()?);
                continue;
            }
            let is_done = match role {
                Role::Client => link.is_unlocked(),
                Role::Server => link.is_finished(),
            };
            if is_done && let Some(secured) = secured.take() {
                self.exchange(key, &mut outbox, Until::Sent).await.map_err(ended)?;
                let frame = if role == Role::Server { link.unlock()? } else { Vec::new() };
                return Ok((secured, frame));
            }
            let arrived = self.exchange(key, &mut outbox, Until::Frame).await.map_err(ended)?;
            if let Some(Arrived { imm, bytes }) = arrived {
                compute(source, || link.on_frame(imm, &bytes)).await?;
            }
        }
    }

    /// Reports to the peer why this end gives up.
    async fn refuse(&self, key: ConnectionKey, frame: Vec<u8>) {
        let mut outbox = VecDeque::from([frame]);
        let sent = self.exchange(key, &mut outbox, Until::Sent);
        // The connection ends in any case.
        let _ = tokio::time::timeout(REFUSAL_LIMIT, sent).await;
    }

    /// The reason in a Close that arrived behind UNLOCKED and that no link has seen.
    fn parting(&self, key: ConnectionKey, opener: Option<Opener>) -> Option<CloseCause> {
        self.lock().connection(key)?.take_parting(opener)
    }

    /// A client's handshake is over: it has a link from now on.
    fn on_unlocked(
        &self,
        Unlocking { key, config, agreed, peer, .. }: &Unlocking,
        secured: &Secured,
        sealing: &mut Option<(Sealer, Opener)>,
    ) -> Result<(), ConnectError> {
        let key = *key;
        let link = new_link(config, agreed, sealing.is_some())?;
        let mut state = self.lock();
        usable(state.connection(key))?;
        let (cq, connection) = state.cq_and_connection(key).ok_or(ProviderError::UnknownQp)?;
        let returns = Arc::clone(self.returns());
        let on_return = Box::new(move || returns.add(key));
        let late = connection.on_unlocked(cq, (link, peer, on_return), sealing.take());
        let late = late.map_err(|cause| ProviderError::CompletionQueueDead(cause.to_string()))?;
        connection.protocol.on_secured(secured);
        connection.protocol.on_established(key, peer, agreed.remote.max_message_bytes);
        if let Some((cq, connection)) = state.cq_and_connection(key) {
            connection.on_late_frames(cq, clock::now(), late);
        }
        state.mark_dirty_key(key);
        self.finish(state);
        Ok(())
    }

    /// A server's handshake is over: it has a link from now on, and notifies the client.
    fn send_unlocked(
        &self,
        Unlocking { key, config, agreed, peer, .. }: &Unlocking,
        Unlocked { secured, frame, sealing }: Unlocked,
    ) -> Result<(), AcceptError> {
        let key = *key;
        let link = new_link(config, agreed, sealing.is_some())?;
        let mut state = self.lock();
        usable(state.connection(key)).map_err(ConnectError::from)?;
        let returns = Arc::clone(self.returns());
        let on_return = Box::new(move || returns.add(key));
        if let Some((cq, connection)) = state.cq_and_connection(key) {
            // The guard of the set-up ends the connection where this fails.
            let unlocked = connection.unlock(cq, &frame, (link, peer, on_return), sealing);
            unlocked.map_err(ended)?;
            connection.protocol.on_secured(&secured);
            connection.protocol.on_established(key, peer, agreed.remote.max_message_bytes);
        }
        state.mark_dirty_key(key);
        self.finish(state);
        Ok(())
    }

    /// Sends frames until something has happened.
    ///
    /// # Errors
    /// The connection has ended, and all that arrived was taken.
    async fn exchange(
        &self,
        key: ConnectionKey,
        outbox: &mut VecDeque<Vec<u8>>,
        until: Until,
    ) -> Result<Option<Arrived>, CloseCause> {
        poll_fn(|context| {
            let waker = context.waker().clone();
            let mut state = self.lock();
            let Some((cq, connection)) = state.cq_and_connection(key) else {
                return Poll::Ready(Err(CloseCause::Disconnected));
            };
            let is_sent = match connection.cause() {
                None => connection.send_locked(cq, outbox),
                Some(cause) => Err(cause.clone()),
            };
            let found = match until {
                Until::Frame => connection.take_arrived().map(|arrived| Ok(Some(arrived))),
                Until::Sent => is_sent.as_ref().is_ok_and(|is_sent| *is_sent).then_some(Ok(None)),
            };
            let found = found.or_else(|| is_sent.err().map(Err));
            let _replaced = match found {
                Some(_) => None,
                None => connection.set_locked_waker(waker),
            };
            self.finish(state);
            found.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// The link of a connection whose offers are agreed on.
pub(super) fn new_link(
    config: &LinkConfig,
    agreed: &Agreed,
    is_sealed: bool,
) -> Result<Link, ConnectError> {
    let new = if is_sealed { Link::sealed } else { Link::new };
    new(config, agreed, clock::now()).map_err(|error| ConnectError::Config(error.to_string()))
}

/// A connection in set-up, unless it has ended meanwhile.
pub(super) fn usable<P: UpperLayer>(
    connection: Option<&mut Connection<P>>,
) -> Result<&mut Connection<P>, ProviderError> {
    let Some(connection) = connection else { return Err(ProviderError::UnknownQp) };
    match connection.cause() {
        None => Ok(connection),
        Some(cause) => Err(ProviderError::Resources {
            what: "setting the connection up",
            message: cause.to_string(),
        }),
    }
}

/// The connection ended during the handshake.
fn ended(cause: CloseCause) -> HandshakeFailure {
    let reason = match cause {
        CloseCause::Protocol(_) => FailureReason::BrokenRule,
        CloseCause::Disconnected | CloseCause::Peer(_) => FailureReason::RefusedByPeer,
        _ => FailureReason::Internal,
    };
    HandshakeFailure::new(reason, format!("the connection ended during the handshake: {cause}"), "")
}
