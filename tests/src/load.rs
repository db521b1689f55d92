//! Callers of ledgers that count their certain results, whatever happens to the servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rpc_core::{Bulk, Code};
use tokio::sync::watch;

use crate::ledger::LedgerClient;

/// Time enough for every call that does not hang.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// The callers' results.
#[derive(Debug, Default)]
pub struct Tally {
    /// The next call's id.
    pub next: AtomicU64,
    done: watch::Sender<u64>,
    /// Calls with an unknown outcome: they may have been executed or not.
    pub unknown: AtomicU64,
    stop: AtomicBool,
}

impl Tally {
    /// A tally whose ids begin at `first`.
    #[must_use]
    pub fn starting_at(first: u64) -> Self {
        Self { next: AtomicU64::new(first), ..Self::default() }
    }

    /// Waits until `calls` more calls are done.
    pub async fn advance(&self, calls: u64) {
        let goal = *self.done.borrow() + calls;
        // Fails only without a sender.
        let _ = self.done.subscribe().wait_for(|done| *done >= goal).await;
    }

    /// Counts a call that has ended.
    pub fn one_more(&self) {
        self.done.send_modify(|done| *done += 1);
    }

    /// Ends the callers, each after its current call.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Whether callers are to continue.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }
}

/// Calls one after another until stopped; returns the ids that were certainly booked.
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
