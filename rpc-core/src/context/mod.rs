//! The context of a call: the facts available to its handler.
//!
//! Owns the context of the running handler: deadline, metadata, peer, method. It is thread-local
//! and set only while the handler is polled; calls made during the poll inherit the deadline.
//!
//! Invariants:
//! 1. [`Scoped`] makes its context current for exactly the time of a poll, then restores the
//!    previous one, also when the poll panics; so handlers may nest.
//! 2. A context is at most two reference counts: making, moving and dropping one never allocates,
//!    unless there are metadata or extensions.

pub(crate) mod extensions;
mod initial;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use rpc_transport::device::PeerIdentity;
use rpc_transport::engine::clock;
use rpc_transport::memory::budget::{BudgetExhausted, Reservation};

pub(crate) use self::initial::Begun;
use crate::bulk::{Bulk, BulkPool, Copies};
use crate::context::extensions::Extensions;
use crate::endpoint::connection_context::ConnectionContext;
use crate::identity::Identity;
use crate::metadata::trace_parent::TraceParent;
use crate::metadata::{Metadata, MetadataError};
use crate::method::MethodDescriptor;
use crate::reply::Reply;
use crate::runtime::phase::{Phase, Watch};

thread_local! {
    // Each scope restores the previous context, so none is left when a thread ends. Without a
    // destructor, an access need not check whether it has run.
    static CURRENT: RefCell<ManuallyDrop<Option<Context>>> =
        const { RefCell::new(ManuallyDrop::new(None)) };
}

/// The call that a handler serves. Cheap to clone.
#[derive(Clone, Default)]
pub struct Context {
    deadline: Option<Instant>,
    /// In one allocation, so that a call without extras has a single word to check.
    extras: Option<Arc<Extras>>,
    caller: Caller,
    method: Option<&'static MethodDescriptor>,
}

/// The parts that few calls have.
#[derive(Clone, Default)]
struct Extras {
    metadata: Metadata,
    extensions: Extensions,
    /// Metadata of the reply.
    reply: Metadata,
    /// Initial metadata of a stream that has not been sent yet.
    initial: Metadata,
    /// The span of the call at the server; `None` if spans are off.
    trace: Option<TraceParent>,
}

impl Extras {
    #[inline]
    fn of(metadata: Metadata) -> Option<Arc<Self>> {
        if metadata.is_empty() {
            // There is nothing to drop.
            std::mem::forget(metadata);
            return None;
        }
        Some(Self::of_some(metadata))
    }

    #[cold]
    fn of_some(metadata: Metadata) -> Arc<Self> {
        Arc::new(Self { metadata, ..Self::default() })
    }
}

static NO_METADATA: Metadata = Metadata::new();
static NO_EXTENSIONS: Extensions = Extensions::new();

/// The identity of the caller.
#[derive(Clone, Default)]
enum Caller {
    #[default]
    Unknown,
    Named(Arc<Identity>),
    // The second field fits beside the discriminant.
    Connected(Arc<ConnectionContext>, Begun),
}

const _: () = assert!(size_of::<Caller>() == 16, "a context is moved at each poll");

impl Context {
    /// The context of the handler that is being polled on this thread; an empty one elsewhere
    /// (see [`Context::try_current`]).
    #[must_use]
    pub fn current() -> Self {
        Self::try_current().unwrap_or_default()
    }

    /// The context of the handler that is being polled on this thread.
    ///
    /// A task that a handler spawns has no context unless it is run in [`Context::scope`].
    #[must_use]
    pub fn try_current() -> Option<Self> {
        Self::peek(Self::clone)
    }

    /// The deadline that a call made now inherits. Cheaper than [`Context::current`].
    #[inline]
    #[must_use]
    pub fn current_deadline() -> Option<Instant> {
        Self::peek(|context| context.deadline).flatten()
    }

    /// The parts that a call made now inherits from the handler: its deadline, and whether its
    /// request had metadata, which may name a trace.
    #[inline]
    pub(crate) fn current_inherited() -> (Option<Instant>, bool) {
        Self::peek(|context| (context.deadline, context.extras.is_some())).unwrap_or_default()
    }

    #[inline]
    fn peek<T>(look: impl FnOnce(&Self) -> T) -> Option<T> {
        // A thread whose thread-locals are already destroyed has no context.
        CURRENT.try_with(|current| Option::as_ref(&current.borrow()).map(look)).ok().flatten()
    }

    /// An empty context, to be filled by a server.
    #[inline]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the deadline.
    #[inline]
    #[must_use]
    pub fn with_deadline(mut self, deadline: Option<Instant>) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the metadata.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        if !metadata.is_empty() || self.extras.is_some() {
            let extras = self.extras_mut();
            // A trace that the user puts into the metadata takes precedence.
            if extras.trace.is_some()
                && TraceParent::of(&metadata) != TraceParent::of(&extras.metadata)
            {
                extras.trace = None;
            }
            extras.metadata = metadata;
        }
        self
    }

    /// Attaches a value to the call, replacing an earlier one of its type: from a layer to the
    /// handler, which reads it with [`Context::extension`].
    #[must_use]
    pub fn with_extension<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.insert_extension(value);
        self
    }

    pub(crate) fn insert_extension<T: Send + Sync + 'static>(&mut self, value: T) {
        self.extras_mut().extensions.insert(value);
    }

    fn extras_mut(&mut self) -> &mut Extras {
        Arc::make_mut(self.extras.get_or_insert_default())
    }

    /// The parent span of the handler's calls.
    pub(crate) fn trace(&self) -> Option<TraceParent> {
        self.extras.as_ref().and_then(|extras| extras.trace)
    }

    pub(crate) fn set_trace(&mut self, trace: TraceParent) {
        self.extras_mut().trace = Some(trace);
    }

    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    /// Drops the context, inlined.
    #[inline(always)]
    pub(crate) fn let_go(self) {
        let Self { extras, caller, .. } = self;
        if extras.is_some() {
            drop(extras);
        }
        if let Caller::Connected(connection_context, _) = caller {
            drop(connection_context);
        }
    }

    /// Sets the caller.
    #[must_use]
    pub fn with_identity(mut self, caller: Arc<Identity>) -> Self {
        self.caller = Caller::Named(caller);
        self
    }

    /// The context of a call that a server has received.
    #[inline]
    pub(crate) fn of_call(
        deadline: Option<Instant>,
        metadata: Metadata,
        connection_context: Arc<ConnectionContext>,
        method: &'static MethodDescriptor,
    ) -> Self {
        Self {
            deadline,
            extras: Extras::of(metadata),
            caller: Caller::Connected(connection_context, Begun::No),
            method: Some(method),
        }
    }

    /// Sets the method.
    #[inline]
    #[must_use]
    pub fn with_method(mut self, method: &'static MethodDescriptor) -> Self {
        self.method = Some(method);
        self
    }

    /// The deadline of the call. `None`: there is none.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Time left until the deadline; zero if it has passed, `None` if there is none.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(clock::now()))
    }

    /// The metadata of the call.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        self.extras.as_ref().map_or(&NO_METADATA, |extras| &extras.metadata)
    }

    /// Attaches a named value to the reply of the handler being polled on this thread, replacing an
    /// earlier one of that name. It is also sent with an error, and after the items of a stream.
    /// The caller reads it with [`Call::with_metadata`](crate::Call::with_metadata),
    /// [`Status::metadata`](crate::Status::metadata) or
    /// [`Streaming::metadata`](crate::stream::Streaming::metadata); a caller of an earlier version
    /// does not receive it. Call it from the handler itself, not from a task that it has spawned,
    /// nor inside [`Context::scope`]: values set there are lost. If a stream call is refused with
    /// the method's own error, only interceptors see it.
    ///
    /// ```
    /// # #[rpc_core::service] pub trait Kv { async fn get(&self, key: &str) -> Option<String>; }
    /// use rpc_core::{Channel, Context};
    ///
    /// struct Store;
    ///
    /// impl Kv for Store {
    ///     async fn get(&self, key: &str) -> Option<String> {
    ///         Context::set_reply_metadata("served-by", "shard-7").expect("a valid name");
    ///         Some(key.to_owned())
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let kv = KvClient::new(Channel::to(KvServer::new(Store)).await?);
    /// let (value, metadata) = kv.get("key").with_metadata().await;
    /// assert_eq!((value?.as_deref(), metadata.text("served-by")), (Some("key"), Some("shard-7")));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A bad or reserved name, or too much metadata in total: nothing is set. Outside a handler:
    /// [`MetadataError::NoCall`].
    pub fn set_reply_metadata(
        name: &str,
        value: impl Into<bytes::Bytes>,
    ) -> Result<(), MetadataError> {
        let extras = Self::peek(|context| context.extras.as_deref().cloned());
        let mut extras = extras.ok_or(MetadataError::NoCall)?.unwrap_or_default();
        extras.reply.insert(name, value)?;
        Self::replace_extras(extras);
        Ok(())
    }

    fn replace_extras(extras: Extras) {
        // The replaced value may run user code when it is dropped, so it is dropped when nothing is
        // borrowed any more.
        let _replaced = CURRENT.try_with(|current| {
            let mut current = current.borrow_mut();
            Option::as_mut(&mut current).map(|context| context.extras.replace(Arc::new(extras)))
        });
    }

    /// The value of type `T` that an [interceptor](crate::interceptor) or a layer attached to the
    /// call, for example the authenticated user. It is not sent anywhere, and nested calls do not
    /// inherit it.
    #[must_use]
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.extensions().get()
    }

    pub(crate) fn extensions(&self) -> &Extensions {
        self.extras.as_ref().map_or(&NO_EXTENSIONS, |extras| &extras.extensions)
    }

    /// The caller, as far as the transport knows it.
    #[must_use]
    pub fn peer(&self) -> Option<&PeerIdentity> {
        self.identity().map(|caller| caller.peer())
    }

    /// The caller, as far as this end knows. `None` outside a handler.
    #[must_use]
    pub fn identity(&self) -> Option<&Arc<Identity>> {
        match &self.caller {
            Caller::Unknown => None,
            Caller::Named(caller) => Some(caller),
            Caller::Connected(connection_context, _) => Some(&connection_context.identity),
        }
    }

    /// Bytes that only the two ends of the call's connection have, where it has TLS:
    /// [`Identity::channel_binding`](crate::identity::Identity::channel_binding).
    #[must_use]
    pub fn channel_binding(&self) -> Option<&[u8; 32]> {
        self.identity()?.channel_binding()
    }

    /// The connection of the call.
    pub(crate) fn connected(&self) -> Option<&Arc<ConnectionContext>> {
        match &self.caller {
            Caller::Connected(connection_context, _) => Some(connection_context),
            Caller::Unknown | Caller::Named(_) => None,
        }
    }

    /// Whether the handler being polled on this thread serves the peer of the given connection.
    pub(crate) fn serves(is_it: impl FnOnce(&ConnectionContext) -> bool) -> bool {
        Self::peek(|context| context.connected().is_some_and(|connected| is_it(connected)))
            .unwrap_or_default()
    }

    /// Registered buffers of the call's connection. A [`Bulk`] that was filled in one of them is
    /// sent with the reply without a copy. `None` outside a handler.
    ///
    /// ```
    /// use rpc_core::{Bulk, Context};
    ///
    /// # struct Store;
    /// # impl Store {
    /// async fn zeros(&self, len: u32) -> Bulk {
    ///     let context = Context::current();
    ///     match context.bulk_pool().map(|pool| pool.take(len as usize)) {
    ///         Some(Ok(mut buffer)) => {
    ///             buffer.fill(0);
    ///             buffer.freeze()
    ///         }
    ///         _ => Bulk::from(vec![0; len as usize]),
    ///     }
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn bulk_pool(&self) -> Option<&BulkPool> {
        Some(&self.connected()?.bulk)
    }

    fn phase(&self) -> Option<&Watch> {
        self.connected()?.phase.as_ref()
    }

    /// Waits until the server begins to shut down, or the client that serves stops
    /// ([`Channel::stop_serving`](crate::Channel::stop_serving)): returns at once if it already
    /// does, and never outside a handler. Lets long-running handlers finish cleanly within
    /// [`grace`](crate::ServerBuilder::grace).
    ///
    /// ```
    /// use rpc_core::Context;
    /// use std::time::Duration;
    ///
    /// # async fn step() -> bool { true }
    /// async fn work() -> u64 {
    ///     let draining = Context::current().draining();
    ///     tokio::pin!(draining);
    ///     let mut done = 0;
    ///     loop {
    ///         tokio::select! {
    ///             () = &mut draining => return done, // the caller asks another server
    ///             more = step() => done += 1,
    ///         }
    ///         # return done;
    ///     }
    /// }
    /// ```
    pub fn draining(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let phase = self.phase().cloned();
        async move {
            match phase {
                Some(phase) => phase.reached(Phase::Draining).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Whether the server has begun to shut down, or the client to stop serving; see
    /// [`drain_lead`](crate::ServerBuilder::drain_lead).
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.phase().is_some_and(|phase| phase.has_reached(Phase::Draining))
    }

    /// Reserves bytes of the memory budget of the connection whose handler is being polled on this
    /// thread; `None` outside a handler.
    pub(crate) fn reserve(bytes: u64) -> Option<Result<Reservation, BudgetExhausted>> {
        Self::peek(|context| Some(context.connected()?.memory.reserve(bytes))).flatten()
    }

    /// Minimum length of a byte string that is sent beside the body of the reply, bytes.
    #[inline]
    pub(crate) fn min_part_bytes(&self) -> usize {
        match &self.caller {
            Caller::Connected(connection_context, _) => connection_context.min_part_bytes,
            Caller::Unknown | Caller::Named(_) => usize::MAX,
        }
    }

    /// The method being served: `Kv.get`. Empty outside a handler.
    #[must_use]
    pub fn method_name(&self) -> &'static str {
        self.method.map_or("", |method| method.name)
    }

    /// The method being served.
    #[must_use]
    pub fn method(&self) -> Option<&'static MethodDescriptor> {
        self.method
    }

    /// Runs a future with this context current, for tasks that a handler spawns.
    #[inline]
    pub fn scope<F: Future>(self, future: F) -> Scoped<F> {
        Scoped { future, context: Some(self) }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("method", &self.method_name())
            .field("remaining", &self.remaining())
            .field("peer", &self.peer())
            .field("metadata", self.metadata())
            .field("extensions", self.extensions())
            .finish()
    }
}

pin_project_lite::pin_project! {
    /// A future that is polled with a current context: [`Context::scope`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Scoped<F> {
        #[pin]
        future: F,
        // The task's context; while `future` is polled, the one that was current before.
        context: Option<Context>,
    }
}

pin_project_lite::pin_project! {
    /// A [`Scoped`] handler, which adds its context's metadata to the reply.
    pub(crate) struct Served<F> {
        #[pin]
        scoped: Scoped<F>,
    }
}

impl<F> Served<F> {
    #[inline]
    pub(crate) fn new(context: Context, future: F) -> Self {
        Self { scoped: Scoped { future, context: Some(context) } }
    }
}

impl<F: Future<Output = Reply>> Future for Served<F> {
    type Output = Reply;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Reply> {
        let mut scoped = self.project().scoped;
        let polled = scoped.as_mut().poll(cx);
        match (&*scoped.project().context, polled) {
            (Some(Context { extras: Some(extras), .. }), Poll::Ready(reply)) => {
                Poll::Ready(reply.with_metadata(&extras.initial).with_metadata(&extras.reply))
            }
            (_, polled) => polled,
        }
    }
}

/// Drop guard: swaps the two contexts back, also when the poll panics.
struct Restore<'a>(&'a mut Option<Context>);

impl Drop for Restore<'_> {
    #[inline]
    fn drop(&mut self) {
        swap(self.0);
    }
}

/// Swaps `context` with the current one. Does nothing on a thread whose thread-locals are already
/// destroyed.
#[inline]
fn swap(context: &mut Option<Context>) {
    let _ = CURRENT.try_with(|current| std::mem::swap(&mut **current.borrow_mut(), context));
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        swap(this.context);
        let _restore = Restore(this.context);
        this.future.poll(cx)
    }
}

/// Copies bytes that cannot be shared into a registered buffer of the running handler's connection.
pub(crate) fn copy_to_own_pool(bytes: &[u8]) -> Option<Bulk> {
    Context::current().bulk_pool()?.copy_of(bytes)
}
