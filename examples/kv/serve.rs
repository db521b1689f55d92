//! `kv serve`: the store behind the service.

use std::sync::Arc;

use examples::serving;
use examples::units::{bytes, counted};
use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::{Bulk, CallError, Context, Server, ServerBuilder, Status};
use rpc_discovery::Etcd;
use tokio::sync::broadcast::error::RecvError;

use super::cli::ServeArgs;
use super::error::CommandError;
use super::metrics;
use super::service::{
    Change, Held, Kv, KvError, KvServer, Loaded, Page, Pair, Stats, Update, Value, Version,
};
use super::store::Store;
use super::streams;

/// The service: each method is one operation of the store. None waits, so none needs a task.
struct StoreService(Arc<Store>);

impl Kv for StoreService {
    async fn get(&self, key: &str) -> Result<Value, KvError> {
        self.0.get(key)
    }

    async fn put(&self, key: &str, value: Bulk) -> Result<Version, KvError> {
        self.0.put(key, value)
    }

    async fn delete(&self, key: &str) -> Result<Version, KvError> {
        self.0.delete(key)
    }

    async fn compare_and_swap(
        &self,
        key: &str,
        expected: Option<Version>,
        value: Bulk,
    ) -> Result<Version, KvError> {
        self.0.compare_and_swap(key, expected, value)
    }

    async fn list(&self, prefix: &str, after: &str, limit: u32) -> Page {
        self.0.list(prefix, after, limit)
    }

    fn watch(&self, prefix: &str) -> impl Stream<Item = Result<Change, Status>> {
        // Subscribes at once, so that no change after the call's acceptance is missed.
        let mut changes = self.0.watch();
        let draining = Context::current().draining();
        stream::try_stream(async move |mut out| {
            tokio::pin!(draining);
            loop {
                let change = tokio::select! {
                    change = changes.recv() => change,
                    // A watch has no end of its own, so the end of grace would cut it off.
                    () = &mut draining => {
                        let status = Status::unavailable("the server is shutting down");
                        return Err(status.with_retryable(true));
                    }
                };
                match change {
                    Ok(change) if change.is_below(prefix) => out.send(change).await?,
                    Ok(_) => {}
                    Err(RecvError::Lagged(missed)) => out.send(Change::Lagged { missed }).await?,
                    Err(RecvError::Closed) => return Ok(()),
                }
            }
        })
    }

    async fn load(&self, mut pairs: Streaming<Pair>) -> Result<Loaded, CallError<KvError>> {
        let mut loaded = Loaded::default();
        while let Some(Pair { key, value }) = pairs.try_next().await? {
            let bytes = key.len() as u64 + value.len();
            self.0.put(&key, value).map_err(CallError::User)?;
            loaded.keys += 1;
            loaded.bytes += bytes;
        }
        Ok(loaded)
    }

    fn sync(
        &self,
        prefix: &str,
        theirs: Streaming<Held>,
    ) -> impl Stream<Item = Result<Update, CallError<KvError>>> {
        streams::compare(&self.0, prefix, theirs)
    }

    async fn stats(&self) -> Stats {
        self.0.stats()
    }
}

/// A server of a store, whatever its addresses.
pub(crate) fn builder(store: &Arc<Store>) -> ServerBuilder {
    Server::builder()
        .add_service(KvServer::new(StoreService(Arc::clone(store))))
        .link(super::connect::link())
}

/// Serves until a signal, and then prints a summary.
pub(crate) async fn serve(args: &ServeArgs) -> Result<(), CommandError> {
    let store = Arc::new(Store::new(args.max_bytes));
    let mut server = builder(&store);
    if let Some(etcd) = &args.register {
        let etcd = args.advertise.iter().fold(etcd.clone(), |it, at| it.advertise(at.clone()));
        server = server.register(args.zone.iter().fold(etcd, Etcd::zone));
    }
    let server = args.tls.secure(server).map_err(CommandError::Listen)?;
    serving::serve(server, &args.server, &args.addresses, metrics::listen).await?;
    let stats = store.stats();
    let requests = counted(stats.requests.total(), "request", "requests");
    let keys = counted(stats.keys, "key", "keys");
    eprintln!("stopped after {requests}, with {keys} ({})", bytes(stats.bytes));
    Ok(())
}

#[cfg(test)]
mod tests {
    use rpc_core::{CallError, Channel};

    use super::super::connect::link;
    use super::super::service::{KvClient, MAX_VALUE_BYTES};
    use super::*;
    use examples::testing::limited;

    async fn client(name: &str, max_bytes: Option<u64>) -> KvClient {
        let address = format!("mem://{name}");
        let server = builder(&Arc::new(Store::new(max_bytes))).bind(&address).await.unwrap();
        tokio::spawn(server.serve());
        KvClient::new(Channel::builder().link(link()).connect(&address).await.unwrap())
    }

    #[tokio::test]
    async fn every_method_answers() {
        limited(async {
            let kv = client("kv-methods", None).await;
            let first = kv.put("a", b"1".into()).await.unwrap();
            let second = kv.compare_and_swap("a", Some(first), b"2".into()).await.unwrap();
            assert_eq!(kv.get("a").await.unwrap(), Value { version: second, bytes: "2".into() });
            let page = kv.list("", "", 10).await.unwrap();
            assert_eq!((page.keys.len(), page.keys[0].version, page.next), (1, second, None));
            assert_eq!(kv.delete("a").await, Ok(second));
            let stats = kv.stats().await.unwrap();
            assert_eq!((stats.keys, stats.requests.total()), (0, 5));
        })
        .await;
    }

    #[tokio::test]
    async fn refusals_are_service_errors_not_call_errors() {
        limited(async {
            let kv = client("kv-refusals", Some(10)).await;
            assert_eq!(kv.get("a").await, Err(CallError::User(KvError::NotFound)));
            assert_eq!(kv.delete("a").await, Err(CallError::User(KvError::NotFound)));
            let mismatch = KvError::VersionMismatch { current: None };
            assert_eq!(
                kv.compare_and_swap("a", Some(Version(1)), Bulk::new()).await,
                Err(CallError::User(mismatch))
            );
            let full = KvError::Full { used: 0, max: 10, needed: 11 };
            assert_eq!(kv.put("a", vec![0; 10].into()).await, Err(CallError::User(full)));
            let bad = KvError::BadKey { bytes: 0, max: 4096 };
            assert_eq!(kv.put("", Bulk::new()).await, Err(CallError::User(bad)));
        })
        .await;
    }

    #[tokio::test]
    async fn values_beyond_the_usual_message_size_pass_whole() {
        limited(async {
            const { assert!(MAX_VALUE_BYTES > 70 << 20) };
            let kv = client("kv-large", None).await;
            let value: Vec<u8> =
                (0..70_u32 << 20).map(|at| (at ^ (at >> 8)).to_le_bytes()[0]).collect();
            kv.put("large", value.clone().into()).await.unwrap();
            assert!(kv.get("large").await.unwrap().bytes == value);
        })
        .await;
    }
}
