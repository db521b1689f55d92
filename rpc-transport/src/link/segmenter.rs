//! The segmenter: a message larger than the peer's receive buffer, cut into frames.
//!
//! Owns the one message of this direction that is being sent in segments, and the abort that is
//! due for one that was revoked. Never decides when a segment may leave.
//!
//! Invariants:
//! 1. One message at a time: the next starts after the last segment, or the abort, of the one
//!    before.
//! 2. A message whose bytes have all been lent stays until [`Segmenter::reap`], as the frame
//!    still borrows them.
//! 3. No segment holds bytes of both head and tail.

use std::ops::Range;

use super::Queued;
use crate::frame::Segment;
use crate::outbound::OutBuf;

#[derive(Debug)]
pub(super) struct Segmenter {
    segment_bytes: usize,
    next_number: u32,
    current: Option<Current>,
    abort: Option<Segment>,
}

#[derive(Debug)]
struct Current {
    queued: Queued,
    number: u32,
    sent: u64,
    /// The head has been sent, and the peer told that it ends.
    head_ended: bool,
}

/// The bytes of a segment.
#[derive(Debug)]
pub(super) enum Cut<'a> {
    /// Of the head, in one piece.
    Head(&'a [u8]),
    /// Of the tail: which part of it, gathered from its parts.
    Tail(&'a OutBuf, Range<u64>),
}

impl Segmenter {
    /// `segment_bytes`: payload of a full segment.
    pub(super) fn new(segment_bytes: usize) -> Self {
        Self { segment_bytes, next_number: 0, current: None, abort: None }
    }

    /// Whether a segment or an abort is to be sent.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.abort.is_some() || self.current.as_ref().is_some_and(|current| !current.is_sent())
    }

    /// Whether nothing is being sent, to be aborted or to be reaped.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.current.is_none() && self.abort.is_none()
    }

    /// Frees a message whose last segment has left.
    #[inline]
    pub(super) fn reap(&mut self) {
        if self.current.as_ref().is_some_and(Current::is_sent) {
            self.current = None;
        }
    }

    /// Starts on a message; none is being sent.
    pub(super) fn start(&mut self, queued: Queued) {
        debug_assert!(!self.has_work(), "invariant 1");
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        self.current = Some(Current { queued, number, sent: 0, head_ended: false });
    }

    /// The next segment and its bytes.
    pub(super) fn next(&mut self) -> Option<(Segment, Cut<'_>)> {
        if let Some(abort) = self.abort.take() {
            return Some((abort, Cut::Head(&[])));
        }
        let segment_bytes = self.segment_bytes as u64;
        let current = self.current.as_mut().filter(|current| !current.is_sent())?;
        let message = &current.queued.message;
        let (head, total) = (message.len() as u64, message.total_len());
        let start = current.sent;
        let is_head = !current.head_ended;
        let end = (start + segment_bytes).min(if is_head { head } else { total });
        current.sent = end;
        current.head_ended = end >= head;
        let segment = Segment {
            number: current.number,
            last: end == total,
            abort: false,
            head_end: is_head && end == head && end < total,
            offset: start,
            total,
        };
        let cut = if is_head {
            Cut::Head(&message[in_memory(start)..in_memory(end)])
        } else {
            Cut::Tail(message, start - head..end - head)
        };
        Some((segment, cut))
    }

    /// The tag of the message that is partly sent.
    pub(super) fn current_tag(&self) -> Option<u64> {
        let current = self.current.as_ref().filter(|current| !current.is_sent());
        current.map(|current| current.queued.tag)
    }

    /// Gives up the message that is partly sent.
    pub(super) fn give_up(&mut self) {
        self.abort = self.current.take().map(|current| Segment {
            number: current.number,
            last: false,
            abort: true,
            head_end: false,
            offset: current.sent,
            total: current.queued.message.total_len(),
        });
    }

    /// Bytes not yet sent of the current message.
    pub(super) fn unsent_bytes(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.queued.message.total_len() - current.sent)
    }
}

impl Current {
    fn is_sent(&self) -> bool {
        self.sent == self.queued.message.total_len()
    }
}

/// An offset within the head.
fn in_memory(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}
