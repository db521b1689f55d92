//! A window that grows: the peer asks, RECVs are posted, and only then is it told. And one that falls: the
//! peer gives back what it has no use for, and as many RECVs are not posted again.
//!
//! The invariants are those of [`connection`](super).

use super::Connection;
use crate::connect::error::CloseCause;
use crate::device::{Completion, CompletionQueue, RecvWr};
use crate::engine::shared_recvs::SharedRecvs;
use crate::engine::upper::Protocol;
use crate::memory::region::Buffer;
use crate::user_code::logged;

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
            if queue_pair.recv_buffers.fall(fallen) {
                queue_pair.posted_recv -= fallen;
            }
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
        if let Some(queue_pair) = &mut self.queue_pair
            && let Some(shared) = queue_pair.recv_buffers.shared()
        {
            // It counts as posted either way: what is not has been given back and is posted.
            let posted = shared.settle(buffer).map_or(Ok(()), |buffer| post_shared(cq, buffer));
            queue_pair.posted_recv += 1;
            return posted.map_err(|(cause, _)| cause);
        }
        let buffers = self.queue_pair.as_mut().map(|queue_pair| &mut queue_pair.recv_buffers);
        let buffer = buffers.and_then(|buffers| buffers.exchange(buffer));
        buffer.map_or(Ok(()), |buffer| self.post_recv(cq, buffer))
    }

    /// Posts those RECVs of its share of the pool that are not posted yet.
    pub(crate) fn post_share(&mut self, cq: &mut dyn CompletionQueue) -> Result<(), CloseCause> {
        let buffers = self.queue_pair.as_mut().map(|queue_pair| &mut queue_pair.recv_buffers);
        let Some(share) = buffers.and_then(|buffers| buffers.share.as_mut()) else { return Ok(()) };
        while let Some(buffer) = share.next_unposted() {
            post_shared(cq, buffer).map_err(|(cause, buffer)| {
                share.put_back(buffer);
                cause
            })?;
        }
        Ok(())
    }

    /// A RECV has completed that nothing is read of: where others have it too, it is posted again.
    #[cold]
    pub(super) fn return_recv(&mut self, cq: &mut dyn CompletionQueue, buffer: Option<Buffer>) {
        let Some(shared) = self.queue_pair.as_ref().and_then(|pair| pair.recv_buffers.shared())
        else {
            return;
        };
        repost_shared(cq, shared, buffer);
    }

    /// More messages than RECVs were granted: the peer takes those of others, and hears no reason.
    #[cold]
    pub(super) fn on_overrun(&mut self, cq: &mut dyn CompletionQueue, completion: &mut Completion) {
        self.return_recv(cq, completion.buffer.take());
        // No word to it: that would leave its QP up for longer. Where it has broken another rule before,
        // that is the cause.
        self.fail(cq, &CloseCause::Device("the peer takes receives of other connections".into()));
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
        self.post_share(cq)?;
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
            if queue_pair.recv_buffers.shared().is_some() {
                queue_pair.posted_recv += more;
            }
            link.grow_window();
        }
        Ok(())
    }
}

/// Posts a RECV to the shared receive queue.
fn post_shared(cq: &mut dyn CompletionQueue, buffer: Buffer) -> Result<(), (CloseCause, Buffer)> {
    cq.post_srq_recv(RecvWr { wr_id: 0, buffer })
        .map_err(|(error, wr)| (CloseCause::Device(error.to_string().into()), wr.buffer))
}

/// A RECV of the shared receive queue was taken by a message that nobody reads.
pub(crate) fn repost_shared(
    cq: &mut dyn CompletionQueue,
    shared: &SharedRecvs,
    buffer: Option<Buffer>,
) {
    let Some(buffer) = buffer.and_then(|buffer| shared.settle(buffer)) else { return };
    if let Err((error, _)) = post_shared(cq, buffer) {
        logged(move || tracing::error!(%error, "a receive that connections share is lost"));
    }
}
