//! A call: a future that is sent when first polled, and cancelled when dropped.
//!
//! Owns the options of a call and the decoding of its result. All that does not depend on the type
//! of the result is in `raw_call`.

pub(crate) mod raw_call;
pub(crate) mod stream_call;

use std::fmt;
use std::future::{Future, poll_fn};
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rpc_transport::engine::clock;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::protocol::config::WhenFull;

use self::raw_call::RawCall;
use crate::bulk::Landing;
use crate::channel::hedging::HedgingPolicy;
use crate::channel::rendezvous::stable_hash;
use crate::client::shared::Shared;
use crate::metadata::Metadata;
use crate::service::{MethodDescriptor, ReplyParts};
use crate::status::Status;

/// A call that was started without awaiting it ([`Call::start`]).
pub type StartedCall<O> = Call<'static, O>;

/// A call of a method, made by a generated client. Awaiting it sends the request and waits for the
/// outcome; dropping it cancels the call, and its handler with it.
#[must_use = "a call does nothing until it is awaited or started"]
pub struct Call<'a, O> {
    call: RawCall<'a>,
    decode: fn(ReplyParts) -> O,
}

impl<'a, O> Call<'a, O> {
    #[inline]
    pub(crate) fn new(
        channel: &'a Arc<Shared>,
        method: &'static MethodDescriptor,
        body: OutBuf,
        decode: fn(ReplyParts) -> O,
    ) -> Self {
        Self { call: RawCall::new(channel, method, Some(body)), decode }
    }

    /// A call that ends with `status`, and sends nothing.
    #[cold]
    pub(crate) fn failed_early(
        channel: &'a Arc<Shared>,
        method: &'static MethodDescriptor,
        status: Status,
        decode: fn(ReplyParts) -> O,
    ) -> Self {
        let mut call = RawCall::new(channel, method, None);
        call.fail(status);
        Self { call, decode }
    }

    /// Ends the call with [`DeadlineExceeded`](crate::Code::DeadlineExceeded) after `timeout` from
    /// now, at both ends. This replaces the channel's
    /// [`default_timeout`](crate::ChannelBuilder::default_timeout), whether longer or shorter. If
    /// an earlier deadline was set on the call, or is inherited from the handler that makes it,
    /// that one holds. `Duration::MAX` is [`Call::no_timeout`].
    ///
    /// ```
    /// # #[rpc_core::service] pub trait Reports { async fn make(&self, year: u16) -> String; }
    /// # async fn make() -> Result<(), Box<dyn std::error::Error>> {
    /// use rpc_core::Channel;
    /// use std::time::Duration;
    ///
    /// let second = Duration::from_secs(1);
    /// let channel = Channel::builder().default_timeout(Some(second))
    ///     .connect("auto://10.0.0.7:7471").await?;
    /// let reports = ReportsClient::new(channel);
    /// reports.make(2025).await?; // has a second
    /// reports.make(2025).timeout(20 * second).await?; // has twenty
    /// reports.make(2025).no_timeout().await?; // has as long as it takes
    /// # Ok(()) }
    /// ```
    pub fn timeout(self, timeout: Duration) -> Self {
        match clock::now().checked_add(timeout) {
            Some(deadline) => self.deadline(deadline),
            None => self.no_timeout(),
        }
    }

    /// Lets the call take any time: removes a deadline that was set on it, and the channel's
    /// [`default_timeout`](crate::ChannelBuilder::default_timeout). A deadline that it inherits
    /// from the handler that makes it still holds.
    pub fn no_timeout(mut self) -> Self {
        self.call.unlimited();
        self
    }

    /// Ends the call with [`DeadlineExceeded`](crate::Code::DeadlineExceeded) at `deadline`, at
    /// both ends, instead of the channel's
    /// [`default_timeout`](crate::ChannelBuilder::default_timeout). The earliest of several
    /// deadlines counts. Deadlines use tokio's clock: in a test that has paused it, the current
    /// time is `tokio::time::Instant::now().into_std()`.
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.call.bring_forward(deadline);
        self
    }

    /// Adds a key and a value that the handler reads from
    /// [`Context::current`](crate::context::Context::current).
    ///
    /// With an invalid key, or too much metadata in all, the call fails with
    /// [`InvalidArgument`](crate::Code::InvalidArgument).
    pub fn metadata(mut self, key: &str, value: impl Into<Bytes>) -> Self {
        self.call.add_metadata(key, value.into());
        self
    }

    /// Whether the call waits for a connection while there is none, until its deadline; see
    /// [`ChannelBuilder::wait_for_ready`](crate::ChannelBuilder::wait_for_ready), whose value is
    /// the default.
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.call.wait_for_ready(wait);
        self
    }

    /// Whether the call waits or fails if its connection is full. Overrides
    /// [`ChannelBuilder::when_full`](crate::ChannelBuilder::when_full).
    ///
    /// ```
    /// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
    /// # async fn greet(greeter: GreeterClient) -> Result<(), rpc_core::Status> {
    /// use rpc_core::Code;
    /// use rpc_core::transport::WhenFull;
    ///
    /// match greeter.greet().when_full(WhenFull::Refuse).await {
    ///     Err(status) if status.code() == Code::ResourceExhausted => {} // later, or elsewhere
    ///     greeting => println!("{}", greeting?),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.call.when_full(when_full);
        self
    }

    /// Whether, and when, the call gets a second attempt while its first one runs. Overrides
    /// [`ChannelBuilder::hedging`](crate::ChannelBuilder::hedging). The share of calls that may
    /// have a second attempt is counted for the whole channel.
    pub fn hedging(mut self, policy: impl Into<Option<HedgingPolicy>>) -> Self {
        self.call.hedging(policy.into());
        self
    }

    /// Sends the call to the server of this key: of a channel to several servers, calls of equal
    /// keys go to the same one, from every client, as long as it is ready. For caches and shards.
    /// When servers come or go, only the keys of those move. A server that has more than 1.25 times
    /// the mean of this channel's calls in flight passes calls on to the next one in the key's
    /// order. Weights and zones do not count within a priority. Without effect on a channel to one.
    ///
    /// All clients must hash the key in the same way: use types whose `Hash` is the same on all of
    /// them, such as strings, byte strings and integers of a fixed size.
    ///
    /// ```
    /// # #[rpc_core::service] pub trait Kv { async fn get(&self, key: &str) -> Option<String>; }
    /// # async fn get(kv: KvClient) -> Result<(), rpc_core::Status> {
    /// let value = kv.get("user-17").affinity("user-17").await?;
    /// # Ok(()) }
    /// ```
    pub fn affinity(mut self, key: impl Hash) -> Self {
        self.call.affinity(stable_hash(&key));
        self
    }

    /// Chooses the memory for the large part of the reply: the [`Bulk`](crate::Bulk)s of the result
    /// that are sent separately from its body are then placed there, in the reply's order. If the
    /// reply needs more room, or has nothing large, this has no effect.
    ///
    /// Into a [`BulkMut`](crate::bulk::BulkMut) it is copied once. It is private there, and
    /// [`Bulk::try_into_mut`](crate::Bulk::try_into_mut) gives the buffer back for the next call.
    /// Into a [`ReplySlot`](crate::bulk::ReplySlot) of this channel's pool the server writes it
    /// itself: no copy is made, and the result is remote.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use rpc_core::{Bulk, Channel, Server};
    /// # #[rpc_core::service] trait Source { async fn give(&self, len: u32) -> Bulk; }
    /// # struct Zeros;
    /// # impl Source for Zeros {
    /// #     async fn give(&self, len: u32) -> Bulk { Bulk::from(vec![0; len as usize]) }
    /// # }
    /// # let server = Server::builder().add_service(SourceServer::new(Zeros))
    /// #     .bind("mem://into").await?;
    /// # tokio::spawn(server.serve());
    /// let source = SourceClient::connect("mem://into").await?;
    /// let mut buffer = source.channel().bulk_pool().take(1 << 20)?;
    /// for _ in 0..3 {
    ///     let bulk = source.give(1 << 20).into(buffer).await?;
    ///     assert_eq!(bulk.as_slice().map(<[u8]>::len), Some(1 << 20));
    ///     buffer = bulk.try_into_mut().expect("nobody else has it");
    /// }
    /// let slot = source.channel().bulk_pool().slot(1 << 20)?;
    /// let bulk = source.give(1 << 20).into(slot).await?;
    /// assert_eq!((bulk.is_remote(), bulk.to_vec()?), (true, vec![0; 1 << 20]));
    /// # Ok(()) }
    /// ```
    pub fn into(mut self, landing: impl Into<Landing>) -> Self {
        self.call.land_in(landing.into());
        self
    }

    /// Makes the call, and returns its outcome with the metadata of the reply, which the handler
    /// sets by [`Context::set_reply_metadata`](crate::Context::set_reply_metadata).
    pub async fn with_metadata(mut self) -> (O, Metadata) {
        let found = poll_fn(|cx| self.call.poll(cx)).await;
        let mut parts = self.call.finish(found);
        let metadata = parts.take_metadata();
        ((self.decode)(parts), metadata)
    }

    /// Ends the borrow of the channel without sending anything, for calls that are awaited later or
    /// elsewhere.
    pub fn into_owned(self) -> Call<'static, O> {
        Call { call: self.call.into_detached(), decode: self.decode }
    }

    /// Sends the request now, if the channel is connected, and ends the borrow of the channel,
    /// so that the call can be spawned, or awaited together with others. A channel that is not
    /// connected begins to connect; the request then leaves when the call is awaited.
    pub fn start(mut self) -> Call<'static, O> {
        self.call.start();
        self.into_owned()
    }
}

impl<O> Future for Call<'_, O> {
    type Output = O;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<O> {
        let this = self.get_mut();
        let found = std::task::ready!(this.call.poll(cx));
        Poll::Ready((this.decode)(this.call.finish(found)))
    }
}

impl<O> fmt::Debug for Call<'_, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.call.fmt(f)
    }
}
