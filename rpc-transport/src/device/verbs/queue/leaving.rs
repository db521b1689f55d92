//! QPs that used the SRQ and were destroyed, until all that they took has been polled.
//!
//! Owns how long each is kept: until the device has told that it takes no more
//! (`IBV_EVENT_QP_LAST_WQE_REACHED`; devices that do not tell get [`MOST_SILENT`]), and what the CQ
//! held by then was polled. It was if the CQ was seen empty, or if as many completions came as it
//! holds: a busy CQ is never seen empty. Knows no device, so that tests need none.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::{ProviderError, QpHandle};

use super::super::queue_pair::QpGuard;

/// How long a destroyed QP waits for the device to tell that it takes no more.
const MOST_SILENT: Duration = Duration::from_secs(1);

/// With so many that leave, no more are made: peers that connect and go grow the device's QPs.
const MOST_LEAVING: usize = 1024;

/// What is kept of a QP that leaves.
pub(super) trait Parting {
    /// Whether the device has told that the QP takes no more RECVs.
    fn is_last(&self) -> bool;
}

impl Parting for Arc<QpGuard> {
    fn is_last(&self) -> bool {
        QpGuard::is_last(self)
    }
}

struct Leaving<Q> {
    handle: QpHandle,
    qp: Q,
    since: Instant,
    /// Once it takes no more: how many completions may still be in the CQ that are older than that.
    older: Option<usize>,
}

/// The QPs that leave.
pub(super) struct LeavingQps<Q> {
    qps: Vec<Leaving<Q>>,
    /// Those of `qps`: after each poll it is asked for each of them whether it is here.
    handles: HashSet<QpHandle>,
}

impl<Q> Default for LeavingQps<Q> {
    fn default() -> Self {
        Self { qps: Vec::new(), handles: HashSet::new() }
    }
}

impl<Q: Parting> LeavingQps<Q> {
    pub(super) fn is_empty(&self) -> bool {
        self.qps.is_empty()
    }

    pub(super) fn has(&self, handle: QpHandle) -> bool {
        self.handles.contains(&handle)
    }

    /// Whether another QP may be made.
    pub(super) fn check_room(&self) -> Result<(), ProviderError> {
        if self.qps.len() < MOST_LEAVING {
            return Ok(());
        }
        let message = format!("the device still has {MOST_LEAVING} that connections have left");
        Err(ProviderError::Resources { what: "create queue pair", message })
    }

    /// A QP in ERR was destroyed here.
    pub(super) fn add(&mut self, handle: QpHandle, qp: Q, now: Instant) {
        self.qps.push(Leaving { handle, qp, since: now, older: None });
        self.handles.insert(handle);
    }

    /// So many completions were polled, of a CQ that may have been seen empty then and holds at most
    /// `entries`. Calls `gone` for each QP that has left.
    pub(super) fn on_polled(
        &mut self,
        count: usize,
        is_empty: bool,
        entries: usize,
        now: Instant,
        mut gone: impl FnMut(&Q),
    ) {
        let Self { qps, handles } = self;
        qps.retain_mut(|leaving| {
            let Some(older) = &mut leaving.older else {
                // Asked after the poll, so what came before the answer may be in the CQ.
                let waited = now.saturating_duration_since(leaving.since);
                if leaving.qp.is_last() || waited >= MOST_SILENT {
                    leaving.older = Some(entries);
                }
                return true;
            };
            *older = older.saturating_sub(count);
            let is_over = is_empty || *older == 0;
            if is_over {
                handles.remove(&leaving.handle);
                gone(&leaving.qp);
            }
            !is_over
        });
    }

    /// Nobody asks any more what they took.
    pub(super) fn clear(&mut self, mut gone: impl FnMut(&Q)) {
        self.handles.clear();
        self.qps.drain(..).for_each(|leaving| gone(&leaving.qp));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const ENTRIES: usize = 10;

    impl Parting for &Cell<bool> {
        fn is_last(&self) -> bool {
            self.get()
        }
    }

    fn handle(index: u32) -> QpHandle {
        QpHandle { index, generation: 0 }
    }

    fn polled(
        leaving: &mut LeavingQps<&Cell<bool>>,
        count: usize,
        is_empty: bool,
        now: Instant,
    ) -> usize {
        let mut gone = 0;
        leaving.on_polled(count, is_empty, ENTRIES, now, |_| gone += 1);
        gone
    }

    #[test]
    fn a_queue_pair_leaves_when_the_queue_was_empty_after_the_device_has_told() {
        let (told, now) = (Cell::new(false), Instant::now());
        let mut leaving = LeavingQps::default();
        leaving.add(handle(1), &told, now);
        assert_eq!(polled(&mut leaving, 0, true, now), 0);
        assert_eq!(polled(&mut leaving, 0, true, now), 0);
        told.set(true);
        // The queue may have been filled between the poll and the news.
        assert_eq!(polled(&mut leaving, 0, true, now), 0);
        assert!(leaving.has(handle(1)));
        assert_eq!(polled(&mut leaving, 3, true, now), 1);
        assert!(!leaving.has(handle(1)) && leaving.is_empty());
    }

    #[test]
    fn a_queue_pair_leaves_a_queue_that_is_never_empty() {
        let (told, now) = (Cell::new(true), Instant::now());
        let mut leaving = LeavingQps::default();
        leaving.add(handle(1), &told, now);
        assert_eq!(polled(&mut leaving, 4 * ENTRIES, false, now), 0, "these were older");
        assert_eq!(polled(&mut leaving, ENTRIES - 1, false, now), 0);
        assert_eq!(polled(&mut leaving, 1, false, now), 1);
    }

    #[test]
    fn a_device_that_never_tells_gets_a_second_also_where_the_queue_is_never_empty() {
        let (silent, now) = (Cell::new(false), Instant::now());
        let mut leaving = LeavingQps::default();
        leaving.add(handle(1), &silent, now);
        assert_eq!(polled(&mut leaving, 4 * ENTRIES, false, now + MOST_SILENT / 2), 0);
        assert_eq!(polled(&mut leaving, 4 * ENTRIES, false, now + MOST_SILENT), 0);
        assert_eq!(polled(&mut leaving, ENTRIES, false, now + MOST_SILENT), 1);
    }

    #[test]
    fn with_many_that_leave_no_queue_pair_is_made_until_one_has_left() {
        let (told, silent, now) = (Cell::new(true), Cell::new(false), Instant::now());
        let mut leaving = LeavingQps::default();
        leaving.add(handle(0), &told, now);
        for index in 1..1024 {
            leaving.check_room().unwrap();
            leaving.add(handle(index), &silent, now);
        }
        let refused = leaving.check_room().unwrap_err().to_string();
        assert!(refused.contains("create queue pair"), "{refused}");
        assert_eq!(polled(&mut leaving, 0, true, now) + polled(&mut leaving, 0, true, now), 1);
        leaving.check_room().unwrap();
    }
}
