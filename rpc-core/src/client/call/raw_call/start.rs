//! Sends the request of a call, or says why it is not sent.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::Guard;
use rpc_transport::engine::shard::Progress;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::protocol::config::WhenFull;

use super::beside::Beside;
use super::{RawCall, Sent, State};
use crate::bulk::{BulkPool, ReplySlot};
use crate::client::Connection;
use crate::client::shared::earliest;
use crate::context::Context as CallContext;
use crate::endpoint::RpcEndpoint;
use crate::metadata::Metadata;
use crate::observability::stats::counts::Timed;
use crate::observability::trace;
use crate::runtime::recycled;
use crate::service::reply::CallOutcome;
use crate::session::{CallHead, CallId, CallOptions, CallStreams, Deadline, StartError};
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
        let on = match self.on.take() {
            None => self.via.channel().connection(),
            chosen => Guard::from_inner(chosen),
        };
        self.send_on(on, deadline, is_awaited, found);
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
        self.state = State::Done;
        let channel = &**self.via.channel();
        let mut options = CallOptions {
            codec: channel.codec.id(),
            metadata: None,
            deadline: None,
            when_full: channel.when_full,
            is_nested: connection.is_two_way && is_nested(connection),
        };
        // What most calls have none of.
        let is_plain = self.extras.is_none()
            && self.deadline.is_none()
            && inherited.is_none()
            && channel.default_timeout.is_none()
            && connection.load.is_none()
            && !self.method.idempotent;
        if !is_plain {
            let may_go_on = self.prepare(connection, inherited, &mut options);
            if !may_go_on {
                return;
            }
        }
        let Self { state, method, body, beside, head_bytes, .. } = self;
        let mut head = method.call_head();
        let without_idle;
        if head.streams.idle_deadline && options.deadline.is_none() {
            let streams = CallStreams { idle_deadline: false, ..head.streams };
            without_idle = CallHead { streams, ..*head };
            head = &without_idle;
        }
        *head_bytes = body.as_ref().map_or(0, |body| body.len().try_into().unwrap_or(u32::MAX));
        let timed = Cell::new(None);
        let start = |peer: &mut RpcEndpoint| peer.start(head, &options, body, &timed);
        let mut other = None;
        // A single outstanding call polls for its own reply. With several, the driver polls.
        let wanted = |peer: &mut RpcEndpoint, started: &Result<CallId, Box<Refused>>| {
            // Who only starts a call looks when it is awaited.
            let (true, Ok(call)) = (is_awaited, started) else { return Progress::GiveUp };
            if peer.session.outgoing_calls() != 1 && !peer.session.has_outcome(*call) {
                return Progress::GiveUp;
            }
            let began = timed.get();
            let sent = Sent { call: *call, method, began: began.as_ref() };
            match peer.take(sent, found, &mut other) {
                true => Progress::Done(()),
                false => Progress::Wait,
            }
        };
        let sent = connection.shard.with_progress(connection.key, is_awaited, start, wanted);
        let refused = match sent {
            Some((Ok(_), Some(()))) if other.is_none() => return,
            Some((Ok(call), None)) => {
                *state = State::InFlight(call);
                match (timed.get(), &mut **beside) {
                    (None, None) => {}
                    (began, Some(beside)) => beside.began = began,
                    (began, none) => none.insert(recycled::take()).began = began,
                }
                None
            }
            Some((Ok(_), Some(()))) => None,
            Some((Err(refused), _)) => Some(Some(refused)),
            None => Some(None),
        };
        // It was taken for the call to leave on, or there was none.
        std::mem::forget(std::mem::replace(&mut self.on, Guard::into_inner(on)));
        if let Some(refused) = refused {
            self.refused(refused.as_deref());
        } else if let Some(other) = other {
            *found = self.rarely_found(other);
        }
    }

    /// What a call has that is not like most, as it is about to be sent on a connection. False: it has ended.
    #[inline(never)]
    fn prepare(
        &mut self,
        connection: &Arc<Connection>,
        inherited: Option<Instant>,
        options: &mut CallOptions,
    ) -> bool {
        let Self { via, method, body, beside, deadline: own, extras, .. } = self;
        let channel = via.channel();
        let (mut may_repeat, mut may_hedge) = (method.idempotent && !method.has_streams(), true);
        if let Some(extras) = &mut **extras {
            options.metadata = encoded(&extras.metadata);
            let (len, most) = (options.metadata_bytes(), channel.max_metadata_bytes);
            if len > most {
                self.metadata_too_long(len, most);
                return false;
            }
            options.when_full = extras.when_full.unwrap_or(options.when_full);
            may_repeat &= !extras.is_second;
            may_hedge = extras.slot.is_none();
            offer_slot(extras.slot.take(), body, &connection.bulk);
        }
        if let Some(load) = &connection.load {
            beside.get_or_insert_with(recycled::take).load = Some(load.begin());
        }
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
        options.deadline = deadline.map(|(at, now)| Deadline { at, now });
        true
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
    /// Starts a call. A refused body stays in its place. Tells the time if the call is one that is timed.
    #[inline]
    fn start(
        &mut self,
        head: &CallHead,
        options: &CallOptions,
        body: &mut Option<OutBuf>,
        timed: &Cell<Option<Timed>>,
    ) -> Result<CallId, Box<Refused>> {
        let body_bytes = body.as_ref().map_or(0, OutBuf::total_len);
        if !self.request_passes(options.metadata_bytes(), body_bytes) {
            self.look_closer(options, body_bytes)?;
        }
        let id = self.session.start_from(head, options, body, None).map_err(not_started)?;
        timed.set(self.counts.on_start(head.method_index, body_bytes));
        Ok(id)
    }

    /// Slow path: a large request, or one that finds the queue full.
    #[cold]
    fn look_closer(&mut self, options: &CallOptions, body: u64) -> Result<(), Box<Refused>> {
        if let Some(why) = self.request_too_large(options.metadata_bytes(), body) {
            return Err(Box::new(Refused::TooLarge(why)));
        }
        if !self.room.admit(body) {
            if options.when_full == WhenFull::Refuse {
                return Err(Box::new(Refused::QueueFull));
            }
            // Queued all the same: its call waits.
            self.room.count(body);
        }
        Ok(())
    }
}

#[cold]
fn not_started(error: StartError) -> Box<Refused> {
    Box::new(Refused::Start(error))
}
