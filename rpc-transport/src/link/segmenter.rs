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

use std::ops::Range;

use super::Queued;
use crate::frame::Segment;

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
    sent: usize,
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
        self.current = Some(Current { queued, number, sent: 0 });
    }

    /// The next segment and its bytes.
    pub(super) fn next(&mut self) -> Option<(Segment, &[u8])> {
        if let Some(abort) = self.abort.take() {
            return Some((abort, &[]));
        }
        let segment_bytes = self.segment_bytes;
        let current = self.current.as_mut().filter(|current| !current.is_sent())?;
        let Range { start, end } = current.advance(segment_bytes);
        let total = current.queued.message.len();
        let segment = Segment {
            number: current.number,
            last: end == total,
            abort: false,
            offset: start as u64,
            total: total as u64,
        };
        Some((segment, &current.queued.message[start..end]))
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
            offset: current.sent as u64,
            total: current.queued.message.len() as u64,
        });
    }

    /// Bytes not yet sent of the current message.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.current.as_ref().map_or(0, |current| current.queued.message.len() - current.sent)
    }
}

impl Current {
    fn is_sent(&self) -> bool {
        self.sent == self.queued.message.len()
    }

    fn advance(&mut self, segment_bytes: usize) -> Range<usize> {
        let start = self.sent;
        self.sent = self.queued.message.len().min(start + segment_bytes);
        start..self.sent
    }
}
