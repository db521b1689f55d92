//! The handshake of a locked connection, in the set-up future.
//!
//! Owns the exchange of its frames between [`LockedLink`] and the connection. Runs without the
//! shard's lock, which is taken only to post frames and to take those that arrived. A future of
//! this module that is dropped leaves the connection locked, for set-up to end it.
//!
//! Invariant: a process computes for as many handshakes at once as half of its cores, and holds no
//! turn while it waits for a peer or runs a hook of the user.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::LazyLock;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::device::connection_error::CloseCause;
use crate::engine::connection::Arrived;
use crate::engine::connection_key::ConnectionKey;
use crate::engine::security::Security;
use crate::engine::shard::Shard;
use crate::engine::upper::UpperLayer;
use crate::place::Place;
use crate::protocol::handshake::Offer;
use crate::protocol::lock::{
    FailureReason, HandshakeFailure, LockedLink, Opener, Parameters, Protection, Role, Sealer,
    Secured, SetUp,
};

/// Longest time to wait until a peer has a failure's reason.
const REFUSAL_LIMIT: Duration = Duration::from_secs(1);

/// Turns to compute for a handshake, of this process.
static COMPUTING: LazyLock<Semaphore> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Semaphore::new((cores / 2).max(1))
});

/// The set-up that a handshake authenticates, as private data.
pub(super) struct Sent<'a> {
    pub(super) request: &'a [u8],
    pub(super) reply: &'a [u8],
    /// Of this end and the peer.
    pub(super) offers: [&'a Offer; 2],
}

/// What a handshake leaves.
pub(super) struct Unlocked {
    pub(super) secured: Secured,
    /// The frame that a server must send first.
    pub(super) frame: Vec<u8>,
    /// For all frames behind that one, if they are sealed.
    pub(super) sealing: Option<(Sealer, Opener)>,
}

/// What the exchange waits for.
enum Until {
    /// The next frame has arrived.
    Frame,
    /// All frames are sent, and their work requests have completed.
    Sent,
}

impl<P: UpperLayer> Shard<P> {
    /// Runs the handshake.
    ///
    /// # Errors
    /// [`HandshakeFailure`]; the peer was notified, where that was possible.
    pub(super) async fn unlock(
        &self,
        key: ConnectionKey,
        role: Role,
        security: &Security,
        sent: Sent<'_>,
    ) -> Result<Unlocked, HandshakeFailure> {
        let scheme = self.device().attributes().scheme;
        let place = if scheme == "shm" { Place::here().to_string() } else { String::new() };
        let protection = security.handshakes.protection(scheme);
        let (request, reply, exchange) = (sent.request, sent.reply, security.exchange.as_deref());
        let set_up = SetUp { request, reply, scheme, place: &place, protection, exchange };
        let parameters = Parameters::new(role, &set_up);
        let (factory, name) = (&*security.handshakes, security.expected_name.as_deref());
        let turn = COMPUTING.acquire().await;
        #[cfg(feature = "model")]
        crate::simulation::give_way().await;
        let begun = LockedLink::new(factory, parameters, name, sent.offers);
        drop(turn);
        let mut link = match begun {
            Ok(link) => link,
            Err(failure) => {
                self.refuse(key, crate::protocol::lock::refusal_in_clear(&failure)).await;
                return Err(failure);
            }
        };
        let is_sealed = protection >= Protection::Encrypt;
        match self.run(key, role, &mut link).await {
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
                let (by_peer, denied) = (FailureReason::RefusedByPeer, FailureReason::DeniedByPeer);
                if failure.reason != by_peer && failure.reason != denied {
                    self.refuse(key, link.refusal(&failure)).await;
                }
                Err(failure)
            }
        }
    }

    async fn run(
        &self,
        key: ConnectionKey,
        role: Role,
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
                let _turn = COMPUTING.acquire().await;
                #[cfg(feature = "model")]
                crate::simulation::give_way().await;
                link.on_frame(imm, &bytes)?;
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
    pub(super) fn parting(&self, key: ConnectionKey, opener: Option<Opener>) -> Option<CloseCause> {
        self.lock().connection(key)?.take_parting(opener)
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

/// The connection ended during the handshake.
pub(super) fn ended(cause: CloseCause) -> HandshakeFailure {
    let reason = match cause {
        CloseCause::Protocol(_) => FailureReason::BrokenRule,
        CloseCause::Disconnected | CloseCause::Peer(_) => FailureReason::RefusedByPeer,
        _ => FailureReason::Internal,
    };
    HandshakeFailure::new(reason, format!("the connection ended during the handshake: {cause}"), "")
}
