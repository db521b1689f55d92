//! Services from the annotated trait to the reply, over `mem://`, with every codec.
#![allow(missing_docs, reason = "the services here are examples")]

use std::time::Duration;

use rpc_core::{CallError, Codec};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum KvError {
    Full { limit: u32 },
}

#[rpc_core::service]
pub trait Kv {
    /// Looks a key up.
    async fn get(&self, key: &str) -> Option<Vec<u8>>;
    async fn put(&self, key: &str, value: &[u8]) -> Result<u64, KvError>;
}

struct Store;

impl Kv for Store {
    async fn get(&self, key: &str) -> Option<Vec<u8>> {
        tokio::task::yield_now().await;
        (key != "missing").then(|| key.as_bytes().to_vec())
    }

    async fn put(&self, key: &str, value: &[u8]) -> Result<u64, KvError> {
        if key == "full" { Err(KvError::Full { limit: 7 }) } else { Ok(value.len() as u64) }
    }
}

#[tokio::test]
async fn calls_come_back() {
    for codec in [Codec::Bincode, Codec::Postcard] {
        let channel = tests::in_process(KvServer::new(Store), codec).await;
        let kv = KvClient::new(channel);
        assert_eq!(kv.get("k").timeout(Duration::from_secs(5)).await, Ok(Some(b"k".to_vec())));
        assert_eq!(kv.get("missing").await, Ok(None));
        assert_eq!(kv.put("k", b"12345").await, Ok(5));
        assert_eq!(kv.put("full", b"").await, Err(CallError::User(KvError::Full { limit: 7 })));
    }
}
