//! The stock: takes pieces once for each key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use parking_lot::Mutex;
use rpc_core::{CallError, Status};

use crate::cli::Role;
use crate::journal::{Journal, is_key};
use crate::service::{Inventory, InventoryServer, Refusal};
use crate::serving;

/// Initial pieces.
const STOCK: u64 = 1_000_000_000;

struct Shelves {
    journal: Arc<Mutex<Journal>>,
    begun: AtomicU64,
    cancelled: Arc<AtomicU64>,
}

impl Inventory for Shelves {
    async fn take(&self, key: &str, count: u64) -> Result<u64, CallError<Refusal>> {
        if !is_key(key) {
            return Err(Status::invalid_argument("a key consists of letters, digits and -").into());
        }
        let mut journal = self.journal.lock();
        let left = STOCK - journal.total();
        if journal.get(key).is_some() {
            return Ok(left);
        }
        if count > left {
            return Err(CallError::User(Refusal::SoldOut));
        }
        journal.add(key, count).map_err(|error| Status::internal(format!("journal: {error}")))?;
        Ok(left - count)
    }

    async fn taken(&self) -> u64 {
        self.journal.lock().total()
    }

    async fn count_shelves(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let _cancelled = Cancelled(Arc::clone(&self.cancelled));
        std::future::pending().await
    }

    async fn shelf_counts(&self) -> (u64, u64) {
        (self.begun.load(Ordering::Relaxed), self.cancelled.load(Ordering::Relaxed))
    }
}

/// Dropped with the handler that holds it.
struct Cancelled(Arc<AtomicU64>);

impl Drop for Cancelled {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) async fn serve(role: &Role) -> Result<()> {
    let journal = serving::journal(role)?;
    let shelves = Shelves { journal, begun: AtomicU64::new(0), cancelled: Arc::default() };
    serving::serve("inventory", role, InventoryServer::new(shelves), None).await
}
