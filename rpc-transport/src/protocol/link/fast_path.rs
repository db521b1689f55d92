//! Fast paths: see that there is nothing to send, send a small message when nothing is queued, without
//! building a [`Transmit`](super::Transmit), and receive one without an [`Inbound`](super::Inbound).
//!
//! Each has the same effect as the slow path in [`link`](super); the invariants are those of that
//! module.

use std::time::Instant;

use super::{Lane, Link};
use crate::message::outgoing::OutBuf;
use crate::protocol::credit::Stamp;
use crate::protocol::frame::{self, SLOT_BLOCK_BYTES};

/// What is to be known of a whole small message to post it, beside its bytes.
#[derive(Debug, Clone, Copy)]
#[must_use = "a credit and a slot are spent, so the message has to be posted"]
pub(crate) struct Stamped {
    /// Whether the WR must be signaled.
    pub(crate) signaled: bool,
    /// For [`Link::on_send_completion`].
    pub(crate) token: u64,
}

impl Link {
    /// [`Link::on_frame`] for a plain frame that breaks no rule, while no end closes: it was a message, which is
    /// what follows the [header](crate::protocol::frame::HEADER_BYTES). False: it is for
    /// [`Link::on_any_frame`]. Behind some of these, [`Link::on_plain_frames`].
    #[inline]
    pub(crate) fn on_plain_frame(&mut self, imm: Option<u32>, bytes: &[u8]) -> bool {
        let Some(grant) = frame::plain(bytes, imm) else { return false };
        !self.is_closing() && !self.peer_closed && self.credits.on_data(grant).is_ok()
    }

    /// Plain frames have arrived, the last of them now.
    #[inline]
    pub(crate) fn on_plain_frames(&mut self, now: Instant) {
        self.keep_alive.on_received(now);
    }

    /// Whether messages may leave by [`Link::stamp_now`]: the link is open, and nothing waits. That stays so
    /// until a message is queued or something arrives.
    #[inline]
    pub(crate) fn is_clear(&mut self) -> bool {
        !self.is_closing() && self.has_nothing_queued()
    }

    /// [`Link::submit`] and [`Link::poll_transmit`] in one, where [`Link::is_clear`]: makes a message a
    /// frame, to be posted. `None` if it has to be submitted.
    #[inline]
    pub(crate) fn stamp_now(&mut self, lane: Lane, message: &mut OutBuf) -> Option<Stamped> {
        debug_assert!(!self.is_closing() && self.lanes.is_empty(), "others go first");
        if lane == Lane::Bulk || !self.is_eager(message) {
            return None;
        }
        let stamp = self.spend()?;
        self.prepend_header(message, &stamp);
        self.slices.on_small();
        let Stamp { signaled, mark, .. } = stamp;
        Some(Stamped { signaled, token: mark.to_bits().into() })
    }

    /// Whether an Ack is due if no message carries its credits.
    #[inline]
    pub(crate) fn is_ack_due(&self) -> bool {
        self.credits.is_ack_due()
    }

    /// Whether nothing is left for the engine: neither frames, but for an Ack, nor what is to be done beside
    /// them. That stays so until a message is queued, or anything else than a plain frame arrives.
    pub(crate) fn is_at_rest(&self) -> bool {
        !self.is_closing()
            && self.has_begun_nothing()
            && !self.arenas.as_ref().is_some_and(|arenas| arenas.is_due_so_far())
            && self.wanted_arena().is_none()
            && self.readers.is_empty()
            && self.freed.is_empty()
            && !self.has_window_news()
    }

    /// Whether other threads have given back memory of arenas since it was last asked what waits. All else
    /// that may be to be sent comes by calls of the link.
    #[inline]
    pub(crate) fn has_returns(&self) -> bool {
        self.arenas.as_ref().is_some_and(|arenas| arenas.has_returns())
    }

    /// Whether no message or control frame waits; the choice between lanes can then be skipped.
    #[inline]
    pub(super) fn has_nothing_queued(&mut self) -> bool {
        self.has_begun_nothing() && !self.arenas.as_mut().is_some_and(|arenas| arenas.is_due())
    }

    #[inline]
    fn has_begun_nothing(&self) -> bool {
        self.lanes.is_empty()
            && self.segmenter.is_empty()
            && !self.slices.has_begun()
            && !self.keep_alive.is_due()
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
