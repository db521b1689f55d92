//! Sending a server's stream of results.
//!
//! Owns the pump: the part of a handler's future that polls the method's stream and sends its
//! items. The stream stays with the method: it may borrow the service and the arguments, which the
//! same future owns. Items are not boxed, and nothing is spawned.
//!
//! Invariants:
//! 1. The caller learns that its call was accepted before the method's stream is waited for.
//! 2. The stream is dropped as soon as nobody reads it. A caller that is gone drops the whole
//!    handler.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{self, Poll};

use futures::Stream;
use rpc_transport::message::outgoing::OutBuf;

use super::item::{Decode, Encode, ItemEncoder};
use super::producer::{Producer, Step};
use super::receive::Streaming;
use super::stream_ref::{OwnedStreamRef, StreamRef, Streams};
use crate::codec::{Codec, Placement, Pool};
use crate::context::{Begun, Context, copy_to_own_pool};
use crate::method::MethodDescriptor;
use crate::reply::Reply;
use crate::reply::coding::unencodable_item;
use crate::resolution::Decoding;
use crate::session::StreamId;
use crate::status::Status;

/// The streams of a call, as its handler has them.
#[doc(hidden)]
pub struct Port {
    /// `None` for a request that did not come over a connection.
    streams: Option<Box<Streams>>,
    codec: Codec,
    min_part_bytes: usize,
}

/// What a stream gives next.
enum Next<T, R> {
    Item(T),
    LastItem(T, R),
    End(R),
}

impl Port {
    pub(crate) fn new(streams: Option<Box<Streams>>, codec: Codec, min_part_bytes: usize) -> Self {
        Self { streams, codec, min_part_bytes }
    }

    fn stream(&self) -> Option<&OwnedStreamRef> {
        self.streams.as_deref().map(|streams| &streams.stream)
    }

    /// The stream of arguments.
    pub fn receive<T>(&self, method: &'static MethodDescriptor, decode: Decode<T>) -> Streaming<T> {
        let (stream, decoding) = match self.streams.as_deref() {
            Some(streams) => (Some(streams.stream.clone()), streams.decoding.clone()),
            // There are no items.
            None => (None, Decoding::OwnTypes),
        };
        Streaming::of_arguments(stream, self.codec, method, decode, decoding)
    }

    /// Sends all items of a stream.
    ///
    /// # Errors
    /// The reply that says why not all of them could be sent.
    pub async fn pump<S: Stream>(
        &self,
        method: &'static MethodDescriptor,
        stream: S,
        encode: Encode<S::Item>,
    ) -> Result<(), Reply> {
        let mut stream = pin!(stream);
        let next = |cx: &mut task::Context<'_>| {
            stream.as_mut().poll_next(cx).map(|item| item.map_or(Next::End(()), Next::Item))
        };
        self.send_all(method, next, encode).await
    }

    /// Sends all items of a stream that may end with an error.
    ///
    /// # Errors
    /// The reply that says why not all of them could be sent.
    pub async fn pump_results<S, T, E>(
        &self,
        method: &'static MethodDescriptor,
        stream: S,
        encode: Encode<T>,
    ) -> Result<Result<(), E>, Reply>
    where
        S: Stream<Item = Result<T, E>>,
    {
        let mut stream = pin!(stream);
        let next = |cx: &mut task::Context<'_>| {
            stream.as_mut().poll_next(cx).map(|item| match item {
                Some(Ok(item)) => Next::Item(item),
                Some(Err(error)) => Next::End(Err(error)),
                None => Next::End(Ok(())),
            })
        };
        self.send_all(method, next, encode).await
    }

    /// Sends all items of a producer, and gives its output.
    ///
    /// # Errors
    /// The reply that says why not all of them could be sent.
    pub async fn pump_producer<P: Producer>(
        &self,
        method: &'static MethodDescriptor,
        producer: P,
        encode: Encode<P::Item>,
    ) -> Result<P::Output, Reply> {
        let mut producer = pin!(producer);
        let next = |cx: &mut task::Context<'_>| {
            producer.as_mut().poll_step(cx).map(|step| match step {
                Step::Item(item) => Next::Item(item),
                Step::LastItem(item, output) => Next::LastItem(item, output),
                Step::End(output) => Next::End(output),
            })
        };
        self.send_all(method, next, encode).await
    }

    fn send_all<'a, T, R, N>(
        &'a self,
        method: &'static MethodDescriptor,
        next: N,
        encode: Encode<T>,
    ) -> impl Future<Output = Result<R, Reply>> + use<'a, T, R, N>
    where
        N: FnMut(&mut task::Context<'_>) -> Poll<Next<T, R>>,
    {
        let (port, state) = (self, State::Opening { is_accepted: false });
        let mut sending = Sending { port, method, next, encode, state, unsent: None, second: None };
        poll_fn(move |cx| sending.poll(cx))
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("stream", &self.stream()).finish_non_exhaustive()
    }
}

/// How far a stream of results is.
enum State<R> {
    /// Neither an item nor the end was there. Initial metadata may be sent. `is_accepted`: the
    /// caller has learned that its call was accepted.
    Opening { is_accepted: bool },
    /// The first item was there.
    Items,
    /// The stream has ended with this output, which comes behind all frames.
    End(R),
}

/// A stream that is being sent.
struct Sending<'a, T, R, N> {
    port: &'a Port,
    method: &'static MethodDescriptor,
    next: N,
    encode: Encode<T>,
    state: State<R>,
    /// The next frame to be sent.
    unsent: Option<OutBuf>,
    /// The frame behind it: the first item, while the initial metadata is in `unsent`.
    second: Option<OutBuf>,
}

impl<T, R, N> Sending<'_, T, R, N>
where
    N: FnMut(&mut task::Context<'_>) -> Poll<Next<T, R>>,
{
    fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<R, Reply>> {
        let port = self.port;
        let Some(stream) = port.stream() else {
            let name = self.method.name;
            let text = format!("{name}: a method with streams is called over a connection");
            return Poll::Ready(Err(Reply::Status(Status::unimplemented(text))));
        };
        loop {
            std::task::ready!(self.poll_frames(stream.by_ref(), cx))?;
            if let State::End(_) = self.state
                && let State::End(output) = std::mem::replace(&mut self.state, State::Items)
            {
                return Poll::Ready(Ok(output));
            }
            let step = std::task::ready!(tokio::task::coop::poll_proceed(cx));
            let Poll::Ready(next) = (self.next)(cx) else {
                if let State::Opening { is_accepted } = self.state {
                    return self.poll_opening(stream, is_accepted, cx);
                }
                return Poll::Pending;
            };
            step.made_progress();
            let (item, output) = match next {
                Next::Item(item) => (Some(item), None),
                Next::LastItem(item, output) => (Some(item), Some(output)),
                Next::End(output) => (None, Some(output)),
            };
            // Before the initial metadata: that goes with the reply if the first item cannot be
            // encoded.
            let frame = item.map(|item| self.encoded(item)).transpose()?;
            if let State::Opening { is_accepted } = self.state {
                self.begin(stream, is_accepted || frame.is_some());
            }
            if let (Some(frame), Some(counters)) = (&frame, &stream.counters) {
                counters.on_sent(frame.total_len());
            }
            match self.unsent {
                None => self.unsent = frame,
                Some(_) => self.second = frame,
            }
            self.state = output.map_or(State::Items, State::End);
        }
    }

    /// Ready when the session has taken all frames.
    #[inline]
    fn poll_frames(
        &mut self,
        stream: StreamRef<'_>,
        cx: &task::Context<'_>,
    ) -> Poll<Result<(), Reply>> {
        while self.unsent.is_some() {
            if let Err(why) = std::task::ready!(stream.poll_send(cx, &mut self.unsent)) {
                self.unsent = None;
                return Poll::Ready(Err(Reply::Status(why.into_status(self.method))));
            }
            self.unsent = self.second.take();
        }
        Poll::Ready(Ok(()))
    }

    /// The method's stream is pending, and will have the task woken. Sends the initial metadata, or
    /// else that the call was accepted.
    fn poll_opening(
        &mut self,
        stream: &OwnedStreamRef,
        is_accepted: bool,
        cx: &task::Context<'_>,
    ) -> Poll<Result<R, Reply>> {
        self.unsent = initial_metadata(stream);
        if self.unsent.is_none() && !is_accepted {
            accept(stream);
        }
        self.state = State::Opening { is_accepted: true };
        match self.poll_frames(stream.by_ref(), cx) {
            Poll::Ready(Err(reply)) => Poll::Ready(Err(reply)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    }

    /// The first item or the end is there. The initial metadata goes in front of it, if there is
    /// any. An error as the first thing must not be taken for a refusal, so the caller learns first
    /// that its call was accepted. Items say so themselves.
    #[cold]
    fn begin(&mut self, stream: &OwnedStreamRef, is_accepted: bool) {
        self.unsent = initial_metadata(stream);
        Context::set_begun(Begun::Items);
        if self.unsent.is_none() && !is_accepted {
            accept(stream);
        }
    }

    #[inline]
    fn encoded(&self, item: T) -> Result<OutBuf, Reply> {
        let Port { codec, min_part_bytes, .. } = *self.port;
        let placement = Placement { min_part_bytes, pool: Pool::Ask(copy_to_own_pool) };
        ItemEncoder::encode(item, self.encode, codec, placement, self.method)
            .map_err(|error| Reply::Status(unencodable_item(self.method, error)))
    }
}

/// The initial metadata, if there is any that has not left. It says that the call was accepted.
fn initial_metadata(stream: &OwnedStreamRef) -> Option<OutBuf> {
    if !Context::has_initial() {
        return None;
    }
    // A peer that does not take it gets it with the reply.
    stream.by_ref().with(|peer| peer.session.takes_initial_metadata()).filter(|takes| *takes)?;
    let metadata = Context::take_initial();
    let mut encoded = OutBuf::new();
    metadata.encode(&mut encoded);
    let mut frame = OutBuf::new();
    frame.prepend_marked(&encoded);
    if let Some(counters) = &stream.counters {
        counters.on_initial(metadata);
    }
    Some(frame)
}

/// Lets the caller know that its call was accepted.
fn accept(stream: &OwnedStreamRef) {
    if let StreamId::Incoming(id) = stream.id {
        // The handler of a caller that is gone is stopped.
        let _ = stream.by_ref().with(|peer| peer.session.accept(id));
    }
}
