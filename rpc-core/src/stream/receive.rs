//! Reading a stream.
//!
//! Owns the reader's side of both directions: items are taken from the session and decoded, and
//! the kinds of an end are distinguished.
//!
//! Invariants:
//! 1. Items that have arrived are given before any end.
//! 2. A reader that is dropped before the end stops the sender: a client's cancels the call, a
//!    server's gives up the arguments alone.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::message::received::Message;

use super::call::ResultsCall;
use super::end::StreamEnd;
use super::item::Decode;
use super::producer::{Producer, Step};
use super::stream_ref::OwnedStreamRef;
use super::upload::{NoUpload, Pump};
use crate::bulk::{Bulk, PieceReader};
use crate::codec::Codec;
use crate::metadata::Metadata;
use crate::method::MethodDescriptor;
use crate::reply::ReplyParts;
use crate::resolution::Decoding;
use crate::session::{self, ReadItem};
use crate::status::{Code, Status};

/// The items that the other end sends, in order.
///
/// A server gets it as the last argument of a method, a client from a call of a method that returns
/// `impl Stream`. It is a [`Stream`] of `Result<T, E>`, and has methods for the common steps. An
/// error is the last item.
///
/// `R` is the value after the items, for methods that return a
/// [`Producer`](crate::stream::Producer). `E` is [`Status`], or
/// [`CallError<E>`](crate::CallError) where the stream may end with the method's own error.
///
/// Dropping it stops the sender, whose source is dropped at once; at a client it also cancels the
/// call.
#[must_use = "a stream that is dropped is stopped"]
pub struct Streaming<T, R = (), E = Status, U = NoUpload> {
    side: Side<R, E, U>,
    codec: Codec,
    method: &'static MethodDescriptor,
    decode: Decode<T>,
    /// How items are decoded.
    decoding: Decoding,
    end: Option<StreamEnd>,
    /// The value after the items, once they have ended.
    output: Option<R>,
}

/// Which end of the connection reads.
enum Side<R, E, U> {
    /// A client reads results.
    Results(Box<Results<R, E, U>>),
    /// A server reads arguments.
    /// `None`: the request did not come over a connection, so there are none.
    Arguments(Option<OwnedStreamRef>),
}

struct Results<R, E, U, C: ?Sized = dyn ResultsCall> {
    decode_end: fn(ReplyParts) -> Result<R, E>,
    upload: U,
    /// Came with the end.
    metadata: Metadata,
    /// Came before the items.
    initial: Metadata,
    /// The first thing has been read: the initial metadata, or what is kept in `first`.
    has_begun: bool,
    first: Option<Read<R, E>>,
    /// Neither is looked at any more.
    is_under_way: bool,
    // Last, so that its type need not be known.
    call: C,
}

impl<T> Streaming<T> {
    /// A stream of arguments.
    pub(crate) fn of_arguments(
        stream: Option<OwnedStreamRef>,
        codec: Codec,
        method: &'static MethodDescriptor,
        decode: Decode<T>,
        decoding: Decoding,
    ) -> Self {
        let side = Side::Arguments(stream);
        Self { side, codec, method, decode, decoding, end: None, output: Some(()) }
    }
}

impl<T, R, E, U> Streaming<T, R, E, U> {
    /// A stream of results.
    pub(crate) fn of_results(
        call: impl ResultsCall + 'static,
        decode: Decode<T>,
        decode_end: fn(ReplyParts) -> Result<R, E>,
        upload: U,
        decoding: Decoding,
    ) -> Self {
        let (codec, method) = (call.codec(), call.method());
        let results: Box<Results<R, E, U>> = Box::new(Results {
            decode_end,
            upload,
            metadata: Metadata::new(),
            initial: Metadata::new(),
            has_begun: false,
            first: None,
            is_under_way: false,
            call,
        });
        let side = Side::Results(results);
        Self { side, codec, method, decode, decoding, end: None, output: None }
    }

    /// How the stream ended; `None` until its last item has been read.
    #[must_use]
    pub fn end(&self) -> Option<StreamEnd> {
        self.end
    }

    /// The metadata that came with the end of a stream of results
    /// ([`Context::set_reply_metadata`](crate::Context::set_reply_metadata)). Empty until the end,
    /// or an error, has been read.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        match &self.side {
            Side::Results(results) => &results.metadata,
            Side::Arguments(_) => &NO_METADATA,
        }
    }
}

static NO_METADATA: Metadata = Metadata::new();

/// What was read.
enum Read<R, E> {
    Item(Message),
    Finished(Option<R>),
    Failed(StreamEnd, E),
}

impl<T, R, E: From<Status>, U: Pump> Streaming<T, R, E, U> {
    /// The next item; `None` after the last. If the future is dropped before it is ready, no item
    /// is lost.
    ///
    /// # Errors
    /// The error that ended the stream. After that it returns `None`.
    #[allow(clippy::should_implement_trait, reason = "the name that users of streams expect")]
    pub fn next(&mut self) -> impl Future<Output = Option<Result<T, E>>> + use<'_, T, R, E, U> {
        poll_fn(|cx| self.poll_item(cx))
    }

    /// The metadata that the server has sent before the first item
    /// ([`Context::set_initial_metadata`](crate::Context::set_initial_metadata)); empty if it sent
    /// none. Waits until the metadata, the first item or the end has arrived, and takes no item.
    /// For a stream of arguments it is empty.
    pub async fn initial_metadata(&mut self) -> &Metadata {
        poll_fn(|cx| match &mut self.side {
            Side::Results(results) if self.end.is_none() && !results.has_begun => {
                results.poll_begin(cx)
            }
            _ => Poll::Ready(()),
        })
        .await;
        match &self.side {
            Side::Results(results) => &results.initial,
            Side::Arguments(_) => &NO_METADATA,
        }
    }

    /// The next item, for `while let Some(item) = stream.try_next().await?`.
    ///
    /// # Errors
    /// Why the stream ended before its end.
    pub async fn try_next(&mut self) -> Result<Option<T>, E> {
        self.next().await.transpose()
    }

    /// Reads to the end, dropping the items, and returns the value after them: `()`, unless the
    /// method returns a [`Producer`](crate::stream::Producer).
    ///
    /// # Errors
    /// The error that ended the stream, or [`FailedPrecondition`](Code::FailedPrecondition) if that
    /// error was already returned.
    pub async fn finish(mut self) -> Result<R, E> {
        while self.try_next().await?.is_some() {}
        self.take_output()
    }

    /// The value after the items, at the end.
    fn take_output(&mut self) -> Result<R, E> {
        let name = self.method.name;
        let output = self.output.take().filter(|_| self.end == Some(StreamEnd::Finished));
        output.ok_or_else(|| {
            Status::failed_precondition(format!("{name}: the stream has already failed")).into()
        })
    }

    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, E>>> {
        if self.end.is_some() {
            return Poll::Ready(None);
        }
        let step = std::task::ready!(tokio::task::coop::poll_proceed(cx));
        let read = std::task::ready!(match &mut self.side {
            Side::Results(results) => results.poll_read(cx),
            Side::Arguments(stream) => poll_arguments(stream, self.method, cx),
        });
        step.made_progress();
        Poll::Ready(match read {
            Read::Item(message) => {
                Some(match (self.decode)(self.codec, self.method, &self.decoding, message) {
                    Ok(item) => Ok(item),
                    Err(status) => {
                        self.stop();
                        Err(status.into())
                    }
                })
            }
            Read::Finished(output) => {
                self.end = Some(StreamEnd::Finished);
                if output.is_some() {
                    self.output = output;
                }
                None
            }
            Read::Failed(end, error) => {
                self.end = Some(end);
                Some(Err(error))
            }
        })
    }
}

impl<R, E, U> Streaming<Bulk, R, E, U> {
    /// Reads the pieces as one string of bytes: the reverse of
    /// [`read_pieces`](crate::bulk::read_pieces) and
    /// [`BulkReader::into_pieces`](crate::bulk::BulkReader::into_pieces).
    #[must_use]
    pub fn into_reader(self) -> PieceReader<Self> {
        PieceReader::new(self)
    }
}

impl<T, R, E, U> Streaming<T, R, E, U> {
    /// Gives up reading.
    #[cold]
    fn stop(&mut self) {
        self.end = Some(StreamEnd::Stopped);
        match &mut self.side {
            Side::Results(results) => results.call.cancel(),
            Side::Arguments(stream) => {
                let Some(stream) = stream else { return };
                let id = stream.id;
                stream.by_ref().with(|peer| peer.session.stop(id, Code::Cancelled.number()));
            }
        }
    }
}

impl<R, E: From<Status>, U: Pump> Results<R, E, U> {
    #[inline]
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Read<R, E>> {
        if self.is_under_way { self.poll_next_read(cx) } else { self.poll_first_read(cx) }
    }

    #[cold]
    fn poll_first_read(&mut self, cx: &mut Context<'_>) -> Poll<Read<R, E>> {
        if !self.has_begun {
            std::task::ready!(self.poll_begin(cx));
        }
        self.is_under_way = true;
        match self.first.take() {
            Some(first) => Poll::Ready(first),
            None => self.poll_next_read(cx),
        }
    }

    /// Reads the first thing.
    #[cold]
    fn poll_begin(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let read = std::task::ready!(self.poll_next_read(cx));
        self.has_begun = true;
        self.first = match read {
            Read::Item(message) if !message.marked().is_empty() => {
                match Metadata::decode(message.marked()) {
                    Ok(metadata) => {
                        if let Some(counters) = self.call.item_counters() {
                            counters.on_initial(metadata.clone());
                        }
                        self.initial = metadata;
                        None
                    }
                    Err(error) => {
                        let name = self.call.method().name;
                        let text = format!("{name}: bad initial metadata: {error}");
                        self.call.cancel();
                        Some(Read::Failed(StreamEnd::Stopped, Status::internal(text).into()))
                    }
                }
            }
            read => Some(read),
        };
        Poll::Ready(())
    }

    #[inline]
    fn poll_next_read(&mut self, cx: &mut Context<'_>) -> Poll<Read<R, E>> {
        if let Some(pumped) = self.call.pumped() {
            // Pending or not: items may have arrived.
            let _ = self.upload.poll_pump(cx, &pumped);
        }
        if let Some(stream) = self.call.stream()
            && let Some(ReadItem::Item(message)) = std::task::ready!(stream.poll_item(cx))
        {
            if let Some(counters) = self.call.item_counters()
                && message.marked().is_empty()
            {
                counters.on_received(message.len() as u64 + message.tail_bytes());
            }
            return Poll::Ready(Read::Item(message));
        }
        let own = self.upload.end();
        let (end, mut parts) = self.call.finish(own.clone());
        self.metadata = parts.take_metadata();
        Poll::Ready(match (own, (self.decode_end)(parts)) {
            (Some(status), _) => Read::Failed(StreamEnd::Failed, status.into()),
            (None, Ok(output)) => Read::Finished(Some(output)),
            (None, Err(error)) => Read::Failed(end, error),
        })
    }
}

fn poll_arguments<R, E: From<Status>>(
    stream: &Option<OwnedStreamRef>,
    method: &'static MethodDescriptor,
    cx: &mut Context<'_>,
) -> Poll<Read<R, E>> {
    let Some(stream) = stream else { return Poll::Ready(Read::Finished(None)) };
    let read = std::task::ready!(stream.by_ref().poll_item(cx));
    let end = match read {
        Some(ReadItem::Item(message)) => {
            if let Some(counters) = &stream.counters {
                counters.on_received(message.len() as u64 + message.tail_bytes());
            }
            return Poll::Ready(Read::Item(message));
        }
        Some(ReadItem::End(end)) => end,
        Some(ReadItem::Pending) | None => session::StreamEnd::ConnectionLost,
    };
    let name = method.name;
    if let Some(cause @ CloseCause::Forked) = stream.shard.close_cause(stream.key) {
        let status = Status::failed_precondition(format!("{name}: {cause}"));
        return Poll::Ready(Read::Failed(StreamEnd::Disconnected, status.into()));
    }
    let (end, status) = match end {
        session::StreamEnd::Clean => return Poll::Ready(Read::Finished(None)),
        session::StreamEnd::Reset(code) => {
            let code = Code::from_number(code).filter(|code| *code != Code::Ok);
            let code = code.unwrap_or(Code::Unknown);
            let text = format!("{name}: the client abandoned its stream");
            (StreamEnd::Reset(code), Status::new(code, text))
        }
        session::StreamEnd::Gone => {
            (StreamEnd::Failed, Status::cancelled(format!("{name}: the caller is gone")))
        }
        session::StreamEnd::NoMemory => (
            StreamEnd::Failed,
            Status::resource_exhausted(format!(
                "{name}: no memory for an item; {}",
                crate::session::RAISE
            )),
        ),
        session::StreamEnd::NotOpen => {
            (StreamEnd::Stopped, Status::cancelled(format!("{name}: the stream was stopped")))
        }
        _ => (
            StreamEnd::Disconnected,
            Status::unavailable(format!("{name}: the connection to the client is lost")),
        ),
    };
    Poll::Ready(Read::Failed(end, status.into()))
}

impl<T, R, E: From<Status>, U: Pump> Stream for Streaming<T, R, E, U> {
    type Item = Result<T, E>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T, E>>> {
        self.get_mut().poll_item(cx)
    }
}

/// So that a handler may pass on a stream of another service's, with the value after its items.
impl<T, R, E: From<Status>, U: Pump> Producer for Streaming<T, R, E, U> {
    type Item = T;
    type Output = Result<R, E>;

    fn poll_step(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Step<T, Result<R, E>>> {
        let this = self.get_mut();
        let item = std::task::ready!(this.poll_item(cx));
        Poll::Ready(match item {
            Some(Ok(item)) => Step::Item(item),
            Some(Err(error)) => Step::End(Err(error)),
            None => Step::End(this.take_output()),
        })
    }
}

// Nothing in it is pinned: sources are boxed.
impl<T, R, E, U> Unpin for Streaming<T, R, E, U> {}

impl<T, R, E, U> Drop for Streaming<T, R, E, U> {
    fn drop(&mut self) {
        if self.end.is_none() {
            self.stop();
        }
    }
}

impl<T, R, E, U> fmt::Debug for Streaming<T, R, E, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streaming")
            .field("method", &self.method.name)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}
