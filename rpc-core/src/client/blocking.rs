//! Calls that block the calling thread, for programs without a runtime.
//!
//! A thread of its own drives the connection, and ends with the last that holds it: clones of the
//! client, and streams of their calls. Where a call would block a runtime, it panics instead, at
//! once. In a child of `fork(2)`, where the thread is missing, calls fail at once: connect anew
//! there.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;

use rpc_transport::device::connection_error::ConnectError;
use rpc_transport::device::{ProviderError, open_files};
use rpc_transport::protocol::config::WhenFull;

use crate::channel::hedging::HedgingPolicy;
use crate::client::Channel;
use crate::client::call::stream_call::StreamDecoders;
use crate::metadata::Metadata;
use crate::runtime::driver_thread::{DriverThread, refuse_inside_a_runtime};
use crate::service::{MethodDescriptor, ReplyParts};
use crate::status::Status;
use crate::stream::BlockingStreaming;
use crate::stream::upload::Pump;

/// The options of a blocking channel, on a call of any kind.
macro_rules! with_options {
    ($channel:ident, $call:ident) => {{
        let mut call = $call;
        if let Some(timeout) = $channel.timeout {
            call = call.timeout(timeout);
        }
        if let Some(deadline) = $channel.deadline {
            call = call.deadline(deadline);
        }
        if let Some(wait) = $channel.wait_for_ready {
            call = call.wait_for_ready(wait);
        }
        if let Some(when_full) = $channel.when_full {
            call = call.when_full(when_full);
        }
        for (key, value) in &$channel.metadata {
            call = call.metadata(key, value.clone());
        }
        call
    }};
}

/// A channel whose calls block. Cheap to clone; clones share one connection and its thread.
///
/// # Example
/// ```no_run
/// # #[rpc_core::service] pub trait Greeter { async fn greet(&self, name: &str) -> String; }
/// let greeter = GreeterBlockingClient::connect("auto://10.0.0.7:7471")?;
/// println!("{}", greeter.greet("Ada")?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct BlockingChannel {
    channel: Channel,
    timeout: Option<Duration>,
    deadline: Option<Instant>,
    wait_for_ready: Option<bool>,
    when_full: Option<WhenFull>,
    hedging: Option<Option<HedgingPolicy>>,
    metadata: Vec<(String, Bytes)>,
    replies: Option<Arc<Mutex<Metadata>>>,
    driver: Arc<DriverThread>,
}

impl BlockingChannel {
    /// Starts the thread and connects. Addresses are those of [`Channel::connect`].
    ///
    /// # Errors
    /// As [`Channel::connect`], and when no thread can be started.
    ///
    /// # Panics
    /// Inside a runtime (see [`BlockingChannel::call`]).
    pub fn connect(address: impl AsRef<str>) -> Result<Self, ConnectError> {
        Self::connect_with(Channel::connect(address))
    }

    /// Starts the thread and connects by `connecting`, for example with the options of a builder.
    ///
    /// ```no_run
    /// use rpc_core::client::blocking::BlockingChannel;
    /// use rpc_core::Channel;
    /// use rpc_core::client::RetryPolicy;
    ///
    /// let builder = Channel::builder().wait_for_ready(true).retry(RetryPolicy::new());
    /// let channel =
    ///     BlockingChannel::connect_with(async { builder.connect_lazy("auto://10.0.0.7:7471") })?;
    /// # Ok::<(), rpc_core::ConnectError>(())
    /// ```
    ///
    /// # Errors
    /// As `connecting`, and when no thread can be started.
    ///
    /// # Panics
    /// Inside a runtime (see [`BlockingChannel::call`]).
    pub fn connect_with(
        connecting: impl Future<Output = Result<Channel, ConnectError>>,
    ) -> Result<Self, ConnectError> {
        refuse_inside_a_runtime();
        let driver =
            DriverThread::start("rpc-blocking").map_err(|error| ProviderError::Resources {
                what: "starting the thread of a blocking client",
                message: open_files::explain(&error),
            })?;
        let channel = driver.wait(connecting)?;
        Ok(Self {
            channel,
            timeout: None,
            deadline: None,
            wait_for_ready: None,
            when_full: None,
            hedging: None,
            metadata: Vec::new(),
            replies: None,
            driver: Arc::new(driver),
        })
    }

    /// Sets how long each call may take, like [`Call::timeout`](crate::Call::timeout);
    /// `Duration::MAX` is no limit. Default: the channel's
    /// [`default_timeout`](crate::ChannelBuilder::default_timeout).
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets whether each call waits for a connection while there is none, as
    /// [`Call::wait_for_ready`](crate::Call::wait_for_ready) does.
    #[must_use]
    pub fn with_wait_for_ready(mut self, wait: bool) -> Self {
        self.wait_for_ready = Some(wait);
        self
    }

    /// Ends each call at `deadline`, like [`Call::deadline`](crate::Call::deadline), for several
    /// calls that share a time limit. With a timeout as well, the earlier one counts.
    ///
    /// ```no_run
    /// # #[rpc_core::service] pub trait Greeter { async fn greet(&self, name: &str) -> String; }
    /// use std::time::{Duration, Instant};
    ///
    /// let greeter = GreeterBlockingClient::connect("auto://10.0.0.7:7471")?;
    /// let until = Instant::now() + Duration::from_secs(1);
    /// let hurried = GreeterBlockingClient::new(greeter.channel().clone().with_deadline(until));
    /// println!("{} {}", hurried.greet("Ada")?, hurried.greet("Grace")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets whether each call waits or fails if its connection is full, like
    /// [`Call::when_full`](crate::Call::when_full).
    #[must_use]
    pub fn with_when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = Some(when_full);
        self
    }

    /// Sets whether and when each call gets a second attempt while its first one runs, as
    /// [`Call::hedging`](crate::Call::hedging) does.
    #[must_use]
    pub fn with_hedging(mut self, policy: impl Into<Option<HedgingPolicy>>) -> Self {
        self.hedging = Some(policy.into());
        self
    }

    /// Adds a key and a value to each call, as [`Call::metadata`](crate::Call::metadata) does.
    #[must_use]
    pub fn with_metadata(mut self, key: &str, value: impl Into<Bytes>) -> Self {
        self.metadata.push((key.to_owned(), value.into()));
        self
    }

    /// Stores the metadata of each reply in `place`, replacing the metadata of the reply before:
    /// the counterpart of [`Call::with_metadata`](crate::Call::with_metadata). For streams of
    /// results see [`BlockingStreaming::metadata`].
    ///
    /// ```no_run
    /// # #[rpc_core::service] pub trait Greeter { async fn greet(&self, name: &str) -> String; }
    /// use std::sync::{Arc, Mutex};
    ///
    /// let greeter = GreeterBlockingClient::connect("auto://10.0.0.7:7471")?;
    /// let seen = Arc::new(Mutex::default());
    /// let channel = greeter.channel().clone().with_reply_metadata(Arc::clone(&seen));
    /// GreeterBlockingClient::new(channel).greet("Ada")?;
    /// println!("{:?}", seen.lock().expect("not poisoned").text("served-by"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_reply_metadata(mut self, place: Arc<Mutex<Metadata>>) -> Self {
        self.replies = Some(place);
        self
    }

    /// Stops serving for all clones of the channel, like [`Channel::stop_serving`], and waits until
    /// it is done.
    ///
    /// ```no_run
    /// use rpc_core::client::blocking::BlockingChannel;
    /// use std::time::Duration;
    ///
    /// # #[rpc_core::service] pub trait Reader { async fn article(&self); }
    /// # struct Paper; impl Reader for Paper { async fn article(&self) {} }
    /// let builder = rpc_core::Channel::builder().serve(ReaderServer::new(Paper));
    /// let channel = BlockingChannel::connect_with(builder.connect("auto://10.0.0.7:7471"))?;
    /// if !channel.stop_serving(Duration::from_secs(10)) {
    ///     eprintln!("a call of the server is cut");
    /// }
    /// # Ok::<(), rpc_core::ConnectError>(())
    /// ```
    ///
    /// # Panics
    /// As [`BlockingChannel::call`].
    #[must_use = "returns whether calls of the server were cut off"]
    pub fn stop_serving(&self, grace: Duration) -> bool {
        refuse_inside_a_runtime();
        self.driver.wait(self.channel.stop_serving(grace))
    }

    /// Waits for a call, and keeps the metadata of its reply.
    fn wait_with_metadata<O>(
        &self,
        place: &Mutex<Metadata>,
        call: impl Future<Output = (O, Metadata)>,
    ) -> O {
        let (output, metadata) = self.driver.wait(call);
        *place.lock().unwrap_or_else(PoisonError::into_inner) = metadata;
        output
    }

    /// Calls a method and waits for the reply.
    ///
    /// # Panics
    /// On a thread that drives asynchronous tasks, which it would block: use the asynchronous
    /// client there, or `tokio::task::spawn_blocking`.
    pub fn call<O>(
        &self,
        method: &'static MethodDescriptor,
        args: &impl Serialize,
        decode: fn(ReplyParts) -> O,
    ) -> O {
        refuse_inside_a_runtime();
        let call = self.channel.call(method, args, decode);
        let mut call = with_options!(self, call);
        if let Some(policy) = self.hedging {
            call = call.hedging(policy);
        }
        match &self.replies {
            Some(place) => self.wait_with_metadata(place, call.with_metadata()),
            None => self.driver.wait(call),
        }
    }

    /// Calls a method that returns a stream, and waits until the server has accepted the call.
    ///
    /// # Errors
    /// The error with which the server refused the call.
    ///
    /// # Panics
    /// As [`BlockingChannel::call`].
    pub fn call_stream<T, R, E, X, U>(
        &self,
        method: &'static MethodDescriptor,
        args: &impl Serialize,
        upload: U,
        decoders: StreamDecoders<T, R, E, X>,
    ) -> Result<BlockingStreaming<T, R, E, U>, X>
    where
        E: From<Status>,
        X: From<Status>,
        U: Pump,
    {
        refuse_inside_a_runtime();
        let call = self.channel.call_stream(method, args, upload, decoders);
        let call = with_options!(self, call);
        let stream = self.driver.wait(call)?;
        Ok(BlockingStreaming::new(stream, Arc::clone(&self.driver)))
    }

    /// Calls a method that takes a stream, sends it and waits for the reply.
    ///
    /// # Panics
    /// As [`BlockingChannel::call`].
    pub fn call_upload<O, U: Pump>(
        &self,
        method: &'static MethodDescriptor,
        args: &impl Serialize,
        upload: U,
        decode: fn(ReplyParts) -> O,
    ) -> O {
        refuse_inside_a_runtime();
        let call = self.channel.call_upload(method, args, upload, decode);
        let call = with_options!(self, call);
        match &self.replies {
            Some(place) => self.wait_with_metadata(place, call.with_metadata()),
            None => self.driver.wait(call),
        }
    }
}
