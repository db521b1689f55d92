//! One stream of a connection's session, as the tasks that read and write it see it.
//!
//! Owns the steps under the shard's lock: an item in, an item out, and the wakers of the tasks that
//! wait for that. Knows items only as bytes. Wakers and items are cloned and dropped outside the
//! lock.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rpc_transport::engine::clock;
use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::memory::budget::Reservation;
use rpc_transport::message::outgoing::OutBuf;

use super::item_counts::ItemCounters;
use crate::endpoint::item::NotTaken;
use crate::endpoint::{RpcEndpoint, RpcShard};
use crate::resolution::Decoding;
use crate::session::{NotSent, ReadItem, SendError, StreamId};

/// A stream of a connection, with a share of its shard.
#[derive(Clone)]
pub(crate) struct OwnedStreamRef {
    pub(crate) shard: Arc<RpcShard>,
    pub(crate) key: ConnectionKey,
    pub(crate) id: StreamId,
    /// Counts its items, if interceptors want to know.
    pub(crate) counters: Option<Arc<ItemCounters>>,
}

/// The streams of a call of the peer, while its handler runs.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) stream: OwnedStreamRef,
    /// How items of the arguments are decoded.
    pub(crate) decoding: Decoding,
    /// The memory that unread arguments may take.
    pub(crate) _charge: Reservation,
}

/// A stream of a connection, borrowed from the connection's owner.
#[derive(Clone, Copy)]
pub(crate) struct StreamRef<'a> {
    pub(crate) shard: &'a RpcShard,
    pub(crate) key: ConnectionKey,
    pub(crate) id: StreamId,
}

impl OwnedStreamRef {
    #[inline]
    pub(crate) fn by_ref(&self) -> StreamRef<'_> {
        StreamRef { shard: &self.shard, key: self.key, id: self.id }
    }
}

impl fmt::Debug for OwnedStreamRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

/// The result of a look at the session under the lock.
enum Looked<T> {
    Found(T),
    /// Nothing, and this task's waker is registered.
    Waits,
    /// Nothing, and another waker is registered, or none.
    Unknown,
}

impl StreamRef<'_> {
    #[inline]
    pub(crate) fn with<R>(&self, step: impl FnOnce(&mut RpcEndpoint) -> R) -> Option<R> {
        self.shard.with(self.key, step)
    }

    /// Ready when the session has taken the item, or will never take it.
    #[inline]
    pub(crate) fn poll_send(
        &self,
        cx: &Context<'_>,
        item: &mut Option<OutBuf>,
    ) -> Poll<Result<(), NotTaken>> {
        let looked = self.with(|peer| {
            let Some(mut frame) = item.take() else { return Looked::Found(Ok(())) };
            if let Err(why) = peer.admit_item(self.id, &mut frame) {
                *item = Some(frame);
                return Looked::Found(Err(why));
            }
            match peer.session.send_item(self.id, frame, clock::now) {
                Ok(()) => Looked::Found(Ok(())),
                Err(NotSent { error, item: frame }) => {
                    *item = Some(frame);
                    match (error, peer.session.writer(self.id)) {
                        (SendError::Full, Some(writer)) if writer.will_wake(cx.waker()) => {
                            Looked::Waits
                        }
                        (SendError::Full, _) => Looked::Unknown,
                        (error, _) => Looked::Found(Err(NotTaken::Ended(error))),
                    }
                }
            }
        });
        match looked {
            None => Poll::Ready(Err(NotTaken::Ended(SendError::Ended))),
            Some(Looked::Found(sent)) => Poll::Ready(sent),
            Some(Looked::Waits) => Poll::Pending,
            Some(Looked::Unknown) => self.poll_send_with_waker(cx, item),
        }
    }

    fn poll_send_with_waker(
        &self,
        cx: &Context<'_>,
        item: &mut Option<OutBuf>,
    ) -> Poll<Result<(), NotTaken>> {
        let waker = cx.waker().clone();
        let waits = self.with(|peer| {
            // The earlier waker; or this one, if it is not needed.
            let spare = peer.session.set_writer(self.id, waker);
            (peer.session.writable(self.id) == Err(SendError::Full), spare)
        });
        match waits {
            Some((true, _spare)) => Poll::Pending,
            Some((false, _)) => self.poll_send(cx, item),
            None => Poll::Ready(Err(NotTaken::Ended(SendError::Ended))),
        }
    }

    /// Ready when the types of the call are accepted, so that it is not sent again. False: the call
    /// has its outcome.
    pub(crate) fn poll_held(&self, cx: &Context<'_>) -> Poll<bool> {
        let StreamId::Call(id) = self.id else { return Poll::Ready(true) };
        match self.with(|peer| peer.session.holds_arguments(id)).flatten() {
            Some(true) => {}
            Some(false) => return Poll::Ready(true),
            None => return Poll::Ready(false),
        }
        let waker = cx.waker().clone();
        let held = self.with(|peer| {
            let spare = peer.session.watch_writer(id, waker);
            (peer.session.holds_arguments(id), spare)
        });
        match held {
            Some((Some(true), _spare)) => Poll::Pending,
            Some((Some(false), _)) => Poll::Ready(true),
            Some((None, _)) | None => Poll::Ready(false),
        }
    }

    /// Has the task woken when nobody reads any more. Returns false if nobody reads now.
    pub(crate) fn watch(&self, cx: &Context<'_>) -> bool {
        let is_open = |peer: &RpcEndpoint| {
            matches!(peer.session.writable(self.id), Ok(()) | Err(SendError::Full))
        };
        let look = |peer: &mut RpcEndpoint| match peer.session.writer(self.id) {
            Some(writer) if writer.will_wake(cx.waker()) => Looked::Waits,
            _ if is_open(peer) => Looked::Unknown,
            _ => Looked::Found(()),
        };
        match self.shard.look(self.key, look) {
            Some(Looked::Waits) => true,
            Some(Looked::Unknown) => {
                let waker = cx.waker().clone();
                let watch = |peer: &mut RpcEndpoint| {
                    let spare = peer.session.watch_writer(self.id, waker);
                    (is_open(peer), spare)
                };
                self.shard.look(self.key, watch).is_some_and(|(is_open, _spare)| is_open)
            }
            Some(Looked::Found(())) | None => false,
        }
    }

    /// The next item, or the end of the items.
    #[inline]
    pub(crate) fn poll_item(&self, cx: &Context<'_>) -> Poll<Option<ReadItem>> {
        let looked = self.shard.read(self.key, |peer| match peer.session.take_item(self.id) {
            ReadItem::Pending => match peer.session.reader(self.id) {
                Some(reader) if reader.will_wake(cx.waker()) => Looked::Waits,
                _ => Looked::Unknown,
            },
            found => Looked::Found(found),
        });
        match looked {
            None => Poll::Ready(None),
            Some(Looked::Found(item)) => Poll::Ready(Some(item)),
            Some(Looked::Waits) => Poll::Pending,
            Some(Looked::Unknown) => {
                match self.wait_to_read(cx, |peer| peer.session.has_item(self.id)) {
                    true => Poll::Pending,
                    false => self.poll_item(cx),
                }
            }
        }
    }

    /// Registers the task as the stream's reader. Returns false if `is_ready`, and there is no need
    /// to wait.
    pub(crate) fn wait_to_read(
        &self,
        cx: &Context<'_>,
        is_ready: impl FnOnce(&RpcEndpoint) -> bool,
    ) -> bool {
        let waker: Waker = cx.waker().clone();
        let waits = self.with(|peer| {
            let spare = peer.session.set_reader(self.id, waker);
            (!is_ready(peer), spare)
        });
        waits.is_some_and(|(waits, _spare)| waits)
    }
}
