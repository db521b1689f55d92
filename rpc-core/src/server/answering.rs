//! Answers calls of the peer: results, errors and statuses into the session.
//!
//! Owns the look at a reply before it is sent: its size, and whether the queue has room for it. Runs under the
//! shard's lock, so what may hold values of the user's is left to who called.

use std::task::Waker;

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::protocol::config::WhenFull;

use super::call::Replied;
use crate::endpoint::RpcEndpoint;
use crate::endpoint::room::UNCOUNTED_BYTES;
use crate::service::{MethodDescriptor, Reply};
use crate::session::{self, Answer, Gone, IncomingId, RAISE};
use crate::status::Status;

impl RpcEndpoint {
    /// Answers a call. A reply that is too large for the caller becomes an error that says so.
    /// Takes only a body that is sent: anything else, such as a status, stays in `reply`, because
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
        self.reply_rarely(id, method, reply)
    }

    /// Fast path of [`RpcEndpoint::reply`]: takes a result that passes without a look at sizes and queue.
    #[inline]
    pub(super) fn reply_with_result(&mut self, id: IncomingId, body: &mut Option<OutBuf>) {
        if let Some(result) = body.take_if(|body| self.reply_passes(body.total_len())) {
            // It may come too late for its caller; then there is nothing to do.
            let _ = self.session.reply_with(id, session::ReplyKind::Ok, result);
        }
    }

    /// Slow path of [`RpcEndpoint::reply`]: error replies, large ones, and full queues.
    #[cold]
    fn reply_rarely(
        &mut self,
        id: IncomingId,
        method: Option<&'static MethodDescriptor>,
        reply: &mut Option<Reply>,
    ) -> Replied {
        // The waker belongs to a task of this crate, so it may be dropped under the lock.
        drop(self.forget_waiting(id));
        match reply {
            None => return Replied::Done,
            Some(Reply::Ok(body) | Reply::UserError(body)) => match self.look_at(body, method) {
                Look::Send => {}
                Look::Wait => return Replied::MustWait,
                Look::Refuse(status) => {
                    let _ = self.reply_status(id, method, &status);
                    return Replied::Refused;
                }
            },
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
    fn look_at(&mut self, body: &mut OutBuf, method: Option<&'static MethodDescriptor>) -> Look {
        let bytes = body.total_len();
        let refuse = |text| Look::Refuse(Status::resource_exhausted(text));
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
        if self.room.admit(bytes) {
            return Look::Send;
        }
        match self.when_full() {
            WhenFull::Refuse => refuse(
                "the queue of the connection is full (the server's `queued_bytes` wait to leave, and \
                 its `when_full` is to refuse)"
                    .to_owned(),
            ),
            _ => Look::Wait,
        }
    }

    /// Registers `waker` for a reply that was not admitted; it is woken when there may be room.
    pub(super) fn wait_for_room(&mut self, id: IncomingId, reply: Option<&Reply>, waker: Waker) {
        let bytes = match reply {
            Some(Reply::Ok(body) | Reply::UserError(body)) => body.total_len(),
            _ => 0,
        };
        self.room.wait(id, bytes, waker);
    }

    #[cold]
    fn reply_status(
        &mut self,
        id: IncomingId,
        method: Option<&'static MethodDescriptor>,
        status: &Status,
    ) -> Result<(), Gone> {
        let status = status.passed_on(method);
        if !status.metadata().is_empty() {
            return self.reply_status_with(id, &status);
        }
        let (text, details) = status.sent_within(self.reply_room());
        let (code, retryable) = (status.code().number(), status.is_retryable());
        self.session.reply(id, Answer::Status { code, retryable, text, details: &details })
    }
}

/// Statuses with metadata.
impl RpcEndpoint {
    #[cold]
    fn reply_status_with(&mut self, id: IncomingId, status: &Status) -> Result<(), Gone> {
        let mut encoded = OutBuf::new();
        status.metadata().encode(&mut encoded);
        // The text is cut where there is no room for both; alone it goes where there is none for these.
        let room = self.reply_room();
        let left = room.checked_sub(encoded.len()).unwrap_or(room);
        let (text, details) = status.sent_within(left);
        let (code, retryable) = (status.code().number(), status.is_retryable());
        let (kind, mut body) = session::status_body(code, retryable, text, &details);
        if encoded.len() + body.len() <= room {
            body.prepend_marked(&encoded);
        }
        self.session.reply_with(id, kind, body)
    }
}

/// The decision about a reply.
enum Look {
    Send,
    Wait,
    /// Send this status instead.
    Refuse(Status),
}
