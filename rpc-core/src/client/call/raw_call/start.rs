//! Sends the request of a call, or ends the call with the reason why it is not sent.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::Guard;
use rpc_transport::engine::shard::Progress;
use rpc_transport::message::outgoing::OutBuf;

use super::due::Whose;
use super::extras::CallExtras;
use super::hedge::Hedge;
use super::{RawCall, State};
use crate::bulk::{BulkPool, ReplySlot};
use crate::client::Connection;
use crate::context::Context as CallContext;
use crate::endpoint::RpcEndpoint;
use crate::endpoint::start::Refused;
use crate::endpoint::take::Sent;
use crate::metadata::Metadata;
use crate::reply::{CallOutcome, Value};
use crate::service::MethodDescriptor;
use crate::session::{CallId, CallOptions, CallStreams, StartError};
use crate::status::Status;
use crate::trace;

/// Longest head of a body, bytes, that is kept for another attempt.
const MAX_KEPT_BYTES: usize = 64 * 1024;

impl RawCall<'_> {
    /// Sends the request. `is_awaited`: a task waits for the answer from now on.
    ///
    /// Gives the outcome if it came at once; the state is then `Done`. Otherwise the state is
    /// `InFlight`; or `Waiting`, if there is no connection; or `Over`, if the call has failed.
    pub(super) fn send(&mut self, is_awaited: bool) -> CallOutcome {
        if !self.is_here() {
            self.refuse_in_child();
            return None;
        }
        let (inherited, has_metadata) = CallContext::current_inherited();
        if !self.begin_interceptors(inherited) {
            return None;
        }
        if has_metadata || trace::may_be_enabled() {
            self.begin_trace(has_metadata);
        }
        let on = match self.on.take() {
            None => self.via.channel().connection(|| self.extras.as_ref()?.affinity),
            chosen => Guard::from_inner(chosen),
        };
        let Some(connection) = &*on else {
            self.wait_for_connection();
            return None;
        };
        self.state = State::Done;
        let channel = &**self.via.channel();
        let mut options = CallOptions {
            codec: channel.codec.of_calls(self.method).id(),
            metadata: None,
            deadline: None,
            until_taken: false,
            is_counted: false,
            when_full: channel.when_full,
            is_nested: connection.is_two_way && is_nested(connection),
        };
        // Most calls have nothing else.
        let is_plain = self.extras.as_ref().is_none_or(|extras| extras.are_plain())
            && self.deadline.is_none()
            && inherited.is_none()
            && channel.default_timeout.is_none()
            && connection.load.is_none()
            && !self.method.idempotent;
        if !is_plain && !self.prepare(connection, inherited, &mut options) {
            return None;
        }
        let method = self.method;
        let Some(mut head) = method.call_head() else {
            // The types cannot be sent: another value might arrive.
            drop(self.take_load());
            if let Err(why) = method.check_types() {
                self.fail(Status::failed_precondition(why));
            }
            return None;
        };
        let without_idle;
        if head.streams.idle_deadline && (options.deadline.is_none() || options.until_taken) {
            // An idle deadline needs one that travels.
            without_idle = head.without_idle_deadline();
            head = &without_idle;
        }
        let began = Cell::new(if options.is_counted { self.began().copied() } else { None });
        let body = &mut self.body;
        self.head_bytes = body.as_ref().map_or(0, |body| body.len().try_into().unwrap_or(u32::MAX));
        let start = |peer: &mut RpcEndpoint| peer.start(head, &options, body, &began);
        let mut taken = None;
        // A single outstanding call polls for its own reply. With several, the driver polls.
        let wanted = |peer: &mut RpcEndpoint, started: &Result<CallId, Box<Refused>>| {
            let Ok(call) = *started else { return Progress::GiveUp };
            if peer.session.outgoing_calls() != 1 && !peer.session.has_outcome(call) {
                return Progress::GiveUp;
            }
            taken = peer.take(Sent { call, method, began: began.get().as_ref() });
            if taken.is_some() { Progress::Done } else { Progress::Wait }
        };
        let started = connection.shard.with_progress(connection.key, is_awaited, start, wanted);
        if let Some(Ok(message)) = taken {
            // Nothing else is left of the call, so it needs no share in the connection.
            return Some(Ok(Value::of_own_types(message)));
        }
        self.on = Guard::into_inner(on);
        if let Some(taken) = taken {
            return self.on_taken(taken);
        }
        match started {
            Some(Ok(call)) => {
                (self.state, self.id) = (State::InFlight, call);
                if began.get().is_some() || self.extras.is_some() {
                    self.extras_mut().began = began.get();
                }
                None
            }
            Some(Err(refused)) => self.refused(Some(&refused), options.is_counted),
            None => self.refused(None, options.is_counted),
        }
    }

    /// Prepares a call that is not plain for this connection. Returns false if it has ended.
    #[inline(never)]
    fn prepare(
        &mut self,
        connection: &Arc<Connection>,
        inherited: Option<Instant>,
        options: &mut CallOptions,
    ) -> bool {
        if let Some(deadline) = self.weigh_deadlines(inherited) {
            options.deadline = Some(deadline);
            options.until_taken = self.whose == Whose::Opening;
        }
        let Self { via, method, body, extras, .. } = self;
        let channel = via.channel();
        let (mut may_repeat, mut may_hedge) = (method.idempotent && !method.has_streams(), true);
        if let Some(extras) = extras {
            if !extras.metadata.is_empty() {
                options.metadata = Some(encoded(&extras.metadata));
            }
            let (len, most) = (options.metadata_bytes(), channel.max_metadata_bytes);
            // The schema is not the user's.
            if len > most && len - extras.metadata.schema_bytes() > most {
                let text = format!(
                    "{}: metadata of {len} bytes exceeds the channel's limit of {most} bytes: send \
                     less, or raise `max_metadata_bytes` of the channel and of the server",
                    method.name
                );
                self.fail(Status::invalid_argument(text));
                return false;
            }
            options.when_full = extras.when_full.unwrap_or(options.when_full);
            may_repeat &= !extras.is_second;
            may_hedge = extras.slot.is_none();
            offer_slot(extras.slot.take(), body, &connection.bulk);
            options.is_counted = std::mem::take(&mut extras.is_counted);
        }
        if let Some(load) = connection.load.as_ref().filter(|_| is_timed(method)) {
            extras.get_or_insert_with(CallExtras::take).load = Some(load.begin());
        }
        if may_repeat {
            let own = extras.as_ref().and_then(|extras| extras.hedging);
            let hedging = own.unwrap_or(channel.hedging.policy).filter(|_| may_hedge);
            if channel.retry.is_some() || hedging.is_some() {
                let extras = extras.get_or_insert_with(CallExtras::take);
                let is_kept = extras.keep(body);
                if let Some(policy) = hedging.as_ref().filter(|_| is_kept) {
                    Hedge::on_sent(&mut extras.hedge, channel, method, policy);
                }
            }
        }
        true
    }

    /// A body that came back, as it was before it was handed to a connection. `None`: it is too
    /// long.
    #[cold]
    pub(super) fn rewound(&self, mut body: OutBuf) -> Option<OutBuf> {
        let head_bytes = usize::try_from(self.head_bytes).ok()?;
        body.rewind(head_bytes);
        (self.head_bytes < u32::MAX).then_some(body)
    }

    /// Ends a call of which nothing was sent, or sends it on another connection. `None`: the
    /// connection is gone. `is_counted`: its begin is counted.
    #[cold]
    fn refused(&mut self, refused: Option<&Refused>, is_counted: bool) -> CallOutcome {
        if let Some(extras) = &mut self.extras {
            extras.is_counted = is_counted;
        }
        let is_lost = match refused {
            None => true,
            Some(Refused::Start(error)) => matches!(
                error,
                StartError::Closed | StartError::PeerGoingAway | StartError::Stopped
            ),
            Some(_) => false,
        };
        if is_lost && let Some(body) = self.body.take().and_then(|body| self.rewound(body)) {
            self.send_elsewhere(body);
            return None;
        }
        let status = match refused {
            None => self.unavailable(),
            Some(Refused::Start(error)) => self.start_failed(error),
            Some(Refused::TooLarge(why)) => {
                Status::resource_exhausted(format!("{}: the request {why}", self.method.name))
            }
            Some(Refused::QueueFull) => Status::resource_exhausted(format!(
                "{}: the connection's queue is full (it holds `queued_bytes` unsent, and \
                 `when_full` is set to refuse)",
                self.method.name
            ))
            .with_retryable(true),
        };
        // A refusal by this end says nothing about the end point.
        drop(self.take_load());
        self.fail(status);
        None
    }
}

/// Whether the server determines how long the answer takes. For a stream of arguments alone their
/// source does.
fn is_timed(method: &MethodDescriptor) -> bool {
    let CallStreams { arguments, results, .. } = method.streams;
    results || !arguments
}

/// Whether the handler that makes the call serves the peer that it goes to.
#[cold]
fn is_nested(connection: &Connection) -> bool {
    CallContext::serves(|other| other.is_at(&connection.shard, connection.key))
}

impl CallExtras {
    /// Keeps the body for another attempt, if it is not too long and not kept yet. Returns whether
    /// it is kept.
    fn keep(&mut self, body: &Option<OutBuf>) -> bool {
        if self.kept.is_none() {
            let short = body.as_ref().filter(|body| body.len() <= MAX_KEPT_BYTES);
            self.kept = short.map(OutBuf::copied);
        }
        self.kept.is_some()
    }
}

/// Offers memory for the reply to the server of the connection that it belongs to.
#[inline]
fn offer_slot(slot: Option<ReplySlot>, body: &mut Option<OutBuf>, pool: &BulkPool) {
    if let (Some(slot), Some(body)) = (slot, body) {
        pool.offer(slot, body);
    }
}

/// Metadata as it is sent.
#[cold]
fn encoded(metadata: &Metadata) -> OutBuf {
    let mut encoded = OutBuf::new();
    metadata.encode(&mut encoded);
    encoded
}
