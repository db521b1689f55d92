//! How much one end of a session takes on.

use super::streams::StreamLimits;

/// Bounds of one end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// Calls of this end that may be in flight at once; the peer may allow fewer. Default 65,536. 0:
    /// this end makes no calls.
    pub max_outgoing_calls: u32,
    /// Further calls that may wait until one of those has ended; where the peer allows fewer, the
    /// difference may wait as well. Default 65,536.
    pub max_waiting_calls: u32,
    /// Calls of the peer that this end accepts in flight at once; announced in the hello. 0: this
    /// end takes no calls. Default 1,024.
    pub max_incoming_calls: u32,
    /// Bounds of streams; `None`: this end speaks none.
    pub streams: Option<StreamLimits>,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            max_outgoing_calls: 65_536,
            max_waiting_calls: 65_536,
            max_incoming_calls: 1024,
            streams: Some(StreamLimits::default()),
        }
    }
}
