//! A link whose frames are sealed, by the engine.
//!
//! The link makes and takes frames in clear, each with room for a tag. Nothing is written into
//! memory of either end, as it would pass in clear: large messages travel in frames. The invariants
//! are those of [`link`](super).

use std::time::Instant;

use super::Link;
use crate::protocol::config::LinkConfig;
use crate::protocol::credit::WindowError;
use crate::protocol::frame;
use crate::protocol::handshake::Agreed;
use crate::protocol::lock::TAG_BYTES;

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
        let mut config = config.clone();
        // No arena is ever offered to the peer.
        config.arena = config.arena.max_chunks(0).keep_chunks(0);
        config.arena_segment_bytes = 0;
        let mut link = Self::new(&config, &agreed, now)?;
        if let Some(path) = &mut link.write_path {
            path.write_nothing();
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
