//! The SRQ of a CQ, and the QPs that use it, from their creation until the device has said all that
//! it will of what they took (contract rule 22).
//!
//! Invariants:
//! 1. A destroyed QP is kept in ERR until all its completions were polled (see `leaving`): a driver
//!    drops those of a QP that is destroyed, and with them the news of what it took.
//! 2. Until then its number belongs to no other QP, so a completion's number names the QP.

use std::sync::Arc;
use std::time::Instant;

use crate::device::{
    Completion, CompletionKind, NO_SRQ, PostErrorKind, ProviderError, QpHandle, RecvWr, SRQ_IN_USE,
};
use crate::memory::region::ProtectionDomain;

use super::super::limits;
use super::super::memory::VerbsDomain;
use super::super::queue_pair::QpGuard;
use super::super::shared_queue::SharedQueue;
use super::super::srq::SrqGuard;
#[cfg(doc)]
use super::super::work_queues::WorkQueues;
use super::super::work_queues::{Outcome, received};
use super::super::wr_key::WrKey;
use super::VerbsCompletionQueue;

impl VerbsCompletionQueue {
    pub(super) fn new_srq(
        &mut self,
        pd: &ProtectionDomain,
        max_wr: u32,
    ) -> Result<(), ProviderError> {
        let limit = self.attributes.max_srq_wr;
        if limit == 0 {
            return Err(ProviderError::Unsupported("a shared receive queue"));
        }
        if self.srq.as_ref().is_some_and(|srq| srq.users > 0) {
            return Err(ProviderError::Srq(SRQ_IN_USE));
        }
        let what = "shared receive queue entries";
        if max_wr > limit {
            let (asked, limit) = (u64::from(max_wr), u64::from(limit));
            return Err(ProviderError::Limit { what, asked, limit });
        }
        let pd = VerbsDomain::of(pd)?;
        if !Arc::ptr_eq(self.cq.context(), pd.context()) {
            return Err(ProviderError::WrongDevice("protection domain"));
        }
        let before = self.srq.as_ref().map_or(0, SharedQueue::max_wr);
        self.check_room(max_wr.saturating_sub(before))?;
        let made = SharedQueue::create(pd, max_wr, self.srqs_made);
        let made = made.map_err(|error| limits::refused("create shared receive queue", &error))?;
        if self.srq.is_some() {
            self.end_srq()?;
        }
        self.srqs_made = self.srqs_made.wrapping_add(1);
        self.reserved += max_wr;
        self.srq = Some(made);
        Ok(())
    }

    pub(super) fn post_shared(&mut self, wr: RecvWr) -> Result<(), (PostErrorKind, RecvWr)> {
        match &mut self.srq {
            Some(srq) => srq.post(wr),
            None => Err((PostErrorKind::NoSrq, wr)),
        }
    }

    pub(super) fn end_srq(&mut self) -> Result<(), ProviderError> {
        let Some(srq) = &self.srq else { return Err(ProviderError::Srq(NO_SRQ)) };
        if srq.users > 0 {
            return Err(ProviderError::Srq(SRQ_IN_USE));
        }
        self.reserved -= srq.max_wr();
        self.srq = None;
        // Nobody asks any more what these took.
        let Self { leaving, numbers, .. } = self;
        leaving.clear(|guard| {
            numbers.remove(&guard.number());
        });
        Ok(())
    }

    /// The SRQ for a new QP.
    pub(super) fn srq_guard(&self) -> Option<Arc<SrqGuard>> {
        self.srq.as_ref().map(|srq| Arc::clone(srq.guard()))
    }

    /// A QP that uses the SRQ has been made.
    pub(super) fn join_srq(&mut self, handle: QpHandle, number: u32) {
        self.numbers.insert(number, handle);
        if let Some(srq) = &mut self.srq {
            srq.users += 1;
        }
    }

    /// A QP that uses the SRQ, in ERR by now, is destroyed (invariant 1).
    pub(super) fn leave_srq(&mut self, handle: QpHandle, guard: &Arc<QpGuard>) {
        if let Some(srq) = &mut self.srq {
            srq.users -= 1;
        }
        self.leaving.add(handle, Arc::clone(guard), Instant::now());
        // The owner is to poll.
        self.cq.mailbox().ring();
    }

    /// So many completions were taken from the CQ, which may have been seen empty.
    #[cold]
    pub(super) fn release_left(&mut self, taken: usize, is_empty: bool) {
        let entries = self.cq.entries() as usize;
        let Self { leaving, numbers, .. } = self;
        leaving.on_polled(taken, is_empty, entries, Instant::now(), |guard| {
            numbers.remove(&guard.number());
        });
    }

    /// Whether completions of a destroyed QP may still come.
    pub(super) fn is_leaving(&self, qp: QpHandle) -> bool {
        self.leaving.has(qp) || self.ready.iter().any(|completion| completion.qp == qp)
    }

    /// The RECV of a completion and its QP, also if that was destroyed.
    fn take_shared(&mut self, key: WrKey, number: u32) -> Option<(QpHandle, RecvWr)> {
        let wr = self.srq.as_mut()?.take(key)?;
        // Always found (invariant 2); if not, its memory goes home.
        self.numbers.get(&number).map(|handle| (*handle, wr))
    }

    /// Fast path of a successful one on a QP in RTS (see [`WorkQueues::complete_one`]).
    pub(super) fn complete_one_shared(
        &mut self,
        key: WrKey,
        number: u32,
        outcome: Outcome,
    ) -> Option<Completion> {
        let entry = self.qps.get_mut(*self.numbers.get(&number)?)?;
        if !entry.queues.delivers_directly() {
            return None;
        }
        let (handle, wr) = self.take_shared(key, number)?;
        Some(received(handle, wr, outcome))
    }

    /// Handles the completion of a RECV of the SRQ. Returns its QP.
    pub(super) fn complete_shared(
        &mut self,
        key: WrKey,
        number: u32,
        outcome: Outcome,
    ) -> Option<QpHandle> {
        let (handle, wr) = self.take_shared(key, number)?;
        let completion = received(handle, wr, outcome);
        match self.qps.get_mut(handle) {
            Some(entry) => entry.queues.add_received(completion, &mut self.ready),
            None => self.ready.push_back(completion),
        }
        Some(handle)
    }
}

/// Whether a completion stays when its QP is destroyed.
pub(super) fn outlives(completion: &Completion) -> bool {
    completion.kind != CompletionKind::Send
}
