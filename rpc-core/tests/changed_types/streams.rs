//! Streams whose types differ: items of both directions, refusals, and what ends a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::StreamExt;
use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::{CallError, Code, Server};
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum OldEnd {
    Broken { at: u32 },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum NewEnd {
    Full,
    Broken { why: Option<String>, at: u64 },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum OldRefusal {
    Empty { name: String },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum NewRefusal {
    Closed,
    Empty { name: String, since: Option<u64> },
}

mod old {
    use super::*;

    #[rpc_core::service]
    pub trait Rows {
        async fn sum(&self, rows: Streaming<u32>) -> u64;
        async fn none(&self, from: u32, rows: Streaming<u32>) -> u32;
        fn double(&self, rows: Streaming<u32>) -> impl Stream<Item = u32>;
        fn count(&self, to: u32) -> impl Stream<Item = u64>;
        async fn list(
            &self,
            refused: bool,
        ) -> Result<impl Stream<Item = Result<u32, OldEnd>>, OldRefusal>;
        async fn once(&self) -> u32;
    }
}

mod new {
    use super::*;

    #[rpc_core::service]
    pub trait Rows {
        async fn sum(&self, rows: Streaming<u64>) -> u64;
        async fn none(&self, more: Option<u8>, from: u32, rows: Streaming<u64>) -> u32;
        fn double(&self, rows: Streaming<u64>) -> impl Stream<Item = u64>;
        fn count(&self, to: u64) -> impl Stream<Item = u8>;
        async fn list(
            &self,
            refused: bool,
        ) -> Result<impl Stream<Item = Result<u64, NewEnd>>, NewRefusal>;
        fn once(&self) -> impl Stream<Item = u32>;
    }
}

#[derive(Default)]
struct Table {
    runs: AtomicU32,
}

impl old::Rows for Table {
    async fn sum(&self, mut rows: Streaming<u32>) -> u64 {
        self.runs.fetch_add(1, Ordering::SeqCst);
        let mut sum = 0;
        while let Ok(Some(row)) = rows.try_next().await {
            sum += u64::from(row);
        }
        sum
    }
    async fn none(&self, from: u32, mut rows: Streaming<u32>) -> u32 {
        assert_eq!(rows.try_next().await, Ok(None));
        from
    }
    fn double(&self, rows: Streaming<u32>) -> impl Stream<Item = u32> {
        rows.filter_map(async |row| row.ok().map(|row| 2 * row))
    }
    fn count(&self, to: u32) -> impl Stream<Item = u64> {
        stream::iter(0..u64::from(to))
    }
    async fn list(
        &self,
        refused: bool,
    ) -> Result<impl Stream<Item = Result<u32, OldEnd>>, OldRefusal> {
        if refused {
            return Err(OldRefusal::Empty { name: "list".into() });
        }
        Ok(stream::iter([Ok(7), Err(OldEnd::Broken { at: 3 })]))
    }
    async fn once(&self) -> u32 {
        7
    }
}

fn rows(count: u64) -> impl Stream<Item = u64> + Send + 'static {
    stream::iter(1..=count)
}

#[test]
fn arguments_wait_until_types_are_accepted() {
    crate::run(async {
        for channel in crate::channels(|| old::RowsServer::new(Table::default())).await {
            let client = new::RowsClient::new(channel);
            for _ in 0..3 {
                // More than a window, one, and none.
                assert_eq!(client.sum(rows(3000)).await, Ok(3000 * 3001 / 2));
                assert_eq!(client.sum(rows(1)).await, Ok(1));
                assert_eq!(client.none(Some(1), 7, rows(0)).await, Ok(7));
                let doubled = client.double(rows(500)).await.unwrap();
                let doubled = doubled.map(Result::unwrap).collect::<Vec<_>>().await;
                assert_eq!(doubled, (1..=500).map(|row| 2 * row).collect::<Vec<_>>());
            }
        }
    });
}

#[test]
fn a_slow_source_keeps_its_items() {
    crate::run(async {
        for channel in crate::channels(|| old::RowsServer::new(Table::default())).await {
            let client = new::RowsClient::new(channel);
            let (sender, mut receiver) = tokio::sync::mpsc::channel::<u64>(1);
            let source = futures::stream::poll_fn(move |cx| receiver.poll_recv(cx));
            let call = tokio::spawn(client.sum(source).start());
            for row in 1..=5 {
                sender.send(row).await.unwrap();
            }
            drop(sender);
            assert_eq!(call.await.unwrap(), Ok(15));
        }
    });
}

#[test]
fn many_first_streams_at_once_run_once() {
    crate::run(async {
        for address in crate::addresses() {
            let table = Arc::new(Table::default());
            let server = old::RowsServer::from_arc(Arc::clone(&table));
            let server = Server::builder().add_service(server).bind(&*address).await.unwrap();
            let address = server.local_address().to_string();
            tokio::spawn(server.serve());
            let channel = rpc_core::Channel::connect(&address).await.unwrap();
            let (old, new) = (old::RowsClient::new(channel.clone()), new::RowsClient::new(channel));
            let calls = (1..=50).map(|count| {
                let (new, old) = (new.sum(rows(count)).start(), old.sum(stream::iter([1])).start());
                async move {
                    assert_eq!(new.await, Ok(count * (count + 1) / 2));
                    assert_eq!(old.await, Ok(1));
                }
            });
            futures::future::join_all(calls.collect::<Vec<_>>()).await;
            assert_eq!(table.runs.load(Ordering::SeqCst), 100);
        }
    });
}

#[test]
fn a_misfit_item_ends_its_call_alone() {
    crate::run(async {
        for channel in crate::channels(|| old::RowsServer::new(Table::default())).await {
            let client = new::RowsClient::new(channel);
            let mut other = client.count(200).await.unwrap();
            let mut counted = client.count(300).await.unwrap();
            for number in 0..=255 {
                assert_eq!(counted.next().await, Some(Ok(number)));
            }
            let status = counted.next().await.unwrap().unwrap_err();
            assert_eq!(status.code(), Code::DataLoss);
            crate::assert_has(&status, &["Rows.count", "256 fits no u8"]);
            assert_eq!(counted.next().await, None);
            for number in 0..200 {
                assert_eq!(other.next().await, Some(Ok(number)));
            }
            assert_eq!(other.next().await, None);
        }
    });
}

#[test]
fn ends_and_refusals_of_streams_are_read() {
    crate::run(async {
        for channel in crate::channels(|| old::RowsServer::new(Table::default())).await {
            let client = new::RowsClient::new(channel);
            for _ in 0..2 {
                let mut list = client.list(false).await.unwrap();
                assert_eq!(list.next().await, Some(Ok(7)));
                let broken = NewEnd::Broken { why: None, at: 3 };
                assert_eq!(list.next().await, Some(Err(CallError::User(broken))));
                let refused = client.list(true).await.unwrap_err();
                let empty = NewRefusal::Empty { name: "list".into(), since: None };
                assert_eq!(refused, CallError::User(empty));
            }
        }
    });
}

#[test]
fn a_stream_is_not_converted_to_a_value() {
    crate::run(async {
        for channel in crate::channels(|| old::RowsServer::new(Table::default())).await {
            let client = new::RowsClient::new(channel);
            let status = client.once().await.unwrap_err();
            assert_eq!(status.code(), Code::FailedPrecondition);
            crate::assert_has(&status, &["Rows.once", "the server has no stream of results"]);
        }
    });
}
