//! The first frame of the link of a connection that was locked: UNLOCKED, from the server.
//!
//! It is a frame of the data class, so that the RECV which it takes is one of the window. The
//! invariants are those of [`link`](super).

use super::{FrameBytes, Link, Transmit};
use crate::message::outgoing::OutBuf;
use crate::protocol::credit::Grant;
use crate::protocol::error::ProtocolError;

impl Link {
    /// At a server, before anything else: spends a credit for `frame`, which is UNLOCKED. `None`
    /// for a link that has sent something.
    pub(crate) fn unlock(&mut self, frame: &[u8]) -> Option<Transmit<'static>> {
        if self.sent != 0 {
            return None;
        }
        let stamp = self.spend()?;
        debug_assert_eq!(stamp.grant, Grant::default(), "the header of UNLOCKED has no credits");
        let mut message = OutBuf::new();
        message.extend_from_slice(frame);
        Some(Transmit::data(FrameBytes::Message(message), stamp))
    }

    /// At a client, before anything else: UNLOCKED has arrived, and its RECV was posted again.
    ///
    /// # Errors
    /// None on a new link.
    pub(crate) fn on_unlocked(&mut self) -> Result<(), ProtocolError> {
        Ok(self.credits.on_data(Grant::default())?)
    }
}
