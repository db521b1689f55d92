//! A window that grows: the peer asks, RECVs are posted, and only then is it told.
//!
//! The invariants are those of [`connection`](super).

use super::Connection;
use crate::connect::error::CloseCause;
use crate::device::CompletionQueue;
use crate::engine::upper::Protocol;

impl<P: Protocol> Connection<P> {
    /// Posts more RECVs, so that the peer may have more messages in flight (credit rule 9).
    #[cold]
    pub(super) fn grow_window(&mut self, cq: &mut dyn CompletionQueue) -> Result<(), CloseCause> {
        let (Some(queue_pair), Some(link)) = (&mut self.queue_pair, &mut self.link) else {
            return Ok(());
        };
        let more = link.wanted_growth().unwrap_or_default();
        if !queue_pair.recv_buffers.grow(self.poster.domain(), more.into()) {
            link.decline_growth();
            return Ok(());
        }
        for _ in 0..more {
            let buffer = self.queue_pair.as_ref().and_then(|pair| pair.recv_buffers.take());
            let Some(buffer) = buffer else {
                // Cannot happen: they were there a moment ago. RECVs that are not counted are no good.
                return Err(CloseCause::Device("no buffers for a window that grows".into()));
            };
            self.post_recv(cq, buffer)?;
        }
        if let (Some(queue_pair), Some(link)) = (&mut self.queue_pair, &mut self.link) {
            queue_pair.window_recv += u32::from(more);
            link.grow_window();
        }
        Ok(())
    }
}
