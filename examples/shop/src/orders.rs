//! The orders: accepts each once, and takes its pieces from the inventory.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use anyhow::Result;
use parking_lot::Mutex;
use rpc_core::stream::{self, Stream};
use rpc_core::{CallError, Status};

use crate::cli::Role;
use crate::journal::{Journal, is_key};
use crate::service::{InventoryClient, Order, Orders, OrdersServer, Refusal};
use crate::serving;

struct Book {
    journal: Arc<Mutex<Journal>>,
    inventory: InventoryClient,
    /// The handler that places an order holds the lock of its key, so that two cannot place the
    /// same order at once.
    turns: Vec<tokio::sync::Mutex<()>>,
    hasher: RandomState,
}

impl Orders for Book {
    async fn place(&self, key: &str, count: u64) -> Result<u64, CallError<Refusal>> {
        if !is_key(key) {
            return Err(Status::invalid_argument("a key consists of letters, digits and -").into());
        }
        let turns = self.turns.len() as u64;
        let turn = usize::try_from(self.hasher.hash_one(key) % turns).unwrap_or(0);
        let _turn = self.turns[turn].lock().await;
        if let Some((number, _)) = self.journal.lock().get(key) {
            return Ok(number);
        }
        // If this process is killed after it, a repeated call with the key takes nothing more.
        self.inventory.take(key, count).await?;
        let number = self.journal.lock().add(key, count);
        Ok(number.map_err(|error| Status::internal(format!("journal: {error}")))?)
    }

    fn all(&self) -> impl Stream<Item = Order> {
        let order =
            |(key, number, count): (&str, u64, u64)| Order { key: key.to_owned(), number, count };
        let all: Vec<Order> = self.journal.lock().all().map(order).collect();
        stream::iter(all)
    }

    async fn audit(&self) -> Result<u64, Status> {
        self.inventory.count_shelves().await
    }
}

pub(crate) async fn serve(role: &Role) -> Result<()> {
    let channel = serving::upstream(role)?;
    let book = Book {
        journal: serving::journal(role)?,
        inventory: InventoryClient::new(channel.clone()),
        turns: (0..64).map(|_| tokio::sync::Mutex::new(())).collect(),
        hasher: RandomState::new(),
    };
    serving::serve("orders", role, OrdersServer::new(book), Some(&channel)).await
}
