//! Fast paths: see that there is nothing to send, and send a small message when nothing is queued,
//! without building a [`Transmit`].
//!
//! Each has the same effect as the slow path in [`link`](super); the invariants are those of that
//! module.

use super::{FRAME_SLOTS, FrameBytes, Lane, Link, SubmitError, Transmit};
use crate::message::outgoing::OutBuf;
use crate::protocol::credit::Stamp;
use crate::protocol::frame::SLOT_BLOCK_BYTES;

/// A [`Transmit`] of a whole small message. It holds only the fields that such a message needs, as
/// it is moved by value.
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
    /// [`Link::submit`] and [`Link::poll_transmit`] in one: gives the message to post if nothing is
    /// queued and it may be sent now, `None` if it was queued.
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

    /// [`Link::send_whole`] for the lanes other than bulk.
    #[inline]
    fn stamped(&mut self, mut message: OutBuf) -> Option<Whole> {
        let stamp = self.spend()?;
        self.prepend_header(&mut message, &stamp);
        self.slices.on_small();
        let Stamp { signaled, mark, .. } = stamp;
        Some(Whole { message, signaled, token: mark.to_bits().into() })
    }

    /// Whether [`Link::poll_transmit`] would give `None` because the link is idle. Other threads may
    /// give memory back at any time, so that two looks may differ.
    #[inline]
    pub(crate) fn has_nothing_to_transmit(&mut self) -> bool {
        !self.is_closing()
            && self.segmenter.is_empty()
            && self.has_nothing_queued()
            && !self.credits.is_ack_due()
    }

    /// Whether no message or control frame waits; the choice between lanes can then be skipped.
    #[inline]
    pub(super) fn has_nothing_queued(&mut self) -> bool {
        self.lanes.is_empty()
            && !self.segmenter.has_work()
            && !self.slices.has_begun()
            && !self.keep_alive.is_due()
            && !self.arenas.as_mut().is_some_and(|arenas| arenas.is_due())
    }

    /// Whether a message is sent as one plain frame.
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
        self.credits.counters().owed.credits().data
    }

    /// Data credits that this end offers the peer now, those owed and spent among them.
    #[inline]
    #[must_use]
    pub fn window_data(&self) -> u16 {
        self.credits.local().data
    }
}
