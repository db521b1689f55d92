//! The handlers of a server: how they end, and what they make of their arguments.
//!
//! Owns what all versions of the service have in common. A handler ends in its first poll, after
//! yields, woken by another task, or after a timer, as the call's key says.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rpc_core::Context;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::chance::mix;
use crate::ledger::ledger;
use crate::oracle::{Seen, b, blob, panics, read, writer_of};
use crate::rules::Rule;

/// The name of the metadata that each call has: its key.
pub(crate) const KEY: &str = "simulated-key";

/// What a handler says that panics on purpose.
pub(crate) const PANIC: &str = "a handler panics";

/// What every handler takes, in ms, besides its own time.
pub(crate) static SLOWNESS_MS: AtomicU64 = AtomicU64::new(0);

/// The handlers of one server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Desk {
    pub(crate) seed: u64,
    pub(crate) server: usize,
    /// Some handlers take so long that a second attempt is made.
    pub(crate) is_slow: bool,
    pub(crate) has_panics: bool,
}

/// A reader of a stream takes its time, in some calls: its writer has to wait for credit.
pub(crate) async fn read_slowly(key: u32, item: usize) {
    if mix(u64::from(key)) >> 12 & 3 == 0 && item.is_multiple_of(5) {
        sleep(Duration::from_millis(1)).await;
    }
}

impl Desk {
    /// Runs the call of this key.
    pub(crate) async fn run(self, key: u32, version: u8) {
        ledger().ran(key, self.server, version);
        let context = Context::current();
        let remaining_us = context.remaining().map(|it| it.as_micros() as u64);
        ledger().context(key, remaining_us, context.metadata().bytes(KEY));
        self.pause(key).await;
        assert!(!self.has_panics || !panics(key), "{PANIC}");
    }

    /// Runs the call whose argument is this pair.
    pub(crate) async fn run_pair(self, (key, other): (u32, u32), version: u8) {
        if other != b(key) {
            self.wrong(version, format!("({key}, {other})"));
        } else {
            self.run(key, version).await;
        }
    }

    /// Runs the call whose argument is this parcel.
    pub(crate) async fn run_parcel(self, seen: Seen, version: u8) {
        let key = seen.key;
        if read(key, writer_of(key), version).as_ref() != Some(&seen) {
            self.wrong(version, format!("{seen:?}"));
        } else {
            self.run(key, version).await;
        }
    }

    /// Runs the call whose argument is this payload.
    pub(crate) async fn run_blob(self, key: u32, data: Vec<u8>, version: u8) {
        if data != blob(key, false) {
            self.wrong(version, format!("{} bytes, others than were sent", data.len()));
        } else {
            self.run(key, version).await;
        }
    }

    fn wrong(self, version: u8, what: String) {
        let text = format!("server {} (v{version}) has read {what}", self.server);
        ledger().broken(Rule::Argument, 0, text);
    }

    /// The items of a stream of arguments are not those that the client sends.
    pub(crate) fn wrong_items(self, key: u32, version: u8, got: &[(u32, u64)]) {
        let text = format!("server {} (v{version}) has read the items {got:?}", self.server);
        ledger().broken(Rule::Items, key >> 2, text);
    }

    /// Waits as the key says.
    pub(crate) async fn pause(self, key: u32) {
        let slowness_ms = SLOWNESS_MS.load(Ordering::Relaxed);
        if slowness_ms > 0 {
            sleep(Duration::from_millis(slowness_ms)).await;
        }
        let draw = mix(self.seed ^ mix(u64::from(key)));
        let long = draw >> 20;
        match draw % 8 {
            0 | 1 => {}
            2 | 3 => tokio::task::yield_now().await,
            4 => {
                let (done, waits) = oneshot::channel();
                tokio::spawn(async move {
                    let _ = done.send(());
                });
                let _ = waits.await;
            }
            5 => {
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
            }
            6 => sleep(Duration::from_micros(100 + long % 8000)).await,
            _ if self.is_slow => sleep(Duration::from_millis(20 + long % 100)).await,
            _ => sleep(Duration::from_millis(1)).await,
        }
    }
}
