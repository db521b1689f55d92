//! Calls of methods whose types differ at the two ends.
//!
//! Owns the requests that are kept until the peer has accepted or refused their types, and the
//! comparison of how the two ends have read a call. Knows nothing of types: a plan is a number.
//!
//! Invariant: a value is given out only if the callee has said that it read the arguments as the
//! request was written: not having heard of it is a disagreement.

use rpc_transport::message::outgoing::OutBuf;

use super::{CallId, PlanId, ReadBy, Reads, ReplyKind, Session};
use crate::wire::{self, HowRead, ResponseHead};

impl<W, H> Session<W, H> {
    /// Takes the request of a call that the peer has refused before any handler ran, if it may be
    /// sent again: with its schema, or to another peer. It is as in [`Session::take_request`].
    #[cold]
    pub(crate) fn take_refused_request(&mut self, id: CallId) -> Option<OutBuf> {
        let kept = self.calls.take_kept(id)?;
        if self.calls.is_refused(id) {
            return Some(kept);
        }
        self.discard(kept);
        None
    }

    /// Whether a call may still be refused for its types, or has been: then no handler runs unless
    /// it is sent again.
    #[cold]
    pub(crate) fn may_be_refused(&self, id: CallId) -> bool {
        self.calls.is_refused(id)
            || (self.calls.contains(id)
                && self.calls.is_pending(id)
                && self.calls.asks(id.index, &self.accepted_by_peer))
    }

    /// These types of a method differ at the peer: calls are read by the plan of this number from
    /// now on.
    pub(crate) fn resolve(&mut self, method: u32, signature: u64) -> PlanId {
        self.accepted_by_peer.resolve(method, signature)
    }

    /// Whether the peer reads arguments by this end's schema, as far as is known.
    pub(crate) fn peer_resolves(&self) -> bool {
        self.peer.is_some_and(|hello| hello.features & wire::FEATURE_RESOLUTION != 0)
    }

    /// The one place that compares how the peer says that it has read the arguments of a call with
    /// how the request was written. `None`: they disagree.
    #[cold]
    pub(super) fn agree(&mut self, call: u32, said: HowRead) -> Option<ReadBy> {
        let read_by = self.calls.reads(call).compare(said)?;
        if said == HowRead::Same {
            self.accepted_by_peer.insert(self.calls.head(call).method_index);
        }
        self.discard_kept(call);
        Some(read_by)
    }

    /// How the value or the status of a response is read. `None`: it cannot be.
    #[cold]
    pub(super) fn response_read_by(&mut self, call: u32, head: &ResponseHead) -> Option<ReadBy> {
        let is_status = matches!(head.kind, ReplyKind::Status { .. });
        if is_status && head.read == HowRead::Unsaid && self.calls.reads(call) != Reads::Same {
            return Some(ReadBy::Nobody);
        }
        self.agree(call, head.read)
    }

    /// The request that is kept of a call is not needed any more.
    #[cold]
    pub(super) fn discard_kept(&mut self, call: u32) {
        if let Some(kept) = self.calls.take_kept_at(call) {
            self.discard(kept);
        }
    }
}
