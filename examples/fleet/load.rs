//! The clients, and what became of their calls.
//!
//! A call is *lost* if it failed although it could have succeeded at another server: every
//! idempotent call, and every other one that had not begun. A booking that fails after a server may
//! have begun it is *cut*: only its caller can know what to do.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rpc_core::client::resolve::Resolve;
use rpc_core::client::{BalancingPolicy, RetryPolicy};
use rpc_core::{Channel, LinkConfig, Status};
use tokio::task::JoinSet;

use super::Outcome;
use super::service::WorkClient;

/// Calls at once of a client, and the pause of each caller after a call.
const CALLERS: u64 = 4;
const PAUSE: Duration = Duration::from_millis(2);
/// One call of so many is a booking.
const BOOKINGS: u64 = 8;
/// Losses that are kept word by word.
const MAX_KEPT: usize = 20;
/// No call takes so long while one server works.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// A stopped peer is noticed within a second.
pub(crate) fn link() -> LinkConfig {
    let half = Duration::from_millis(500);
    LinkConfig::default().keep_alive(Some(half)).keep_alive_timeout(half)
}

/// What became of all calls.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) read: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) cut: AtomicU64,
    /// The numbers of bookings that a server has confirmed.
    pub(crate) booked: Mutex<Vec<u64>>,
    /// What the first losses were.
    pub(crate) losses: Mutex<Vec<String>>,
    ends: AtomicBool,
}

impl Tally {
    fn on_loss(&self, what: String) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        if losses.len() < MAX_KEPT {
            losses.push(what);
        }
    }

    fn on_booking(&self, number: u64, outcome: Result<(), Status>) {
        match outcome {
            Ok(()) => self.booked.lock().unwrap_or_else(PoisonError::into_inner).push(number),
            // It was not delivered.
            Err(status) if status.is_retryable() => self.on_loss(format!("booking: {status}")),
            Err(_) => {
                self.cut.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// The clients under load.
pub(crate) struct Load {
    pub(crate) channels: Vec<Channel>,
    pub(crate) tally: Arc<Tally>,
    callers: JoinSet<()>,
}

impl Load {
    pub(crate) fn start(clients: u32, servers: &Arc<dyn Resolve>) -> Outcome<Self> {
        let (tally, mut callers) = (Arc::<Tally>::default(), JoinSet::new());
        let mut channels = Vec::new();
        for client in 0..u64::from(clients) {
            // In a scene of seconds, what takes ten by default is over before it is seen.
            let policy = BalancingPolicy::new()
                .subset(64)
                .slow_start(Duration::from_secs(1))
                .ejection_time(Duration::from_secs(2));
            let channel = Channel::builder()
                .link(link())
                .balancing(policy)
                .retry(RetryPolicy::new().throttle(100, 0.1))
                .default_timeout(Some(TIME_LIMIT))
                .connect_balanced(Arc::clone(servers))?;
            for caller in 0..CALLERS {
                let work = WorkClient::new(channel.clone());
                callers.spawn(call(work, (client * CALLERS + caller) << 32, Arc::clone(&tally)));
            }
            channels.push(channel);
        }
        Ok(Self { channels, tally, callers })
    }

    /// Ends the load, and waits for the calls in flight.
    pub(crate) async fn end(&mut self) -> Outcome<()> {
        self.tally.ends.store(true, Ordering::Relaxed);
        while let Some(ended) = self.callers.join_next().await {
            ended?;
        }
        Ok(())
    }
}

/// Calls with the numbers from `first` on.
async fn call(work: WorkClient, first: u64, tally: Arc<Tally>) {
    for number in first.. {
        if tally.ends.load(Ordering::Relaxed) {
            return;
        }
        if number % BOOKINGS == 0 {
            let outcome = work.book(number).await.map_err(Status::from);
            tally.on_booking(number, outcome);
        } else {
            match work.read(number).await.map_err(Status::from) {
                Ok(read) if read == number => {
                    tally.read.fetch_add(1, Ordering::Relaxed);
                }
                Ok(other) => tally.on_loss(format!("the answer to {number} is {other}")),
                Err(status) => tally.on_loss(format!("read: {status}")),
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
