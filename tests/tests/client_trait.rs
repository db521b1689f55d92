//! The trait over a generated client: one function runs against the client, a wrapper and a fake.
#![allow(missing_docs, clippy::unwrap_used, reason = "the services here are examples")]

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::StreamExt;
use rpc_core::stream::{self, Producer, Stream, Streaming};
use rpc_core::{Bulk, CallError, Channel, Code, Status};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Refused {
    NoSuchTable,
}

#[rpc_core::service(client_trait = TableCalls)]
pub trait Table {
    /// How many rows there are.
    async fn len(&self, table: &str) -> Result<u64, Refused>;
    async fn name(&self) -> String;
    #[rpc(idempotent)]
    async fn echo(&self, bytes: Bulk, lent: &[String]) -> Bulk;
    async fn chained(&self) -> Result<u64, CallError<Refused>>;
    fn list(&self, prefix: &str) -> impl Stream<Item = String>;
    fn scan(&self) -> impl Stream<Item = Result<u64, Refused>>;
    async fn rows(&self, table: &str) -> Result<impl Stream<Item = u64>, Refused>;
    fn sums(&self) -> impl Producer<Item = u64, Output = Result<u64, Refused>>;
    async fn insert(&self, table: &str, rows: Streaming<u64>) -> Result<u64, Refused>;
    fn double(&self, numbers: Streaming<u64>) -> impl Stream<Item = u64>;
    #[cfg(any())]
    async fn absent(&self, of: NoSuchType);
}

/// Three tables under three names, each with the contents that the test expects.
struct Rows;

fn known(table: &str) -> Result<u64, Refused> {
    if table == "rows" { Ok(3) } else { Err(Refused::NoSuchTable) }
}

impl Table for Rows {
    async fn len(&self, table: &str) -> Result<u64, Refused> {
        known(table)
    }
    async fn name(&self) -> String {
        "rows".into()
    }
    async fn echo(&self, bytes: Bulk, _lent: &[String]) -> Bulk {
        bytes
    }
    async fn chained(&self) -> Result<u64, CallError<Refused>> {
        Err(Status::unavailable("later").into())
    }
    fn list(&self, prefix: &str) -> impl Stream<Item = String> {
        stream::iter(
            ["ant", "bee", "bat"]
                .map(String::from)
                .into_iter()
                .filter(move |word| word.starts_with(prefix)),
        )
    }
    fn scan(&self) -> impl Stream<Item = Result<u64, Refused>> {
        stream::iter([Ok(1), Err(Refused::NoSuchTable)])
    }
    async fn rows(&self, table: &str) -> Result<impl Stream<Item = u64>, Refused> {
        known(table).map(|len| stream::iter(0..len))
    }
    fn sums(&self) -> impl Producer<Item = u64, Output = Result<u64, Refused>> {
        stream::producer(async move |mut out| {
            for number in [1, 2] {
                let _ = out.send(number).await;
            }
            Ok(3)
        })
    }
    async fn insert(&self, table: &str, mut rows: Streaming<u64>) -> Result<u64, Refused> {
        known(table)?;
        let mut sum = 0;
        while let Some(Ok(row)) = rows.next().await {
            sum += row;
        }
        Ok(sum)
    }
    fn double(&self, numbers: Streaming<u64>) -> impl Stream<Item = u64> {
        numbers.filter_map(async |number| number.ok().map(|number| 2 * number))
    }
}

/// A fake without a server, a channel or a runtime of its own.
struct Fake;

impl TableCalls for Fake {
    async fn len(&self, table: &str) -> Result<u64, CallError<Refused>> {
        known(table).map_err(CallError::User)
    }
    async fn name(&self) -> Result<String, Status> {
        Ok("rows".into())
    }
    async fn echo(&self, bytes: Bulk, _lent: &[String]) -> Result<Bulk, Status> {
        Ok(bytes)
    }
    async fn chained(&self) -> Result<u64, CallError<Refused>> {
        Err(Status::unavailable("later").into())
    }
    async fn list(
        &self,
        prefix: &str,
    ) -> Result<impl Stream<Item = Result<String, Status>> + Send, Status> {
        let words = ["ant", "bee", "bat"].into_iter().filter(move |word| word.starts_with(prefix));
        Ok(stream::iter(words.map(|word| Ok(word.into()))))
    }
    async fn scan(
        &self,
    ) -> Result<impl Stream<Item = Result<u64, CallError<Refused>>> + Send, Status> {
        Ok(stream::iter([Ok(1), Err(CallError::User(Refused::NoSuchTable))]))
    }
    async fn rows(
        &self,
        table: &str,
    ) -> Result<impl Stream<Item = Result<u64, Status>> + Send, CallError<Refused>> {
        known(table).map(|len| stream::iter((0..len).map(Ok))).map_err(CallError::User)
    }
    async fn sums(
        &self,
    ) -> Result<impl Producer<Item = u64, Output = Result<u64, CallError<Refused>>> + Send, Status>
    {
        Ok(stream::producer(async move |mut out| {
            for number in [1, 2] {
                let _ = out.send(number).await;
            }
            Ok(3)
        }))
    }
    async fn insert(
        &self,
        table: &str,
        rows: impl Stream<Item = u64> + Send,
    ) -> Result<u64, CallError<Refused>> {
        known(table).map_err(CallError::User)?;
        Ok(rows.fold(0, async |sum, row| sum + row).await)
    }
    async fn double(
        &self,
        numbers: impl Stream<Item = u64> + Send,
    ) -> Result<impl Stream<Item = Result<u64, Status>> + Send, Status> {
        Ok(numbers.map(|number| Ok(2 * number)))
    }
}

/// Every shape of method, through any implementation of the client's trait.
async fn use_a_table(table: &impl TableCalls) {
    assert_eq!(table.len("rows").await, Ok(3));
    assert_eq!(table.len("none").await, Err(CallError::User(Refused::NoSuchTable)));
    assert_eq!(table.name().await, Ok("rows".into()));
    let echoed = table.echo(Bulk::from(vec![7; 100_000]), &["lent".into()]).await.unwrap();
    assert_eq!(echoed.to_vec().unwrap(), vec![7; 100_000]);
    let Err(CallError::Status(status)) = table.chained().await else { panic!("a status") };
    assert_eq!(status.code(), Code::Unavailable);

    let words: Vec<_> = table.list("b").await.unwrap().collect().await;
    assert_eq!(words, [Ok("bee".into()), Ok("bat".into())]);
    let scanned: Vec<_> = table.scan().await.unwrap().collect().await;
    assert_eq!(scanned, [Ok(1), Err(CallError::User(Refused::NoSuchTable))]);
    let rows: Vec<_> = table.rows("rows").await.unwrap().collect().await;
    assert_eq!(rows, [Ok(0), Ok(1), Ok(2)]);
    let refused = table.rows("none").await.err();
    assert_eq!(refused, Some(CallError::User(Refused::NoSuchTable)));
    assert_eq!(steps(table.sums().await.unwrap()).await, (vec![1, 2], Ok(3)));

    assert_eq!(table.insert("rows", stream::iter(1..=100)).await, Ok(5050));
    let doubled: Vec<_> = table.double(stream::iter([1, 2])).await.unwrap().collect().await;
    assert_eq!(doubled, [Ok(2), Ok(4)]);
}

/// The items, and the value after them.
async fn steps<P: Producer>(producer: P) -> (Vec<P::Item>, P::Output) {
    let mut producer = pin!(producer);
    let mut items = Vec::new();
    loop {
        match std::future::poll_fn(|cx| producer.as_mut().poll_step(cx)).await {
            stream::Step::Item(item) => items.push(item),
            stream::Step::LastItem(item, output) => {
                items.push(item);
                return (items, output);
            }
            stream::Step::End(output) => return (items, output),
            other => panic!("{}", std::any::type_name_of_val(&other)),
        }
    }
}

#[tokio::test]
async fn client_and_fake_share_a_function() {
    let client = TableClient::new(Channel::to(TableServer::new(Rows)).await.unwrap());
    use_a_table(&client).await;
    use_a_table(&&client).await;
    use_a_table(&Arc::new(client)).await;
    use_a_table(&Fake).await;
}

#[rpc_core::service(client_trait = CounterCalls)]
pub trait Counter {
    async fn add(&self, by: u64) -> u64;
}

impl Counter for AtomicU64 {
    async fn add(&self, by: u64) -> u64 {
        self.fetch_add(by, Ordering::Relaxed) + by
    }
}

/// A wrapper that is generic over clients: it counts failures.
struct Counting<C> {
    inner: C,
    failed: AtomicU64,
}

impl<C: CounterCalls> CounterCalls for Counting<C> {
    async fn add(&self, by: u64) -> Result<u64, Status> {
        let result = self.inner.add(by).await;
        self.failed.fetch_add(u64::from(result.is_err()), Ordering::Relaxed);
        result
    }
}

/// A fake whose calls fail in ways that a real server cannot be made to.
struct Gone;

impl CounterCalls for Gone {
    async fn add(&self, _by: u64) -> Result<u64, Status> {
        Err(Status::unavailable("gone"))
    }
}

#[tokio::test]
async fn a_wrapper_is_generic_over_clients() {
    let channel = Channel::to(CounterServer::new(AtomicU64::new(0))).await.unwrap();
    let counted = Counting { inner: CounterClient::new(channel), failed: AtomicU64::new(0) };
    // Its futures are `Send`, whatever they contain.
    let counted = Arc::new(counted);
    let spawned = tokio::spawn({
        let counted = Arc::clone(&counted);
        async move { counted.add(2).await }
    });
    assert_eq!(spawned.await.unwrap(), Ok(2));
    assert_eq!(counted.add(3).await, Ok(5));
    assert_eq!(counted.failed.load(Ordering::Relaxed), 0);

    let counted = Counting { inner: Gone, failed: AtomicU64::new(0) };
    assert_eq!(counted.add(1).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(counted.failed.load(Ordering::Relaxed), 1);
}
