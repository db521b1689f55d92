//! Fast paths: find that there is nothing to send, send a small message without building a
//! [`Transmit`](super::Transmit), and receive one without an [`Inbound`](super::Inbound).
//!
//! Each has the same effect as the slow path in [`link`](super). The invariants are those of that
//! module.

use std::time::Instant;

use super::bulk::landing_zone::LandingZone;
use super::{Lane, Link};
use crate::message::outgoing::OutBuf;
use crate::protocol::credit::Stamp;
use crate::protocol::frame::{self, SLOT_BLOCK_BYTES};

/// What a whole small message needs to be posted, in addition to its bytes.
#[derive(Debug, Clone, Copy)]
#[must_use = "a credit and a slot are spent, so the message has to be posted"]
pub(crate) struct Stamped {
    /// Whether the WR must be signaled.
    pub(crate) signaled: bool,
    /// For [`Link::on_send_completion`].
    pub(crate) token: u64,
}

impl Link {
    /// [`Link::on_frame`] for a plain frame that breaks no rule, while neither end closes. Returns
    /// whether it was one; the message then follows the
    /// [header](crate::protocol::frame::HEADER_BYTES). If not, call [`Link::on_any_frame`]. After
    /// one or more plain frames, call [`Link::on_plain_frames`].
    #[inline]
    pub(crate) fn on_plain_frame(&mut self, imm: Option<u32>, bytes: &[u8]) -> bool {
        let Some(grant) = frame::plain(bytes, imm) else { return false };
        !self.is_closing() && self.refuses_plain == 0 && self.credits.on_data(grant).is_ok()
    }

    /// Plain frames have arrived, the last of them now.
    #[inline]
    pub(crate) fn on_plain_frames(&mut self, now: Instant) {
        self.keep_alive.on_received(now);
    }

    /// Whether messages may leave by [`Link::stamp_now`]: the link is open, and nothing is queued.
    /// That stays so until a message is queued or a frame arrives.
    #[inline]
    pub(crate) fn is_clear(&mut self) -> bool {
        !self.is_closing() && self.has_nothing_queued()
    }

    /// [`Link::submit`] and [`Link::poll_transmit`] in one, if [`Link::is_clear`]: makes a message
    /// a frame, to be posted. `None` if it has to be submitted.
    #[inline]
    pub(crate) fn stamp_now(&mut self, lane: Lane, message: &mut OutBuf) -> Option<Stamped> {
        debug_assert!(!self.is_closing() && self.lanes.is_empty(), "others go first");
        if lane == Lane::Bulk || !self.is_eager(message) {
            return None;
        }
        let stamp = self.spend()?;
        self.prepend_header(message, &stamp);
        self.bulk.on_small();
        let Stamp { signaled, mark, .. } = stamp;
        Some(Stamped { signaled, token: mark.to_bits().into() })
    }

    /// Whether an Ack is due if no message carries its credits.
    #[inline]
    pub(crate) fn is_ack_due(&self) -> bool {
        self.credits.is_ack_due()
    }

    /// Whether the engine has nothing to do for this link, except to send an Ack. That stays so
    /// until a message is queued, or a frame arrives that is not plain.
    pub(crate) fn has_nothing_due(&self) -> bool {
        !self.is_closing()
            && self.has_begun_nothing()
            && !self.is_release_due()
            && self.wanted_arena().is_none()
            && self.readers.is_empty()
            && self.freed.is_empty()
            && self.wanted_growth().is_none()
    }

    /// Whether other threads have returned chunks since the link last collected them. All other
    /// work reaches the link by its methods.
    #[inline]
    pub(crate) fn has_returns(&self) -> bool {
        self.assembly.landing().is_some_and(LandingZone::has_returns)
    }

    /// Whether no message or control frame waits; the choice between lanes can then be skipped.
    #[inline]
    pub(super) fn has_nothing_queued(&mut self) -> bool {
        self.has_begun_nothing() && !self.collect_releases()
    }

    /// Whether a Release frame is due, after a look at what the application has returned.
    #[inline]
    pub(super) fn collect_releases(&mut self) -> bool {
        let Some(landing) = self.assembly.landing_mut() else { return false };
        landing.collect();
        self.is_release_due()
    }

    /// [`Link::collect_releases`] without that look.
    #[inline]
    fn is_release_due(&self) -> bool {
        self.assembly.landing().is_some_and(LandingZone::is_due)
            || self.write_path.as_ref().is_some_and(|path| path.has_news())
    }

    #[inline]
    fn has_begun_nothing(&self) -> bool {
        self.lanes.is_empty()
            && self.segmenter.is_empty()
            && !self.bulk.has_begun()
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
        self.credits.counters().owed.data()
    }

    /// Data credits that this end offers the peer now, those owed and spent among them.
    #[inline]
    #[must_use]
    pub fn window_data(&self) -> u16 {
        self.credits.local().data
    }
}
