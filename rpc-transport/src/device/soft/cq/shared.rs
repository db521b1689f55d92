//! The SRQ of a CQ: making it, the QPs that use it, and its end (contract rule 22).

use crate::device::{
    NO_SRQ, PostErrorKind, ProviderError, QpCapacity, QpHandle, RecvWr, SRQ_IN_USE,
};

use super::super::MAX_SRQ_WR;
use super::super::queue_pair::QueuePair;
use super::super::sink::Sink;
use super::super::srq::Srq;
use super::SoftCompletionQueue;

impl SoftCompletionQueue {
    pub(super) fn new_srq(&mut self, domain: u64, max_wr: u32) -> Result<(), ProviderError> {
        let before = self.queues.srq.as_ref().map_or(0, Srq::max_wr);
        if self.queues.srq.as_ref().is_some_and(|srq| srq.users > 0) {
            return Err(ProviderError::Srq(SRQ_IN_USE));
        }
        if max_wr > MAX_SRQ_WR {
            let (asked, limit) = (u64::from(max_wr), u64::from(MAX_SRQ_WR));
            return Err(ProviderError::Limit {
                what: "shared receive queue entries",
                asked,
                limit,
            });
        }
        self.check_room(max_wr.saturating_sub(before))?;
        if self.queues.srq.is_some() {
            self.end_srq()?;
        }
        self.reserved += max_wr;
        self.queues.srq = Some(Srq::new(domain, max_wr));
        Ok(())
    }

    pub(super) fn post_shared(&mut self, wr: RecvWr) -> Result<(), (PostErrorKind, RecvWr)> {
        let Some(srq) = &mut self.queues.srq else { return Err((PostErrorKind::NoSrq, wr)) };
        srq.post(wr).map_err(|(max, wr)| (PostErrorKind::QueueFull(max), wr))
    }

    /// Counts a new QP, if it uses the SRQ.
    pub(super) fn join_srq(
        &mut self,
        capacity: QpCapacity,
        domain: u64,
    ) -> Result<(), ProviderError> {
        if !capacity.uses_srq {
            return Ok(());
        }
        let srq = self.queues.srq.as_mut().ok_or(ProviderError::Srq(NO_SRQ))?;
        if srq.domain() != domain {
            return Err(ProviderError::Srq("it belongs to another protection domain"));
        }
        if capacity.max_recv_wr > 0 {
            return Err(ProviderError::Srq("a queue pair that uses it has no RECVs of its own"));
        }
        srq.users += 1;
        Ok(())
    }

    /// A QP is destroyed. What it has taken of the SRQ stays to be polled.
    pub(super) fn leave_srq(&mut self, gone: &mut QueuePair) {
        if !gone.uses_srq() {
            return;
        }
        let before = self.queues.completions.len();
        gone.give_back(&mut Sink::queued(&mut self.queues));
        if let Some(srq) = &mut self.queues.srq {
            srq.users -= 1;
        }
        if self.queues.completions.len() > before {
            self.fire();
        }
    }

    /// Whether a RECV of the SRQ that a QP took is yet to be polled.
    pub(super) fn is_awaited(&self, qp: QpHandle) -> bool {
        let mut queued = self.queues.completions.iter();
        queued.any(|queued| queued.is_shared && queued.completion.qp == qp)
    }

    /// A completion of a RECV of the SRQ is polled.
    #[cold]
    pub(super) fn shared_is_polled(&mut self) {
        if let Some(srq) = &mut self.queues.srq {
            srq.polled();
        }
    }

    pub(super) fn end_srq(&mut self) -> Result<(), ProviderError> {
        let Some(srq) = &self.queues.srq else { return Err(ProviderError::Srq(NO_SRQ)) };
        if srq.users > 0 {
            return Err(ProviderError::Srq(SRQ_IN_USE));
        }
        self.reserved -= srq.max_wr();
        self.queues.srq = None;
        self.queues.completions.retain(|queued| !queued.is_shared);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
