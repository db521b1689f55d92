//! A service with streams, which the tests control and query.
//!
//! Owns the trait [`Flow`], its types and its implementation.

use std::collections::HashMap;
use std::sync::Arc;

use futures::StreamExt;
use rpc_core::stream::{self, Producer, Stream, StreamEnd, Streaming};
use rpc_core::{Bulk, Code, Context, Status};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::journal::Journal;
use crate::probe::Mark;
use crate::service::{checksum, pattern};

/// The error of the methods themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum FlowError {
    /// Before the first item.
    #[error("refused: {0}")]
    Refused(String),
    /// After some items.
    #[error("failed after {0} items")]
    After(u64),
}

/// An item with a payload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// Its number.
    pub number: u64,
    /// Optional content.
    pub content: Bulk,
}

/// Streams of every shape.
#[rpc_core::service]
pub trait Flow {
    /// Numbers in order.
    fn count(&self, from: u64, upto: u64) -> impl Stream<Item = u64>;

    /// [`pattern`]s of these lengths; the seed is the position.
    fn sized(&self, sizes: &[u32]) -> impl Stream<Item = Vec<u8>>;

    /// Items of these lengths, with payloads.
    fn pieces(&self, sizes: Vec<u32>) -> impl Stream<Item = Piece>;

    /// Words of `text`, which the stream borrows.
    fn words(&self, text: &str) -> impl Stream<Item = String>;

    /// May refuse the call.
    async fn checked(&self, name: &str) -> Result<impl Stream<Item = u64>, FlowError>;

    /// Ends with an error after `after` items.
    fn failing(&self, after: u64) -> impl Stream<Item = Result<u64, FlowError>>;

    /// Ends with a status after `after` items.
    fn failing_with(
        &self,
        after: u64,
        code: u8,
        text: &str,
    ) -> impl Stream<Item = Result<u64, Status>>;

    /// Items and their sum.
    fn summed(&self, upto: u64) -> impl Producer<Item = u64, Output = u64>;

    /// Number of items, and a checksum of their bytes.
    async fn digest(&self, rows: Streaming<Vec<u8>>) -> Result<(u64, u64), FlowError>;

    /// Total length of payloads.
    async fn lengths(&self, pieces: Streaming<Piece>) -> u64;

    /// Returns the items that arrive.
    fn echo(&self, items: Streaming<Vec<u8>>) -> impl Stream<Item = Vec<u8>>;

    /// Returns the items that arrive, with a deadline that starts anew with each item.
    #[rpc(stream_deadline = "idle")]
    fn relay(&self, items: Streaming<u64>) -> impl Stream<Item = u64>;

    /// Sends `items` numbers, then waits at the gate `tag`, then sends one more; leaves the marks
    /// of the gate.
    fn hold(&self, tag: u64, items: u64) -> impl Stream<Item = u64>;

    /// Waits at the gate `tag` before it reads; returns the sum.
    async fn hold_then_sum(&self, tag: u64, rows: Streaming<u64>) -> u64;

    /// Reads to the end; records the number of items and the kind of end under `tag`.
    async fn observe(&self, tag: u64, rows: Streaming<u64>) -> u64;

    /// The record under `tag`, once there is one.
    async fn observed(&self, tag: u64) -> String;

    /// Stops reading after `count` items, then waits at the gate `tag`.
    async fn read_some(&self, tag: u64, count: u64, rows: Streaming<u64>) -> u64;

    /// Panics after some items.
    fn panicking(&self, after: u64) -> impl Stream<Item = u64>;

    /// gRPC's `EmptyCall`.
    async fn empty_call(&self);

    /// gRPC's `UnaryCall`, with the requested status.
    async fn unary_call(
        &self,
        payload: Bulk,
        size: u32,
        status: Option<(u8, &str)>,
    ) -> Result<Bulk, Status>;

    /// gRPC's `FullDuplexCall`: a payload of each requested length.
    fn full_duplex(
        &self,
        requests: Streaming<(u32, Vec<u8>)>,
    ) -> impl Stream<Item = Result<Vec<u8>, Status>>;

    /// A value of the metadata, which also goes back as initial metadata.
    fn metadata(&self, key: &str) -> impl Stream<Item = Vec<u8>>;
}

/// The implementation.
#[derive(Debug)]
pub struct FlowService {
    journal: Arc<Journal>,
    observed: watch::Sender<HashMap<u64, String>>,
}

impl FlowService {
    /// A service that leaves its marks in `journal`.
    #[must_use]
    pub fn new(journal: Arc<Journal>) -> Self {
        Self { journal, observed: watch::Sender::new(HashMap::new()) }
    }
}

/// Records how a stream ended, even when its handler is dropped first.
struct Observing<'a> {
    service: &'a FlowService,
    tag: u64,
    count: u64,
    end: Option<(StreamEnd, Option<Code>)>,
}

impl Drop for Observing<'_> {
    fn drop(&mut self) {
        let text = match self.end {
            None => format!("{} dropped", self.count),
            Some((end, None)) => format!("{} {end:?}", self.count),
            Some((end, Some(code))) => format!("{} {end:?} {code:?}", self.count),
        };
        self.service.observed.send_modify(|observed| {
            observed.insert(self.tag, text);
        });
    }
}

/// The code with that number.
fn code(number: u8) -> Code {
    Code::from_number(number).unwrap_or(Code::Unknown)
}

impl Flow for FlowService {
    fn count(&self, from: u64, upto: u64) -> impl Stream<Item = u64> {
        stream::iter(from..upto)
    }

    fn sized(&self, sizes: &[u32]) -> impl Stream<Item = Vec<u8>> {
        stream::iter((0..).zip(sizes).map(|(seed, &size)| pattern(size as usize, seed)))
    }

    fn pieces(&self, sizes: Vec<u32>) -> impl Stream<Item = Piece> {
        stream::iter((0..).zip(sizes).map(|(number, size)| {
            let content = Bulk::from(pattern(size as usize, number));
            Piece { number, content }
        }))
    }

    fn words(&self, text: &str) -> impl Stream<Item = String> {
        stream::iter(text.split(' ').map(str::to_owned))
    }

    async fn checked(&self, name: &str) -> Result<impl Stream<Item = u64>, FlowError> {
        tokio::task::yield_now().await;
        match name {
            "no" => Err(FlowError::Refused(name.to_owned())),
            _ => Ok(stream::iter(0..name.len() as u64)),
        }
    }

    fn failing(&self, after: u64) -> impl Stream<Item = Result<u64, FlowError>> {
        stream::iter((0..after).map(Ok).chain([Err(FlowError::After(after))]))
    }

    fn failing_with(
        &self,
        after: u64,
        number: u8,
        text: &str,
    ) -> impl Stream<Item = Result<u64, Status>> {
        let status = Status::new(code(number), text.to_owned());
        stream::iter((0..after).map(Ok).chain([Err(status)]))
    }

    fn summed(&self, upto: u64) -> impl Producer<Item = u64, Output = u64> {
        stream::producer(async move |mut out| {
            for number in 0..upto {
                // Nobody else has the sender, so it is dropped with the stream.
                let _ = out.send(number).await;
            }
            (0..upto).sum()
        })
    }

    async fn digest(&self, mut rows: Streaming<Vec<u8>>) -> Result<(u64, u64), FlowError> {
        let (mut count, mut sum) = (0, 0_u64);
        while let Some(row) = rows.next().await {
            let row = row.map_err(|_| FlowError::After(count))?;
            sum = sum.rotate_left(1) ^ checksum(&row);
            count += 1;
        }
        Ok((count, sum))
    }

    async fn lengths(&self, pieces: Streaming<Piece>) -> u64 {
        pieces.fold(0, async |sum, piece| sum + piece.map_or(0, |piece| piece.content.len())).await
    }

    fn echo(&self, items: Streaming<Vec<u8>>) -> impl Stream<Item = Vec<u8>> {
        items.filter_map(async |item| item.ok())
    }

    fn relay(&self, items: Streaming<u64>) -> impl Stream<Item = u64> {
        items.filter_map(async |item| item.ok())
    }

    fn hold(&self, tag: u64, items: u64) -> impl Stream<Item = u64> {
        let passed = async move {
            self.journal.pass(tag).await;
            items
        };
        stream::iter(0..items).chain(futures::stream::once(passed))
    }

    async fn hold_then_sum(&self, tag: u64, rows: Streaming<u64>) -> u64 {
        self.journal.pass(tag).await;
        rows.fold(0, async |sum, row| sum + row.unwrap_or(0)).await
    }

    async fn observe(&self, tag: u64, mut rows: Streaming<u64>) -> u64 {
        let mut seen = Observing { service: self, tag, count: 0, end: None };
        let mut failed = None;
        while let Some(row) = rows.next().await {
            match row {
                Ok(_) => seen.count += 1,
                Err(status) => failed = Some(status.code()),
            }
        }
        seen.end = rows.end().map(|end| (end, failed));
        seen.count
    }

    async fn observed(&self, tag: u64) -> String {
        let mut observed = self.observed.subscribe();
        let found = observed.wait_for(|observed| observed.contains_key(&tag)).await;
        found.map_or_else(|_| String::new(), |observed| observed[&tag].clone())
    }

    async fn read_some(&self, tag: u64, count: u64, mut rows: Streaming<u64>) -> u64 {
        let mut sum = 0;
        for _ in 0..count {
            sum += rows.next().await.and_then(Result::ok).unwrap_or(0);
        }
        drop(rows);
        self.journal.pass(tag).await;
        sum
    }

    fn panicking(&self, after: u64) -> impl Stream<Item = u64> {
        stream::iter((0..=after).inspect(move |number| assert_ne!(*number, after, "a secret")))
    }

    async fn empty_call(&self) {}

    async fn unary_call(
        &self,
        _payload: Bulk,
        size: u32,
        status: Option<(u8, &str)>,
    ) -> Result<Bulk, Status> {
        match status {
            Some((number, text)) => Err(Status::new(code(number), text.to_owned())),
            None => Ok(Bulk::from(vec![0; size as usize])),
        }
    }

    fn full_duplex(
        &self,
        requests: Streaming<(u32, Vec<u8>)>,
    ) -> impl Stream<Item = Result<Vec<u8>, Status>> {
        requests.map(|request| request.map(|(size, _payload)| vec![0; size as usize]))
    }

    fn metadata(&self, key: &str) -> impl Stream<Item = Vec<u8>> {
        let value = Context::current().metadata().bytes(key).map(<[u8]>::to_vec);
        if let Some(value) = &value {
            Context::set_initial_metadata(key, value.clone()).expect("it came as metadata");
        }
        stream::iter(value)
    }
}

/// Waits until handlers of the gate `tag` have left this mark.
pub async fn marked(client: &FlowClient, tag: u64, mark: Mark) {
    let probe = crate::probe::ProbeClient::new(client.channel().clone());
    probe.wait_for(tag, mark, 1).await.expect("the server answers");
}
