//! Interceptors of a server, as a layer around its services.
//!
//! Invariants:
//! 1. Whose `before` has let a call pass gets one `after`: [`Watch`] sees to it.
//! 2. Without interceptors there is no layer, so calls cost what they cost before.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Instant;

use rpc_transport::device::PeerIdentity;
use rpc_transport::engine::clock;
use rpc_transport::message::outgoing::OutBuf;
use tokio::time::Sleep;

use super::{Ended, Ending, ItemCounters, guarded};
use crate::context::Context;
use crate::metadata::Metadata;
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
        let earliest = self.context.deadline().map_or(deadline, |other| other.min(deadline));
        self.context.set_deadline(earliest);
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
        let asked = request.context.deadline();
        let items = request.count_items();
        let mut watch = Watch {
            chain: Arc::clone(&self.chain),
            passed: 0,
            context: Context::new(),
            method,
            began: clock::now(),
            request_bytes,
            items,
        };
        for interceptor in self.chain.iter() {
            let mut call = Inbound { context: &mut request.context, method, request_bytes };
            let before = guarded(|| interceptor.name(), method, || interceptor.before(&mut call));
            if let Err(status) = before.and_then(|passed| passed) {
                watch.context = request.context;
                return watch.refused(status);
            }
            watch.passed += 1;
        }
        watch.context = request.context.clone();
        let timer = watch.context.deadline().filter(|at| Some(*at) != asked && !method.no_cancel);
        let timer = timer.map(|at| Box::pin(tokio::time::sleep_until(at.into())));
        let origin = || Origin { method: Some(method.name), peer: watch.context.peer().cloned() };
        let inner = dispatched(&*self.inner, position, request, origin);
        Handler::without_context(Watched { inner, timer, watch })
    }
}

/// What a layer further in makes of the call. Its panic is the reply that the caller gets.
fn dispatched(
    inner: &dyn Dispatch,
    position: usize,
    request: Request,
    origin: impl FnOnce() -> Origin,
) -> Handler {
    let dispatch = AssertUnwindSafe(|| inner.dispatch(position, request));
    catch_unwind(dispatch).unwrap_or_else(|panic| {
        log_panic(panic, &origin());
        Handler::ready(Reply::Status(Status::internal("the handler panicked")))
    })
}

/// Tells the interceptors that a call has passed how it ended, once.
struct Watch {
    chain: Chain,
    /// How many have let the call pass and wait for its end.
    passed: usize,
    context: Context,
    method: &'static MethodDescriptor,
    began: Instant,
    request_bytes: u64,
    items: Option<Arc<ItemCounters>>,
}

impl Watch {
    /// Ends the call, and gives what takes the place of the reply if an interceptor has panicked.
    fn end(&mut self, ending: Ending<'_>, reply: Option<&OutBuf>) -> Option<Status> {
        let passed = std::mem::take(&mut self.passed);
        let marked = reply.map_or(0, |body| body.marks().1);
        let call = Ended {
            method: self.method,
            ending,
            began: self.began,
            request_bytes: self.request_bytes,
            reply_bytes: reply.map_or(0, OutBuf::total_len) - u64::from(marked),
            reply_metadata: reply.map_or(&[], |body| &body[..usize::from(marked)]),
            items: self.items.as_deref(),
            extensions: self.context.extensions(),
        };
        let mut panicked = None;
        for interceptor in self.chain[..passed].iter().rev() {
            let after = || interceptor.after(&self.context, &call);
            if let Err(status) = guarded(|| interceptor.name(), self.method, after) {
                panicked = Some(status);
            }
        }
        panicked
    }

    #[cold]
    fn refused(mut self, status: Status) -> Handler {
        let panicked = self.end(Ending::Status(&status), None);
        Handler::ready(Reply::Status(panicked.unwrap_or(status)))
    }

    fn replied(&mut self, reply: Reply) -> Reply {
        let panicked = match &reply {
            Reply::Ok(body) => self.end(Ending::Ok, Some(body)),
            Reply::UserError(body) => self.end(Ending::UserError, Some(body)),
            Reply::Status(status) => self.end(Ending::Status(status), None),
        };
        panicked.map_or(reply, Reply::Status)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.passed > 0 {
            self.end(Ending::Cancelled, None);
        }
    }
}

/// A handler whose end interceptors wait for.
struct Watched {
    inner: Handler,
    /// A deadline that an interceptor has set.
    timer: Option<Pin<Box<Sleep>>>,
    watch: Watch,
}

impl Future for Watched {
    type Output = Reply;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Reply> {
        let Self { inner, timer, watch } = self.get_mut();
        let origin =
            || Origin { method: Some(watch.method.name), peer: watch.context.peer().cloned() };
        if let Poll::Ready(reply) = inner.poll_of(cx, origin) {
            return Poll::Ready(watch.replied(reply));
        }
        if let Some(timer) = timer
            && timer.as_mut().poll(cx).is_ready()
        {
            let text =
                format!("{}: the deadline that an interceptor set has passed", watch.method.name);
            return Poll::Ready(watch.replied(Reply::Status(Status::deadline_exceeded(text))));
        }
        Poll::Pending
    }
}
