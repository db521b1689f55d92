//! A window that grows: the peer asks, RECVs are posted, and only then are their credits granted.
//! And RECVs that connections share.
//!
//! The invariants are those of [`connection`](super).

use super::Connection;
use crate::device::connection_error::CloseCause;
use crate::device::{Completion, CompletionQueue, RecvWr};
use crate::engine::upper::UpperLayer;
use crate::memory::region::Buffer;
use crate::user_code::logged;

impl<P: UpperLayer> Connection<P> {
    /// Posts more RECVs, so that the peer may have more messages in flight (credit rule 9).
    #[cold]
    pub(super) fn grow_window(&mut self, cq: &mut dyn CompletionQueue) -> Result<(), CloseCause> {
        let (Some(queue_pair), Some(link)) = (&mut self.queue_pair, &mut self.link) else {
            return Ok(());
        };
        let more = u32::from(link.wanted_growth().unwrap_or_default());
        let Some(buffers) = queue_pair.recv_buffers.grow(self.send_path.domain(), more) else {
            link.decline_growth();
            return Ok(());
        };
        for buffer in buffers {
            queue_pair.post_recv(cq, buffer)?;
        }
        queue_pair.window_recv += more;
        link.grow_window();
        Ok(())
    }

    /// A RECV has completed that nothing is read of: one that connections share is posted again,
    /// for the others. It is not counted here, so that a peer cannot go on to take them.
    #[cold]
    pub(super) fn return_recv(&mut self, cq: &mut dyn CompletionQueue, buffer: Option<Buffer>) {
        if let (Some(buffer), Some(queue_pair)) = (buffer, &self.queue_pair)
            && queue_pair.recv_buffers.share.is_some()
            && let Err((error, _)) = cq.post_srq_recv(RecvWr { wr_id: 0, buffer })
        {
            logged(move || tracing::error!(%error, "a receive that connections share is lost"));
        }
    }

    /// More messages than the share has RECVs: the peer takes those of others, and hears no reason.
    #[cold]
    pub(super) fn on_overrun(&mut self, cq: &mut dyn CompletionQueue, completion: &mut Completion) {
        self.return_recv(cq, completion.buffer.take());
        // Without a Close frame, which would keep its QP up for longer. If it has broken another
        // rule before, that is the cause.
        let cause = "the peer sent more messages than its share of the receive queue";
        self.fail(cq, &CloseCause::Device(cause.into()));
    }
}
