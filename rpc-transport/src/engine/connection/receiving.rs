//! What a received message takes: its buffer is copied or lent, its RECV posted again, its frame counted.
//!
//! The invariants are those of [`connection`](super).

use std::time::Instant;

use super::ending::{cause_of, closed_by_peer};
use super::queue_pair::{ConnectionQp, Phase};
use super::{Connection, take_wakes_and_freed};
use crate::connect::error::CloseCause;
use crate::device::{Completion, CompletionKind, CompletionQueue, RecvWr, Status};
use crate::engine::upper::Protocol;
use crate::memory::region::Buffer;
use crate::message::received::Message;
use crate::protocol::error::ProtocolError;
use crate::protocol::link::{Inbound, Link};

/// Messages up to this size are copied and their RECV is reposted once their run is handled, bytes.
const COPY_OUT_BYTES: usize = 1024;

impl<P: Protocol> Connection<P> {
    pub(crate) fn on_recv_completion(
        &mut self,
        cq: &mut dyn CompletionQueue,
        now: Instant,
        completion: &mut Completion,
        reposts: &mut Vec<RecvWr>,
    ) {
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
            let cause = cause_of(completion, vendor_error, self.poster.is_told_of_errors());
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
            self.fail(cq, &CloseCause::Protocol("a write where a message was due".into()));
            return;
        }
        debug_assert!(
            queue_pair.posted_recv as usize + reposts.len() + queue_pair.spare.iter().count()
                >= queue_pair.window_recv as usize,
            "a RECV of the window is neither posted nor about to be"
        );
        let mut done = self.on_frame(now, completion.imm, buffer, len, reposts);
        if done.is_ok() && self.link.as_ref().is_some_and(Link::has_window_news) {
            done = self.on_window_news(cq);
        }
        if let Err(cause) = done {
            self.fail(cq, &cause);
        }
    }

    /// A frame of `len` bytes has arrived.
    #[inline]
    fn on_frame(
        &mut self,
        now: Instant,
        imm: Option<u32>,
        buffer: Buffer,
        len: usize,
        reposts: &mut Vec<RecvWr>,
    ) -> Result<(), CloseCause> {
        let (Some(queue_pair), Some(link)) = (&mut self.queue_pair, &mut self.link) else {
            reposts.push(RecvWr { wr_id: 0, buffer });
            return Err(CloseCause::Protocol("a frame before the connection was set up".into()));
        };
        let message = match link.on_frame(now, imm, &buffer[..len]) {
            Ok(Inbound::Message { payload_at, slot }) => {
                let (mut message, free) = copy_or_lend(queue_pair, buffer, payload_at, len);
                reposts.push(RecvWr { wr_id: 0, buffer: free });
                if slot.is_some() {
                    message = message.with_slot(slot);
                }
                message
            }
            other => {
                reposts.push(RecvWr { wr_id: 0, buffer });
                match message_of(other)? {
                    Some(message) => message,
                    None => return Ok(()),
                }
            }
        };
        self.with_revoke(|protocol, revoke| protocol.on_message(message, revoke))
            .map_err(CloseCause::Protocol)
    }

    /// Posts the RECV whose repost was delayed.
    pub(crate) fn post_spare(&mut self, cq: &mut dyn CompletionQueue, reposts: &mut Vec<RecvWr>) {
        let spare = self.queue_pair.as_mut().and_then(|queue_pair| queue_pair.spare.take());
        reposts.extend(spare.map(|buffer| RecvWr { wr_id: 0, buffer }));
        self.post_reposts(cq, reposts);
    }

    /// A run of messages has been handled: posts their RECVs again, but for one that may wait until the
    /// reply has been sent (invariant 1), and has what is for after the lock collected.
    #[inline]
    pub(crate) fn end_run(&mut self, cq: &mut dyn CompletionQueue, reposts: &mut Vec<RecvWr>) {
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
        if let Some(link) = &mut self.link {
            take_wakes_and_freed(link, &mut self.deferred);
        }
    }

    /// Posts RECVs again, unless their window has fallen.
    fn post_reposts(&mut self, cq: &mut dyn CompletionQueue, reposts: &mut Vec<RecvWr>) {
        let Some(queue_pair) = &mut self.queue_pair else { return reposts.clear() };
        let posted = match queue_pair.phase {
            // In ERR they may never complete.
            Phase::Draining { .. } => {
                reposts.drain(..).for_each(|wr| self.return_recv(cq, Some(wr.buffer)));
                Ok(())
            }
            _ if queue_pair.recv_buffers.is_settling() => {
                // What one that fails leaves in the list is given back below.
                let mut settled = Ok(());
                while settled.is_ok()
                    && let Some(wr) = reposts.pop()
                {
                    settled = self.settle(cq, wr.buffer);
                }
                settled
            }
            _ => queue_pair.post_recvs(cq, reposts),
        };
        if let Err(cause) = posted {
            self.fail(cq, &cause);
            // Those that others have, too, are posted again.
            reposts.drain(..).for_each(|wr| self.return_recv(cq, Some(wr.buffer)));
        }
    }
}

/// The message of a frame that is none of its own, if it is the last of one.
#[inline(never)]
fn message_of(inbound: Result<Inbound, ProtocolError>) -> Result<Option<Message>, CloseCause> {
    match inbound {
        Ok(Inbound::Assembled(message)) => Ok(Some(message)),
        Ok(Inbound::Closed(reason)) => Err(closed_by_peer(&reason)),
        Ok(Inbound::None | Inbound::Message { .. }) => Ok(None),
        Err(error) => Err(CloseCause::Protocol(error.to_string().into())),
    }
}

/// Copies a small message, or lends its buffer if another one can be posted in its place. The message is
/// what the frame of `len` bytes has from `payload_at` on.
#[inline]
fn copy_or_lend(
    queue_pair: &ConnectionQp,
    buffer: Buffer,
    payload_at: usize,
    len: usize,
) -> (Message, Buffer) {
    if len > COPY_OUT_BYTES
        && let Some(spare) = queue_pair.recv_buffers.take_spare()
    {
        let mut message = Message::lent(buffer, len);
        message.advance(payload_at);
        return (message, spare);
    }
    (Message::copied(&buffer[payload_at..len]), buffer)
}
