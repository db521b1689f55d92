//! Interceptors of a server, as a layer around its services.
//!
//! Invariants:
//! 1. Whose `before` has let a call pass gets one `after`, when its box is given back at the latest.
//! 2. Without interceptors there is no layer, so calls cost what they cost before.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context as TaskContext;
use std::thread::LocalKey;
use std::time::Instant;

use rpc_transport::device::PeerIdentity;
use rpc_transport::engine::clock;
use rpc_transport::user_code::caught;
use tokio::time::Sleep;

use super::{Body, Ended, Ending, ItemCounters, guarded};
use crate::context::Context;
use crate::metadata::Metadata;
use crate::runtime::recycled::{self, List, Recycle};
use crate::server::handler::{Handler, Origin, log_panic};
use crate::service::{Dispatch, MethodDescriptor, Reply, Request, ServiceDescriptor};
use crate::status::Status;

/// What is done before and after each call of a server: see [the module](super).
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
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
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

    /// Before the handler runs.
    ///
    /// # Errors
    /// The status that the call ends with: its handler does not run.
    fn before(&self, call: &mut Inbound<'_>) -> Result<(), Status> {
        let _ = call;
        Ok(())
    }

    /// After the handler has ended, and before its reply is sent.
    fn after(&self, context: &Context, call: &Ended<'_>) {
        let _ = (context, call);
    }
}

/// The interceptors that stand together, outermost first.
pub(crate) type Chain = Arc<[Arc<dyn ServerInterceptor>]>;

/// A call that has come to a server.
pub struct Inbound<'a> {
    context: &'a mut Context,
    method: &'static MethodDescriptor,
    request_bytes: u64,
    /// An interceptor has brought the deadline forward.
    is_shortened: &'a mut bool,
}

impl Inbound<'_> {
    /// The method.
    #[must_use]
    pub fn method(&self) -> &'static MethodDescriptor {
        self.method
    }

    /// The caller's metadata.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        self.context.metadata()
    }

    /// The caller, as far as the transport knows it: the process over shared memory, with what the
    /// kernel says of it, else the address.
    #[must_use]
    pub fn peer(&self) -> Option<&Arc<PeerIdentity>> {
        self.context.peer()
    }

    /// When the caller stops waiting.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.context.deadline()
    }

    /// Brings the deadline forward; a later one than the call's changes nothing. The call then ends
    /// with [`DeadlineExceeded`](crate::Code::DeadlineExceeded), and its handler is dropped, unless
    /// the method is `no_cancel`: such a handler only sees the deadline.
    pub fn shorten_deadline(&mut self, deadline: Instant) {
        if self.context.deadline().is_none_or(|other| deadline < other) {
            self.context.set_deadline(deadline);
            *self.is_shortened = true;
        }
    }

    /// Length of the encoded arguments, bytes.
    #[must_use]
    pub fn request_bytes(&self) -> u64 {
        self.request_bytes
    }

    /// Puts a value beside the call, in place of an earlier one of its type: for the handler
    /// ([`Context::extension`]), and for `after`.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.context.insert_extension(value);
    }

    /// What another interceptor has put beside the call.
    #[must_use]
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.context.extension()
    }
}

impl fmt::Debug for Inbound<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbound")
            .field("method", &self.method.name)
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

/// A service with interceptors around it.
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

    fn dispatch(&self, position: usize, mut request: Request) -> Handler {
        let Some(method) = self.inner.descriptor().methods.get(position).copied() else {
            return self.inner.dispatch(position, request);
        };
        let request_bytes = request.message.len() as u64 + request.message.tail_bytes();
        let mut watched = recycled::take::<Watched>();
        let watch = &mut watched.watch;
        watch.chain = Some(Arc::clone(&self.chain));
        watch.method = Some(method);
        watch.began = Some(clock::now());
        watch.request_bytes = request_bytes;
        if method.has_streams() {
            watch.items = request.count_items();
        }
        let mut is_shortened = false;
        for interceptor in self.chain.iter() {
            let (context, is_shortened) = (&mut request.context, &mut is_shortened);
            let mut call = Inbound { context, method, request_bytes, is_shortened };
            let before = guarded(|| interceptor.name(), method, || interceptor.before(&mut call));
            if let Err(status) = before.and_then(|passed| passed) {
                watch.context = request.context;
                let panicked = watch.end(Ending::Status(&status), Body::None);
                // What other interceptors have put beside the call is dropped here.
                caught(|| recycled::give_back(watched));
                return Handler::ready(Reply::Status(panicked.unwrap_or(status)));
            }
            watch.passed += 1;
        }
        watch.context = request.context.clone();
        if is_shortened && !method.no_cancel {
            let deadline = request.context.deadline();
            watched.timer = deadline.map(|at| Box::pin(tokio::time::sleep_until(at.into())));
        }
        watched.inner = self.dispatched(position, request, &watched.watch);
        Handler::watched(watched)
    }
}

impl Intercepted {
    /// What a layer further in makes of the call. Its panic is the reply that the caller gets.
    #[inline]
    fn dispatched(&self, position: usize, request: Request, watch: &Watch) -> Handler {
        let dispatch = AssertUnwindSafe(|| self.inner.dispatch(position, request));
        catch_unwind(dispatch).unwrap_or_else(|panic| {
            let method = watch.method.map(|method| method.name);
            log_panic(panic, &Origin { method, peer: watch.context.peer().cloned() });
            Handler::ready(Reply::Status(Status::internal("the handler panicked")))
        })
    }
}

/// Tells the interceptors that a call has passed how it ended, once.
#[derive(Default)]
struct Watch {
    chain: Option<Chain>,
    /// How many have let the call pass and wait for its end.
    passed: usize,
    context: Context,
    method: Option<&'static MethodDescriptor>,
    began: Option<Instant>,
    request_bytes: u64,
    items: Option<Arc<ItemCounters>>,
}

impl Watch {
    /// Ends the call, and gives what takes the place of the reply if an interceptor has panicked.
    #[inline]
    fn end(&mut self, ending: Ending<'_>, reply: Body<'_>) -> Option<Status> {
        let passed = std::mem::take(&mut self.passed);
        let (Some(chain), Some(method)) = (&self.chain, self.method) else { return None };
        let call = Ended {
            method,
            ending,
            began: self.began,
            request_bytes: self.request_bytes,
            reply,
            items: self.items.as_deref(),
            extensions: self.context.extensions(),
        };
        let mut panicked = None;
        for interceptor in chain[..passed].iter().rev() {
            let after = || interceptor.after(&self.context, &call);
            if let Err(status) = guarded(|| interceptor.name(), method, after) {
                panicked = Some(status);
            }
        }
        panicked
    }

    #[inline]
    fn replied(&mut self, reply: &Reply) -> Option<Status> {
        match reply {
            Reply::Ok(body) => self.end(Ending::Ok, Body::Sent(body)),
            Reply::UserError(body) => self.end(Ending::UserError, Body::Sent(body)),
            Reply::Status(status) => self.end(Ending::Status(status), Body::None),
        }
    }
}

impl Drop for Watch {
    /// Something has panicked while the handler was made.
    #[inline]
    fn drop(&mut self) {
        if self.passed > 0 {
            self.end(Ending::Cancelled, Body::None);
        }
    }
}

/// A handler whose end interceptors wait for.
pub(crate) struct Watched {
    inner: Handler,
    /// A deadline that an interceptor has set.
    timer: Option<Pin<Box<Sleep>>>,
    watch: Watch,
}

impl Default for Watched {
    fn default() -> Self {
        Self { inner: Handler::over(), timer: None, watch: Watch::default() }
    }
}

impl Watched {
    /// [`Handler::poll_to`].
    #[inline]
    pub(crate) fn poll_to(&mut self, cx: &mut TaskContext<'_>, reply: &mut Option<Reply>) {
        self.inner.poll_to(cx, reply);
        if reply.is_none()
            && let Some(timer) = &mut self.timer
            && timer.as_mut().poll(cx).is_ready()
        {
            let name = self.watch.method.map_or("", |method| method.name);
            let text = format!("{name}: the deadline that an interceptor set has passed");
            *reply = Some(Reply::Status(Status::deadline_exceeded(text)));
        }
        self.on_reply(reply);
    }

    /// The handler has panicked.
    #[cold]
    pub(crate) fn after_panic(&mut self, reply: &mut Option<Reply>) {
        self.inner.end_after_panic(reply);
        self.on_reply(reply);
    }

    /// If there is a reply, the interceptors are told.
    #[inline]
    fn on_reply(&mut self, reply: &mut Option<Reply>) {
        if let Some(given) = reply
            && let Some(status) = self.watch.replied(given)
        {
            *reply = Some(Reply::Status(status));
        }
    }
}

thread_local! {
    static KEPT: List<Watched> = const { RefCell::new(Vec::new()) };
}

impl Recycle for Watched {
    /// A call that has not ended is cancelled by that.
    #[inline]
    fn clear(&mut self) {
        // Never panics. After it, nothing of the handler runs any more.
        self.inner = Handler::over();
        if self.timer.is_some() {
            self.timer = None;
        }
        if self.watch.passed > 0 {
            self.watch.end(Ending::Cancelled, Body::None);
        }
        if self.watch.items.is_some() {
            self.watch.items = None;
        }
        self.watch.chain = None;
        self.watch.context = Context::new();
    }

    #[inline]
    fn list() -> &'static LocalKey<List<Self>> {
        &KEPT
    }
}
