//! The short ways: what most pumps and most messages get by with.
//!
//! Owns the looks that find out that nothing is to be done, and the way of a small message that
//! nothing is ahead of. Never does anything else than the long way would; the invariants are those of
//! [`link`](super).

use super::{FRAME_SLOTS, FrameBytes, Lane, Link, SubmitError, Transmit};
use crate::message::outgoing::OutBuf;
use crate::protocol::credit::Stamp;
use crate::protocol::frame::SLOT_BLOCK_BYTES;

/// A [`Transmit`] of a whole small message: the same in fewer words, as it is moved around.
#[derive(Debug)]
#[must_use = "its credit and its slot are spent, so the frame has to be posted"]
pub struct Whole {
    /// The message with its header in front.
    pub message: OutBuf,
    /// Whether the WR must be signaled.
    pub signaled: bool,
    /// For [`Link::on_send_completion`].
    pub token: u64,
}

impl From<Whole> for Transmit<'_> {
    fn from(whole: Whole) -> Self {
        let Whole { message, signaled, token } = whole;
        let frame = FrameBytes::Message(message);
        Self { writes: Vec::new(), frame, imm: None, signaled, token }
    }
}

impl Link {
    /// The next frame to post now, if any. Call it until it gives `None`.
    #[inline]
    pub fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        if self.has_nothing_to_transmit() {
            return None;
        }
        self.poll_queued()
    }

    /// [`Link::submit`] and [`Link::poll_transmit`] in one, for a message that nothing is ahead of and
    /// that may leave now; `None` when it was queued.
    ///
    /// # Errors
    /// Those of [`Link::submit`].
    #[inline]
    pub fn submit_now(
        &mut self,
        lane: Lane,
        tag: u64,
        message: OutBuf,
    ) -> Result<Option<Whole>, SubmitError> {
        let leaves = !self.is_closing()
            && lane != Lane::Bulk
            && self.has_nothing_queued()
            && self.is_eager(&message)
            && self.credits.can_send(FRAME_SLOTS);
        if leaves {
            return Ok(self.stamped(message));
        }
        self.submit(lane, tag, message)?;
        Ok(None)
    }

    /// What [`Link::send_whole`] does, outside the bulk lane.
    #[inline]
    fn stamped(&mut self, mut message: OutBuf) -> Option<Whole> {
        let stamp = self.spend()?;
        self.prepend_header(&mut message, &stamp);
        self.slices.on_small();
        let Stamp { signaled, mark, .. } = stamp;
        Some(Whole { message, signaled, token: mark.to_bits().into() })
    }

    /// Whether [`Link::poll_transmit`] would give nothing, for being idle: the cheap look that most
    /// pumps get by with.
    #[inline(always)]
    pub(crate) fn has_nothing_to_transmit(&mut self) -> bool {
        !self.is_closing()
            && self.segmenter.is_empty()
            && self.has_nothing_queued()
            && !self.credits.is_ack_due()
    }

    /// What most pumps find; spares them the choice between lanes.
    #[inline(always)]
    pub(super) fn has_nothing_queued(&mut self) -> bool {
        self.lanes.is_empty()
            && !self.segmenter.has_work()
            && !self.slices.has_begun()
            && !self.keep_alive.is_due()
            && !self.arenas.as_mut().is_some_and(|arenas| arenas.is_due())
    }

    /// Whether a message leaves as one plain frame.
    #[inline]
    pub(super) fn is_eager(&self, message: &OutBuf) -> bool {
        message.len() <= self.eager_bytes
            && message.tail().is_empty()
            && message.offer().is_none_or(|_| message.len() + SLOT_BLOCK_BYTES <= self.eager_bytes)
    }

    /// Data credits owed to the peer.
    #[inline]
    #[must_use]
    pub fn owed_data(&self) -> u16 {
        self.credits.counters().owed.data
    }
}
