//! The sealing of a connection: each frame is encrypted on its way into the memory that is posted,
//! and decrypted in the receive buffer in which it arrived.
//!
//! Records, which the peer's memory takes, are sealed in the staging buffer.
//!
//! Owns the copy of a frame that is sealed. Never decides what is sent.
//!
//! Invariants:
//! 1. From [`Connection::seal`] on, nothing is posted but sealed SENDs, WRITEs of sealed records,
//!    and the empty SEND that drains a QP in ERR. No frame that is not opened reaches the link.
//! 2. A frame is sealed right before it is posted, and posted once.

use super::Connection;
use super::queue_pair::{ConnectionQp, Phase, failed, refused, wr_id};
use super::receiving::lend_or_copy;
use crate::device::connection_error::CloseCause;
use crate::device::{
    Completion, CompletionKind, CompletionQueue, RecvWr, SendOp, SendWr, Source, Status,
};
use crate::engine::upper::UpperLayer;
use crate::memory::region::ProtectionDomain;
use crate::protocol::frame::HEADER_BYTES;
use crate::protocol::link::Stamped;
use crate::protocol::lock::{Opener, SealError, Sealer, TAG_BYTES};

/// The sealing side of a send path.
pub(super) struct Sealing {
    sealer: Sealer,
    /// A frame that is posted inline.
    scratch: Vec<u8>,
    /// Longest SEND that the device takes inline, bytes.
    max_inline_bytes: usize,
}

impl Sealing {
    /// Seals a frame and posts it, from registered memory if it is too long to be inline.
    pub(super) fn post(
        &mut self,
        cq: &mut dyn CompletionQueue,
        queue_pair: &mut ConnectionQp,
        domain: &ProtectionDomain,
        parts: [&[u8]; 3],
        stamped: Stamped,
    ) -> Result<(), CloseCause> {
        let text_len = parts.iter().map(|part| part.len()).sum::<usize>();
        let (len, op) = (text_len + TAG_BYTES, SendOp::Send);
        let wr_id = wr_id(queue_pair, 1) | stamped.token;
        let mut wr = if len <= self.max_inline_bytes {
            self.scratch.clear();
            parts.iter().for_each(|part| self.scratch.extend_from_slice(part));
            self.scratch.extend_from_slice(&[0; TAG_BYTES]);
            self.sealer.seal(&mut self.scratch).map_err(unsealed)?;
            SendWr { wr_id, op, signaled: stamped.signaled, source: Source::Inline(&self.scratch) }
        } else {
            let taken = queue_pair.send_buffers.take(domain);
            let (mut buffer, is_last) = taken.map_err(|error| failed(&error))?;
            let frame = buffer.get_mut(..len).ok_or_else(|| unsealed(SealError::Truncated(len)))?;
            let mut at = 0;
            for part in parts {
                frame[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            self.sealer.seal(frame).map_err(unsealed)?;
            let len = u32::try_from(len).map_err(|_| unsealed(SealError::Truncated(len)))?;
            let source = Source::Buffer { buffer, start: 0, len };
            SendWr { wr_id, op, signaled: stamped.signaled | is_last, source }
        };
        let posted = cq.post_send(queue_pair.qp, std::slice::from_mut(&mut wr));
        posted.map_err(|error| refused(&error))?;
        queue_pair.on_posted(1);
        Ok(())
    }

    /// Seals what is written for the next frame, and returns the block that names it.
    pub(super) fn seal_records(&mut self, bytes: &mut [u8]) -> Result<Vec<u8>, CloseCause> {
        Ok(self.sealer.seal_records(bytes).map_err(unsealed)?.to_bytes())
    }

    #[cfg(any(test, feature = "model"))]
    pub(super) fn skip_to(&mut self, number: u64) {
        self.sealer.skip_to(number);
    }
}

/// Nothing that could be sent.
#[cold]
fn unsealed(error: SealError) -> CloseCause {
    CloseCause::Device(error.to_string().into())
}

impl<P: UpperLayer> Connection<P> {
    /// From now on all frames are sealed.
    pub(super) fn seal(&mut self, sealer: Sealer, opener: Opener) {
        let Some(queue_pair) = &mut self.queue_pair else { return };
        // Every frame takes the way of those that are not inline.
        let max_inline_bytes = std::mem::take(&mut queue_pair.max_inline_bytes);
        self.send_path.seal(Sealing { sealer, scratch: Vec::new(), max_inline_bytes });
        self.opener = Some(Box::new(opener));
    }

    /// Opens the frame of a RECV that has completed, where it lies. Returns whether nothing is left
    /// to do: it was a plain message, or ended the connection.
    pub(super) fn on_sealed_recv(
        &mut self,
        cq: &mut dyn CompletionQueue,
        completion: &mut Completion,
        reposts: &mut Vec<RecvWr>,
    ) -> bool {
        let (Some(opener), Some(queue_pair), Some(link)) =
            (&mut self.opener, &mut self.queue_pair, &mut self.link)
        else {
            return false;
        };
        let len = completion.byte_len as usize;
        // All others end the connection, or are ignored as it has ended.
        let is_frame = completion.status == Status::Success
            && completion.kind == CompletionKind::Recv
            && !matches!(queue_pair.phase, Phase::Closing | Phase::Draining { .. })
            && queue_pair.posted_recv > 0;
        let Some(mut buffer) = completion.buffer.take_if(|buffer| is_frame && len <= buffer.len())
        else {
            return false;
        };
        match opener.open(completion.imm, &mut buffer[..len]) {
            Ok(opened) if link.on_opened_frame(&buffer[..opened]) => {
                queue_pair.posted_recv -= 1;
                queue_pair.check_window(reposts);
                let message = lend_or_copy(queue_pair, buffer, HEADER_BYTES, opened, reposts);
                if let Err(rule) = self.on_message(message) {
                    self.fail(cq, &CloseCause::Protocol(rule));
                }
                true
            }
            Ok(opened) => {
                link.set_record_keys(opener.record_keys());
                completion.byte_len = u32::try_from(opened).unwrap_or(u32::MAX);
                completion.buffer = Some(buffer);
                false
            }
            Err(error) => {
                queue_pair.posted_recv -= 1;
                queue_pair.check_window(reposts);
                reposts.push(RecvWr { wr_id: 0, buffer });
                self.leave_fast_path();
                self.fail(cq, &CloseCause::Protocol(error.to_string().into()));
                true
            }
        }
    }

    /// The next frames of both directions have this number, as if the others had been sent.
    #[cfg(any(test, feature = "model"))]
    pub(crate) fn skip_frames(&mut self, to: u64) {
        self.send_path.skip_frames(to);
        if let Some(opener) = &mut self.opener {
            opener.skip_to(to);
        }
    }
}
