//! Interceptors of a server, outside of all layers and as a layer.
//!
//! Invariants:
//! 1. An interceptor whose `before` accepted a call gets one `after`, at the latest when its
//!    handler is dropped.
//! 2. Without interceptors nothing is done. Outside of all layers, a handler that replies in its
//!    first poll is not wrapped; one that waits, or runs as a task from the start, is.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context as TaskContext;
use std::time::Instant;

use rpc_transport::device::PeerIdentity;
use rpc_transport::engine::clock;
use rpc_transport::memory::free_list::{self, FreeList};
use rpc_transport::user_code::caught;
use tokio::time::Sleep;

use super::{Begun, Ended, Found, after, before};
use crate::context::Context;
use crate::identity::Identity;
use crate::metadata::Metadata;
use crate::service::handler::{Handler, Origin, Watched};
use crate::service::{Dispatch, MethodDescriptor, Reply, Request, ServiceDescriptor};
use crate::status::Status;

/// Runs before and after each call of a server: see [the module](super).
///
/// # Example
/// ```
/// use rpc_core::interceptor::{Inbound, ServerInterceptor};
/// use rpc_core::{Context, Status};
///
/// struct User(String);
///
/// struct Auth;
///
/// impl ServerInterceptor for Auth {
///     fn before(&self, call: &mut Inbound<'_>) -> Result<(), Status> {
///         match call.metadata().text("token") {
///             Some("s3cret") => call.insert(User("Ada".to_owned())),
///             _ => return Err(Status::unauthenticated("this server wants a token")),
///         }
///         Ok(())
///     }
/// }
///
/// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
/// struct Polite;
///
/// impl Greeter for Polite {
///     async fn greet(&self) -> String {
///         let user = Context::current().extension::<User>().expect("put there by `Auth`");
///         format!("Good day, {}", user.0)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = rpc_core::Server::builder()
///     .interceptor(Auth)
///     .add_service(GreeterServer::new(Polite))
///     .bind("mem://interceptor")
///     .await?;
/// # tokio::spawn(server.serve());
/// # let greeter = GreeterClient::connect("mem://interceptor").await?;
/// # assert_eq!(greeter.greet().await.unwrap_err().code(), rpc_core::Code::Unauthenticated);
/// assert_eq!(greeter.greet().metadata("token", "s3cret").await?, "Good day, Ada");
/// # Ok(()) }
/// ```
pub trait ServerInterceptor: Send + Sync + 'static {
    /// Its name in logs and in `Debug` of the server. Default: the type's.
    fn name(&self) -> &str {
        std::any::type_name::<Self>()
    }

    /// Called before the handler runs.
    ///
    /// # Errors
    /// The status with which the call ends; its handler does not run.
    fn before(&self, call: &mut Inbound<'_>) -> Result<(), Status> {
        let _ = call;
        Ok(())
    }

    /// Called after the handler has ended and before its reply is sent.
    fn after(&self, context: &Context, call: &Ended<'_>) {
        let _ = (context, call);
    }
}

/// A chain of interceptors, outermost first.
pub(crate) type Chain = Arc<[Arc<dyn ServerInterceptor>]>;

/// A call that has arrived at a server.
pub struct Inbound<'a> {
    context: &'a mut Context,
    begun: &'a Begun,
    /// Whether an interceptor brought the deadline forward.
    is_shortened: bool,
}

impl Inbound<'_> {
    /// The method.
    #[must_use]
    pub fn method(&self) -> &'static MethodDescriptor {
        self.begun.method
    }

    /// The caller's metadata.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        self.context.metadata()
    }

    /// The caller, as far as the transport knows it: over shared memory the process, as reported by
    /// the kernel; otherwise the address.
    #[must_use]
    pub fn peer(&self) -> Option<&PeerIdentity> {
        self.context.peer()
    }

    /// Who calls, as far as this end knows.
    #[must_use]
    pub fn identity(&self) -> Option<&Arc<Identity>> {
        self.context.identity()
    }

    /// When the caller stops waiting.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.context.deadline()
    }

    /// Brings the deadline forward; one later than the call's is ignored. When it passes, the call
    /// ends with [`DeadlineExceeded`](crate::Code::DeadlineExceeded), and its handler is dropped,
    /// unless the method is `no_cancel`: such a handler only sees the deadline.
    pub fn shorten_deadline(&mut self, deadline: Instant) {
        if self.context.deadline().is_none_or(|other| deadline < other) {
            self.context.set_deadline(deadline);
            self.is_shortened = true;
        }
    }

    /// Length of the encoded arguments, bytes.
    #[must_use]
    pub fn request_bytes(&self) -> u64 {
        self.begun.request_bytes
    }

    /// Attaches a value to the call, replacing an earlier one of its type: for the handler
    /// ([`Context::extension`]), and for `after`.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.context.insert_extension(value);
    }

    /// A value that another interceptor attached to the call.
    #[must_use]
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.context.extension()
    }
}

impl fmt::Debug for Inbound<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbound")
            .field("method", &self.begun.method.name)
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

/// A service wrapped in interceptors, as a layer.
pub(crate) struct Intercepted {
    inner: Arc<dyn Dispatch>,
    chain: Chain,
}

impl Intercepted {
    pub(crate) fn new(inner: Arc<dyn Dispatch>, chain: Chain) -> Self {
        Self { inner, chain }
    }
}

impl Dispatch for Intercepted {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        self.inner.descriptor()
    }

    fn dispatch(&self, position: usize, request: Request) -> Handler {
        let Some(method) = self.inner.descriptor().methods.get(position).copied() else {
            return self.inner.dispatch(position, request);
        };
        let (mut handler, mut reply) = (None, None);
        run(&self.chain, method, request, &mut handler, &mut reply, |request, handler, _| {
            *handler = Some(self.inner.dispatch(position, request));
        });
        reply.map(Handler::ready).or(handler).unwrap_or(const { Handler::over() })
    }
}

/// Runs `before` of the interceptors, then `first`, then `after` if there is a reply by then;
/// otherwise the handler is wrapped so that `after` runs at its end. `first` creates the handler,
/// and may poll it. If it panics, the panic becomes the reply.
#[inline(always)]
pub(crate) fn run(
    chain: &Chain,
    method: &'static MethodDescriptor,
    mut request: Request,
    handler: &mut Option<Handler>,
    reply: &mut Option<Reply>,
    first: impl FnOnce(Request, &mut Option<Handler>, &mut Option<Reply>),
) {
    let request_bytes = request.message.len() as u64 + request.message.tail_bytes();
    let items = if method.has_streams() { request.count_items() } else { None };
    let begun = Begun { method, at: clock::now(), request_bytes, items };
    let mut call = Inbound { context: &mut request.context, begun: &begun, is_shortened: false };
    for (passed, interceptor) in chain.iter().enumerate() {
        let run = || interceptor.before(&mut call);
        if let Err(status) = before(|| interceptor.name(), method, run) {
            let status = refused(&chain[..passed], &mut request, &begun, status);
            *reply = Some(Reply::Status(status));
            return;
        }
    }
    let is_shortened = call.is_shortened;
    let context = request.context.clone();
    let first = AssertUnwindSafe(|| first(request, handler, reply));
    if let Err(panic) = catch_unwind(first) {
        after_panic(&context, &begun, panic, handler, reply);
    }
    // The end of a finished call is reported here; a waiting handler is wrapped.
    if reply.is_some() {
        tell_of(chain, &context, &begun, reply);
        context.let_go();
    } else if let Some(inner) = handler.take() {
        let watch = Watch { passed: chain.len(), is_shortened, context, begun };
        *handler = Some(watch.wait(chain, inner));
    }
}

/// Reports the end of a call to interceptors. If one of them panics, `panicked` is set to the
/// status that replaces the reply.
#[inline(always)]
fn tell(
    passed: &[Arc<dyn ServerInterceptor>],
    context: &Context,
    begun: &Begun,
    found: Found<'_>,
    panicked: &mut Option<Status>,
) {
    let call = Ended { begun, found, extensions: context.extensions() };
    for interceptor in passed.iter().rev() {
        let run = || interceptor.after(context, &call);
        after(|| interceptor.name(), begun.method, run, panicked);
    }
}

/// Reports the end of a call with a reply, which an interceptor's panic replaces.
#[inline(always)]
fn tell_of(
    passed: &[Arc<dyn ServerInterceptor>],
    context: &Context,
    begun: &Begun,
    reply: &mut Option<Reply>,
) {
    let Some(given) = reply else { return };
    let mut panicked = None;
    tell(passed, context, begun, Found::Reply(given), &mut panicked);
    if panicked.is_some() {
        replace(reply, &mut panicked);
    }
}

/// Replaces the reply after an interceptor's panic.
#[cold]
#[inline(never)]
fn replace(reply: &mut Option<Reply>, panicked: &mut Option<Status>) {
    *reply = panicked.take().map(Reply::Status);
}

/// An interceptor refused the call: reports the end to those before it.
#[cold]
#[inline(never)]
fn refused(
    passed: &[Arc<dyn ServerInterceptor>],
    request: &mut Request,
    begun: &Begun,
    status: Status,
) -> Status {
    let context = std::mem::take(&mut request.context);
    let mut panicked = None;
    tell(passed, &context, begun, Found::Status(&status), &mut panicked);
    // This drops the values that other interceptors attached to the call.
    caught(|| drop(context));
    panicked.unwrap_or(status)
}

/// A layer further in, or the handler, panicked.
#[cold]
#[inline(never)]
fn after_panic(
    context: &Context,
    begun: &Begun,
    panic: Box<dyn Any + Send>,
    handler: &mut Option<Handler>,
    reply: &mut Option<Reply>,
) {
    let origin = Origin { method: Some(begun.method.name), peer: context.identity().cloned() };
    handler.get_or_insert_with(Handler::over).after_panic(panic, &origin, reply);
}

/// The interceptors' view of a waiting call, whose end is reported to them once.
struct Watch {
    /// The number of interceptors that accepted the call and wait for its end.
    passed: usize,
    /// Whether one of them brought the deadline forward.
    is_shortened: bool,
    context: Context,
    begun: Begun,
}

impl Watch {
    /// Reports that the call was cancelled.
    #[cold]
    fn cancel(&mut self, chain: &Chain) {
        let passed = std::mem::take(&mut self.passed);
        tell(&chain[..passed], &self.context, &self.begun, Found::Cancelled, &mut None);
    }

    /// Reports the end of the call to the interceptors, if there is a reply.
    #[inline]
    fn on_reply(&mut self, chain: &Chain, reply: &mut Option<Reply>) {
        if reply.is_some() {
            let passed = std::mem::take(&mut self.passed);
            tell_of(&chain[..passed], &self.context, &self.begun, reply);
        }
    }

    /// Wraps the handler, which has not replied yet.
    #[inline(never)]
    fn wait(self, chain: &Chain, inner: Handler) -> Handler {
        let mut slot = free_list::take(&FREE).unwrap_or_default();
        let chain = Arc::clone(chain);
        let call = slot.call.insert(WatchedCall { inner, timer: None, chain, watch: self });
        if call.watch.is_shortened && !call.watch.begun.method.no_cancel {
            let deadline = call.watch.context.deadline();
            call.timer = deadline.map(|at| Box::pin(tokio::time::sleep_until(at.into())));
        }
        Handler::watched(slot)
    }
}

/// A handler wrapped in interceptors that wait for its end.
struct WatchedCall {
    inner: Handler,
    /// The deadline set by an interceptor.
    timer: Option<Pin<Box<Sleep>>>,
    chain: Chain,
    watch: Watch,
}

impl WatchedCall {
    #[cold]
    fn poll_timer(&mut self, cx: &mut TaskContext<'_>, reply: &mut Option<Reply>) {
        if let Some(timer) = &mut self.timer
            && timer.as_mut().poll(cx).is_ready()
        {
            let name = self.watch.begun.method.name;
            let text = format!("{name}: the deadline set by an interceptor has passed");
            *reply = Some(Reply::Status(Status::deadline_exceeded(text)));
        }
    }
}

impl Drop for WatchedCall {
    /// Cancels the call if it has not ended.
    fn drop(&mut self) {
        if self.watch.passed > 0 {
            // `after` runs when the handler has been dropped.
            self.inner = Handler::over();
            self.watch.cancel(&self.chain);
        }
    }
}

/// Most unused boxes that a thread keeps.
const KEEP_COUNT: usize = 64;

thread_local! {
    static FREE: FreeList<Box<Slot>, KEEP_COUNT> = const { FreeList::new() };
}

/// A [`WatchedCall`] in a box that is used again.
#[derive(Default)]
struct Slot {
    call: Option<WatchedCall>,
}

impl Watched for Slot {
    fn poll_to(&mut self, cx: &mut TaskContext<'_>, reply: &mut Option<Reply>) {
        let Some(call) = &mut self.call else { return };
        call.inner.poll_to(cx, reply);
        if reply.is_none() {
            call.poll_timer(cx, reply);
        }
        call.watch.on_reply(&call.chain, reply);
    }

    fn after_panic(&mut self, reply: &mut Option<Reply>) {
        let Some(call) = &mut self.call else { return };
        call.inner.end_after_panic(reply);
        call.watch.on_reply(&call.chain, reply);
    }

    fn end(mut self: Box<Self>) -> Handler {
        let inner =
            self.call.as_mut().map(|call| std::mem::replace(&mut call.inner, Handler::over()));
        self.give_back();
        inner.unwrap_or(const { Handler::over() })
    }

    fn cancel(self: Box<Self>) {
        self.give_back();
    }
}

impl Slot {
    /// Drops the call, which may run user code, and returns the box.
    fn give_back(mut self: Box<Self>) {
        self.call = None;
        free_list::keep(&FREE, self);
    }
}
