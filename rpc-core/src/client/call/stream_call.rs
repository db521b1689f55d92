//! Calls with streams, as users hold them.
//!
//! Owns the two futures: of a call that gives a stream ([`StreamCall`]) and of one that takes a
//! stream and gives one result ([`UploadCall`]). What they have in common with other calls is in
//! `raw_call`.

use std::fmt;
use std::future::{Future, poll_fn};
use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rpc_transport::engine::clock;
use rpc_transport::protocol::config::WhenFull;

use super::raw_call::RawCall;
use super::raw_call::streaming::Accepted;
use crate::channel::rendezvous::stable_hash;
use crate::metadata::Metadata;
use crate::service::ReplyParts;
use crate::status::Status;
use crate::stream::Streaming;
use crate::stream::item::Decode;
use crate::stream::upload::{NoUpload, Pump};

/// How the pieces of a stream of results are decoded.
#[doc(hidden)]
pub struct StreamDecoders<T, R, E, X> {
    item: Decode<T>,
    end: fn(ReplyParts) -> Result<R, E>,
    refusal: fn(ReplyParts) -> Result<(), X>,
}

impl<T, R, E, X> StreamDecoders<T, R, E, X> {
    /// Made by generated clients.
    pub fn new(
        item: Decode<T>,
        end: fn(ReplyParts) -> Result<R, E>,
        refusal: fn(ReplyParts) -> Result<(), X>,
    ) -> Self {
        Self { item, end, refusal }
    }
}

impl<T, R, E, X> fmt::Debug for StreamDecoders<T, R, E, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamDecoders")
    }
}

/// A call of a method that returns a stream. Awaiting it sends the request, waits until the server
/// has accepted or refused the call, and returns a [`Streaming`]. Dropping either cancels the call.
///
/// `X` is the error of a refusal. `U` sends the stream of arguments, if there is one, whenever the
/// call or the returned stream is polled.
#[must_use = "a call does nothing until it is awaited or started"]
pub struct StreamCall<'a, T, R = (), E = Status, X = Status, U = NoUpload> {
    call: RawCall<'a>,
    upload: Option<U>,
    decoders: StreamDecoders<T, R, E, X>,
}

/// A call of a method that takes a stream and returns one result, `O`. Awaiting it sends the
/// request and the items, and waits for the outcome. If the outcome arrives before all items were
/// sent, the source is dropped. Dropping the call cancels it.
#[must_use = "a call does nothing until it is awaited or started"]
pub struct UploadCall<'a, O, U> {
    call: RawCall<'a>,
    upload: U,
    decode: fn(ReplyParts) -> O,
}

/// What both have of a [`Call`](super::Call).
macro_rules! options {
    () => {
        /// As [`Call::timeout`](super::Call::timeout), for the whole call with its streams. If the
        /// method has `stream_deadline = "idle"`, the time starts anew with each item, in either
        /// direction. Without a timeout only the channel's
        /// [`default_timeout`](crate::ChannelBuilder::default_timeout) counts, and only until the
        /// server has taken the call.
        pub fn timeout(self, timeout: Duration) -> Self {
            match clock::now().checked_add(timeout) {
                Some(deadline) => self.deadline(deadline),
                None => self.no_timeout(),
            }
        }

        /// As [`Call::no_timeout`](super::Call::no_timeout).
        pub fn no_timeout(mut self) -> Self {
            self.call.unlimited();
            self
        }

        /// As [`Call::deadline`](super::Call::deadline).
        pub fn deadline(mut self, deadline: Instant) -> Self {
            self.call.bring_forward(deadline);
            self
        }

        /// As [`Call::wait_for_ready`](super::Call::wait_for_ready). A call that has begun is never
        /// resumed on another connection.
        pub fn wait_for_ready(mut self, wait: bool) -> Self {
            self.call.wait_for_ready(wait);
            self
        }

        /// As [`Call::when_full`](super::Call::when_full).
        pub fn when_full(mut self, when_full: WhenFull) -> Self {
            self.call.when_full(when_full);
            self
        }

        /// As [`Call::affinity`](super::Call::affinity).
        pub fn affinity(mut self, key: impl Hash) -> Self {
            self.call.affinity(stable_hash(&key));
            self
        }

        /// As [`Call::metadata`](super::Call::metadata).
        pub fn metadata(mut self, key: &str, value: impl Into<Bytes>) -> Self {
            self.call.add_metadata(key, value.into());
            self
        }
    };
}

impl<'a, T, R, E, X, U> StreamCall<'a, T, R, E, X, U> {
    pub(crate) fn new(call: RawCall<'a>, upload: U, decoders: StreamDecoders<T, R, E, X>) -> Self {
        Self { call, upload: Some(upload), decoders }
    }

    options!();

    /// Sends the request now, if the channel is connected, and ends the borrow of the channel, so
    /// that the call can be spawned, or awaited together with others.
    pub fn start(mut self) -> StreamCall<'static, T, R, E, X, U> {
        self.call.start();
        let Self { call, upload, decoders } = self;
        StreamCall { call: call.into_detached(), upload, decoders }
    }
}

// Nothing in it is pinned: sources are boxed.
impl<T, R, E, X, U> Unpin for StreamCall<'_, T, R, E, X, U> {}

impl<T, R, E, X, U> Future for StreamCall<'_, T, R, E, X, U>
where
    E: From<Status>,
    X: From<Status>,
    U: Pump,
{
    type Output = Result<Streaming<T, R, E, U>, X>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let step = std::task::ready!(tokio::task::coop::poll_proceed(cx));
        std::task::ready!(this.call.begin(cx));
        if let (Some(pumped), Some(upload)) = (this.call.pumped(), &mut this.upload) {
            // Pending or not: the server may have answered.
            let _ = upload.poll_pump(cx, &pumped);
        }
        let accepted = std::task::ready!(this.call.poll_accepted(cx));
        step.made_progress();
        let upload = this.upload.take();
        Poll::Ready(match (accepted, upload) {
            (Accepted::Yes(decoding), Some(upload)) => {
                let StreamDecoders { item, end, .. } = this.decoders;
                // Sent already: this only makes it independent of the channel's borrow.
                let call = this.call.detached();
                Ok(Streaming::of_results(call, item, end, upload, decoding))
            }
            (Accepted::Yes(_), None) => panic!("a `StreamCall` was polled after completion"),
            (Accepted::No(mut found), upload) => {
                let own = upload.and_then(|mut upload| upload.end());
                if let Some(status) = own.clone() {
                    found = this.call.end_by_source(&found, status);
                }
                let parts = this.call.finish(found).of_refusal();
                let error = match own {
                    Some(status) => status.into(),
                    None => match (this.decoders.refusal)(parts) {
                        Err(error) => error,
                        Ok(()) => Status::internal("a refusal without an error").into(),
                    },
                };
                Err(error)
            }
        })
    }
}

impl<T, R, E, X, U> fmt::Debug for StreamCall<'_, T, R, E, X, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.call.fmt(f)
    }
}

impl<'a, O, U> UploadCall<'a, O, U> {
    pub(crate) fn new(call: RawCall<'a>, upload: U, decode: fn(ReplyParts) -> O) -> Self {
        Self { call, upload, decode }
    }

    options!();

    /// Sends the request now, if the channel is connected, and ends the borrow of the channel, so
    /// that the call can be spawned, or awaited together with others. Items are sent when it is
    /// polled.
    pub fn start(mut self) -> UploadCall<'static, O, U> {
        self.call.start();
        let Self { call, upload, decode } = self;
        UploadCall { call: call.into_detached(), upload, decode }
    }
}

// Nothing in it is pinned: sources are boxed.
impl<O, U> Unpin for UploadCall<'_, O, U> {}

impl<O, U: Pump> UploadCall<'_, O, U> {
    /// As [`Call::with_metadata`](super::Call::with_metadata).
    pub async fn with_metadata(mut self) -> (O, Metadata) {
        let mut parts = poll_fn(|cx| self.poll_parts(cx)).await;
        let metadata = parts.take_metadata();
        ((self.decode)(parts), metadata)
    }

    fn poll_parts(&mut self, cx: &mut Context<'_>) -> Poll<ReplyParts> {
        let step = std::task::ready!(tokio::task::coop::poll_proceed(cx));
        std::task::ready!(self.call.begin(cx));
        if let Some(pumped) = self.call.pumped() {
            // Pending or not: the outcome may have come.
            let _ = self.upload.poll_pump(cx, &pumped);
        }
        let attempt = self.call.attempt();
        let Poll::Ready(mut found) = self.call.poll(cx) else {
            if self.call.attempt() != attempt {
                // It was sent again: its items may leave.
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        };
        step.made_progress();
        if let Some(status) = self.upload.end() {
            found = self.call.end_by_source(&found, status);
        }
        Poll::Ready(self.call.finish(found))
    }
}

impl<O, U: Pump> Future for UploadCall<'_, O, U> {
    type Output = O;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<O> {
        let this = self.get_mut();
        this.poll_parts(cx).map(this.decode)
    }
}

impl<O, U> fmt::Debug for UploadCall<'_, O, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.call.fmt(f)
    }
}
