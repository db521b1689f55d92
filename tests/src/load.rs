//! Callers of ledgers who count what they know, whatever becomes of the servers meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rpc_core::{Bulk, Code};
use tokio::sync::watch;

use crate::ledger::LedgerClient;

/// Time enough for every call that is not stuck.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// What the callers have achieved.
#[derive(Debug, Default)]
pub struct Tally {
    /// The next call's id.
    pub next: AtomicU64,
    done: watch::Sender<u64>,
    /// Calls of which nobody can say whether they were carried out.
    pub unknown: AtomicU64,
    stop: AtomicBool,
}

impl Tally {
    /// A tally whose ids begin there.
    #[must_use]
    pub fn starting_at(first: u64) -> Self {
        Self { next: AtomicU64::new(first), ..Self::default() }
    }

    /// Waits until so many more calls are done.
    pub async fn advance(&self, calls: u64) {
        let goal = *self.done.borrow() + calls;
        // Fails only without a sender.
        let _ = self.done.subscribe().wait_for(|done| *done >= goal).await;
    }

    /// Counts a call that has ended.
    pub fn one_more(&self) {
        self.done.send_modify(|done| *done += 1);
    }

    /// Ends the callers, each with the call that it is at.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Whether callers are to go on.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }
}

/// Calls one after another until told to stop; gives the ids that were booked for certain.
///
/// # Panics
/// When a call fails that may not.
pub async fn load(clients: Vec<LedgerClient>, tally: Arc<Tally>) -> Vec<u64> {
    let mut booked = Vec::new();
    while tally.goes_on() {
        let id = tally.next.fetch_add(1, Ordering::SeqCst);
        let client = &clients[usize::try_from(id).expect("small") % clients.len()];
        match id % 8 {
            0..4 => assert_eq!(client.read(id).timeout(DEADLINE).await, Ok(id), "may go again"),
            4 => {
                let data = Bulk::from(vec![7; 40_000]);
                let weighed = client.weigh(id, data).timeout(DEADLINE).await;
                assert_eq!(weighed, Ok(id + 40_000), "may go again");
            }
            _ => match client.book(id).timeout(DEADLINE).await {
                Ok(_) => booked.push(id),
                Err(status) => {
                    assert_eq!(status.code(), Code::Unavailable, "{status}");
                    assert!(!status.is_retryable(), "what was not sent goes again: {status}");
                    tally.unknown.fetch_add(1, Ordering::SeqCst);
                }
            },
        }
        tally.one_more();
    }
    booked
}
