//! The SRQ of a CQ, and the QPs that use it (contract rule 22).
//!
//! A driver drops the completions of a QP that is destroyed, and with them the news of which RECVs
//! it took. So the owner asks first whether a QP in ERR has drained. It has once the device has
//! reported that it takes no more (`IBV_EVENT_QP_LAST_WQE_REACHED`; a device that does not report
//! it gets [`MOST_SILENT`]), and what the CQ held by then was polled. It was if the CQ was seen
//! empty since, or if as many completions came as it holds: a busy CQ is never seen empty.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::{PostErrorKind, ProviderError, QpHandle, QpState, RecvWr, SRQ_IN_USE};
use crate::memory::region::ProtectionDomain;

use super::super::limits;
use super::super::memory::VerbsDomain;
use super::super::srq::Srq;
use super::super::work_queues::{Outcome, received};
use super::super::wr_key::WrKey;
use super::VerbsCompletionQueue;

/// How long a QP in ERR waits for the device to report that it takes no more.
const MOST_SILENT: Duration = Duration::from_secs(1);

/// What is known of the end of a QP that uses the SRQ.
#[derive(Debug, Default)]
pub(super) struct Drain {
    /// When it was first asked for.
    since: Option<Instant>,
    /// Once it takes no more RECVs: completions taken from the CQ by then.
    ended_at: Option<u64>,
}

impl Drain {
    /// Whether it is over. `is_last`: the device has reported that the QP takes no more. `taken`
    /// completions have come from a CQ of `entries`.
    fn is_over(&mut self, is_last: bool, taken: u64, entries: u32, now: Instant) -> bool {
        let waited = now.saturating_duration_since(*self.since.get_or_insert(now));
        if self.ended_at.is_none() && (is_last || waited >= MOST_SILENT) {
            self.ended_at = Some(taken);
        }
        self.ended_at.is_some_and(|at| taken.wrapping_sub(at) >= entries.into())
    }
}

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
        if !self.numbers.is_empty() {
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
        let before = self.srq.as_ref().map_or(0, |srq| srq.max_wr());
        self.check_room(max_wr.saturating_sub(before))?;
        let made = Srq::create(pd, max_wr, self.srqs_made);
        let made = made.map_err(|error| limits::refused("create shared receive queue", &error))?;
        self.srqs_made = self.srqs_made.wrapping_add(1);
        self.reserved = self.reserved - before + max_wr;
        self.srq = Some(Arc::new(made));
        Ok(())
    }

    pub(super) fn post_shared(&mut self, wr: RecvWr) -> Result<(), (PostErrorKind, RecvWr)> {
        match &self.srq {
            Some(srq) => srq.post(wr),
            None => Err((PostErrorKind::NoSrq, wr)),
        }
    }

    pub(super) fn has_drained_srq(&mut self, qp: QpHandle) -> bool {
        let (taken, entries) = (self.taken, self.cq.entries());
        let Some(entry) = self.qps.get_mut(qp) else { return true };
        let is_last = entry.guard.is_last();
        entry.queues.state() == QpState::Error
            && entry.drain.is_over(is_last, taken, entries, Instant::now())
            && !self.ready.iter().any(|completion| completion.qp == qp)
    }

    /// Handles the completion of a RECV of the SRQ. Returns its QP.
    pub(super) fn complete_shared(
        &mut self,
        key: WrKey,
        number: u32,
        outcome: Outcome,
    ) -> Option<QpHandle> {
        let handle = *self.numbers.get(&number)?;
        let entry = self.qps.get_mut(handle)?;
        let wr = self.srq.as_ref()?.take(key)?;
        entry.queues.add_received(received(handle, wr, outcome), &mut self.ready);
        Some(handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES: u32 = 10;

    #[test]
    fn queue_pair_drains_with_the_empty_queue() {
        let (mut drain, now) = (Drain::default(), Instant::now());
        let mut is_over = |is_last, taken| drain.is_over(is_last, taken, ENTRIES, now);
        // Seen empty before the device reported: it may have been filled since.
        assert!(!is_over(false, 50));
        assert!(!is_over(true, 60));
        assert!(!is_over(true, 69), "nine came of a queue that is never empty");
        assert!(is_over(true, 70));
    }

    #[test]
    fn a_silent_device_gets_a_second() {
        let (mut drain, start) = (Drain::default(), Instant::now());
        let mut is_over = |taken, after| drain.is_over(false, taken, ENTRIES, start + after);
        assert!(!is_over(0, Duration::ZERO));
        assert!(!is_over(50, MOST_SILENT / 2));
        assert!(!is_over(60, MOST_SILENT));
        assert!(is_over(70, MOST_SILENT));
    }
}
