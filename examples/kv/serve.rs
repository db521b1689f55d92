//! `kv serve`: the store behind the service.

use std::io::{self, Write};
use std::sync::Arc;

use examples::signals::EndSignals;
use examples::units::{bytes, counted};
use rpc_core::Server;

use crate::cli::ServeArgs;
use crate::error::CommandError;
use crate::service::{Kv, KvError, KvServer, Page, Stats, Value, Version};
use crate::store::Store;

/// The service: each method is one operation of the store. None waits, so none needs a task.
struct StoreService(Arc<Store>);

impl Kv for StoreService {
    async fn get(&self, key: &str) -> Result<Value, KvError> {
        self.0.get(key)
    }

    async fn put(&self, key: &str, value: &[u8]) -> Result<Version, KvError> {
        self.0.put(key, value)
    }

    async fn delete(&self, key: &str) -> Result<Version, KvError> {
        self.0.delete(key)
    }

    async fn compare_and_swap(
        &self,
        key: &str,
        expected: Option<Version>,
        value: &[u8],
    ) -> Result<Version, KvError> {
        self.0.compare_and_swap(key, expected, value)
    }

    async fn list(&self, prefix: &str, after: &str, limit: u32) -> Page {
        self.0.list(prefix, after, limit)
    }

    async fn stats(&self) -> Stats {
        self.0.stats()
    }
}

/// Serves until Ctrl-C or SIGTERM; a second one does not wait for calls in flight.
pub(crate) async fn serve(args: &ServeArgs) -> Result<(), CommandError> {
    let mut signals = EndSignals::install()?;
    let store = Arc::new(Store::new(args.max_bytes));
    let server = Server::builder()
        .add_service(KvServer::new(StoreService(Arc::clone(&store))))
        .link(crate::connect::link())
        .poll_mode(args.poll.into())
        .shards(args.shards)
        .bind_all(args.addresses.iter().map(ToString::to_string))
        .await?;
    let mut stdout = io::stdout();
    for address in server.local_addresses() {
        writeln!(stdout, "READY {address}")?;
    }
    stdout.flush()?;
    let handle = server.shutdown_handle();
    let serving = server.serve();
    tokio::pin!(serving);
    tokio::select! {
        outcome = &mut serving => return Ok(outcome?),
        () = signals.next() => handle.shutdown(),
    }
    eprintln!("stopping; once more to stop at once");
    tokio::select! {
        outcome = serving => outcome?,
        () = signals.next() => return Err(CommandError::Interrupted),
    }
    let stats = store.stats();
    let requests = counted(stats.requests.total(), "request", "requests");
    let keys = counted(stats.keys, "key", "keys");
    eprintln!("stopped after {requests}, with {keys} ({})", bytes(stats.bytes));
    Ok(())
}
