//! Carries out a session's events outside the shard's lock; above all it runs handlers.
//!
//! Owns the steps from a request to its reply: have the router find the method, poll the handler
//! inline, and spawn it as a task if that first poll leaves it pending. Never holds the shard's
//! lock while user code runs.
//!
//! Invariants:
//! 1. Every request gets exactly one reply or `handler_ended`, the latter when its handler has been
//!    dropped.
//! 2. A handler that is pending, whose method is marked `#[rpc(spawn)]`, or whose arguments are
//!    long to decode, runs as a separate task.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context as TaskContext, Waker};

use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::engine::clock;
use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::engine::executor::Executor;
use rpc_transport::engine::shard::State;
use rpc_transport::protocol::frame::{CloseCode, CloseReason};
use rpc_transport::user_code::caught;
use tracing::Span;

use crate::context::Context;
use crate::endpoint::connection_context::ConnectionContext;
use crate::endpoint::ended::{ConnectionEvent, Door, OnEvent};
use crate::endpoint::reply::Replied;
use crate::endpoint::{Action, RpcEndpoint, RpcShard};
use crate::identity::Credentials;
use crate::interceptor;
use crate::interceptor::server::Chain;
use crate::metadata::Metadata;
use crate::resolution::Decoding;
use crate::runtime::watched::Watched;
use crate::server::call::{Call, Done};
use crate::server::request_check::{RequestCheck, check_request};
use crate::server::route_counts::{RouteCounts, Running};
use crate::server::router::{Route, Router};
use crate::server::running::{HandlerEnded, WaitingReply, spawn};
use crate::service::handler::{Handler, Origin, log_panic};
use crate::service::{MethodDescriptor, Reply, Request};
use crate::session::Incoming;
use crate::stats::counts::{End, Lease, Methods};
use crate::status::{Code, Status};
use crate::trace;
use crate::wire::refusal;

/// Requests up to this length, bytes, are decoded by the driver, in the first poll of their
/// handlers. Longer ones may have many small values, which all other calls would wait for: 64 KiB
/// of the smallest take a few milliseconds. Byte strings that are sent separately do not count.
const DECODED_HERE_BYTES: usize = 64 << 10;

/// Replies up to this length, bytes, fit every peer's limit. Longer ones are counted when the
/// session has taken or refused them.
const SURELY_TAKEN_BYTES: u64 = 192;

/// The executor of one shard.
pub(crate) struct Handlers {
    shard: Arc<RpcShard>,
    router: Arc<Router>,
    /// Index of the route that was found last.
    last: usize,
    /// In order, oldest first.
    done: Vec<Done>,
    /// Remains of replies that the session has taken. They may hold values of the user's, so they
    /// are dropped outside the lock.
    spent: Vec<Reply>,
    /// Handlers that have replied; dropped once their replies are queued.
    finished: Vec<Handler>,
    /// Replies that must wait for room; each gets a task.
    waiting: Vec<(Call, Reply)>,
    settled: Watched<u64>,
    counts: RouteCounts,
}

impl Handlers {
    /// For a client that offers no services.
    pub(crate) fn without_services(shard: Arc<RpcShard>) -> Self {
        Self::new(shard, Arc::default(), Arc::default(), Watched::default())
    }

    /// Counts calls in `methods`. `settled` has news when a connection ends or has drained.
    pub(crate) fn new(
        shard: Arc<RpcShard>,
        router: Arc<Router>,
        methods: Arc<Methods>,
        settled: Watched<u64>,
    ) -> Self {
        let (done, spent, finished) = (Vec::new(), Vec::new(), Vec::new());
        let counts = RouteCounts::new(&router, methods);
        Self { shard, router, last: 0, done, spent, finished, waiting: Vec::new(), settled, counts }
    }

    /// A connection is idle. A channel only stops using it, since calls that have just chosen it
    /// still run. A server closes it: its peer makes no more calls on it.
    #[cold]
    fn on_idle(&self, key: ConnectionKey, on_event: Option<OnEvent>) {
        match on_event {
            Some(tell) => tell(ConnectionEvent::Ended(CloseCause::Local)),
            None => self
                .shard
                .close(key, CloseReason::new(CloseCode::Normal, "idle, or open for long enough")),
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
        let route = router.find(method, last);
        let lease = counts.of(route.as_ref().ok().map(|_| *last));
        let bytes = message.len() as u64 + message.tail_bytes() - metadata_bytes as u64;
        lease.counts.on_start(bytes);
        let checked = route.and_then(|route| {
            let is_plain = signature.is_none() && metadata_bytes == 0 && !streams.any();
            // As nearly all are.
            if is_plain && !route.method.has_streams() {
                let codec = route.codec(codec)?;
                return Ok((
                    route,
                    RequestCheck {
                        codec,
                        decoding: Decoding::OwnTypes,
                        metadata: Metadata::new(),
                        streams: None,
                    },
                ));
            }
            let offered = (signature, codec, streams, metadata_bytes);
            let call = (key, id);
            let (message, context) = (&message, &connection_context);
            Ok((route, check_request(route, shard, call, offered, message, context)?))
        });
        let (route, RequestCheck { codec, decoding, metadata, streams }) = match checked {
            Ok(checked) => checked,
            Err(status) => {
                let status = router.refusal(method, status, &connection_context);
                match refusal::has_schema(status.details()) {
                    true => lease.counts.take_back(bytes),
                    false => lease.counts.on_end(End::Code(status.code()), 0),
                }
                done.push(Call { key, id, method: None, route: 0 }.refused(status));
                return;
            }
        };
        message.advance(metadata_bytes);
        let context = Context::of_call(deadline, metadata, connection_context, route.method);
        let request = Some(Request { message, codec, decoding, context, streams });
        let at = u32::try_from(*last).unwrap_or(u32::MAX);
        let call = Call { key, id, method: Some(route.method), route: at };
        run(shard, call, route, lease, request, done, finished);
    }
}

impl Handlers {
    /// Hands a result to the session that needs more than the fast path.
    #[inline(never)]
    fn apply_slow(&mut self, state: &mut State<RpcEndpoint>, done: Done) {
        let done = match done {
            Done::Result { body: None, .. } => return,
            Done::Result { call, body: Some(body) } => Done::Reply { call, reply: Reply::Ok(body) },
            other => other,
        };
        match done {
            Done::Result { .. } => {}
            Done::Reply { call, reply } => self.reply(state, call, reply, false),
            Done::Uncounted { call, reply } => self.reply(state, call, reply, true),
            Done::Attach { call, handle } => {
                let refused = state.with(call.key, |peer| {
                    peer.session.attach_handler(call.id, handle.clone()).is_err()
                });
                if refused != Some(false) {
                    handle.abort();
                }
            }
        }
    }

    /// Hands a reply to the session, and counts the call's end, if that was not done before.
    fn reply(
        &mut self,
        state: &mut State<RpcEndpoint>,
        call: Call,
        reply: Reply,
        is_uncounted: bool,
    ) {
        let Call { key, id, method, route, .. } = call;
        let (mut ended, mut reply) = (End::of(&reply), Some(reply));
        let lease = self.counts.of(Some(usize::try_from(route).unwrap_or(usize::MAX)));
        let replied = state.with(key, |peer| {
            let replied = peer.reply(id, method, &mut reply);
            if replied == Replied::Refused {
                ended = (End::Code(Code::ResourceExhausted), 0);
            }
            // Before the caller can know of it.
            if is_uncounted {
                lease.counts.on_end(ended.0, ended.1);
            }
            replied
        });
        if replied.is_none() && is_uncounted {
            lease.counts.on_end(ended.0, ended.1);
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
#[inline(always)]
fn run(
    shard: &Arc<RpcShard>,
    call: Call,
    route: &Route,
    lease: &mut Lease,
    mut request: Option<Request>,
    done: &mut Vec<Done>,
    finished: &mut Vec<Handler>,
) {
    let bytes = request.as_ref().map_or(0, |request| request.message.len());
    let is_task = route.is_task | (bytes > DECODED_HERE_BYTES);
    let (mut reply, mut span) = (None, None);
    let began = lease.begin();
    // The handler is polled where it is dropped after its reply.
    let before = finished.len();
    let start = || {
        span = request.as_mut().and_then(|request| trace::of_request(&mut request.context));
        let _in_span = span.as_ref().map(Span::enter);
        let Some(request) = request.take() else { return };
        match &route.interceptors {
            None => route.first(request, is_task, finished, &mut reply),
            Some(chain) => intercepted(chain, route, request, is_task, finished, &mut reply),
        }
    };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(start)) {
        let origin = Origin::of(shard, call.key, call.method);
        match finished.get_mut(before) {
            Some(handler) => handler.after_panic(panic, &origin, &mut reply),
            // The dispatcher has panicked.
            None => log_panic(panic, &origin),
        }
    }
    if let Some(reply) = reply {
        let (end, bytes) = End::of(&reply);
        if let Some(began) = began {
            lease.took(began);
        }
        if bytes > SURELY_TAKEN_BYTES {
            done.push(Done::Uncounted { call, reply });
        } else {
            lease.counts.on_end(end, bytes);
            done.push(call.replied(reply));
        }
        if let Some(span) = span {
            trace::end(span, end);
        }
    } else if let Some(handler) = finished.drain(before..).next() {
        let running = Running {
            method: Arc::clone(&lease.method),
            began: began.map_or_else(clock::now, |began| began.at),
            span,
        };
        done.push(spawn(shard, call, handler, running, is_task));
    } else {
        lease.counts.on_end(End::Code(Code::Internal), 0);
        done.push(call.refused(Status::internal("the dispatcher panicked")));
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
        handlers: &mut Vec<Handler>,
        reply: &mut Option<Reply>,
    ) {
        handlers.push(self.service.dispatch(self.position, request));
        if let Some(handler) = handlers.last_mut()
            && !is_task
        {
            self.watch.poll(self.method.name, || poll_here(handler, reply));
        }
    }
}

#[inline(always)]
fn poll_here(handler: &mut Handler, reply: &mut Option<Reply>) {
    handler.poll_to(&mut TaskContext::from_waker(Waker::noop()), reply);
}

/// [`Route::first`] with interceptors. The watch covers them: the driver waits for them too.
#[inline(never)]
fn intercepted(
    chain: &Chain,
    route: &Route,
    request: Request,
    is_task: bool,
    handlers: &mut Vec<Handler>,
    reply: &mut Option<Reply>,
) {
    let Route { service, position, method, watch, .. } = route;
    let started = if is_task { None } else { watch.start() };
    let mut made = None;
    interceptor::server::run(
        chain,
        method,
        request,
        &mut made,
        reply,
        |request, handler, reply| {
            let handler = handler.insert(service.dispatch(*position, request));
            if !is_task {
                poll_here(handler, reply);
            }
        },
    );
    watch.end(method.name, started);
    if let Some(handler) = made {
        handlers.push(handler);
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

#[cold]
fn pass_hello((door, credentials): (Door, Option<Credentials>)) {
    // Nobody waits any more: the set-up has ended.
    let _ = door.send(credentials);
}

impl Executor<RpcEndpoint> for Handlers {
    #[inline]
    fn execute(&mut self, key: ConnectionKey, action: Action) -> bool {
        match action {
            Action::Request(incoming, context) => {
                self.on_request(key, incoming, context);
                false
            }
            Action::Wake(waker) => {
                waker.wake();
                true
            }
            // As in `discard`, one by one: else all of an action would be moved first.
            Action::Abort(handle) => {
                handle.abort();
                false
            }
            Action::Settled(place) => {
                drop(place);
                self.settled.tell();
                false
            }
            Action::Ended(ended) => {
                ended.report();
                self.settled.tell();
                false
            }
            Action::PeerGoingAway(tell) => {
                tell(ConnectionEvent::PeerGoingAway);
                false
            }
            Action::Idle(on_event) => {
                self.on_idle(key, on_event);
                false
            }
            Action::Hello(hello) => {
                pass_hello(*hello);
                true
            }
        }
    }

    fn discard(&mut self, action: Action) {
        match action {
            Action::Wake(waker) => waker.wake(),
            Action::Abort(handle) => handle.abort(),
            Action::Settled(place) => {
                drop(place);
                self.settled.tell();
            }
            Action::Ended(ended) => {
                ended.report();
                self.settled.tell();
            }
            Action::PeerGoingAway(tell) => tell(ConnectionEvent::PeerGoingAway),
            // Its connection has ended.
            Action::Request(..) | Action::Idle(_) | Action::Hello(_) => {}
        }
    }

    #[inline]
    fn apply(&mut self, state: &mut State<RpcEndpoint>) {
        let mut all = std::mem::take(&mut self.done);
        for done in &mut all {
            // Nearly all are results.
            if let Done::Result { call, body } = done {
                state.with(call.key, |peer| peer.reply_with_result(call.id, body));
                if body.is_none() {
                    continue;
                }
            }
            self.apply_slow(state, done.take());
        }
        all.clear();
        // Its memory is used again.
        self.done = all;
    }

    fn applied(&mut self) {
        // Dropping a `Handler` never panics. Dropping a reply may, as it can hold user values.
        self.finished.clear();
        while let Some(spent) = self.spent.pop() {
            caught(|| drop(spent));
        }
        // Replies of inline handlers that must wait for room.
        for (call, reply) in self.waiting.drain(..) {
            let ended = HandlerEnded::new(&self.shard, call, None);
            let task = tokio::spawn(WaitingReply { reply: Some(reply), ended });
            self.done.push(call.attach(task.abort_handle()));
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
