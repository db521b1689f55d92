//! The short ways: what most pumps and most messages get by with.
//!
//! Owns the looks that find out that nothing is to be done, and the way of a small message that
//! nothing is ahead of. Never does anything else than the long way would; the invariants are those of
//! [`link`](super).

use super::{FRAME_SLOTS, Lane, Link, SubmitError, Transmit};
use crate::outbound::OutBuf;

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
    ) -> Result<Option<Transmit<'_>>, SubmitError> {
        let leaves = !self.is_closing()
            && lane != Lane::Bulk
            && self.has_nothing_queued()
            && self.is_eager(&message)
            && self.credits.can_send(FRAME_SLOTS);
        if leaves {
            return Ok(self.send_whole(message, lane));
        }
        self.submit(lane, tag, message)?;
        Ok(None)
    }

    /// Whether [`Link::poll_transmit`] would give nothing, for being idle: the cheap look that most
    /// pumps get by with.
    #[inline]
    pub(crate) fn has_nothing_to_transmit(&mut self) -> bool {
        !self.is_closing()
            && self.segmenter.is_empty()
            && self.has_nothing_queued()
            && !self.credits.is_ack_due()
    }

    /// What most pumps find; spares them the choice between lanes.
    #[inline]
    pub(super) fn has_nothing_queued(&mut self) -> bool {
        self.lanes.is_empty()
            && !self.segmenter.has_work()
            && !self.keep_alive.is_due()
            && !self.arenas.as_mut().is_some_and(|arenas| arenas.is_due())
    }
}
