//! Sends the request of a call, or says why it is not sent.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::Guard;
use rpc_transport::engine::shard::Progress;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::protocol::config::WhenFull;

use super::beside::Beside;
use super::outcome::take;
use super::{RawCall, Sent, State};
use crate::bulk::{BulkPool, ReplySlot};
use crate::client::Connection;
use crate::client::shared::earliest;
use crate::context::Context as CallContext;
use crate::endpoint::RpcEndpoint;
use crate::metadata::Metadata;
use crate::observability::trace;
use crate::runtime::recycled;
use crate::service::reply::CallOutcome;
use crate::session::{Deadline, StartCall, StartError};
use crate::status::Status;

/// Longest head of a body, bytes, that is kept for another attempt.
const MAX_KEPT_BYTES: usize = 64 * 1024;

impl RawCall<'_> {
    /// Hands the request to the session; `is_awaited` if a task waits for the answer from now on. Afterwards the state is not `Ready`: if there is no
    /// connection, it is `Waiting`; if an interceptor refuses the call, it is `Over`. Sets `found` if the outcome came at once.
    pub(super) fn send(&mut self, is_awaited: bool, found: &mut CallOutcome) {
        let (deadline, has_metadata) = CallContext::current_inherited();
        if !self.begin_around(deadline) {
            return;
        }
        if has_metadata || trace::may_be_enabled() {
            self.begin_trace(has_metadata);
        }
        if self.on.is_some() {
            let on = self.on.take();
            return self.send_on(Guard::from_inner(on), deadline, is_awaited, found);
        }
        let guard = self.via.channel().connection();
        self.send_on(guard, deadline, is_awaited, found);
    }

    #[inline]
    fn send_on(
        &mut self,
        on: Guard<Option<Arc<Connection>>>,
        inherited: Option<Instant>,
        is_awaited: bool,
        found: &mut CallOutcome,
    ) {
        let Some(connection) = &*on else { return self.wait_for_connection() };
        let Self { via, method, state, body, beside, deadline: own, extras, head_bytes, .. } = self;
        *state = State::Done;
        let mut metadata = None;
        let mut when_full = via.channel().when_full;
        let (mut may_repeat, mut may_hedge) = (method.idempotent && !method.has_streams(), true);
        if let Some(extras) = &mut **extras {
            metadata = encoded(&extras.metadata);
            let most = via.channel().max_metadata_bytes;
            if metadata.as_ref().is_some_and(|metadata| metadata.len() > most) {
                let len = metadata.map_or(0, |metadata| metadata.len());
                return self.metadata_too_long(len, most);
            }
            when_full = extras.when_full.unwrap_or(when_full);
            may_repeat &= !extras.is_second;
            may_hedge = extras.slot.is_none();
            offer_slot(extras.slot.take(), body, &connection.bulk);
        }
        if let Some(load) = &connection.load {
            beside.get_or_insert_with(recycled::take).load = Some(load.begin());
        }
        let channel = via.channel();
        let deadline = earliest(*own, channel.default_timeout, inherited);
        *own = deadline.map(|(at, _)| at);
        if may_repeat {
            let own = extras.as_ref().and_then(|extras| extras.hedging);
            let hedging = own.unwrap_or(channel.hedging.policy).filter(|_| may_hedge);
            if channel.retry.is_some() || hedging.is_some() {
                let is_kept = keep(body, beside);
                if let Some(policy) = hedging.as_ref().filter(|_| is_kept) {
                    extras.get_or_insert_default().on_sent(channel, method, policy);
                }
            }
        }
        let mut streams = method.streams;
        streams.idle_deadline &= deadline.is_some();
        let call = StartCall {
            method: method.id,
            method_index: method.dense_index(),
            signature: method.checked_hash(),
            codec: channel.codec.id(),
            deadline: deadline.map(|(at, now)| Deadline { at, now }),
            no_cancel: method.no_cancel,
            when_full,
            is_nested: connection.is_two_way && is_nested(connection),
            streams,
            metadata: metadata.as_deref().unwrap_or_default(),
        };
        *head_bytes = body.as_ref().map_or(0, |body| body.len().try_into().unwrap_or(u32::MAX));
        let start = |peer: &mut RpcEndpoint| peer.start(&call, body);
        let mut other = None;
        // A single outstanding call polls for its own reply. With several, the driver polls.
        let wanted = |peer: &mut RpcEndpoint, started: &Result<Sent, Refused>| {
            let Ok(sent) = started else { return Progress::GiveUp };
            if peer.session.has_outcome(sent.call) {
                take(peer, *sent, found, &mut other);
                Progress::Done(())
            } else if is_awaited && peer.session.outgoing_calls() == 1 {
                Progress::Wait
            } else {
                Progress::GiveUp
            }
        };
        match connection.shard.with_progress(connection.key, is_awaited, start, wanted) {
            Some((Ok(sent), None)) => {
                *state = State::InFlight(sent.call);
                match (sent.began, &mut **beside) {
                    (None, None) => {}
                    (began, Some(beside)) => beside.began = began,
                    (began, none) => none.insert(recycled::take()).began = began,
                }
                self.on = Guard::into_inner(on);
            }
            Some((Ok(_), Some(()))) => {
                if let Some(other) = other {
                    self.on = Guard::into_inner(on);
                    *found = self.rarely_found(other);
                }
            }
            Some((Err(refused), _)) => {
                self.on = Guard::into_inner(on);
                self.refused(Some(&refused));
            }
            None => {
                self.on = Guard::into_inner(on);
                self.refused(None);
            }
        }
    }

    /// A body that came back, as it was before it was handed to a connection. `None`: it is too long.
    #[cold]
    pub(super) fn rewound(&self, mut body: OutBuf) -> Option<OutBuf> {
        let head_bytes = usize::try_from(self.head_bytes).ok()?;
        body.rewind(head_bytes);
        (self.head_bytes < u32::MAX).then_some(body)
    }

    #[cold]
    fn metadata_too_long(&mut self, len: usize, most: usize) {
        let text = format!(
            "{}: metadata of {len} bytes is longer than the {most} bytes that the channel sends: send \
             less, or raise its `max_metadata_bytes`, and that of the server",
            self.method.name
        );
        self.fail(Status::invalid_argument(text));
    }

    /// Ends a call of which nothing was sent, or sends it on another connection. `None`: the
    /// connection is gone.
    #[cold]
    fn refused(&mut self, refused: Option<&Refused>) {
        let is_lost = match refused {
            None => true,
            Some(Refused::Start(error)) => matches!(
                error,
                StartError::Closed | StartError::PeerGoingAway | StartError::Stopped
            ),
            Some(_) => false,
        };
        if is_lost && let Some(body) = self.body.take().and_then(|body| self.rewound(body)) {
            return self.send_elsewhere(body);
        }
        let status = match refused {
            None => self.unavailable(),
            Some(Refused::Start(error)) => self.start_failed(error),
            Some(Refused::TooLarge(why)) => {
                Status::resource_exhausted(format!("{}: the request {why}", self.method.name))
            }
            Some(Refused::QueueFull) => Status::resource_exhausted(format!(
                "{}: the queue of the connection is full (`queued_bytes` wait to leave, and \
                 `when_full` is to refuse)",
                self.method.name
            ))
            .with_retryable(true),
        };
        // This end's own word tells nothing of the end point.
        drop(self.take_load());
        self.fail(status);
    }
}

/// Whether the handler that makes the call serves the peer that it goes to.
#[cold]
fn is_nested(connection: &Connection) -> bool {
    CallContext::serves(|other| other.is_at(&connection.shard, connection.key))
}

/// Keeps the body for another attempt, if it is not too long and not kept yet. Whether it is kept.
#[inline]
fn keep(body: &Option<OutBuf>, beside: &mut Option<Box<Beside>>) -> bool {
    let Some(body) = body.as_ref().filter(|body| body.len() <= MAX_KEPT_BYTES) else {
        return beside.as_ref().is_some_and(|beside| beside.kept.is_some());
    };
    beside.get_or_insert_with(recycled::take).kept.get_or_insert_with(|| body.copied());
    true
}

/// Offers memory for the reply to the server of the connection that it belongs to.
#[inline]
fn offer_slot(slot: Option<ReplySlot>, body: &mut Option<OutBuf>, pool: &BulkPool) {
    if let (Some(slot), Some(body)) = (slot, body) {
        pool.offer(slot, body);
    }
}

/// Encodes metadata for sending; empty metadata takes no bytes.
#[cold]
fn encoded(metadata: &Metadata) -> Option<OutBuf> {
    if metadata.is_empty() {
        return None;
    }
    let mut encoded = OutBuf::new();
    metadata.encode(&mut encoded);
    Some(encoded)
}

/// Why a request is not sent.
enum Refused {
    Start(StartError),
    TooLarge(String),
    QueueFull,
}

impl RpcEndpoint {
    /// Starts a call. A refused body stays in its place.
    #[inline]
    fn start(&mut self, call: &StartCall<'_>, body: &mut Option<OutBuf>) -> Result<Sent, Refused> {
        let body_bytes = body.as_ref().map_or(0, OutBuf::total_len);
        if !self.request_passes(call.metadata.len(), body_bytes) {
            self.look_closer(call, body_bytes)?;
        }
        let id = self.session.start_from(call, body, None).map_err(Refused::Start)?;
        let began = self.counts.on_start(call.method_index, body_bytes);
        Ok(Sent { call: id, method_index: call.method_index, began })
    }

    /// Slow path: a large request, or one that finds the queue full.
    #[cold]
    fn look_closer(&mut self, call: &StartCall<'_>, body: u64) -> Result<(), Refused> {
        if let Some(why) = self.request_too_large(call.metadata.len(), body) {
            return Err(Refused::TooLarge(why));
        }
        if !self.room.admit(body) {
            if call.when_full == WhenFull::Refuse {
                return Err(Refused::QueueFull);
            }
            // Queued all the same: its call waits.
            self.room.count(body);
        }
        Ok(())
    }
}
