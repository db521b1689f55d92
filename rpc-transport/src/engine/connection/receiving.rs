//! What a received message takes: its frame is counted, its buffer copied or lent, its RECV posted
//! again.
//!
//! The invariants are those of [`connection`](super).

use std::sync::Arc;
use std::time::Instant;

use super::ending::{cause_of, closed_by_peer};
use super::queue_pair::{ConnectionQp, Phase};
use super::{Connection, revoke, take_wakes_and_freed};
use crate::device::connection_error::CloseCause;
use crate::device::{Completion, CompletionKind, CompletionQueue, QpHandle, RecvWr, Status};
use crate::engine::upper::UpperLayer;
use crate::memory::region::Buffer;
use crate::message::received::Message;
use crate::protocol::frame::HEADER_BYTES;
use crate::protocol::link::Inbound;

/// Messages up to this size are copied and their RECV is reposted once their run is handled, bytes.
const COPY_OUT_BYTES: usize = 1024;

impl<P: UpperLayer> Connection<P> {
    /// Handles those first ones of the completions that are of its QP. Returns how many these are,
    /// and whether there is a RECV among them.
    #[inline(never)]
    pub(crate) fn on_run(
        &mut self,
        cq: &mut dyn CompletionQueue,
        now: Instant,
        qp: QpHandle,
        completions: &mut [Completion],
        reposts: &mut Vec<RecvWr>,
    ) -> (usize, bool) {
        let (mut count, mut has_received) = (0, false);
        for completion in completions.iter_mut().take_while(|next| next.qp == qp) {
            count += 1;
            if completion.kind == CompletionKind::Send {
                self.on_send_completion(cq, completion);
            } else {
                self.on_recv_completion(cq, now, completion, reposts);
                has_received = true;
            }
        }
        if has_received {
            self.end_run(cq, now, reposts);
        }
        (count, has_received)
    }

    #[inline]
    pub(crate) fn on_recv_completion(
        &mut self,
        cq: &mut dyn CompletionQueue,
        now: Instant,
        completion: &mut Completion,
        reposts: &mut Vec<RecvWr>,
    ) {
        let (len, imm) = (completion.byte_len as usize, completion.imm);
        if let (Some(queue_pair), Some(link)) = (&mut self.queue_pair, &mut self.link)
            && completion.status == Status::Success
            && completion.kind == CompletionKind::Recv
            && queue_pair.posted_recv > 0
            && let Some(buffer) = completion.buffer.take_if(|buffer| {
                buffer.get(..len).is_some_and(|bytes| link.on_plain_frame(imm, bytes))
            })
        {
            queue_pair.posted_recv -= 1;
            queue_pair.check_window(reposts);
            let message = if len <= COPY_OUT_BYTES {
                let message = Message::copied(&buffer[HEADER_BYTES..len]);
                if reposts.len() < reposts.capacity() {
                    // Known to have room, so that it is made in its place.
                    reposts.push(RecvWr { wr_id: 0, buffer });
                } else {
                    push_to_full(reposts, buffer);
                }
                message
            } else {
                lend_or_copy(queue_pair, buffer, HEADER_BYTES, len, reposts)
            };
            if let Err(rule) = self.on_message(message) {
                self.fail(cq, &CloseCause::Protocol(rule));
            }
        } else {
            self.on_other_recv(cq, now, completion, reposts);
        }
    }

    /// [`Connection::on_recv_completion`] for all but plain messages of a connection that is open.
    #[inline(never)]
    fn on_other_recv(
        &mut self,
        cq: &mut dyn CompletionQueue,
        now: Instant,
        completion: &mut Completion,
        reposts: &mut Vec<RecvWr>,
    ) {
        if self.opener.is_some() && self.on_sealed_recv(cq, completion, reposts) {
            return;
        }
        self.leave_fast_path();
        let Some(queue_pair) = &mut self.queue_pair else { return };
        let Some(left) = queue_pair.posted_recv.checked_sub(1) else {
            return self.on_overrun(cq, completion);
        };
        queue_pair.posted_recv = left;
        let phase = queue_pair.phase;
        let draining = matches!(phase, Phase::Draining { .. });
        if draining {
            return self.return_recv(cq, completion.buffer.take());
        }
        let Some(buffer) = completion.buffer.take() else { return };
        if completion.status != Status::Success {
            self.return_recv(cq, Some(buffer));
            let vendor_error = cq.vendor_error(completion.qp);
            let cause = cause_of(completion, vendor_error, self.send_path.has_remote_errors());
            self.fail(cq, &cause);
            return;
        }
        if phase == Phase::Closing {
            return self.return_recv(cq, Some(buffer));
        }
        let len = completion.byte_len as usize;
        if completion.kind == CompletionKind::RecvWrite || len > buffer.len() {
            // An incoming write's length is not the length of a message in the buffer.
            self.return_recv(cq, Some(buffer));
            self.fail(cq, &CloseCause::Protocol("a write where a message was expected".into()));
            return;
        }
        queue_pair.check_window(reposts);
        if let Err(cause) = self.on_frame(now, completion.imm, buffer, len, reposts) {
            self.fail(cq, &cause);
        }
    }

    /// A frame of `len` bytes has arrived: it may be the last of a message.
    fn on_frame(
        &mut self,
        now: Instant,
        imm: Option<u32>,
        buffer: Buffer,
        len: usize,
        reposts: &mut Vec<RecvWr>,
    ) -> Result<(), CloseCause> {
        let (Some(queue_pair), Some(link)) = (&self.queue_pair, &mut self.link) else {
            let taken = self.on_locked_frame(imm, &buffer[..len]);
            reposts.push(RecvWr { wr_id: 0, buffer });
            return taken;
        };
        let protocol = &self.protocol;
        let copies_tail = |head: &[u8]| protocol.copies_tail(head);
        let inbound = link.on_any_frame(now, imm, &buffer[..len], &copies_tail);
        let message = if let Ok(Inbound::Message { payload_at, slot }) = inbound {
            lend_or_copy(queue_pair, buffer, payload_at, len, reposts).with_slot(slot)
        } else {
            reposts.push(RecvWr { wr_id: 0, buffer });
            match inbound {
                Ok(Inbound::Assembled(message)) => message,
                Ok(Inbound::Closed(reason)) => return Err(closed_by_peer(&reason)),
                Ok(Inbound::None | Inbound::Message { .. }) => return Ok(()),
                Err(error) => return Err(CloseCause::Protocol(error.to_string().into())),
            }
        };
        self.on_message(message).map_err(CloseCause::Protocol)
    }

    #[inline]
    pub(super) fn on_message(&mut self, message: Message) -> Result<(), Arc<str>> {
        let (link, deferred) = (&mut self.link, &mut self.deferred);
        let is_fast = &mut self.is_fast;
        let mut revoke = |tag| {
            *is_fast = false;
            revoke(link, deferred, tag)
        };
        self.protocol.on_message(message, &mut revoke)
    }

    /// Posts the RECV whose repost was delayed.
    pub(crate) fn post_spare(&mut self, cq: &mut dyn CompletionQueue, reposts: &mut Vec<RecvWr>) {
        let Some(queue_pair) = &mut self.queue_pair else { return };
        let Some(buffer) = queue_pair.spare.take() else { return };
        if matches!(queue_pair.phase, Phase::Draining { .. }) {
            reposts.push(RecvWr { wr_id: 0, buffer });
            return self.post_reposts(cq, reposts);
        }
        if let Err(cause) = queue_pair.post_recv(cq, buffer) {
            self.fail(cq, &cause);
        }
    }

    /// A run of messages has been handled: answers what they say about windows, posts their RECVs
    /// again, but for one that may wait until the reply has been sent (invariant 1), and has what
    /// is for after the lock collected.
    #[inline]
    pub(super) fn end_run(
        &mut self,
        cq: &mut dyn CompletionQueue,
        now: Instant,
        reposts: &mut Vec<RecvWr>,
    ) {
        if let Some(link) = &mut self.link {
            link.on_plain_frames(now);
            if link.wanted_growth().is_some()
                && let Err(cause) = self.grow_window(cq)
            {
                self.fail(cq, &cause);
            }
        }
        if let Some(queue_pair) = &mut self.queue_pair
            // In ERR no reply is sent, and nobody looks for it.
            && !matches!(queue_pair.phase, Phase::Draining { .. })
            && let Some(last) = reposts.pop()
            && let Some(buffer) = queue_pair.spare.replace(last.buffer)
        {
            reposts.push(RecvWr { wr_id: 0, buffer });
        }
        if !reposts.is_empty() {
            self.post_reposts(cq, reposts);
        }
        if !self.is_fast
            && let Some(link) = &mut self.link
        {
            take_wakes_and_freed(link, &mut self.deferred);
        }
    }

    /// Posts RECVs again.
    fn post_reposts(&mut self, cq: &mut dyn CompletionQueue, reposts: &mut Vec<RecvWr>) {
        let Some(queue_pair) = &mut self.queue_pair else { return reposts.clear() };
        let posted = match queue_pair.phase {
            // In ERR they may never complete.
            Phase::Draining { .. } => {
                reposts.drain(..).for_each(|wr| self.return_recv(cq, Some(wr.buffer)));
                Ok(())
            }
            _ => queue_pair.post_recvs(cq, reposts),
        };
        if let Err(cause) = posted {
            self.fail(cq, &cause);
        }
    }
}

#[cold]
#[inline(never)]
fn push_to_full(reposts: &mut Vec<RecvWr>, buffer: Buffer) {
    reposts.push(RecvWr { wr_id: 0, buffer });
}

/// Lends the buffer of a message that is not small, if another one can be posted in its place, or
/// copies the message. That is what the frame of `len` bytes has from `payload_at` on.
#[inline(never)]
pub(super) fn lend_or_copy(
    queue_pair: &ConnectionQp,
    buffer: Buffer,
    payload_at: usize,
    len: usize,
    reposts: &mut Vec<RecvWr>,
) -> Message {
    if len > COPY_OUT_BYTES
        && let Some(spare) = queue_pair.recv_buffers.take_spare()
    {
        reposts.push(RecvWr { wr_id: 0, buffer: spare });
        let mut message = Message::lent(buffer, len);
        message.advance(payload_at);
        return message;
    }
    let message = Message::copied(&buffer[payload_at..len]);
    reposts.push(RecvWr { wr_id: 0, buffer });
    message
}
