//! Runs what a session asks for outside its shard's lock: handlers first of all.
//!
//! Owns the way from a request to its reply: find the method, check its signature, poll the
//! handler inline, spawn it when it does not finish at once. Never holds the shard's lock while
//! user code runs.
//!
//! Invariants:
//! 1. Every request gets exactly one reply or `handler_ended`, the latter when its handler has been
//!    dropped.
//! 2. A handler that is pending, or whose method works long between awaits, runs as a task of its
//!    own, so that it cannot hold up the driver.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

use rpc_transport::protocol::Executor;
use rpc_transport::shard::{ConnectionKey, State};
use tokio::sync::Notify;

use crate::call::{SIGNATURES_DIFFER, UNKNOWN_METHOD};
use crate::codec::Codec;
use crate::context::Context;
use crate::handler::{Handler, log_panic};
use crate::metadata::Metadata;
use crate::pace::Pace;
use crate::peer::{Effect, Peer, RpcShard, Surroundings};
use crate::service::{Dispatch, MethodDescriptor, Reply, Request};
use crate::session::{Answer, Incoming, IncomingId};
use crate::status::Status;

/// Method ids are hashes already.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u32(&mut self, id: u32) {
        // Spread over the upper bits too, which the map uses for its tags.
        self.0 = u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

struct Route {
    service: Arc<dyn Dispatch>,
    position: usize,
    method: &'static MethodDescriptor,
    pace: Arc<Pace>,
}

/// The methods of a server, by id.
#[derive(Default)]
pub(crate) struct Router {
    routes: HashMap<u32, Route, BuildHasherDefault<IdHasher>>,
}

impl Router {
    /// Adds a service.
    ///
    /// # Errors
    /// The names of two methods with one id.
    pub(crate) fn add(&mut self, service: Arc<dyn Dispatch>) -> Result<(), String> {
        for (position, method) in service.descriptor().methods.iter().enumerate() {
            let pace = Pace::new(method.spawn);
            let service = Arc::clone(&service);
            let route = Route { service, position, method, pace };
            if let Some(other) = self.routes.insert(method.id, route) {
                return Err(format!(
                    "{} and {} have the same id {:#x}; add each service once, or give one method \
                     another name on the wire with #[rpc(name = \"...\")]",
                    other.method.name, method.name, method.id
                ));
            }
        }
        Ok(())
    }

    fn find(&self, incoming: &Incoming) -> Result<(&Route, Codec), Status> {
        let Some(route) = self.routes.get(&incoming.method) else {
            return Err(self.unknown_method(incoming.method));
        };
        let method = route.method;
        if let Some(theirs) = incoming.signature
            && theirs != method.signature_hash
        {
            return Err(Status::failed_precondition(format!(
                "{}: signatures differ; the server has `{}`",
                method.name, method.signature
            ))
            .with_details(SIGNATURES_DIFFER));
        }
        let codec = Codec::from_id(incoming.codec)
            .map_err(|error| Status::unimplemented(format!("{}: {error}", method.name)))?;
        Ok((route, codec))
    }

    fn unknown_method(&self, id: u32) -> Status {
        let mut services: Vec<&str> =
            self.routes.values().map(|route| route.service.descriptor().name).collect();
        services.sort_unstable();
        services.dedup();
        let offered = if services.is_empty() { "none".to_owned() } else { services.join(", ") };
        Status::unimplemented(format!(
            "no method with id {id:#010x} here; the services here are: {offered}"
        ))
        .with_details(UNKNOWN_METHOD)
    }
}

/// A result on its way back under the lock.
enum Done {
    Reply { key: ConnectionKey, id: IncomingId, reply: Reply, accepted: bool },
    Attach { key: ConnectionKey, id: IncomingId, handle: tokio::task::AbortHandle, accepted: bool },
}

/// The executor of one shard.
pub(crate) struct Handlers {
    shard: Arc<RpcShard>,
    router: Arc<Router>,
    done: Vec<Done>,
    /// What is left of replies that were given: of the user's making, so dropped outside the lock.
    spent: Vec<Reply>,
    settled: Arc<Notify>,
}

impl Handlers {
    /// For a client that offers no services.
    pub(crate) fn without_services(shard: Arc<RpcShard>) -> Self {
        Self::new(shard, Arc::default(), Arc::default())
    }

    /// `settled` is notified when a connection ends or has drained.
    pub(crate) fn new(shard: Arc<RpcShard>, router: Arc<Router>, settled: Arc<Notify>) -> Self {
        Self { shard, router, done: Vec::new(), spent: Vec::new(), settled }
    }

    fn on_request(
        &mut self,
        key: ConnectionKey,
        incoming: Incoming,
        surroundings: Arc<Surroundings>,
    ) {
        let id = incoming.id;
        let accepted = incoming.signature.is_some();
        let Self { shard, router, done, .. } = self;
        let prepared = router.find(&incoming).and_then(|(route, codec)| {
            let context = context(route.method, &incoming, surroundings)?;
            Ok((route, Request::new(incoming.into_body(), codec, context)))
        });
        match prepared {
            Err(status) => {
                let reply = Reply::Status(status);
                done.push(Done::Reply { key, id, reply, accepted: false });
            }
            Ok((route, request)) => {
                let dispatch = || route.service.dispatch(route.position, request);
                match catch_unwind(AssertUnwindSafe(dispatch)) {
                    Ok(handler) => done.push(run(shard, key, id, accepted, route, handler)),
                    Err(panic) => {
                        log_panic(panic);
                        let reply = Reply::Status(Status::internal("the dispatcher panicked"));
                        done.push(Done::Reply { key, id, reply, accepted: false });
                    }
                }
            }
        }
    }
}

/// Polls a handler where it stands, and spawns it when it has not finished by that.
fn run(
    shard: &Arc<RpcShard>,
    key: ConnectionKey,
    id: IncomingId,
    accepted: bool,
    route: &Route,
    mut handler: Handler,
) -> Done {
    let works_long = route.pace.works_long();
    if !works_long && let Poll::Ready(reply) = poll_inline(route, &mut handler) {
        return Done::Reply { key, id, reply, accepted };
    }
    let shard = Arc::clone(shard);
    // Made here, not in the task: an abort before the task's first poll must be told too.
    let ended = HandlerEnded { shard, key, id, replied: false };
    let watch = if works_long { route.pace.watch() } else { None };
    let task = tokio::spawn(Spawned { handler, ended, watch });
    if works_long {
        wake_another_worker();
    }
    let handle = task.abort_handle();
    Done::Attach { key, id, handle, accepted }
}

/// A runtime keeps a fresh task for the worker that spawned it and tells nobody else. If that task
/// then blocks the thread while all others sleep, nobody polls I/O, and the driver is never woken.
/// One more task behind it makes the runtime wake another worker.
fn wake_another_worker() {
    tokio::spawn(std::future::ready(()));
}

/// A handler as a task. Its fields are dropped in their order: when the session hears that a handler
/// has ended, nothing of it runs any more.
struct Spawned {
    handler: Handler,
    ended: HandlerEnded,
    /// Times the next poll.
    watch: Option<Arc<Pace>>,
}

impl Future for Spawned {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let this = self.get_mut();
        let polled = match this.watch.take() {
            Some(pace) => pace.task(|| this.handler.poll_caught(cx)),
            None => this.handler.poll_caught(cx),
        };
        let reply = std::task::ready!(polled);
        this.ended.reply(reply);
        Poll::Ready(())
    }
}

/// Tells the session that a spawned handler has ended, also when its task is aborted.
struct HandlerEnded {
    shard: Arc<RpcShard>,
    key: ConnectionKey,
    id: IncomingId,
    replied: bool,
}

impl HandlerEnded {
    fn reply(&mut self, reply: Reply) {
        self.replied = true;
        let mut reply = Some(reply);
        self.shard.with(self.key, |peer| peer.reply(self.id, &mut reply));
    }
}

impl Drop for HandlerEnded {
    fn drop(&mut self) {
        if !self.replied {
            // Panics are replies, and a cancelled call's caller waits for none: what remains is the
            // end of the runtime.
            let status = Status::unavailable("the handler was dropped: its runtime has shut down");
            self.reply(Reply::Status(status));
        }
    }
}

/// Polls a handler once where it stands. If it is pending, the task that takes it over polls it
/// again at once, so the waker of this poll need not wake anybody.
fn poll_inline(route: &Route, handler: &mut Handler) -> Poll<Reply> {
    let mut cx = TaskContext::from_waker(Waker::noop());
    let (polled, switches) = route.pace.inline(|| handler.poll_caught(&mut cx));
    if switches {
        tracing::debug!(method = route.method.name, "runs long: spawned from now on");
    }
    polled
}

fn context(
    method: &'static MethodDescriptor,
    incoming: &Incoming,
    surroundings: Arc<Surroundings>,
) -> Result<Context, Status> {
    let context = Context::new()
        .with_deadline(incoming.deadline)
        .with_surroundings(surroundings)
        .with_method(method);
    if incoming.metadata().is_empty() {
        return Ok(context);
    }
    let metadata = Metadata::decode(incoming.metadata())
        .map_err(|error| Status::invalid_argument(format!("{}: {error}", method.name)))?;
    Ok(context.with_metadata(metadata))
}

impl Peer {
    /// Answers a call; what is too large for the caller becomes an error that says so. A status is
    /// left where it is, as its details and source are the user's own to drop.
    pub(crate) fn reply(&mut self, id: IncomingId, reply: &mut Option<Reply>) {
        let Some(given) = reply.take() else { return };
        let outcome = match self.within_limits(given) {
            Reply::Ok(body) => self.session.reply(id, Answer::Ok(body)),
            Reply::UserError(body) => self.session.reply(id, Answer::UserError(body)),
            Reply::Status(status) => {
                let (text, details) = status.sent_within(self.reply_room());
                let (code, retryable) = (status.code().number(), status.is_retryable());
                let outcome =
                    self.session.reply(id, Answer::Status { code, retryable, text, details });
                *reply = Some(Reply::Status(status));
                outcome
            }
        };
        if outcome.is_err() {
            tracing::trace!(?id, "a reply came too late for its caller");
        }
    }

    fn within_limits(&self, reply: Reply) -> Reply {
        let (Reply::Ok(body) | Reply::UserError(body)) = &reply else { return reply };
        match self.reply_too_large(body.total_len()) {
            None => reply,
            Some(why) => Reply::Status(Status::resource_exhausted(format!("the reply {why}"))),
        }
    }
}

impl Executor<Peer> for Handlers {
    fn execute(&mut self, key: ConnectionKey, effect: Effect) -> bool {
        match effect {
            Effect::Wake(waker) => {
                waker.wake();
                return true;
            }
            Effect::Request(incoming, surroundings) => self.on_request(key, incoming, surroundings),
            Effect::Abort(handle) => handle.abort(),
            Effect::Settled => self.settled.notify_waiters(),
        }
        false
    }

    fn discard(&mut self, effect: Effect) {
        match effect {
            Effect::Wake(waker) => waker.wake(),
            Effect::Abort(handle) => handle.abort(),
            Effect::Settled => self.settled.notify_waiters(),
            Effect::Request(..) => {}
        }
    }

    fn apply(&mut self, state: &mut State<Peer>) {
        for done in self.done.drain(..) {
            match done {
                Done::Reply { key, id, reply, accepted } => {
                    let mut reply = Some(reply);
                    state.with(key, |peer| {
                        if accepted {
                            peer.session.accept_signature(id);
                        }
                        peer.reply(id, &mut reply);
                    });
                    self.spent.extend(reply);
                }
                Done::Attach { key, id, handle, accepted } => {
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
        self.spent.clear();
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
