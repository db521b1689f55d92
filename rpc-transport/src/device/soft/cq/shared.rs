//! The SRQ of a CQ: making it, the QPs that use it, and its end (contract rule 22).

use crate::device::{NO_SRQ, PostErrorKind, ProviderError, QpCapacity, RecvWr, SRQ_IN_USE};

use super::super::MAX_SRQ_WR;
use super::super::queue_pair::QueuePair;
use super::super::srq::Srq;
use super::SoftCompletionQueue;

impl SoftCompletionQueue {
    pub(super) fn new_srq(&mut self, domain: u64, max_wr: u32) -> Result<(), ProviderError> {
        let before = self.queues.srq.as_ref();
        if before.is_some_and(|srq| srq.users > 0) {
            return Err(ProviderError::Srq(SRQ_IN_USE));
        }
        let reserved = before.map_or(0, |srq| srq.max_wr);
        if max_wr > MAX_SRQ_WR {
            let (asked, limit) = (u64::from(max_wr), u64::from(MAX_SRQ_WR));
            return Err(ProviderError::Limit {
                what: "shared receive queue entries",
                asked,
                limit,
            });
        }
        self.check_room(max_wr.saturating_sub(reserved))?;
        self.reserved = self.reserved - reserved + max_wr;
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
        if srq.domain != domain {
            return Err(ProviderError::Srq("it belongs to another protection domain"));
        }
        if capacity.max_recv_wr > 0 {
            return Err(ProviderError::Srq("a queue pair that uses it has no RECVs of its own"));
        }
        srq.users += 1;
        Ok(())
    }

    /// A QP is destroyed.
    pub(super) fn leave_srq(&mut self, gone: &QueuePair) {
        if let Some(srq) = self.queues.srq.as_mut().filter(|_| gone.uses_srq()) {
            srq.users -= 1;
        }
    }

    /// A completion of a RECV of the SRQ is polled.
    #[cold]
    pub(super) fn shared_is_polled(&mut self) {
        if let Some(srq) = &mut self.queues.srq {
            srq.polled();
        }
    }
}

#[cfg(test)]
mod tests;
