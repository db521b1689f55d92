//! The segmenter: cuts a message larger than the peer's receive buffer into segments.
//!
//! Owns the one message of this direction that is being sent in segments, and the abort that is
//! due for a revoked one. Never decides when a segment may be sent.
//!
//! Invariants:
//! 1. One message at a time: the next starts after the last segment, or the abort, of the one
//!    before.
//! 2. A message whose last bytes were handed out is kept until [`Segmenter::reap`], as the frame
//!    still borrows them.
//! 3. If the peer takes the message as a stream, frames carry no more bytes of the tail than its
//!    reader accepts (MAX_STREAM_DATA).
//! 4. The payload of a frame never has bytes of both head and tail; nor do the bytes that are
//!    written for a frame.

use std::ops::Range;
use std::sync::Arc;

use crate::message::outgoing::OutBuf;
use crate::message::part::OutPart;
use crate::protocol::error::ProtocolError;
use crate::protocol::frame::{MaxStreamData, Segment};
use crate::protocol::link::lanes::Queued;

#[derive(Debug)]
pub(in crate::protocol::link) struct Segmenter {
    segment_bytes: usize,
    /// Longer messages are streams at the peer.
    assembly_bytes: u64,
    /// The peer reports how far streams are read.
    has_progress: bool,
    next_number: u32,
    current: Option<Current>,
    abort: Option<Segment>,
}

#[derive(Debug)]
struct Current {
    tag: u64,
    // Shared with the WRs that WRITE parts of it.
    message: Arc<OutBuf>,
    /// Assigned with the first segment.
    number: Option<u32>,
    sent: u64,
    /// The end of the head was sent.
    head_ended: bool,
    /// The tail is written into the peer's slot, so the message is never a stream, however long.
    is_placed: bool,
    /// Bytes of the tail sent in frames.
    framed: u64,
    /// Bytes of the tail that frames may carry in all.
    max_framed: u64,
}

/// The bytes of a segment that is sent in its frame.
#[derive(Debug)]
pub(in crate::protocol::link) enum Cut<'a> {
    /// Contiguous bytes of the head.
    Head(&'a [u8]),
    /// A range of the tail, to be gathered from the message's parts.
    Tail(&'a OutBuf, Range<u64>),
}

/// A segment whose bytes are sent by WRITE.
#[derive(Debug)]
pub(in crate::protocol::link) struct WrittenSegment<'a> {
    /// The tag that the message was submitted with.
    pub(in crate::protocol::link) tag: u64,
    pub(in crate::protocol::link) segment: Segment,
    /// The end of the head, which is sent in the frame.
    pub(in crate::protocol::link) payload: &'a [u8],
    /// The parts to WRITE, in order.
    pub(in crate::protocol::link) parts: Vec<OutPart>,
    /// The message that they belong to.
    pub(in crate::protocol::link) message: Arc<OutBuf>,
}

/// The result of giving up a message.
#[derive(Debug)]
pub(in crate::protocol::link) enum GivenUp {
    /// Nothing of it was sent.
    Whole(OutBuf),
    /// An abort is due; the peer has not delivered the message. It may be shared with WRs.
    Aborted(Option<Arc<OutBuf>>),
    /// An abort is due; the peer delivered the message when its head ended. Shared likewise.
    Begun(Arc<OutBuf>),
}

impl Segmenter {
    /// `segment_bytes`: payload of a full segment; `assembly_bytes`: the peer's; `has_progress`:
    /// whether the peer reports how far its streams are read.
    pub(in crate::protocol::link) fn new(
        segment_bytes: usize,
        assembly_bytes: u64,
        has_progress: bool,
    ) -> Self {
        Self {
            segment_bytes,
            assembly_bytes,
            has_progress,
            next_number: 0,
            current: None,
            abort: None,
        }
    }

    /// Whether a segment or an abort is to be sent.
    #[inline]
    pub(in crate::protocol::link) fn has_work(&self) -> bool {
        self.abort.is_some() || self.current.as_ref().is_some_and(|current| !current.is_sent())
    }

    /// Whether nothing is being sent, to be aborted or to be reaped.
    #[inline]
    pub(in crate::protocol::link) fn is_empty(&self) -> bool {
        self.current.is_none() && self.abort.is_none()
    }

    /// Whether an abort is to be sent next.
    pub(in crate::protocol::link) fn is_abort_due(&self) -> bool {
        self.abort.is_some()
    }

    /// Takes a message whose last segment was handed out.
    #[inline]
    pub(in crate::protocol::link) fn reap(&mut self) -> Option<Arc<OutBuf>> {
        if !self.current.as_ref().is_some_and(Current::is_sent) {
            return None;
        }
        self.current.take().map(|current| current.message)
    }

    /// Takes the current message, sent or not; nothing more of it is sent.
    pub(in crate::protocol::link) fn take(&mut self) -> Option<Arc<OutBuf>> {
        self.current.take().map(|current| current.message)
    }

    /// Starts a message. None may be in progress.
    pub(in crate::protocol::link) fn start(&mut self, queued: Queued) {
        debug_assert!(!self.has_work(), "invariant 1");
        let Queued { tag, message } = queued;
        let is_held = self.has_progress && message.total_len() > self.assembly_bytes;
        self.current = Some(Current {
            tag,
            message: Arc::new(message),
            number: None,
            sent: 0,
            head_ended: false,
            is_placed: false,
            framed: 0,
            max_framed: if is_held { self.assembly_bytes } else { u64::MAX },
        });
    }

    /// Whether nothing of the current message has been sent.
    pub(in crate::protocol::link) fn is_fresh(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.number.is_none())
    }

    /// Length of the current message, bytes.
    pub(in crate::protocol::link) fn total(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.message.total_len())
    }

    /// The message that is being sent.
    pub(in crate::protocol::link) fn message(&self) -> Option<&OutBuf> {
        self.current.as_ref().map(|current| &*current.message)
    }

    /// The next segment and its bytes, all in its frame. `less`: bytes of the frame that other
    /// blocks take.
    pub(in crate::protocol::link) fn next(&mut self, less: usize) -> Option<(Segment, Cut<'_>)> {
        if let Some(abort) = self.abort.take() {
            return Some((abort, Cut::Head(&[])));
        }
        let segment_bytes = self.segment_bytes.saturating_sub(less).max(1) as u64;
        let next_number = &mut self.next_number;
        let current = self.current.as_mut().filter(|current| !current.is_sent())?;
        let (head, total) = (current.head_len(), current.message.total_len());
        let start = current.sent;
        let is_head = !current.head_ended;
        let end = if is_head {
            (start + segment_bytes).min(head)
        } else {
            (start + segment_bytes.min(current.max_framed - current.framed)).min(total)
        };
        if !is_head {
            current.framed += end - start;
        }
        let segment = current.advance(next_number, end, is_head && end == head && end < total);
        let cut = if is_head {
            Cut::Head(&current.message[in_memory(start)..in_memory(end)])
        } else {
            Cut::Tail(&current.message, start - head..end - head)
        };
        Some((segment, cut))
    }

    /// Whether the next segment may be sent in a frame. If not, the peer's reader has to read
    /// first.
    pub(in crate::protocol::link) fn may_frame(&self) -> bool {
        let may = |current: &Current| !current.head_ended || current.framed < current.max_framed;
        self.abort.is_some() || self.current.as_ref().is_none_or(may)
    }

    /// The peer's reader of a stream accepts more of it.
    ///
    /// # Errors
    /// The message was never begun.
    pub(in crate::protocol::link) fn on_max_stream_data(
        &mut self,
        MaxStreamData { number, bytes }: MaxStreamData,
    ) -> Result<(), ProtocolError> {
        if number.wrapping_sub(self.next_number) < 1 << 31 {
            return Err(ProtocolError::StreamDataOfNoMessage(number));
        }
        // For a message that has ended it comes too late and is ignored.
        if let Some(current) = self.current.as_mut().filter(|it| it.number == Some(number)) {
            current.max_framed = current.max_framed.max(bytes);
        }
        Ok(())
    }

    /// How many bytes the next segment could WRITE: at most `max_bytes`, of at most `max_parts`
    /// parts. `room`: bytes of its frame for the end of the head. 0 if there is nothing to write.
    pub(in crate::protocol::link) fn writable(
        &self,
        room: usize,
        max_bytes: u64,
        max_parts: usize,
    ) -> u64 {
        let Some(current) = self.current.as_ref().filter(|_| self.abort.is_none()) else {
            return 0;
        };
        let range = current.writable(room);
        let end = current.parts(range.clone()).take(max_parts.max(1)).map(|part| part.len()).sum();
        max_bytes.min(end)
    }

    /// The parts of the next `bytes` bytes to WRITE.
    pub(in crate::protocol::link) fn next_parts(
        &self,
        room: usize,
        bytes: u64,
    ) -> impl Iterator<Item = OutPart> + '_ {
        self.current.iter().flat_map(move |current| {
            let Range { start, end } = current.writable(room);
            current.parts(start..end.min(start + bytes))
        })
    }

    /// Offset in the tail of the next bytes to WRITE, if they are of the tail.
    pub(in crate::protocol::link) fn tail_offset(&self, room: usize) -> Option<u64> {
        let current = self.current.as_ref()?;
        current.writable(room).start.checked_sub(current.head_len())
    }

    /// The next segment, with `bytes` bytes, at most [`Segmenter::writable`], sent by WRITE into a
    /// slot (`is_placed`) or into arenas.
    pub(in crate::protocol::link) fn next_written(
        &mut self,
        room: usize,
        bytes: u64,
        is_placed: bool,
    ) -> Option<WrittenSegment<'_>> {
        let next_number = &mut self.next_number;
        let current = self.current.as_mut().filter(|current| !current.is_sent())?;
        let Range { start, .. } = current.writable(room);
        let parts = current.parts(start..start + bytes).collect();
        let (sent, head) = (current.sent, current.head_len());
        let ends_head = !current.head_ended && start >= head;
        current.is_placed |= ends_head && is_placed;
        let segment = current.advance(next_number, start + bytes, ends_head);
        let payload = &current.message[in_memory(sent.min(head))..in_memory(start.min(head))];
        Some(WrittenSegment {
            tag: current.tag,
            segment,
            payload,
            parts,
            message: Arc::clone(&current.message),
        })
    }

    /// The tag of the message in progress, if not all of it was handed out.
    pub(in crate::protocol::link) fn current_tag(&self) -> Option<u64> {
        let current = self.current.as_ref().filter(|current| !current.is_sent());
        current.map(|current| current.tag)
    }

    /// Gives up the message in progress.
    pub(in crate::protocol::link) fn give_up(&mut self) -> GivenUp {
        let Some(current) = self.current.take() else { return GivenUp::Aborted(None) };
        let Some(number) = current.number else {
            // No WR shares a message of which nothing was sent.
            return match Arc::try_unwrap(current.message) {
                Ok(message) => GivenUp::Whole(message),
                Err(shared) => GivenUp::Aborted(Some(shared)),
            };
        };
        self.abort = Some(Segment {
            number,
            last: false,
            abort: true,
            head_end: false,
            offset: current.sent,
            total: current.message.total_len(),
        });
        let is_stream = current.message.total_len() > self.assembly_bytes && !current.is_placed;
        if is_stream && current.head_ended {
            GivenUp::Begun(current.message)
        } else {
            GivenUp::Aborted(Some(current.message))
        }
    }

    /// Length of the current message, bytes: all of it is held until its last segment was handed
    /// out.
    pub(in crate::protocol::link) fn held_bytes(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.message.total_len())
    }

    /// Bytes not yet sent of the current message.
    pub(in crate::protocol::link) fn unsent_bytes(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.message.total_len() - current.sent)
    }
}

impl Current {
    fn is_sent(&self) -> bool {
        self.sent == self.message.total_len() && self.number.is_some()
    }

    fn head_len(&self) -> u64 {
        self.message.len() as u64
    }

    /// Counts the bytes up to `end` as sent, and describes the segment that carries them.
    fn advance(&mut self, next_number: &mut u32, end: u64, head_end: bool) -> Segment {
        let number = *self.number.get_or_insert_with(|| {
            let number = *next_number;
            *next_number = number.wrapping_add(1);
            number
        });
        let offset = std::mem::replace(&mut self.sent, end);
        self.head_ended |= head_end;
        let total = self.message.total_len();
        Segment { number, last: end == total, abort: false, head_end, offset, total }
    }

    /// The range that could be written next: of the head, as long as the rest of the head does not
    /// fit the frame; then of the tail.
    fn writable(&self, room: usize) -> Range<u64> {
        let (head, total) = (self.head_len(), self.message.total_len());
        if self.head_ended {
            return self.sent..total;
        }
        if head - self.sent > room as u64 { self.sent..head } else { head..total }
    }

    /// The parts of the message that a range covers, cut to that range.
    fn parts(&self, range: Range<u64>) -> impl Iterator<Item = OutPart> + '_ {
        let head = (!self.message.is_empty() && range.start < self.head_len())
            .then(|| OutPart::shared(Arc::clone(&self.message)));
        let mut at = if head.is_some() { 0 } else { self.head_len() };
        head.into_iter().chain(self.message.tail().iter().cloned()).filter_map(move |part| {
            let (start, end) = (range.start.max(at), range.end.min(at + part.len()));
            let cut = (start < end).then(|| part.slice(start - at..end - at));
            at += part.len();
            cut
        })
    }
}

/// An offset within the head.
fn in_memory(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}
