//! Tower layers around the services of a server.
//!
//! Invariant: a tower service is called only after it was ready, by the call that found it ready.
//! Calls queue for readiness. A call cancelled while queued leaves everything that the layers have
//! acquired for it (for example a permit) to the next one. So there is one queue for all services:
//! a tower service that is no longer called would keep the permit.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rpc_core::service::{Dispatch, Handler, MethodDescriptor, Reply, Request, ServiceDescriptor};
use tokio::sync::Mutex;
use tower::{BoxError, Layer, Service};

/// A call that has arrived at a server.
pub struct ServerCall {
    inner: Arc<dyn Dispatch>,
    method: &'static MethodDescriptor,
    position: usize,
    request: Request,
}

impl ServerCall {
    /// The method.
    #[must_use]
    pub fn method(&self) -> &'static MethodDescriptor {
        self.method
    }

    /// The context of the call: metadata, deadline, peer.
    #[must_use]
    pub fn context(&self) -> &rpc_core::Context {
        &self.request.context
    }
}

impl fmt::Debug for ServerCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerCall")
            .field("method", &self.method.name)
            .field("context", self.context())
            .finish_non_exhaustive()
    }
}

/// The innermost service, which runs the handlers and is wrapped by the tower layers.
#[derive(Debug, Clone)]
pub struct DispatchService(());

impl Service<ServerCall> for DispatchService {
    type Response = Reply;
    type Error = Infallible;
    type Future = ServerFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ServerCall) -> ServerFuture {
        ServerFuture(call.inner.dispatch(call.position, call.request))
    }
}

/// A running handler. Dropping it cancels the handler. Any end of the handler, also a status or a
/// panic, is a response.
#[derive(Debug)]
#[must_use = "a handler does nothing unless polled"]
pub struct ServerFuture(Handler);

impl Future for ServerFuture {
    type Output = Result<Reply, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(Ok)
    }
}

/// Turns a tower layer into one for [`ServerBuilder::layer`](rpc_core::ServerBuilder::layer).
///
/// It wraps all services of the server together, so a limit is shared by all of them. Calls queue
/// until it is ready. If several servers share a limit, each of them must be in use: a call
/// cancelled in the queue leaves its place to the next call of the same server. The wrapped service
/// need not be `Clone`, and needs no `Buffer`. Its errors are converted by
/// [`status`](crate::status).
pub fn layer<L, S>(
    layer: L,
) -> impl Fn(Arc<dyn Dispatch>) -> Arc<dyn Dispatch> + Send + Sync + 'static
where
    L: Layer<DispatchService, Service = S>,
    S: Service<ServerCall, Response = Reply> + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    let service = Arc::new(Mutex::new(layer.layer(DispatchService(()))));
    move |inner| Arc::new(Layered { inner, service: Arc::clone(&service) })
}

/// A service of the server inside a layer.
pub struct Layered<S> {
    inner: Arc<dyn Dispatch>,
    service: Arc<Mutex<S>>,
}

impl<S> fmt::Debug for Layered<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Layered").field(&self.inner.descriptor().name).finish()
    }
}

impl<S> Dispatch for Layered<S>
where
    S: Service<ServerCall, Response = Reply> + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    fn descriptor(&self) -> &'static ServiceDescriptor {
        self.inner.descriptor()
    }

    fn dispatch(&self, position: usize, request: Request) -> Handler {
        let descriptor = self.inner.descriptor();
        let Some(method) = descriptor.methods.get(position).copied() else {
            let text = format!("service {} has no method at position {position}", descriptor.name);
            return Handler::ready(Reply::Status(rpc_core::Status::unimplemented(text)));
        };
        let inner = Arc::clone(&self.inner);
        let service = Arc::clone(&self.service);
        Handler::new(request.context.clone(), async move {
            let answered = async {
                let running = {
                    let mut service = service.lock().await;
                    poll_fn(|cx| service.poll_ready(cx)).await?;
                    service.call(ServerCall { inner, method, position, request })
                };
                running.await
            };
            answered
                .await
                .unwrap_or_else(|error: S::Error| Reply::Status(crate::status(error.into())))
        })
    }
}
