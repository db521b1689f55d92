//! Answers calls of the peer: results, errors and statuses into the session.
//!
//! Owns the checks of a reply before it is sent: its size, and room in the queue. Runs under the
//! shard's lock, so it leaves values that may be the user's to the caller.

use std::task::Waker;

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::protocol::config::WhenFull;

use super::RpcEndpoint;
use super::send_quota::UNCOUNTED_BYTES;
use crate::method::MethodDescriptor;
use crate::reply::Reply;
use crate::session::{self, Answer, Gone, IncomingId, RAISE};
use crate::status::Status;

/// Whether the session has accepted a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replied {
    /// Queued to be sent, or dropped because the caller has gone.
    Done,
    /// The call was answered with `ResourceExhausted` instead.
    Refused,
    /// Not accepted: it must wait until the connection's queue has room.
    MustWait,
}

/// The decision about a reply.
enum ReplyCheck {
    Send,
    Wait,
    /// Send this status instead.
    Refuse(Status),
}

impl RpcEndpoint {
    /// Answers a call. A reply that is too large for the caller becomes an error that says so.
    ///
    /// Takes only a body that is sent. Anything else, such as a status, stays in `reply`, because
    /// it may hold values of the user's, which must be dropped outside the lock.
    pub(crate) fn reply(
        &mut self,
        id: IncomingId,
        method: Option<&'static MethodDescriptor>,
        reply: &mut Option<Reply>,
    ) -> Replied {
        *reply = match reply.take() {
            Some(Reply::Ok(body)) => {
                let mut body = Some(body);
                self.reply_with_result(id, &mut body);
                match body {
                    Some(body) => Some(Reply::Ok(body)),
                    None => return Replied::Done,
                }
            }
            other => other,
        };
        self.reply_slow(id, method, reply)
    }

    /// [`RpcEndpoint::reply`] for a reply that has waited for room. It no longer waits, also if it
    /// leaves by the fast path, which does not look at waiting replies.
    pub(crate) fn reply_after_wait(
        &mut self,
        id: IncomingId,
        method: Option<&'static MethodDescriptor>,
        reply: &mut Option<Reply>,
    ) -> Replied {
        // As in the slow path.
        drop(self.forget_waiting(id));
        self.reply(id, method, reply)
    }

    /// Fast path of [`RpcEndpoint::reply`]: takes a result that needs no further check.
    #[inline]
    pub(crate) fn reply_with_result(&mut self, id: IncomingId, body: &mut Option<OutBuf>) {
        if let Some(result) = body.take_if(|body| self.reply_passes(body.total_len())) {
            // A reply that comes too late for its caller is dropped.
            let _ = self.session.reply_with(id, session::ReplyKind::Ok, result);
        }
    }

    /// Slow path of [`RpcEndpoint::reply`]: error replies, large ones, and full queues.
    #[cold]
    fn reply_slow(
        &mut self,
        id: IncomingId,
        method: Option<&'static MethodDescriptor>,
        reply: &mut Option<Reply>,
    ) -> Replied {
        // The waker belongs to a task of this crate, so it may be dropped under the lock.
        drop(self.forget_waiting(id));
        match reply {
            None => return Replied::Done,
            Some(Reply::Ok(body) | Reply::UserError(body)) => {
                match self.check_reply(body, method) {
                    ReplyCheck::Send => {}
                    ReplyCheck::Wait => return Replied::MustWait,
                    ReplyCheck::Refuse(status) => {
                        let _ = self.reply_status(id, method, &status);
                        return Replied::Refused;
                    }
                }
            }
            Some(Reply::Status(status)) => {
                let _ = self.reply_status(id, method, status);
                return Replied::Done;
            }
        }
        let _ = match reply.take() {
            Some(Reply::Ok(body)) => self.session.reply(id, Answer::Ok(body)),
            Some(Reply::UserError(body)) => self.session.reply(id, Answer::UserError(body)),
            other => {
                *reply = other;
                Ok(())
            }
        };
        Replied::Done
    }

    /// Decides about a reply that is large or finds the queue full.
    fn check_reply(
        &mut self,
        body: &mut OutBuf,
        method: Option<&'static MethodDescriptor>,
    ) -> ReplyCheck {
        let bytes = body.total_len();
        let refuse = |text| ReplyCheck::Refuse(Status::resource_exhausted(text));
        if let Some(why) = self.reply_too_large(bytes) {
            let name = method.map_or("", |method| method.name);
            return refuse(format!("{name}: the reply {why}"));
        }
        if bytes > UNCOUNTED_BYTES && !body.is_charged() {
            match self.memory().reserve(bytes) {
                Ok(charge) => body.charge(charge),
                Err(reason) => {
                    return refuse(format!(
                        "no memory for a reply of {bytes} bytes: {reason}; {RAISE}"
                    ));
                }
            }
        }
        if self.quota.admit(bytes) {
            return ReplyCheck::Send;
        }
        match self.when_full {
            WhenFull::Refuse => refuse(
                "the connection's queue is full (it holds the server's `queued_bytes` unsent, and \
                 its `when_full` is set to refuse)"
                    .to_owned(),
            ),
            _ => ReplyCheck::Wait,
        }
    }

    /// Registers the waker of a reply that was not admitted. It is woken when there may be room.
    pub(crate) fn wait_for_room(&mut self, id: IncomingId, reply: Option<&Reply>, waker: Waker) {
        let bytes = match reply {
            Some(Reply::Ok(body) | Reply::UserError(body)) => body.total_len(),
            _ => 0,
        };
        self.quota.wait(id, bytes, waker);
    }

    /// The reply no longer waits for room: it was queued, or never will be. Returns its waker, to
    /// be dropped outside the lock.
    pub(crate) fn forget_waiting(&mut self, id: IncomingId) -> Option<Waker> {
        let waker = self.quota.forget(id);
        self.has_news |= self.quota.has_wakes();
        waker
    }

    #[cold]
    fn reply_status(
        &mut self,
        id: IncomingId,
        method: Option<&'static MethodDescriptor>,
        status: &Status,
    ) -> Result<(), Gone> {
        let status = status.passed_on(method);
        let (code, retryable) = (status.code().number(), status.is_retryable());
        let room = self.reply_room();
        if status.metadata().is_empty() {
            let (text, details) = status.sent_within(room);
            return self
                .session
                .reply(id, Answer::Status { code, retryable, text, details: &details });
        }
        let mut encoded = OutBuf::new();
        status.metadata().encode(&mut encoded);
        // The text is cut to make room for the metadata. If there is no room for that, the text
        // goes alone.
        let left = room.checked_sub(encoded.len()).unwrap_or(room);
        let (text, details) = status.sent_within(left);
        let (kind, mut body) = session::status_body(code, retryable, text, &details);
        if encoded.len() + body.len() <= room {
            body.prepend_marked(&encoded);
        }
        self.session.reply_with(id, kind, body)
    }
}

#[cfg(test)]
mod tests {
    use rpc_transport::memory::budget::MemoryBudget;
    use rpc_transport::protocol::config::QueueLimit;
    use rpc_transport::protocol::link::Waiting;

    use super::*;
    use crate::bulk::BulkPool;
    use crate::session::{Role, SessionLimits};

    /// A regression: its entry stayed, was woken instead of another, and took the free room.
    #[test]
    fn a_reply_that_leaves_waits_no_more() {
        let queue = QueueLimit { bytes: 1000, when_full: WhenFull::Wait };
        let (pool, memory) = (BulkPool::of_no_connection(), MemoryBudget::unlimited());
        let limits = SessionLimits::default();
        let mut peer = RpcEndpoint::new(Role::Server, limits, pool, 0, queue, memory);
        let full = Waiting { small_bytes: 2000, longest_small: 100, ..Waiting::default() };
        peer.quota.on_waiting(full);
        let [first, second] = [1, 2].map(|slot| IncomingId::of(slot, 1));
        let reply = || Some(Reply::Ok(OutBuf::new()));
        for id in [first, second] {
            assert_eq!(peer.reply(id, None, &mut reply()), Replied::MustWait);
            peer.wait_for_room(id, reply().as_ref(), Waker::noop().clone());
        }
        // Its task is polled for another reason, when there is room but nobody was woken yet.
        peer.quota.on_waiting(Waiting::default());
        assert_eq!(peer.reply_after_wait(first, None, &mut reply()), Replied::Done);
        assert!(peer.quota.poll_wake().is_some(), "the second may try");
        assert!(peer.quota.poll_wake().is_none(), "nobody else waits");
    }
}
