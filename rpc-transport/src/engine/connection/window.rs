//! A window that grows: the peer asks, RECVs are posted, and only then is it told. And one that falls: the
//! peer gives back what it has no use for, and as many RECVs are not posted again.
//!
//! The invariants are those of [`connection`](super).

use super::Connection;
use crate::connect::error::CloseCause;
use crate::device::CompletionQueue;
use crate::engine::upper::Protocol;
use crate::memory::region::Buffer;

impl<P: Protocol> Connection<P> {
    /// A frame has asked for more, or given back.
    #[cold]
    pub(super) fn on_window_news(
        &mut self,
        cq: &mut dyn CompletionQueue,
    ) -> Result<(), CloseCause> {
        let (Some(queue_pair), Some(link)) = (&mut self.queue_pair, &mut self.link) else {
            return Ok(());
        };
        let fallen = u32::from(link.take_fallen());
        if fallen > 0 {
            queue_pair.window_recv -= fallen;
            queue_pair.recv_buffers.fall(fallen);
        }
        if link.wanted_growth().is_some() { self.grow_window(cq) } else { Ok(()) }
    }

    /// The window has fallen: posts what is to be posted in the place of a buffer, if anything is.
    #[cold]
    #[inline(never)]
    pub(super) fn settle(
        &mut self,
        cq: &mut dyn CompletionQueue,
        buffer: Buffer,
    ) -> Result<(), CloseCause> {
        let buffers = self.queue_pair.as_mut().map(|queue_pair| &mut queue_pair.recv_buffers);
        let buffer = buffers.and_then(|buffers| buffers.exchange(buffer));
        buffer.map_or(Ok(()), |buffer| self.post_recv(cq, buffer))
    }

    /// Posts more RECVs, so that the peer may have more messages in flight (credit rule 9).
    fn grow_window(&mut self, cq: &mut dyn CompletionQueue) -> Result<(), CloseCause> {
        let (Some(queue_pair), Some(link)) = (&mut self.queue_pair, &mut self.link) else {
            return Ok(());
        };
        let more = u32::from(link.wanted_growth().unwrap_or_default());
        let Some(to_post) = queue_pair.recv_buffers.grow(self.poster.domain(), more) else {
            link.decline_growth();
            return Ok(());
        };
        for _ in 0..to_post {
            let buffer = self.queue_pair.as_ref().and_then(|pair| pair.recv_buffers.take());
            let Some(buffer) = buffer else {
                // Cannot happen: they were there a moment ago. RECVs that are not counted are no good.
                return Err(CloseCause::Device("no buffers for a window that grows".into()));
            };
            self.post_recv(cq, buffer)?;
        }
        if let (Some(queue_pair), Some(link)) = (&mut self.queue_pair, &mut self.link) {
            queue_pair.window_recv += more;
            link.grow_window();
        }
        Ok(())
    }
}
