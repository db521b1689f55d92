//! The two services. Methods that write to a file are spawned: other calls do not wait for them.

use rpc_core::stream::Stream;
use rpc_core::{CallError, Status};
use serde::{Deserialize, Serialize};

/// Why something is not sold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    SoldOut,
}

/// An order that was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) key: String,
    pub(crate) number: u64,
    pub(crate) count: u64,
}

/// The stock.
#[rpc_core::service]
pub(crate) trait Inventory {
    /// Takes pieces out of the stock, once for each key, and returns how many are left.
    #[rpc(idempotent, spawn)]
    async fn take(&self, key: &str, count: u64) -> Result<u64, CallError<Refusal>>;

    /// Pieces that were taken in all.
    #[rpc(idempotent)]
    async fn taken(&self) -> u64;

    /// Counts the shelves, which takes longer than any caller waits.
    #[rpc(idempotent)]
    async fn count_shelves(&self) -> u64;

    /// Counts of shelves that were begun, and those that were cancelled.
    #[rpc(idempotent)]
    async fn shelf_counts(&self) -> (u64, u64);
}

/// The orders.
#[rpc_core::service]
pub(crate) trait Orders {
    /// Takes an order, once for each key, and returns its number.
    #[rpc(idempotent, spawn)]
    async fn place(&self, key: &str, count: u64) -> Result<u64, CallError<Refusal>>;

    /// All orders that were taken.
    #[rpc(spawn)]
    fn all(&self) -> impl Stream<Item = Order>;

    /// Asks the inventory to count its shelves.
    #[rpc(idempotent)]
    async fn audit(&self) -> Result<u64, Status>;
}
