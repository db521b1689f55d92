//! Carries out a session's events outside the shard's lock; above all it runs handlers.
//!
//! Owns the steps from a request to its reply: have the router find the method, poll the handler
//! inline, and spawn it as a task if that first poll leaves it pending. Never holds the shard's lock
//! while user code runs.
//!
//! Invariants:
//! 1. Every request gets exactly one reply or `handler_ended`, the latter when its handler has been
//!    dropped.
//! 2. A handler that is pending, whose method is marked `#[rpc(spawn)]`, or whose arguments are long to
//!    decode, runs as a separate task.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context as TaskContext, Waker};

use rpc_transport::engine::clock;
use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::engine::executor::Executor;
use rpc_transport::engine::shard::State;
use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::protocol::config::WhenFull;
use rpc_transport::user_code::caught;
use tokio::sync::Notify;
use tracing::Span;

use crate::context::Context;
use crate::endpoint::connection_context::ConnectionContext;
use crate::endpoint::room::UNCOUNTED_BYTES;
use crate::endpoint::{Action, ConnectionEvent, RpcEndpoint, RpcShard};
use crate::interceptor;
use crate::interceptor::server::Chain;
use crate::metadata::Metadata;
use crate::observability::stats::counts::{End, Lease, Methods};
use crate::observability::trace;
use crate::server::call::{Call, Done, Replied};
use crate::server::route_counts::{RouteCounts, Running};
use crate::server::router::{Route, Router};
use crate::server::running::{HandlerEnded, WaitingReply, spawn};
use crate::service::handler::{Handler, Origin, log_panic};
use crate::service::{MethodDescriptor, Reply, Request};
use crate::session::{self, Answer, Gone, Incoming, IncomingId, RAISE, StreamLimits};
use crate::status::{Code, Status};
use crate::stream::line::{Line, Streams};

/// Where the streams of a call are; the window of its arguments is charged to the memory budget, as
/// that is what items may take that nobody reads.
fn streams(
    shard: &Arc<RpcShard>,
    key: ConnectionKey,
    id: IncomingId,
    method: &MethodDescriptor,
    memory: &MemoryBudget,
) -> Result<Option<Box<Streams>>, Status> {
    if !method.has_streams() {
        return Ok(None);
    }
    let window = u64::from(StreamLimits::default().bytes);
    let window = if method.streams.arguments { window } else { 0 };
    let charge = memory.reserve(window).map_err(|reason| {
        let name = method.name;
        let text = format!("{name}: no memory for a stream's window of {window} bytes: {reason}");
        Status::resource_exhausted(format!("{text}; {RAISE}")).with_retryable(true)
    })?;
    let line = Line { shard: Arc::clone(shard), key, id: id.into(), counters: None };
    Ok(Some(Box::new(Streams { line, _charge: charge })))
}

/// Requests up to this length are decoded where their handlers are polled first, on the driver. Longer ones
/// may have so many small values that all else would wait for them: 64 KiB of the smallest take a few
/// milliseconds. Byte strings that travel beside a message are not of its length.
const DECODED_HERE_BYTES: usize = 64 << 10;

/// Replies up to this length are taken by every peer: a message may be longer everywhere. The others are
/// counted when the session has taken or refused them.
const SURELY_TAKEN_BYTES: u64 = 192;

/// The executor of one shard.
pub(crate) struct Handlers {
    shard: Arc<RpcShard>,
    router: Arc<Router>,
    /// Index of the route that was found last.
    last: usize,
    done: VecDeque<Done>,
    /// Remains of replies that the session has taken. They may hold values of the user's, so they
    /// are dropped outside the lock.
    spent: Vec<Reply>,
    /// Handlers that have replied; dropped once their replies are queued.
    finished: Vec<Handler>,
    /// Replies that must wait for room; each gets a task.
    waiting: Vec<(Call, Reply)>,
    settled: Arc<Notify>,
    counts: RouteCounts,
}

impl Handlers {
    /// For a client that offers no services.
    pub(crate) fn without_services(shard: Arc<RpcShard>) -> Self {
        Self::new(shard, Arc::default(), Arc::default(), Arc::default())
    }

    /// Counts calls in `methods`. `settled` is notified when a connection ends or has drained.
    pub(crate) fn new(
        shard: Arc<RpcShard>,
        router: Arc<Router>,
        methods: Arc<Methods>,
        settled: Arc<Notify>,
    ) -> Self {
        let (done, spent, finished) = (VecDeque::new(), Vec::new(), Vec::new());
        let counts = RouteCounts::new(&router, methods);
        Self { shard, router, last: 0, done, spent, finished, waiting: Vec::new(), settled, counts }
    }

    /// Spawns a task for each reply of an inline handler that must wait for room.
    #[cold]
    fn spawn_waiting(&mut self) {
        for (call, reply) in self.waiting.drain(..) {
            let ended = HandlerEnded::new(&self.shard, call, None);
            let task = tokio::spawn(WaitingReply { reply: Some(reply), ended });
            self.done.push_back(call.attach(task.abort_handle()));
        }
    }

    // Takes the request apart in the parameter list, so that only the needed fields are moved.
    #[inline]
    fn on_request(
        &mut self,
        key: ConnectionKey,
        Incoming { id, method, codec, signature, deadline, streams, metadata_bytes, mut message }: Incoming,
        connection_context: Arc<ConnectionContext>,
    ) {
        let Self { shard, router, last, done, finished, counts, .. } = self;
        let mut call = Call { key, id, accepted: signature.is_some(), method: None, route: 0 };
        let route = router.find(method, last);
        let lease = counts.of(route.as_ref().ok().map(|_| *last));
        lease.counts.on_start(message.len() as u64 + message.tail_bytes() - metadata_bytes as u64);
        let prepared = route.and_then(|route| {
            let codec = route.accept(signature, codec)?;
            route.accept_streams(streams)?;
            let ConnectionContext { memory, max_metadata_bytes: most, .. } = &*connection_context;
            let most = *most;
            let streams = self::streams(shard, key, id, route.method, memory)?;
            Ok((route, codec, streams, metadata(route.method, &message[..metadata_bytes], most)?))
        });
        match prepared {
            Err(status) => {
                lease.counts.on_end(End::Code(status.code()), 0);
                done.push_back(call.refused(status));
            }
            Ok((route, codec, streams, metadata)) => {
                message.advance(metadata_bytes);
                call.method = Some(route.method);
                call.route = u32::try_from(*last).unwrap_or(u32::MAX);
                let context =
                    Context::of_call(deadline, metadata, connection_context, route.method);
                let request = || {
                    let mut request = Request::new(message, codec, context);
                    request.streams = streams;
                    request
                };
                run(shard, call, route, lease, request, done, finished);
            }
        }
    }
}

impl Handlers {
    /// Hands a reply to the session whose end is not counted yet: the caller cannot know of it before.
    #[cold]
    fn reply_and_count(&mut self, state: &mut State<RpcEndpoint>, call: Call, reply: Reply) {
        let Call { key, id, accepted, method, route } = call;
        let (mut ended, mut reply) = (End::of(&reply), Some(reply));
        let counts = self.counts.of(Some(usize::try_from(route).unwrap_or(usize::MAX)));
        let replied = state.with(key, |peer| {
            if accepted {
                peer.session.accept_signature(id);
            }
            let replied = peer.reply(id, method, &mut reply);
            if replied == Replied::Refused {
                ended = (End::Code(Code::ResourceExhausted), 0);
            }
            counts.counts.on_end(ended.0, ended.1);
            replied
        });
        if replied.is_none() {
            counts.counts.on_end(ended.0, ended.1);
        }
        if let Some(reply) = reply {
            if replied == Some(Replied::MustWait) {
                self.waiting.push((call, reply));
            } else {
                self.spent.push(reply);
            }
        }
    }
}

/// Polls a handler once inline, and spawns it as a task if it is pending. The task polls it again
/// at once, so the first poll uses a waker that does nothing.
#[inline]
fn run(
    shard: &Arc<RpcShard>,
    call: Call,
    route: &Route,
    lease: &mut Lease,
    request: impl FnOnce() -> Request,
    done: &mut VecDeque<Done>,
    finished: &mut Vec<Handler>,
) {
    let (mut handler, mut reply, mut span, mut is_task) = (None, None, None, false);
    let began = lease.begin();
    let start = || {
        let mut request = request();
        is_task = route.method.spawn | (request.message.len() > DECODED_HERE_BYTES);
        span = trace::of_request(&mut request.context);
        let _in_span = span.as_ref().map(Span::enter);
        match &route.interceptors {
            None => route.first(request, is_task, &mut handler, &mut reply),
            Some(chain) => intercepted(chain, route, request, is_task, &mut handler, &mut reply),
        }
    };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(start)) {
        let origin = Origin::of(shard, call.key, call.method);
        on_panic(panic, &origin, handler.as_mut(), &mut reply);
    }
    if let Some(reply) = reply {
        let (end, bytes) = End::of(&reply);
        if let Some(began) = began {
            lease.took(began);
        }
        done.push_back(if bytes > SURELY_TAKEN_BYTES {
            Done::Uncounted { call, reply }
        } else {
            lease.counts.on_end(end, bytes);
            call.replied(reply)
        });
        if let Some(handler) = handler {
            finished.push(handler);
        }
        if let Some(span) = span {
            trace::end(span, end);
        }
    } else if let Some(handler) = handler {
        let running = Running {
            method: Arc::clone(&lease.method),
            began: began.map_or_else(clock::now, |began| began.at),
            span,
        };
        done.push_back(spawn(shard, call, handler, running, is_task));
    } else {
        lease.counts.on_end(End::Code(Code::Internal), 0);
        done.push_back(call.refused(Status::internal("the dispatcher panicked")));
        if let Some(span) = span {
            trace::end(span, End::Code(Code::Internal));
        }
    }
}

impl Route {
    /// Makes the handler of a call, and polls it if it may be polled here.
    #[inline(always)]
    fn first(
        &self,
        request: Request,
        is_task: bool,
        handler: &mut Option<Handler>,
        reply: &mut Option<Reply>,
    ) {
        let handler = handler.insert(self.service.dispatch(self.position, request));
        if is_task {
            return;
        }
        self.watch.poll(self.method.name, || poll_here(handler, reply));
    }
}

#[inline(always)]
fn poll_here(handler: &mut Handler, reply: &mut Option<Reply>) {
    handler.poll_to(&mut TaskContext::from_waker(Waker::noop()), reply);
}

/// The same, with interceptors around it. They are part of what is watched: the driver waits for them too.
#[inline(never)]
fn intercepted(
    chain: &Chain,
    route: &Route,
    request: Request,
    is_task: bool,
    handler: &mut Option<Handler>,
    reply: &mut Option<Reply>,
) {
    let Route { service, position, method, watch, .. } = route;
    let started = if is_task { None } else { watch.start() };
    interceptor::server::run(chain, method, request, handler, reply, |request, handler, reply| {
        let handler = handler.insert(service.dispatch(*position, request));
        if !is_task {
            poll_here(handler, reply);
        }
    });
    watch.end(method.name, started);
}

/// Logs a panic, and replies if the handler had not. `handler` is `None` if the dispatcher itself
/// panicked.
#[cold]
fn on_panic(
    panic: Box<dyn Any + Send>,
    origin: &Origin,
    handler: Option<&mut Handler>,
    reply: &mut Option<Reply>,
) {
    match handler {
        Some(handler) => handler.after_panic(panic, origin, reply),
        None => log_panic(panic, origin),
    }
}

impl Origin {
    #[cold]
    pub(super) fn of(
        shard: &RpcShard,
        key: ConnectionKey,
        method: Option<&'static MethodDescriptor>,
    ) -> Self {
        let peer = shard.look(key, |peer| Arc::clone(peer.identity()));
        Self { method: method.map(|method| method.name), peer }
    }
}

#[inline]
fn metadata(
    method: &MethodDescriptor,
    encoded: &[u8],
    max_bytes: usize,
) -> Result<Metadata, Status> {
    if encoded.is_empty() {
        return Ok(Metadata::default());
    }
    if encoded.len() > max_bytes {
        return Err(Status::resource_exhausted(format!(
            "{}: metadata of {} bytes is longer than the {max_bytes} bytes that the server takes: send \
             less, or raise its `max_metadata_bytes`",
            method.name,
            encoded.len()
        )));
    }
    Metadata::decode(encoded)
        .map_err(|error| Status::invalid_argument(format!("{}: {error}", method.name)))
}

impl RpcEndpoint {
    /// Answers a call. A reply that is too large for the caller becomes an error that says so.
    /// Takes only a body that is sent: anything else, such as a status, stays in `reply`, because
    /// it may hold values of the user's, which must be dropped outside the lock.
    #[inline]
    pub(crate) fn reply(
        &mut self,
        id: IncomingId,
        method: Option<&'static MethodDescriptor>,
        reply: &mut Option<Reply>,
    ) -> Replied {
        // It may come too late for its caller; then there is nothing to do.
        let _ = match reply.take() {
            Some(Reply::Ok(body)) if self.reply_passes(body.total_len()) => {
                self.session.reply_with(id, session::ReplyKind::Ok, body)
            }
            other => {
                *reply = other;
                return self.reply_rarely(id, method, reply);
            }
        };
        Replied::Done
    }

    /// Slow path of [`RpcEndpoint::reply`]: error replies, large ones, and full queues.
    #[cold]
    fn reply_rarely(
        &mut self,
        id: IncomingId,
        method: Option<&'static MethodDescriptor>,
        reply: &mut Option<Reply>,
    ) -> Replied {
        // The waker belongs to a task of this crate, so it may be dropped under the lock.
        drop(self.forget_waiting(id));
        match reply {
            None => return Replied::Done,
            Some(Reply::Ok(body) | Reply::UserError(body)) => match self.look_at(body, method) {
                Look::Send => {}
                Look::Wait => return Replied::MustWait,
                Look::Refuse(status) => {
                    let _ = self.reply_status(id, method, &status);
                    return Replied::Refused;
                }
            },
            Some(Reply::Status(status)) => {
                let _ = self.reply_status(id, method, status);
                return Replied::Done;
            }
        }
        let _ = match reply.take() {
            Some(Reply::Ok(body)) => self.session.reply(id, Answer::Ok(body)),
            Some(Reply::UserError(body)) => self.session.reply(id, Answer::UserError(body)),
            other => {
                *reply = other;
                Ok(())
            }
        };
        Replied::Done
    }

    /// Decides about a reply that is large or finds the queue full.
    fn look_at(&mut self, body: &mut OutBuf, method: Option<&'static MethodDescriptor>) -> Look {
        let bytes = body.total_len();
        let refuse = |text| Look::Refuse(Status::resource_exhausted(text));
        if let Some(why) = self.reply_too_large(bytes) {
            let name = method.map_or("", |method| method.name);
            return refuse(format!("{name}: the reply {why}"));
        }
        if bytes > UNCOUNTED_BYTES && !body.is_charged() {
            match self.memory().reserve(bytes) {
                Ok(charge) => body.charge(charge),
                Err(reason) => {
                    return refuse(format!(
                        "no memory for a reply of {bytes} bytes: {reason}; {RAISE}"
                    ));
                }
            }
        }
        if self.room.admit(bytes) {
            return Look::Send;
        }
        match self.when_full() {
            WhenFull::Refuse => refuse(
                "the queue of the connection is full (the server's `queued_bytes` wait to leave, and \
                 its `when_full` is to refuse)"
                    .to_owned(),
            ),
            _ => Look::Wait,
        }
    }

    /// Registers `waker` for a reply that was not admitted; it is woken when there may be room.
    pub(super) fn wait_for_room(&mut self, id: IncomingId, reply: Option<&Reply>, waker: Waker) {
        let bytes = match reply {
            Some(Reply::Ok(body) | Reply::UserError(body)) => body.total_len(),
            _ => 0,
        };
        self.room.wait(id, bytes, waker);
    }

    #[cold]
    fn reply_status(
        &mut self,
        id: IncomingId,
        method: Option<&'static MethodDescriptor>,
        status: &Status,
    ) -> Result<(), Gone> {
        let status = status.passed_on(method);
        if !status.metadata().is_empty() {
            return self.reply_status_with(id, &status);
        }
        let (text, details) = status.sent_within(self.reply_room());
        let (code, retryable) = (status.code().number(), status.is_retryable());
        self.session.reply(id, Answer::Status { code, retryable, text, details: &details })
    }
}

/// Statuses with metadata.
impl RpcEndpoint {
    #[cold]
    fn reply_status_with(&mut self, id: IncomingId, status: &Status) -> Result<(), Gone> {
        let mut encoded = OutBuf::new();
        status.metadata().encode(&mut encoded);
        // The text is cut where there is no room for both; alone it goes where there is none for these.
        let room = self.reply_room();
        let left = room.checked_sub(encoded.len()).unwrap_or(room);
        let (text, details) = status.sent_within(left);
        let (code, retryable) = (status.code().number(), status.is_retryable());
        let (kind, mut body) = session::status_body(code, retryable, text, &details);
        if encoded.len() + body.len() <= room {
            body.prepend_marked(&encoded);
        }
        self.session.reply_with(id, kind, body)
    }
}

/// The decision about a reply.
enum Look {
    Send,
    Wait,
    /// Send this status instead.
    Refuse(Status),
}

impl Executor<RpcEndpoint> for Handlers {
    #[inline]
    fn execute(&mut self, key: ConnectionKey, action: Action) -> bool {
        match action {
            Action::Wake(waker) => {
                waker.wake();
                return true;
            }
            Action::Request(incoming, connection_context) => {
                self.on_request(key, incoming, connection_context)
            }
            Action::Abort(handle) => handle.abort(),
            Action::Settled(place) => {
                drop(place);
                self.settled.notify_waiters();
            }
            Action::Ended(ended) => {
                ended.tell();
                self.settled.notify_waiters();
            }
            Action::PeerGoingAway(tell) => tell(ConnectionEvent::PeerGoingAway),
        }
        false
    }

    fn discard(&mut self, action: Action) {
        match action {
            Action::Wake(waker) => waker.wake(),
            Action::Abort(handle) => handle.abort(),
            Action::Settled(place) => {
                drop(place);
                self.settled.notify_waiters();
            }
            Action::Ended(ended) => {
                ended.tell();
                self.settled.notify_waiters();
            }
            Action::PeerGoingAway(tell) => tell(ConnectionEvent::PeerGoingAway),
            Action::Request(..) => {}
        }
    }

    #[inline]
    fn apply(&mut self, state: &mut State<RpcEndpoint>) {
        while let Some(done) = self.done.pop_front() {
            match done {
                Done::Reply { call, reply } => {
                    let Call { key, id, accepted, method, .. } = call;
                    let mut reply = Some(reply);
                    let replied = state.with(key, |peer| {
                        if accepted {
                            peer.session.accept_signature(id);
                        }
                        peer.reply(id, method, &mut reply)
                    });
                    if let Some(reply) = reply {
                        if replied == Some(Replied::MustWait) {
                            self.waiting.push((call, reply));
                        } else {
                            self.spent.push(reply);
                        }
                    }
                }
                Done::Uncounted { call, reply } => self.reply_and_count(state, call, reply),
                Done::Attach { call: Call { key, id, accepted, .. }, handle } => {
                    let refused = state.with(key, |peer| {
                        if accepted {
                            peer.session.accept_signature(id);
                        }
                        peer.session.attach_handler(id, handle.clone()).is_err()
                    });
                    if refused != Some(false) {
                        handle.abort();
                    }
                }
            }
        }
    }

    fn applied(&mut self) {
        // Dropping a `Handler` never panics. Dropping a reply may, as it can hold user values.
        self.finished.clear();
        while let Some(spent) = self.spent.pop() {
            caught(|| drop(spent));
        }
        if !self.waiting.is_empty() {
            self.spawn_waiting();
        }
    }

    fn has_results(&self) -> bool {
        !self.done.is_empty()
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handlers").field("methods", &self.router.routes.len()).finish()
    }
}
