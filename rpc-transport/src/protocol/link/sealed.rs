//! A link whose frames are sealed, by the engine.
//!
//! The link makes and takes frames in clear, each with room for a tag, and those that name what was
//! written also with room for its TAGS. The engine seals both. The invariants are those of
//! [`link`](super), and:
//!
//! 1. What is written for a frame is copied, sealed and posted together with it, so no record is
//!    sealed that is not named.
//! 2. Only tails are written. A head is read under the shard's lock, and nothing is opened there
//!    but frames.

use std::time::Instant;

use super::{LandingZone, Link};
use crate::protocol::config::LinkConfig;
use crate::protocol::credit::WindowError;
use crate::protocol::frame::{self, TAGS_MAX_BYTES};
use crate::protocol::handshake::{Agreed, Features};
use crate::protocol::lock::{RecordKeys, TAG_BYTES};

/// The peer has sent its Close.
pub(super) const CLOSED: u8 = 1;
/// All frames are sealed.
const SEALED: u8 = 2;
/// [`TAG_BYTES`].
const TAG: u32 = 16;
const _: () = assert!(TAG as usize == TAG_BYTES);

impl Link {
    /// [`Link::new`] for a connection whose frames are sealed.
    ///
    /// # Errors
    /// Those of [`Link::new`].
    pub fn sealed(config: &LinkConfig, agreed: &Agreed, now: Instant) -> Result<Self, WindowError> {
        let mut agreed = *agreed;
        let longest = agreed.remote.receive_buffer_bytes.min(config.receive_buffer());
        agreed.remote.receive_buffer_bytes = longest.saturating_sub(TAG);
        let mut link = Self::new(config, &agreed, now)?;
        link.features = link.features.with(Features::RECORDS);
        link.room = link.room.saturating_sub(TAGS_MAX_BYTES);
        if let Some(path) = &mut link.write_path {
            path.seal();
        }
        link.keep_alive.trust_frames_alone();
        link.refuses_plain = SEALED;
        Ok(link)
    }

    /// Whether frames of this link are sealed.
    #[must_use]
    pub const fn is_sealed(&self) -> bool {
        self.refuses_plain & SEALED != 0
    }

    /// The keys of the records that the next frame may name.
    pub(crate) fn set_record_keys(&mut self, keys: &RecordKeys) {
        if let Some(landing) = self.assembly.landing_mut() {
            landing.records.set_keys(keys);
        }
    }

    /// Whether a record was read that failed its check. End the connection.
    pub(crate) fn has_forged_record(&self) -> bool {
        self.assembly.landing().is_some_and(LandingZone::has_forged_record)
    }

    /// Longest frame that [`Link::poll_transmit`] gives, bytes: the smaller of both ends' receive
    /// buffers, less the tag of a sealed one.
    #[must_use]
    pub fn frame_bytes(&self) -> u32 {
        self.frame_bytes
    }

    /// Longest frame as it is posted, bytes.
    #[must_use]
    pub fn posted_bytes(&self) -> u32 {
        self.frame_bytes + if self.is_sealed() { TAG } else { 0 }
    }

    /// [`Link::on_plain_frame`] for a frame that was sealed.
    #[inline]
    pub(crate) fn on_opened_frame(&mut self, bytes: &[u8]) -> bool {
        let Some(grant) = frame::plain(bytes, None) else { return false };
        !self.is_closing() && self.refuses_plain == SEALED && self.credits.on_data(grant).is_ok()
    }
}
