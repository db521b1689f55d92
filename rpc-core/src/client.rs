//! Channels and calls, inside one process.
//!
//! Owns the client half of a call: encode, dispatch, wait, decode. Requests go straight to the
//! services of a [`Channel::in_process`] channel; `Channel::connect` finds those that were offered
//! under a `mem://` name.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context as TaskContext, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use rpc_transport::address::Address;
pub use rpc_transport::error::ConnectError;
use rpc_transport::message::Message;
use rpc_transport::outbound::OutBuf;
use rpc_transport::provider::PeerIdentity;
use serde::Serialize;

use crate::codec::Codec;
use crate::context::Context;
use crate::handler::Handler;
use crate::metadata::Metadata;
use crate::service::{Dispatch, MethodDescriptor, Reply, ReplyParts, Request};
use crate::status::Status;

static OFFERED: LazyLock<Mutex<HashMap<Address, Channel>>> = LazyLock::new(Mutex::default);

/// A way to call services. Cheap to clone.
#[derive(Clone)]
pub struct Channel(Arc<Inner>);

struct Inner {
    services: Vec<Arc<dyn Dispatch>>,
    codec: Codec,
    peer: Arc<PeerIdentity>,
}

impl Channel {
    /// A channel to services of this process.
    #[must_use]
    pub fn in_process(services: Vec<Arc<dyn Dispatch>>, codec: Codec) -> Self {
        Self(Arc::new(Inner { services, codec, peer: Arc::new(PeerIdentity::SameProcess) }))
    }

    /// Lets [`Channel::connect`] find this channel under an address.
    ///
    /// # Errors
    /// A text that is no address.
    pub fn offer(&self, address: &str) -> Result<(), ConnectError> {
        OFFERED.lock().insert(address.parse()?, self.clone());
        Ok(())
    }

    /// Connects.
    ///
    /// # Errors
    /// Nothing is offered there.
    pub async fn connect(address: impl AsRef<str>) -> Result<Self, ConnectError> {
        let address: Address = address.as_ref().parse()?;
        let found = OFFERED.lock().get(&address).cloned();
        found.ok_or_else(|| ConnectError::Refused { address, reason: "not offered".to_owned() })
    }

    /// Calls a method. Arguments are encoded at once; nothing is sent before the call is polled
    /// or started.
    pub fn call<O>(
        &self,
        method: &'static MethodDescriptor,
        args: &impl Serialize,
        decode: fn(ReplyParts) -> O,
    ) -> Call<'_, O> {
        let mut body = OutBuf::new();
        let args = match self.0.codec.encode(args, &mut body) {
            Ok(()) => Ok(body),
            Err(error) => Err(crate::__private::unencodable_arguments(method, error)),
        };
        let prepared = Prepared {
            args,
            method,
            decode,
            deadline: Context::current_deadline(),
            metadata: Metadata::new(),
        };
        Call { channel: self, state: State::Prepared(prepared) }
    }

    fn begin<O>(&self, prepared: Prepared<O>) -> StartedCall<O> {
        let Prepared { args, method, decode, deadline, metadata } = prepared;
        let codec = self.0.codec;
        let handler = match args {
            Ok(_) if deadline.is_some_and(|at| at <= Instant::now()) => {
                Err(Status::deadline_exceeded("the deadline had passed before the call"))
            }
            Ok(body) => {
                let context = Context::new()
                    .with_deadline(deadline)
                    .with_metadata(metadata)
                    .with_peer(Arc::clone(&self.0.peer))
                    .with_method(method);
                Ok(self.dispatch(method, Request::new(Message::copied(&body), codec, context)))
            }
            Err(status) => Err(status),
        };
        let expiry = deadline.map(|at| Box::pin(tokio::time::sleep_until(at.into())));
        StartedCall { handler: Some(handler), expiry, codec, method, decode }
    }

    fn dispatch(&self, method: &'static MethodDescriptor, request: Request) -> Handler {
        for service in &self.0.services {
            let descriptor = service.descriptor();
            let Some(position) = descriptor.position(method.id) else { continue };
            let theirs = descriptor.methods[position];
            if theirs.signature_hash != method.signature_hash {
                let text = format!(
                    "{}: the caller's {} is not the service's {}",
                    method.name, method.signature, theirs.signature
                );
                return Handler::ready(Reply::status(&Status::unimplemented(text)));
            }
            return service.dispatch(position, request);
        }
        let text = format!("no service has a method {}", method.name);
        Handler::ready(Reply::status(&Status::unimplemented(text)))
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.services.iter().map(|s| s.descriptor().name)).finish()
    }
}

struct Prepared<O> {
    args: Result<OutBuf, Status>,
    method: &'static MethodDescriptor,
    decode: fn(ReplyParts) -> O,
    deadline: Option<Instant>,
    metadata: Metadata,
}

/// A call: a future, and a builder of what goes with it.
#[must_use = "a call is made when it is awaited or started"]
pub struct Call<'a, O> {
    channel: &'a Channel,
    state: State<O>,
}

enum State<O> {
    Prepared(Prepared<O>),
    Started(StartedCall<O>),
    Done,
}

impl<O> Call<'_, O> {
    fn prepared(&mut self) -> Option<&mut Prepared<O>> {
        match &mut self.state {
            State::Prepared(prepared) => Some(prepared),
            _ => None,
        }
    }

    /// Sets how long to wait.
    pub fn timeout(self, timeout: Duration) -> Self {
        match Instant::now().checked_add(timeout) {
            Some(deadline) => self.deadline(deadline),
            None => self,
        }
    }

    /// Sets when to stop waiting; never later than an inherited deadline.
    pub fn deadline(mut self, deadline: Instant) -> Self {
        if let Some(prepared) = self.prepared() {
            prepared.deadline = Some(prepared.deadline.map_or(deadline, |at| at.min(deadline)));
        }
        self
    }

    /// Sends a value beside the arguments. A bad name or too much of it fails the call.
    pub fn metadata(mut self, name: &str, value: impl Into<Bytes>) -> Self {
        if let Some(prepared) = self.prepared()
            && let Err(error) = prepared.metadata.insert(name, value)
        {
            prepared.args = Err(Status::invalid_argument(error.to_string()));
        }
        self
    }

    /// Sends the request now.
    pub fn start(self) -> StartedCall<O> {
        match self.state {
            State::Prepared(prepared) => self.channel.begin(prepared),
            State::Started(started) => started,
            State::Done => panic!("a call was started after it had finished"),
        }
    }
}

impl<O> Future for Call<'_, O> {
    type Output = O;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<O> {
        let mut started = match std::mem::replace(&mut self.state, State::Done) {
            State::Prepared(prepared) => self.channel.begin(prepared),
            State::Started(started) => started,
            State::Done => panic!("a call was polled after it had finished"),
        };
        let polled = Pin::new(&mut started).poll(cx);
        if polled.is_pending() {
            self.state = State::Started(started);
        }
        polled
    }
}

impl<O> fmt::Debug for Call<'_, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}

/// A call whose request is on its way. Dropping it cancels the call.
#[must_use = "dropping a started call cancels it"]
pub struct StartedCall<O> {
    handler: Option<Result<Handler, Status>>,
    expiry: Option<Pin<Box<tokio::time::Sleep>>>,
    codec: Codec,
    method: &'static MethodDescriptor,
    decode: fn(ReplyParts) -> O,
}

impl<O> Future for StartedCall<O> {
    type Output = O;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<O> {
        let this = &mut *self;
        let expired =
            this.expiry.as_mut().is_some_and(|expiry| expiry.as_mut().poll(cx).is_ready());
        let outcome = match this.handler.as_mut() {
            Some(Ok(_)) if expired => Err(Status::deadline_exceeded("no reply in time")),
            Some(Ok(handler)) => {
                let reply = ready!(handler.poll_caught(cx));
                Ok((reply.kind, Message::copied(&reply.body)))
            }
            Some(Err(status)) => Err(status.clone()),
            None => panic!("a call was polled after it had finished"),
        };
        this.handler = None;
        let parts = ReplyParts { codec: this.codec, method: this.method, outcome };
        Poll::Ready((this.decode)(parts))
    }
}

impl<O> fmt::Debug for StartedCall<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartedCall").field("method", &self.method.name).finish_non_exhaustive()
    }
}
