//! What is counted of a connection, and of the calls that this end makes on it.
//!
//! Lives under the shard's lock, which makes counting an addition. Memory grows with the methods
//! that this end calls, never with what the peer sends.

use std::sync::Arc;
use std::time::Instant;

use rpc_transport::engine::shard::Survey;
use rpc_transport::message::received::Message;

use super::RpcEndpoint;
use crate::method::method_in_use;
use crate::session::{Failure, Outcome, ReplyKind};
use crate::stats::ConnectionStats;
use crate::stats::counts::{End, Lease, Methods, Timed};
use crate::status::Code;

/// The counts of a connection.
#[derive(Default)]
pub(crate) struct EndpointCounts {
    messages_in: u64,
    bytes_in: u64,
    messages_out: u64,
    bytes_out: u64,
    /// The peer has said who it is: that is a message, too.
    pub(super) has_hello: bool,
    /// When it was set up.
    pub(super) established: Option<Instant>,
    /// At a client's end.
    pub(super) calls: Option<OwnCalls>,
}

impl EndpointCounts {
    #[inline]
    pub(super) fn on_message(&mut self, message: &Message) {
        self.messages_in += 1;
        self.bytes_in += message.len() as u64 + message.tail_bytes();
    }

    #[inline]
    pub(super) fn on_transmit(&mut self, bytes: u64) {
        self.messages_out += 1;
        self.bytes_out += bytes;
    }

    /// Messages of the peer, but for its hello.
    pub(super) fn answers(&self) -> u64 {
        self.messages_in - u64::from(self.has_hello)
    }

    /// Messages of both ends.
    pub(super) fn messages(&self) -> u64 {
        self.messages_in + self.messages_out
    }

    /// A call is started. Gives the time if it is one that is timed.
    #[inline]
    pub(crate) fn on_start(&mut self, method_index: u32, request_bytes: u64) -> Option<Timed> {
        let lease = self.calls.as_mut()?.lease(method_index);
        lease.counts.on_start(request_bytes);
        lease.begin()
    }

    /// Its outcome is taken.
    #[inline]
    pub(crate) fn on_end(&mut self, method_index: u32, end: End, reply_bytes: u64) {
        if let Some(calls) = &mut self.calls {
            calls.lease(method_index).counts.on_end(end, reply_bytes);
        }
    }

    /// It was one that is timed.
    #[cold]
    pub(crate) fn on_timed(&mut self, method_index: u32, began: Timed) {
        if let Some(calls) = &mut self.calls {
            calls.lease(method_index).took(began);
        }
    }
}

/// The calls that a client's end makes.
pub(crate) struct OwnCalls {
    methods: Arc<Methods>,
    /// By dense index.
    leases: Vec<Option<Lease>>,
}

impl OwnCalls {
    pub(super) fn new(methods: Arc<Methods>) -> Self {
        Self { methods, leases: Vec::new() }
    }

    #[inline]
    fn lease(&mut self, method_index: u32) -> &mut Lease {
        let at = method_index as usize;
        if at >= self.leases.len() {
            self.make_room(at);
        }
        let Self { methods, leases } = self;
        leases[at].get_or_insert_with(|| methods.lease(method_in_use(method_index)))
    }

    #[cold]
    fn make_room(&mut self, at: usize) {
        self.leases.resize_with(at + 1, || None);
    }
}

impl RpcEndpoint {
    /// When the connection was set up.
    pub(crate) fn established(&self) -> Option<Instant> {
        self.counts.established
    }

    /// The numbers of the connection; peer, device and age are left to the caller.
    pub(crate) fn stats(&self, survey: Survey) -> ConnectionStats {
        let EndpointCounts { messages_in, bytes_in, messages_out, bytes_out, .. } = self.counts;
        let mut stats = ConnectionStats {
            calls_in: self.session.incoming_calls().into(),
            calls_out: self.session.outgoing_calls() as u64,
            refused_calls: self.session.refused_calls(),
            messages_in,
            bytes_in,
            messages_out,
            bytes_out,
            staged_copies: survey.staged,
            ..ConnectionStats::default()
        };
        if let Some(link) = &survey.link {
            stats.of_link(link);
        }
        stats
    }
}

/// The bytes of a reply's body.
#[inline]
pub(crate) fn body_bytes(message: &Message) -> u64 {
    message.len() as u64 + message.tail_bytes()
}

/// How an outcome ends its call, and the bytes of its body.
pub(crate) fn end_of(outcome: &Outcome) -> (End, u64) {
    match outcome {
        Outcome::Reply(reply) => match reply.kind {
            ReplyKind::Ok => (End::OK, body_bytes(&reply.message)),
            ReplyKind::UserError => (End::UserError, body_bytes(&reply.message)),
            ReplyKind::Status { code, .. } => {
                (End::Code(Code::from_number(code).unwrap_or(Code::Unknown)), 0)
            }
        },
        Outcome::Failed { reason, .. } => {
            let code = match reason {
                Failure::DeadlineExceeded => Code::DeadlineExceeded,
                Failure::NoMemory(_) => Code::ResourceExhausted,
                Failure::PeerHasNoStreams => Code::Unimplemented,
                Failure::TypesDisagree => Code::Internal,
                _ => Code::Unavailable,
            };
            (End::Code(code), 0)
        }
    }
}
