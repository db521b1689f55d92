//! Adapts a session to the transport's driver.
//!
//! Owns the translation between [`Session`] (pure, `rpc-core`) and [`UpperLayer`] (the transport's
//! view of the layer above). Runs under the shard's lock, so it never calls user code: work for
//! outside the lock leaves as an [`Action`].

pub(crate) mod connection_context;
pub(crate) mod counts;
pub(crate) mod ended;
pub(crate) mod item;
pub(crate) mod reply;
pub(crate) mod send_quota;
mod sizes;
pub(crate) mod start;
pub(crate) mod survey;
pub(crate) mod take;

use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use rpc_transport::device::PeerIdentity;
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::engine::clock;
use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::engine::shard::Shard;
use rpc_transport::engine::upper::{Outside, Revoke, Sleeper, Submission, UpperLayer};
use rpc_transport::lock::Mutex;
use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::memory::process::Process;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;
use rpc_transport::protocol::config::{QueueLimit, WhenFull};
use rpc_transport::protocol::link::{self, Lane, SubmitError, Waiting};
use rpc_transport::protocol::lock::Secured;
use rpc_transport::user_code::logged;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;

use self::connection_context::{ConnectionContext, no_channel};
use self::counts::{EndpointCounts, OwnCalls};
use self::ended::{Door, Ended, OnEvent};
use self::send_quota::SendQuota;
use crate::bulk::BulkPool;
use crate::identity::{Credentials, Identity, Proof, Verified};
use crate::metadata::DEFAULT_MAX_BYTES;
use crate::resolution::Planned;
use crate::runtime::phase::Watch;
use crate::session::{Incoming, Revoked, Role, Session, SessionEvent, SessionLimits};
use crate::stats::counts::Methods;

/// A shard whose connections carry sessions.
pub(crate) type RpcShard = Shard<RpcEndpoint>;

/// One end of a connection: its session and what its handlers may use.
pub(crate) struct RpcEndpoint {
    pub(crate) session: Session<Waker, AbortHandle>,
    connection_context: Arc<ConnectionContext>,
    /// Largest message that the peer accepts, bytes.
    max_message_bytes: u64,
    quota: SendQuota,
    when_full: WhenFull,
    /// There may be an action that does not come from the session.
    has_news: bool,
    /// The connection has ended, and no action has reported it yet.
    ended: bool,
    /// Why an established connection has ended, until an action has reported it.
    cause: Option<CloseCause>,
    is_established: bool,
    /// Time without calls after which the connection is closed, and time after which it is in any
    /// case.
    max_idle: Option<Duration>,
    max_age: Option<Duration>,
    /// Permit that counts against the server's `max_connections`.
    place: Option<OwnedSemaphorePermit>,
    /// The QP has been destroyed.
    released: bool,
    on_event: Option<OnEvent>,
    /// Reports the connection's end to the channel to the peer.
    on_end: Option<OnEvent>,
    door: Option<Door>,
    /// What the peer has proven, until the connection is established.
    proof: Option<Arc<Proof>>,
    pub(crate) counts: EndpointCounts,
    /// How values of the peer are decoded whose types differ, by the session's numbers.
    plans: Vec<Planned>,
}

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
    /// Neither end has made a call for long: close the connection, or have the channel do so.
    Idle(Option<OnEvent>),
    /// The peer's hello, for who waits for it.
    Hello(Box<(Door, Option<Credentials>)>),
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
        let identity = Arc::new(Identity::from(PeerIdentity::SameProcess));
        let mut session = Session::new(role, limits);
        let quota = SendQuota::new(queue, memory.clone());
        session.set_item_room(quota.item_bytes());
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
                granted: Mutex::new(Vec::new()),
                schemas: Mutex::default(),
                process: Process::current(),
            }),
            max_message_bytes: u64::MAX,
            quota,
            when_full: queue.when_full,
            has_news: false,
            ended: false,
            cause: None,
            is_established: false,
            max_idle: None,
            max_age: None,
            place: None,
            released: false,
            on_event: None,
            on_end: None,
            door: None,
            proof: None,
            counts: EndpointCounts::default(),
            plans: Vec::new(),
        }
    }

    /// Reports the connection's changes to its owner.
    pub(crate) fn reporting_to(mut self, on_event: OnEvent) -> Self {
        self.on_event = Some(on_event);
        self
    }

    /// Reports the connection's end to this channel to the peer, instead of an earlier one, and
    /// counts its calls, unless this end's calls are counted already. Returns false if the
    /// connection has ended.
    pub(crate) fn report_end_to(&mut self, on_end: OnEvent, methods: &Arc<Methods>) -> bool {
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
    pub(crate) fn identity(&self) -> &Arc<Identity> {
        &self.connection_context.identity
    }

    pub(crate) fn context(&self) -> &Arc<ConnectionContext> {
        &self.connection_context
    }

    /// Holds a connection permit until the QP has been destroyed.
    pub(crate) fn holding(mut self, place: OwnedSemaphorePermit) -> Self {
        self.place = Some(place);
        self
    }

    /// Lets handlers watch the phases of the server's end.
    pub(crate) fn watching(mut self, phase: Watch) -> Self {
        if let Some(context) = Arc::get_mut(&mut self.connection_context) {
            context.phase = Some(phase);
        }
        self
    }

    /// Sets the shard of the connection.
    pub(crate) fn placed_on(mut self, shard: &Arc<RpcShard>) -> Self {
        if let Some(context) = Arc::get_mut(&mut self.connection_context) {
            context.shard = Arc::downgrade(shard);
        }
        self
    }

    /// Says who this end is; the door receives the hello of the peer, which lets it in.
    pub(crate) fn presenting(mut self, credentials: &Credentials, door: Door) -> Self {
        self.session.present(credentials.as_bytes());
        self.door = Some(door);
        self
    }

    /// Passes the hello of the peer to the door, and takes nothing else of the peer, nor memory for
    /// it, until it is [let in](Self::admit).
    pub(crate) fn checking(mut self, door: Door) -> Self {
        self.session.hold_hello();
        self.memory().lock();
        self.door = Some(door);
        self
    }

    /// Lets the peer in.
    pub(crate) fn admit(&mut self, verified: &Verified) {
        if self.session.close_cause().is_some() {
            return;
        }
        let identity = self.identity().with(verified);
        self.connection_context = Arc::new(self.connection_context.identified(identity));
        self.memory().unlock();
        self.session.admit();
    }

    /// Closes the connection when neither end has made a call for so long.
    pub(crate) fn closing_when_idle(mut self, limit: Option<Duration>) -> Self {
        self.max_idle = limit;
        self
    }

    /// Closes the connection when it has lasted so long, and no call is left.
    pub(crate) fn closing_at_age(mut self, limit: Option<Duration>) -> Self {
        self.max_age = limit;
        self
    }

    /// Takes metadata of calls up to so many bytes.
    pub(crate) fn taking_metadata(mut self, max_bytes: usize) -> Self {
        if let Some(context) = Arc::get_mut(&mut self.connection_context) {
            context.max_metadata_bytes = max_bytes;
        }
        self
    }

    /// The peer has said who it is.
    fn take_door(&mut self) -> Option<Door> {
        self.counts.has_hello = true;
        self.door.take()
    }

    /// Whether the peer has answered a call, or made one. A go-away is neither.
    pub(crate) fn has_served(&self) -> bool {
        self.counts.answers() > u64::from(self.session.is_peer_going_away())
    }

    /// What to do with a message that finds the queue full.
    pub(crate) fn when_full(&self) -> WhenFull {
        self.when_full
    }

    /// The memory budget that large messages of the connection are charged to.
    pub(crate) fn memory(&self) -> &MemoryBudget {
        &self.connection_context.memory
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
                SessionEvent::Drained if self.session.ends_itself() => {
                    Action::Idle(self.on_event.clone())
                }
                SessionEvent::Drained => Action::Settled(None),
                SessionEvent::Hello(credentials) => match self.take_door() {
                    Some(door) => {
                        let credentials = credentials.map(Vec::from).map(Credentials::from);
                        Action::Hello(Box::new((door, credentials)))
                    }
                    None => continue,
                },
                SessionEvent::Discard(body) => {
                    outside.drop(body);
                    continue;
                }
            });
        }
    }

    #[cold]
    fn drain_news(&mut self, outside: &mut Outside<'_, Action>) {
        while let Some(waker) = self.quota.poll_wake() {
            outside.run(Action::Wake(waker));
        }
        self.has_news = false;
        if !std::mem::take(&mut self.ended) {
            return;
        }
        let place = if self.released { self.place.take() } else { None };
        outside.run(match self.cause.take() {
            Some(cause) => {
                let peer = Arc::clone(self.identity());
                let (on_event, on_end) = (self.on_event.take(), self.on_end.take());
                let (_place, _door) = (place, self.door.take());
                Action::Ended(Box::new(Ended { peer, cause, on_event, on_end, _place, _door }))
            }
            None => Action::Settled(place),
        });
    }
}

impl UpperLayer for RpcEndpoint {
    type Action = Action;

    fn on_established(&mut self, key: ConnectionKey, peer: &PeerIdentity, max_message_bytes: u64) {
        let now = clock::now();
        let identity = Identity::from(peer.clone()).proven(self.proof.take());
        let context = self.connection_context.established(key, identity, now);
        self.is_established = true;
        self.counts.established = Some(now);
        self.connection_context = Arc::new(context);
        if let Some(limit) = self.max_idle {
            self.session.end_when_idle(limit, now);
        }
        if let Some(limit) = self.max_age {
            self.session.end_when_old(limit, now);
        }
        self.max_message_bytes = max_message_bytes;
        self.quota.set_max_message_bytes(max_message_bytes);
    }

    fn on_secured(&mut self, secured: &Secured) {
        self.proof = Proof::of(secured);
    }

    fn memory_budget(&self) -> MemoryBudget {
        self.connection_context.memory.clone()
    }

    #[inline]
    fn wants_waiting(&self) -> bool {
        self.quota.has_admitted() || self.session.is_item_room_low()
    }

    fn on_waiting(&mut self, waiting: Waiting) -> bool {
        self.quota.on_waiting(waiting);
        self.session.set_longest_small(waiting.longest_small);
        self.has_news |= self.quota.has_wakes();
        self.session.set_item_room(self.quota.item_bytes())
    }

    #[inline]
    fn on_message(&mut self, message: Message, revoke: Revoke<'_>) -> Result<(), Arc<str>> {
        self.counts.on_message(&message);
        self.session
            .on_message(message, clock::now, &mut |tag| revoked(revoke(tag)))
            .map_err(|error| error.to_string().into())
    }

    fn copies_tail(&self, head: &[u8]) -> bool {
        self.session.copies_tail(head)
    }

    fn on_refused(&mut self, tag: u64, error: &SubmitError) {
        // Sizes were checked before (`sizes.rs`), so the link must be closing, which ends every
        // call.
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
        #[cfg(debug_assertions)]
        self.session.assert_nothing_is_left();
    }

    #[inline]
    fn next_deadline(&self) -> Option<Instant> {
        self.session.next_deadline()
    }

    fn on_timeout(&mut self, now: Instant, revoke: Revoke<'_>) {
        self.session.set_messages(self.counts.messages());
        self.session.on_timeout(now, &mut |tag| revoked(revoke(tag)));
    }

    fn on_closed(&mut self, cause: &CloseCause, revoke: Revoke<'_>) {
        self.session.on_closed(cause.clone(), &mut |tag| revoked(revoke(tag)));
        self.cause = self.is_established.then(|| cause.clone());
        // Set once.
        let _ = self.connection_context.ended.set(cause.clone());
        self.quota.close();
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
