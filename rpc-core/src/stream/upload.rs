//! Sending a client's stream of arguments.
//!
//! Owns the source from the call until its end: its items are encoded and sent whenever the call,
//! or the stream of its results, is polled. Nothing is spawned.
//!
//! Invariants:
//! 1. A source is dropped as soon as nobody reads it: when the server has stopped reading, or the
//!    call has ended.
//! 2. A source that ends by an error, or is dropped before its end, resets the stream: the server
//!    never takes it for complete.
//! 3. Nothing is taken from a source while its call may be sent again with its schema.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use rpc_transport::message::outgoing::OutBuf;

use super::item::{Encode, IntoItem, ItemEncoder};
use super::item_counts::ItemCounters;
use super::stream_ref::StreamRef;
use crate::codec::{Codec, Placement};
use crate::endpoint::item::NotTaken;
use crate::reply::coding::unencodable_item;
use crate::service::MethodDescriptor;
use crate::session::StreamId;
use crate::status::{Code, Status};

/// What sends the stream of arguments of a call; nothing, for a method without one.
pub trait Pump: sealed::Sealed {
    /// Sends what can be sent. Ready when there is nothing more to send.
    #[doc(hidden)]
    fn poll_pump(&mut self, cx: &mut Context<'_>, call: &PumpedCall<'_>) -> Poll<()>;

    /// The call is over: drops the source. Gives the error that it ended with, once.
    #[doc(hidden)]
    fn end(&mut self) -> Option<Status>;
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// The call whose arguments are sent.
#[doc(hidden)]
pub struct PumpedCall<'a> {
    pub(crate) codec: Codec,
    pub(crate) placement: Placement<'a>,
    pub(crate) stream: StreamRef<'a>,
    pub(crate) method: &'static MethodDescriptor,
    pub(crate) counters: Option<&'a ItemCounters>,
}

impl fmt::Debug for PumpedCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PumpedCall").field("method", &self.method.name).finish_non_exhaustive()
    }
}

/// For methods without a stream of arguments.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct NoUpload;

impl sealed::Sealed for NoUpload {}

impl Pump for NoUpload {
    #[inline]
    fn poll_pump(&mut self, _: &mut Context<'_>, _: &PumpedCall<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    #[inline]
    fn end(&mut self) -> Option<Status> {
        None
    }
}

/// A source of items of type `T` on its way to the server.
pub struct Upload<S, T> {
    source: Option<Pin<Box<S>>>,
    /// The call is not sent again: items may leave.
    is_open: bool,
    encode: Encode<T>,
    /// An item that waits for room.
    waiting: Option<OutBuf>,
    error: Option<Status>,
}

impl<S, T> Upload<S, T> {
    /// Made by generated clients.
    #[doc(hidden)]
    pub fn new(source: S, encode: Encode<T>) -> Self {
        let source = Some(Box::pin(source));
        Self { source, is_open: false, encode, waiting: None, error: None }
    }

    #[cold]
    fn fail(&mut self, call: &PumpedCall<'_>, status: Status) {
        reset(call, status.code());
        self.source = None;
        self.error = Some(status);
    }
}

#[cold]
fn reset(call: &PumpedCall<'_>, code: Code) {
    let StreamId::Call(id) = call.stream.id else { return };
    call.stream.with(|peer| peer.session.reset(id, code.number()));
}

impl<S, T> sealed::Sealed for Upload<S, T> {}

impl<S, T> Pump for Upload<S, T>
where
    S: Stream,
    S::Item: IntoItem<T>,
{
    fn poll_pump(&mut self, cx: &mut Context<'_>, call: &PumpedCall<'_>) -> Poll<()> {
        if !self.is_open {
            self.is_open = std::task::ready!(call.stream.poll_held(cx));
            if !self.is_open {
                // Its outcome says whether it goes on.
                return Poll::Ready(());
            }
        }
        while self.source.is_some() {
            if self.waiting.is_some()
                && let Err(why) = std::task::ready!(call.stream.poll_send(cx, &mut self.waiting))
            {
                self.waiting = None;
                match why {
                    // Nobody reads any more, and the call's outcome says why.
                    NotTaken::Ended(_) => self.source = None,
                    why => self.fail(call, why.into_status(call.method)),
                }
                break;
            }
            let step = std::task::ready!(tokio::task::coop::poll_proceed(cx));
            let Some(source) = &mut self.source else { break };
            let Poll::Ready(item) = source.as_mut().poll_next(cx) else {
                if call.stream.watch(cx) {
                    return Poll::Pending;
                }
                self.source = None;
                break;
            };
            step.made_progress();
            match item.map(IntoItem::into_item) {
                Some(Ok(item)) => {
                    let method = call.method;
                    match ItemEncoder::encode(item, self.encode, call.codec, call.placement, method)
                    {
                        Ok(frame) => {
                            if let Some(counters) = call.counters {
                                counters.on_sent(frame.total_len());
                            }
                            self.waiting = Some(frame);
                        }
                        Err(error) => {
                            self.fail(call, unencodable_item(call.method, error));
                        }
                    }
                }
                Some(Err(status)) => self.fail(call, status),
                None => {
                    self.source = None;
                    if let StreamId::Call(id) = call.stream.id {
                        call.stream.with(|peer| peer.session.finish(id));
                    }
                }
            }
        }
        Poll::Ready(())
    }

    fn end(&mut self) -> Option<Status> {
        (self.source, self.waiting) = (None, None);
        self.error.take()
    }
}

impl<S, T> fmt::Debug for Upload<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("is_over", &self.source.is_none()).finish_non_exhaustive()
    }
}
