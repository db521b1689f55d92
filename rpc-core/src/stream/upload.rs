//! Sending a client's stream of arguments.
//!
//! Owns the source from the call until its end: its items are encoded and sent whenever the call, or
//! the stream of its results, is polled. Nothing is spawned.
//!
//! Invariants:
//! 1. A source is dropped as soon as nobody reads it: when the server has stopped reading, or the
//!    call has ended.
//! 2. A source that ends by an error, or is dropped before its end, resets the stream: the server
//!    never takes it for complete.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use rpc_transport::message::outgoing::OutBuf;

use super::item::{Encode, IntoItem, ItemEncoder};
use super::item_counts::ItemCounters;
use super::line::{LineRef, NotTaken};
use crate::codec::{Codec, Placement};
use crate::service::MethodDescriptor;
use crate::service::coding::unencodable_item;
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
    pub(crate) line: LineRef<'a>,
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
    encode: Encode<T>,
    /// An item that waits for room.
    waiting: Option<OutBuf>,
    error: Option<Status>,
}

impl<S, T> Upload<S, T> {
    /// Made by generated clients.
    #[doc(hidden)]
    pub fn new(source: S, encode: Encode<T>) -> Self {
        Self { source: Some(Box::pin(source)), encode, waiting: None, error: None }
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
    let StreamId::Call(id) = call.line.id else { return };
    call.line.with(|peer| peer.session.reset(id, code.number()));
}

impl<S, T> Upload<S, T>
where
    S: Stream,
    S::Item: IntoItem<T>,
{
    /// The source's next item.
    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, Status>>> {
        let Some(source) = &mut self.source else { return Poll::Ready(None) };
        source.as_mut().poll_next(cx).map(|item| item.map(IntoItem::into_item))
    }
}

impl<S, T> sealed::Sealed for Upload<S, T> {}

impl<S, T> Pump for Upload<S, T>
where
    S: Stream,
    S::Item: IntoItem<T>,
{
    fn poll_pump(&mut self, cx: &mut Context<'_>, call: &PumpedCall<'_>) -> Poll<()> {
        while self.source.is_some() {
            if self.waiting.is_some()
                && let Err(why) = std::task::ready!(call.line.poll_send(cx, &mut self.waiting))
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
            let Poll::Ready(item) = self.poll_source(cx) else {
                if call.line.watch(cx) {
                    return Poll::Pending;
                }
                self.source = None;
                break;
            };
            step.made_progress();
            match item {
                Some(Ok(item)) => {
                    match ItemEncoder::encode(item, self.encode, call.codec, call.placement) {
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
                    if let StreamId::Call(id) = call.line.id {
                        call.line.with(|peer| peer.session.finish(id));
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
