//! The measured service, and the prepared data of its server.

use std::sync::{Mutex, PoisonError};

use rpc_core::bulk::ReadError;
use rpc_core::bytes::Bytes;
use rpc_core::serde::{Deserialize, Serialize};
use rpc_core::{Bulk, BulkPool, Context, LinkConfig, Status};
use rpc_perf::pages::{PAGE_BYTES, look};

use crate::usage::{Scope, Usage};

/// Largest payload, bytes.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 64 << 20;

/// Every byte of every payload.
pub(crate) const FILL: u8 = 7;

/// Both ends accept the largest payload as a whole, with room for its headers.
pub(crate) fn link() -> LinkConfig {
    let limit = 2 * MAX_PAYLOAD_BYTES as u64;
    LinkConfig::default().max_message_bytes(limit).assembly_bytes(limit)
}

/// The measured service.
#[rpc_core::service]
pub(crate) trait Perf {
    /// Returns the bytes.
    async fn echo(&self, data: &[u8]) -> Vec<u8>;
    /// Reads a byte of each page.
    async fn put(&self, data: Bytes) -> u64;
    /// Returns this many bytes.
    async fn get(&self, len: u64) -> Result<Bytes, Status>;
    /// Reads a byte of each page of a payload.
    async fn put_bulk(&self, data: Bulk) -> u64;
    /// Returns a payload in registered memory.
    async fn get_bulk(&self, len: u64) -> Result<Bulk, Status>;
    /// The usage of the server so far.
    async fn usage(&self) -> ServerUsage;
}

/// Usage reported by a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(crate = "rpc_core::serde")]
pub(crate) struct ServerUsage {
    /// CPU time, ns.
    pub(crate) cpu_ns: u64,
    /// Resident memory, bytes; `None` if it shares its process with the client.
    pub(crate) resident_bytes: Option<u64>,
}

/// The server. Returned data is prepared once, for the largest size requested so far.
#[derive(Debug)]
pub(crate) struct Store {
    scope: Scope,
    bytes: Mutex<Bytes>,
    bulk: Mutex<Option<Bulk>>,
}

impl Store {
    /// A server that reports the usage of its process, or only of its thread.
    pub(crate) fn new(scope: Scope) -> Self {
        Self { scope, bytes: Mutex::default(), bulk: Mutex::default() }
    }
}

fn checked(len: u64) -> Result<usize, Status> {
    match usize::try_from(len) {
        Ok(len) if len <= MAX_PAYLOAD_BYTES => Ok(len),
        _ => Err(Status::invalid_argument(format!(
            "{len} bytes exceed the largest payload of {MAX_PAYLOAD_BYTES} bytes"
        ))),
    }
}

impl Perf for Store {
    async fn echo(&self, data: &[u8]) -> Vec<u8> {
        data.to_vec()
    }

    async fn put(&self, data: Bytes) -> u64 {
        look(&data)
    }

    async fn get(&self, len: u64) -> Result<Bytes, Status> {
        let len = checked(len)?;
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes.len() < len {
            *bytes = vec![FILL; len].into();
        }
        Ok(bytes.slice(..len))
    }

    async fn put_bulk(&self, data: Bulk) -> u64 {
        // The caller knows the sum, which is not 0.
        look_at(&data).unwrap_or(0)
    }

    async fn get_bulk(&self, len: u64) -> Result<Bulk, Status> {
        let size = checked(len)?;
        let kept = self.bulk.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(bulk) = kept.filter(|bulk| bulk.len() >= len) {
            return Ok(bulk.slice(0..len));
        }
        let context = Context::current();
        let bulk = context.bulk_pool().map_or_else(|| filled(size), |pool| registered(pool, size));
        let before = {
            let mut kept = self.bulk.lock().unwrap_or_else(PoisonError::into_inner);
            kept.replace(bulk.clone())
        };
        drop(before);
        Ok(bulk)
    }

    async fn usage(&self) -> ServerUsage {
        let Usage { cpu_ns, resident_bytes } = Usage::now(self.scope);
        ServerUsage { cpu_ns, resident_bytes: resident_bytes.filter(|_| self.scope.is_process()) }
    }
}

fn filled(len: usize) -> Bulk {
    Bulk::from(vec![FILL; len])
}

/// A payload in registered memory, or in ordinary memory if the pool has no room.
pub(crate) fn registered(pool: &BulkPool, len: usize) -> Bulk {
    match pool.take(len) {
        Ok(mut buffer) => {
            buffer.fill(FILL);
            buffer.freeze()
        }
        Err(_) => filled(len),
    }
}

/// The sum of one byte of each page, for any kind of memory.
pub(crate) fn look_at(data: &Bulk) -> Result<u64, ReadError> {
    let mut byte = [0];
    let mut sum = 0;
    for at in (0..data.len()).step_by(PAGE_BYTES) {
        data.read_at(at, &mut byte)?;
        sum += u64::from(byte[0]);
    }
    Ok(sum)
}

/// The result of reading a payload of `len` bytes.
pub(crate) fn sum_of(len: usize) -> u64 {
    len.div_ceil(PAGE_BYTES) as u64 * u64::from(FILL)
}

#[cfg(test)]
mod tests {
    use rpc_core::{Channel, Code};
    use test_kit::Watchdog;

    use super::*;

    async fn client() -> PerfClient {
        let server = PerfServer::new(Store::new(Scope::Process));
        PerfClient::new(Channel::to(server).await.unwrap())
    }

    #[tokio::test]
    async fn payloads_are_what_was_asked_for() {
        let _watchdog = Watchdog::start("payloads");
        let client = client().await;
        // The second is cut from the rest of the first, the third needs more.
        for len in [100_000, 5_000, 300_000] {
            let size = usize::try_from(len).unwrap();
            let bytes = client.get(len).await.unwrap();
            assert!(bytes.len() == size && bytes.iter().all(|byte| *byte == FILL), "{len}");
            assert_eq!(look(&bytes), sum_of(size));
            let bulk = client.get_bulk(len).await.unwrap();
            assert_eq!((bulk.len(), look_at(&bulk)), (len, Ok(sum_of(size))));
            assert_eq!(client.put(bytes).await, Ok(sum_of(size)));
            assert_eq!(client.put_bulk(bulk).await, Ok(sum_of(size)));
        }
    }

    #[tokio::test]
    async fn a_payload_beyond_the_largest_is_refused() {
        let _watchdog = Watchdog::start("largest payload");
        let client = client().await;
        for len in [MAX_PAYLOAD_BYTES as u64 + 1, u64::MAX] {
            let bytes = client.get(len).await.map_err(Status::from).map(|_| ());
            let bulk = client.get_bulk(len).await.map_err(Status::from).map(|_| ());
            for refused in [bytes, bulk] {
                assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
            }
        }
    }

    #[tokio::test]
    async fn a_server_reports_its_usage() {
        let _watchdog = Watchdog::start("usage");
        let usage = client().await.usage().await.unwrap();
        assert!(
            usage.cpu_ns > 0 && usage.resident_bytes.is_some_and(|bytes| bytes > 0),
            "{usage:?}"
        );
        let of_thread = PerfServer::new(Store::new(Scope::Thread));
        let client = PerfClient::new(Channel::to(of_thread).await.unwrap());
        assert_eq!(client.usage().await.unwrap().resident_bytes, None);
    }
}
