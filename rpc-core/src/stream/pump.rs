//! Sending a server's stream of results.
//!
//! Owns the pump: the part of a handler's future that polls the method's stream and sends its items.
//! It owns nothing of the method's: the stream may borrow the service and the arguments, which the
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
use super::line::{Line, NotTaken, Streams};
use super::producer::{Producer, Step};
use super::receive::Streaming;
use crate::codec::{Codec, Placement, Pool};
use crate::context::{Begun, Context, copy_to_own_pool};
use crate::service::coding::unencodable_item;
use crate::service::{MethodDescriptor, Reply};
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

    fn line(&self) -> Option<&Line> {
        self.streams.as_deref().map(|streams| &streams.line)
    }

    /// The stream of arguments.
    pub fn receive<T>(&self, method: &'static MethodDescriptor, decode: Decode<T>) -> Streaming<T> {
        Streaming::of_arguments(self.line().cloned(), self.codec, method, decode)
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
        let (waiting, output) = (None, None);
        let (is_accepted, has_begun, behind) = (false, false, None);
        let port = self;
        let mut sending =
            Sending { port, method, next, encode, waiting, behind, output, is_accepted, has_begun };
        poll_fn(move |cx| sending.poll(cx))
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("line", &self.line()).finish_non_exhaustive()
    }
}

/// A stream that is being sent.
struct Sending<'a, T, R, N> {
    port: &'a Port,
    method: &'static MethodDescriptor,
    next: N,
    encode: Encode<T>,
    /// An item that waits for room.
    waiting: Option<OutBuf>,
    /// The first item, while `waiting` is the initial metadata.
    behind: Option<OutBuf>,
    /// What comes behind both, if there are no more.
    output: Option<R>,
    is_accepted: bool,
    /// The first item or the end was there, so that no metadata goes before it any more.
    has_begun: bool,
}

impl<T, R, N> Sending<'_, T, R, N>
where
    N: FnMut(&mut task::Context<'_>) -> Poll<Next<T, R>>,
{
    fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<R, Reply>> {
        let Some(line) = self.port.line() else {
            return Poll::Ready(Err(no_connection(self.method)));
        };
        let line = line.by_ref();
        loop {
            if self.waiting.is_some()
                && let Err(why) = std::task::ready!(line.poll_send(cx, &mut self.waiting))
            {
                self.waiting = None;
                return Poll::Ready(Err(not_sent(self.method, why)));
            }
            if self.behind.is_some() {
                self.waiting = self.behind.take();
                continue;
            }
            if let Some(output) = self.output.take() {
                return Poll::Ready(Ok(output));
            }
            let step = std::task::ready!(tokio::task::coop::poll_proceed(cx));
            let next = (self.next)(cx);
            if next.is_pending() && !self.has_begun {
                self.waiting = self.initial_metadata();
                if self.waiting.is_some() {
                    match line.poll_send(cx, &mut self.waiting) {
                        // The stream has the task woken.
                        Poll::Ready(Ok(())) | Poll::Pending => return Poll::Pending,
                        Poll::Ready(Err(why)) => {
                            self.waiting = None;
                            return Poll::Ready(Err(not_sent(self.method, why)));
                        }
                    }
                }
                if !self.is_accepted {
                    self.is_accepted = true;
                    if let StreamId::Incoming(id) = line.id {
                        // A caller that is gone has the handler stopped.
                        let _ = line.with(|peer| peer.session.accept(id));
                    }
                }
            }
            let next = std::task::ready!(next);
            step.made_progress();
            let item = match next {
                Next::Item(item) => item,
                Next::LastItem(item, output) => {
                    self.output = Some(output);
                    item
                }
                Next::End(output) => {
                    if !self.has_begun {
                        self.begin();
                    }
                    if self.waiting.is_some() {
                        self.output = Some(output);
                        continue;
                    }
                    return Poll::Ready(Ok(self.accepted(output)));
                }
            };
            let Port { codec, min_part_bytes, .. } = *self.port;
            let placement = Placement { min_part_bytes, pool: Pool::Ask(copy_to_own_pool) };
            self.is_accepted = true;
            match ItemEncoder::encode(item, self.encode, codec, placement) {
                Ok(frame) => {
                    // Of an item that cannot be encoded it goes with the reply.
                    if !self.has_begun {
                        self.begin();
                    }
                    if let Some(counters) = self.port.line().and_then(|line| line.counters.as_ref())
                    {
                        counters.on_sent(frame.total_len());
                    }
                    match self.waiting {
                        None => self.waiting = Some(frame),
                        Some(_) => self.behind = Some(frame),
                    }
                }
                Err(error) => {
                    let status = unencodable_item(self.method, error);
                    return Poll::Ready(Err(Reply::Status(status)));
                }
            }
        }
    }

    /// Before the first item, or the end, goes the initial metadata, if there is any.
    #[cold]
    fn begin(&mut self) {
        self.has_begun = true;
        self.waiting = self.initial_metadata();
        Context::set_begun(Begun::Items);
    }

    /// The initial metadata, if there is any that has not left.
    #[inline]
    fn initial_metadata(&mut self) -> Option<OutBuf> {
        if Context::has_initial() { self.take_initial_metadata() } else { None }
    }

    #[cold]
    fn take_initial_metadata(&mut self) -> Option<OutBuf> {
        let line = self.port.line()?;
        // Else it goes with the reply.
        line.by_ref().with(|peer| peer.session.takes_initial_metadata()).filter(|takes| *takes)?;
        self.is_accepted = true;
        let metadata = Context::take_initial();
        let mut encoded = OutBuf::new();
        metadata.encode(&mut encoded);
        let mut frame = OutBuf::new();
        frame.prepend_marked(&encoded);
        if let Some(counters) = &line.counters {
            counters.on_initial(metadata);
        }
        Some(frame)
    }

    /// The stream's end, behind the news that the call was accepted: an error that is its first
    /// thing is not to be taken for a refusal.
    fn accepted(&mut self, output: R) -> R {
        if !self.is_accepted
            && let Some(line) = self.port.line()
            && let StreamId::Incoming(id) = line.id
        {
            let _ = line.by_ref().with(|peer| peer.session.accept(id));
        }
        output
    }
}

#[cold]
fn no_connection(method: &MethodDescriptor) -> Reply {
    let text = format!("{}: a method with streams is called over a connection", method.name);
    Reply::Status(Status::unimplemented(text))
}

#[cold]
fn not_sent(method: &MethodDescriptor, why: NotTaken) -> Reply {
    Reply::Status(why.into_status(method))
}
