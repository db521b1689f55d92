//! A service in a crate that renames the framework. The test is that it compiles.

use wire::bytes::Bytes;
use wire::serde::{Deserialize, Serialize};

/// Why a value cannot be stored.
#[derive(Debug, Serialize, Deserialize)]
#[serde(crate = "wire::serde")]
pub struct Full;

/// A stored value behind an alias.
pub type Stored = Result<Bytes, Full>;

/// Every kind of method.
#[wire::service(crate = wire, name = "Kv", version = 1)]
pub trait Renamed {
    /// Looks a key up.
    async fn get(&self, key: &str) -> Option<Vec<u8>>;
    /// Stores a value.
    #[rpc(idempotent, no_cancel, spawn)]
    async fn put(
        &self,
        key: &str,
        value: &[u8],
        all: &[u32],
        pair: (u8, Bytes),
    ) -> Result<u64, Full>;
    /// Through an alias.
    #[rpc(result)]
    async fn stored(&self) -> Stored;
    /// With a default body.
    async fn nothing(&self) {
        self.get("").await;
    }
}
