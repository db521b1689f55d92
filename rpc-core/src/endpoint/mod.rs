//! Adapts a session to the transport's driver.
//!
//! Owns the translation between [`Session`] (pure, `rpc-core`) and [`Protocol`] (the transport's
//! view of the layer above). Runs under the shard's lock, so it never calls user code: work for
//! outside the lock leaves as an [`Action`].

pub(crate) mod connection_context;
pub(crate) mod counts;
pub(crate) mod room;
pub(crate) mod survey;

use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;
use std::time::Instant;

use rpc_transport::connect::error::CloseCause;
use rpc_transport::device::PeerIdentity;
use rpc_transport::engine::clock;
use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::engine::shard::Shard;
use rpc_transport::engine::upper::{Outside, Protocol, Revoke, Sleeper, Submission};
use rpc_transport::log_limit::LogLimit;
use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;
use rpc_transport::protocol::config::{QueueLimit, WhenFull};
use rpc_transport::protocol::link::{self, Lane, SubmitError, Waiting};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;

use self::connection_context::{ConnectionContext, no_channel};
use self::counts::{EndpointCounts, OwnCalls};
use self::room::Room;
use crate::bulk::BulkPool;
use crate::metadata::DEFAULT_MAX_BYTES;
use crate::observability::stats::counts::Methods;
use crate::runtime::phase::Watch;
use crate::session::{Incoming, IncomingId, Revoked, Role, Session, SessionEvent, SessionLimits};
use crate::wire;
use rpc_transport::user_code::logged;

/// A shard whose connections carry sessions.
pub(crate) type RpcShard = Shard<RpcEndpoint>;

/// One end of a connection: its session and what its handlers may use.
pub(crate) struct RpcEndpoint {
    pub(crate) session: Session<Waker, AbortHandle>,
    connection_context: Arc<ConnectionContext>,
    /// Largest message that the peer accepts, bytes.
    max_message_bytes: u64,
    pub(crate) room: Room,
    when_full: WhenFull,
    /// `poll_news` may have an action (one that does not come from the session).
    has_news: bool,
    /// The connection has ended, and no action has reported it yet.
    ended: bool,
    /// Why an established connection has ended, until an action has reported it.
    cause: Option<CloseCause>,
    is_established: bool,
    /// Permit that counts against the server's `max_connections`.
    place: Option<OwnedSemaphorePermit>,
    /// The QP has been destroyed.
    released: bool,
    on_event: Option<OnEvent>,
    /// Tells the channel to the peer of the connection's end.
    on_end: Option<OnEvent>,
    pub(crate) counts: EndpointCounts,
}

/// Longest header of a request, bytes: fixed header, deadline, signature, length of the metadata.
const REQUEST_HEADER_BYTES: u64 = wire::HEADER_BYTES as u64 + 8 + 8 + 2;
/// Longest header of a response, bytes: fixed header, lengths of a status's details and of the
/// metadata.
const RESPONSE_HEADER_BYTES: u64 = wire::HEADER_BYTES as u64 + 4 + 2;

/// Work to be done outside the shard's lock.
pub(crate) enum Action {
    /// Wake a waiting task: a call has its outcome, or there is room for a reply.
    Wake(Waker),
    /// A call has arrived.
    Request(Incoming, Arc<ConnectionContext>),
    /// Stop a handler: its caller is gone.
    Abort(AbortHandle),
    /// After a go-away nothing is in flight any more, or the queue pair is gone. In the latter case
    /// the permit is here; dropping it wakes a task that waits for one, so it is dropped outside
    /// the lock.
    Settled(Option<OwnedSemaphorePermit>),
    /// An established connection has ended.
    Ended(Box<Ended>),
    /// The peer takes no new calls.
    PeerGoingAway(OnEvent),
}

/// What the owner of a connection is told, with no lock held.
#[derive(Debug)]
pub(crate) enum ConnectionEvent {
    /// The peer takes no new calls.
    PeerGoingAway,
    /// The connection has ended.
    Ended(CloseCause),
}

/// How it is told.
pub(crate) type OnEvent = Arc<dyn Fn(ConnectionEvent) + Send + Sync>;

/// How an established connection ended.
pub(crate) struct Ended {
    peer: Arc<PeerIdentity>,
    cause: CloseCause,
    on_event: Option<OnEvent>,
    on_end: Option<OnEvent>,
    /// The connection's permit, if its queue pair is gone already.
    _place: Option<OwnedSemaphorePermit>,
}

static LOST: LogLimit = LogLimit::new("connections that were lost");

impl Ended {
    /// Tells the connection's owner, and logs the end.
    pub(crate) fn tell(self) {
        self.log();
        for tell in [&self.on_event, &self.on_end].into_iter().flatten() {
            tell(ConnectionEvent::Ended(self.cause.clone()));
        }
    }

    /// Logs the end: a close that either side asked for at a lower level than a failure.
    fn log(&self) {
        let Self { peer, cause, .. } = self;
        match cause {
            CloseCause::Local => tracing::debug!(?peer, %cause, "connection ended"),
            // Peers come and go; whoever waits for an answer is told by its call.
            CloseCause::Peer(_) | CloseCause::Disconnected | CloseCause::DriverGone => {
                tracing::info!(?peer, %cause, "connection ended");
            }
            // The shard has already logged which rule was broken.
            CloseCause::Protocol(_) => tracing::debug!(?peer, %cause, "connection ended"),
            _ => LOST.fault(clock::now(), || {
                tracing::warn!(?peer, %cause, "connection ended");
            }),
        }
    }
}

impl RpcEndpoint {
    pub(crate) fn new(
        role: Role,
        limits: SessionLimits,
        bulk: BulkPool,
        min_part_bytes: usize,
        queue: QueueLimit,
        memory: MemoryBudget,
    ) -> Self {
        let identity = Arc::new(PeerIdentity::SameProcess);
        let mut session = Session::new(role, limits);
        session.set_item_room(queue.bytes);
        if role == Role::Server || limits.max_incoming_calls > 0 {
            session.set_stream_memory(memory.clone());
        }
        Self {
            session,
            connection_context: Arc::new(ConnectionContext {
                identity,
                bulk,
                min_part_bytes,
                max_metadata_bytes: DEFAULT_MAX_BYTES,
                memory,
                phase: None,
                shard: Weak::new(),
                place: None,
                ended: OnceLock::new(),
                channel: no_channel(),
            }),
            max_message_bytes: u64::MAX,
            room: Room::new(queue),
            when_full: queue.when_full,
            has_news: false,
            ended: false,
            cause: None,
            is_established: false,
            place: None,
            released: false,
            on_event: None,
            on_end: None,
            counts: EndpointCounts::default(),
        }
    }

    /// Tells the connection's owner what becomes of it.
    pub(crate) fn telling(mut self, on_event: OnEvent) -> Self {
        self.on_event = Some(on_event);
        self
    }

    /// Tells the channel to the peer of the connection's end, from now on in place of another one, and
    /// counts its calls, unless this end's calls are counted already. False: it has ended.
    pub(crate) fn tell_channel(&mut self, on_end: OnEvent, methods: &Arc<Methods>) -> bool {
        self.on_end = Some(on_end);
        if self.on_event.is_none() {
            self.counts.calls = Some(OwnCalls::new(Arc::clone(methods)));
        }
        self.session.close_cause().is_none()
    }

    /// Counts the calls of this end.
    pub(crate) fn counting(mut self, methods: Arc<Methods>) -> Self {
        self.counts.calls = Some(OwnCalls::new(methods));
        self
    }

    /// The peer's identity.
    pub(crate) fn identity(&self) -> &Arc<PeerIdentity> {
        &self.connection_context.identity
    }

    #[cold]
    fn told_of_end(&mut self) -> Action {
        let place = if self.released { self.place.take() } else { None };
        match self.cause.take() {
            Some(cause) => {
                let peer = Arc::clone(self.identity());
                let (on_event, on_end) = (self.on_event.take(), self.on_end.take());
                Action::Ended(Box::new(Ended { peer, cause, on_event, on_end, _place: place }))
            }
            None => Action::Settled(place),
        }
    }

    /// Holds a connection permit until the QP has been destroyed.
    pub(crate) fn holding(mut self, place: OwnedSemaphorePermit) -> Self {
        self.place = Some(place);
        self
    }

    /// Tells handlers of the server's end.
    pub(crate) fn watching(mut self, phase: Watch) -> Self {
        if let Some(context) = Arc::get_mut(&mut self.connection_context) {
            context.phase = Some(phase);
        }
        self
    }

    /// Says on which shard the connection is.
    pub(crate) fn placed_on(mut self, shard: &Arc<RpcShard>) -> Self {
        if let Some(context) = Arc::get_mut(&mut self.connection_context) {
            context.shard = Arc::downgrade(shard);
        }
        self
    }

    /// Takes metadata of calls up to so many bytes.
    pub(crate) fn taking_metadata(mut self, max_bytes: usize) -> Self {
        if let Some(context) = Arc::get_mut(&mut self.connection_context) {
            context.max_metadata_bytes = max_bytes;
        }
        self
    }

    /// Why a request with this many bytes of metadata and arguments is too large for this peer;
    /// `None` if it is not.
    pub(crate) fn request_too_large(&self, metadata: usize, body: u64) -> Option<String> {
        if body.saturating_add(REQUEST_HEADER_BYTES + metadata as u64) <= self.max_message_bytes {
            return None;
        }
        let takes = self.max_message_bytes;
        Some(too_large(body, takes, "server"))
    }

    /// Why a reply of `body` bytes is too large for this peer; `None` if it is not. The text is
    /// sent to the client.
    #[cold]
    pub(crate) fn reply_too_large(&self, body: u64) -> Option<String> {
        if body.saturating_add(RESPONSE_HEADER_BYTES) <= self.max_message_bytes {
            return None;
        }
        Some(too_large(body, self.max_message_bytes, "client"))
    }

    /// Fast path: whether a reply of `body` bytes can be sent without checking size and queue.
    #[inline]
    pub(crate) fn reply_passes(&self, body: u64) -> bool {
        self.room.passes(body.saturating_add(RESPONSE_HEADER_BYTES))
    }

    /// The same for a request.
    #[inline]
    pub(crate) fn request_passes(&self, metadata: usize, body: u64) -> bool {
        self.room.passes(body.saturating_add(REQUEST_HEADER_BYTES + metadata as u64))
    }

    /// What to do with a message that finds the queue full.
    pub(crate) fn when_full(&self) -> WhenFull {
        self.when_full
    }

    /// The memory budget that large messages of the connection are charged to.
    pub(crate) fn memory(&self) -> &MemoryBudget {
        &self.connection_context.memory
    }

    /// The reply no longer waits for room: it was queued, or never will be. Returns its waker, to
    /// be dropped outside the lock.
    pub(crate) fn forget_waiting(&mut self, id: IncomingId) -> Option<Waker> {
        let waker = self.room.forget(id);
        self.has_news |= self.room.has_wakes();
        waker
    }

    #[inline(never)]
    fn drain_notices(&mut self, outside: &mut Outside<'_, Action>) {
        while let Some(notice) = self.session.poll_notice() {
            outside.run(match notice {
                SessionEvent::Wake(waker) => Action::Wake(waker),
                SessionEvent::CancelHandler(handle) => Action::Abort(handle),
                SessionEvent::PeerGoingAway => match &self.on_event {
                    Some(on_event) => Action::PeerGoingAway(Arc::clone(on_event)),
                    None => Action::Settled(None),
                },
                SessionEvent::Drained => Action::Settled(None),
                SessionEvent::Discard(body) => {
                    outside.drop(body);
                    continue;
                }
            });
        }
    }

    #[cold]
    fn drain_news(&mut self, outside: &mut Outside<'_, Action>) {
        while let Some(news) = self.poll_news() {
            outside.run(news);
        }
    }

    fn poll_news(&mut self) -> Option<Action> {
        if let Some(waker) = self.room.poll_wake() {
            return Some(Action::Wake(waker));
        }
        self.has_news = false;
        // Not `then_some`, which would make and drop an action every time.
        if std::mem::take(&mut self.ended) { Some(self.told_of_end()) } else { None }
    }

    /// Longest body of a reply to this peer, bytes.
    pub(crate) fn reply_room(&self) -> usize {
        let room = self.max_message_bytes.saturating_sub(RESPONSE_HEADER_BYTES);
        usize::try_from(room).unwrap_or(usize::MAX)
    }
}

/// The text for a message that is too large. `end` is the side that would receive it.
#[cold]
fn too_large(body: u64, takes: u64, end: &str) -> String {
    format!(
        "of {body} bytes is larger than the {takes} bytes that the {end} takes: raise \
         `max_message_bytes` in the `LinkConfig` of the {end}"
    )
}

impl Protocol for RpcEndpoint {
    type Action = Action;

    fn on_established(&mut self, key: ConnectionKey, peer: &PeerIdentity, max_message_bytes: u64) {
        let now = clock::now();
        let context = self.connection_context.established(key, peer.clone(), now);
        self.is_established = true;
        self.counts.established = Some(now);
        self.connection_context = Arc::new(context);
        self.max_message_bytes = max_message_bytes;
        self.room.set_max_message_bytes(max_message_bytes);
    }

    fn memory_budget(&self) -> MemoryBudget {
        self.connection_context.memory.clone()
    }

    #[inline]
    fn wants_waiting(&self) -> bool {
        self.room.has_admitted()
    }

    fn on_waiting(&mut self, waiting: Waiting) {
        self.room.on_waiting(waiting);
        self.session.set_longest_small(waiting.longest_small);
        self.session.set_item_room(self.room.limit_bytes().saturating_sub(waiting.total_bytes()));
        self.has_news |= self.room.has_wakes();
    }

    #[inline]
    fn on_message(&mut self, message: Message, revoke: Revoke<'_>) -> Result<(), Arc<str>> {
        self.counts.on_message(&message);
        self.session
            .on_message(message, clock::now, &mut |tag| revoked(revoke(tag)))
            .map_err(|error| error.to_string().into())
    }

    fn on_refused(&mut self, tag: u64, error: &SubmitError) {
        // Sizes were checked before (`request_too_large`, `reply_room`), so the link must be
        // closing, which ends every call anyhow.
        let error = error.to_string();
        logged(move || tracing::debug!(tag, error, "the link did not take a message"));
    }

    #[inline]
    fn may_transmit(&self) -> bool {
        self.session.may_transmit()
    }

    #[inline]
    fn poll_transmit(&mut self) -> Option<Submission> {
        let transmit = self.session.poll_transmit(clock::now)?;
        self.counts.on_transmit(transmit.frame.total_len());
        let lane = if transmit.urgent { Lane::Urgent } else { Lane::Small };
        Some(Submission { lane, tag: transmit.tag, frame: transmit.frame })
    }

    fn most_queued(&self) -> usize {
        self.session.most_queued_frames()
    }

    #[inline]
    fn has_actions(&self) -> bool {
        self.has_news || self.session.has_events()
    }

    #[inline]
    fn drain_actions(&mut self, outside: &mut Outside<'_, Action>) {
        if self.session.has_notices() {
            self.drain_notices(outside);
        }
        while let Some(incoming) = self.session.poll_request() {
            outside.run(Action::Request(incoming, Arc::clone(&self.connection_context)));
        }
        if self.has_news {
            self.drain_news(outside);
        }
    }

    #[inline]
    fn next_deadline(&self) -> Option<Instant> {
        self.session.next_deadline()
    }

    fn on_timeout(&mut self, now: Instant, revoke: Revoke<'_>) {
        self.session.on_timeout(now, &mut |tag| revoked(revoke(tag)));
    }

    fn on_closed(&mut self, cause: &CloseCause, revoke: Revoke<'_>) {
        self.session.on_closed(cause.clone(), &mut |tag| revoked(revoke(tag)));
        self.cause = self.is_established.then(|| cause.clone());
        // Told once.
        let _ = self.connection_context.ended.set(cause.clone());
        self.room.close();
        (self.ended, self.has_news) = (true, true);
    }

    fn on_given_back(&mut self, tag: u64, message: OutBuf) -> Option<OutBuf> {
        self.session.give_back(tag, message)
    }

    fn on_released(&mut self) {
        self.released = true;
        (self.ended, self.has_news) = (true, true);
    }

    fn into_waker(action: Action) -> Result<Waker, Action> {
        match action {
            Action::Wake(waker) => Ok(waker),
            other => Err(other),
        }
    }

    #[inline]
    fn is_for_callers_alone(&self) -> bool {
        self.session.is_for_callers_alone()
    }

    fn take_sleeper(&mut self) -> Sleeper {
        if self.session.outgoing_calls() == 0 {
            return Sleeper::Nobody;
        }
        match self.session.take_waiter() {
            Some((call, waker)) => Sleeper::Found(call.as_u64(), waker),
            None if self.session.finds_all_waiters() => Sleeper::Nobody,
            None => Sleeper::Unknown,
        }
    }

    fn is_idle(&self) -> bool {
        self.session.is_drained()
    }
}

/// Converts the link's answer to the session's type.
pub(crate) fn revoked(answer: link::Revoked<()>) -> Revoked {
    match answer {
        link::Revoked::Whole(()) => Revoked::Whole,
        link::Revoked::Aborted => Revoked::Aborted,
        link::Revoked::Begun => Revoked::Begun,
        link::Revoked::TooLate => Revoked::TooLate,
    }
}
