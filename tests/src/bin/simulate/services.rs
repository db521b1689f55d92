//! Versions of one service, and of its client.
//!
//! Owns the traits. `v1b` is a second copy of the first: the same types in another module, as two
//! versions of an API crate in one program have them.

use std::time::Duration;

use futures::stream::iter;
use rpc_core::client::HedgingPolicy;
use rpc_core::stream::{Stream, Streaming, stream};
use rpc_core::{Bulk, CallError, Channel, Code, ServerBuilder, Status};

use crate::desk::{Desk, KEY, read_slowly};
use crate::oracle::{Answer, Task, blob, is_refused, rows};
use crate::types::{AsPair, AsParcel, AsRefused, AsRow};

/// How a call is made.
#[derive(Debug, Clone, Default)]
pub(crate) struct How {
    pub(crate) is_keyed: bool,
    pub(crate) hedging: Option<HedgingPolicy>,
    pub(crate) timeout: Option<Duration>,
}

macro_rules! version {
    ($name:ident, $types:ident, $number:literal) => {
        #[allow(dead_code, reason = "more is generated than is used")]
        mod $name {
            use super::*;
            use crate::types::$types::{Pair, Parcel, Refused, Row};

            #[rpc_core::service(blocking_client = false)]
            pub(crate) trait Orders {
                #[rpc(idempotent)]
                async fn get(&self, key: u32) -> Result<Pair, Refused>;
                #[rpc(idempotent)]
                async fn put(&self, pair: Pair) -> u32;
                #[rpc(idempotent)]
                async fn parcel(&self, key: u32) -> Parcel;
                async fn store(&self, parcel: Parcel) -> u32;
                #[rpc(no_cancel)]
                async fn note(&self, pair: Pair);
                async fn upload(&self, key: u32, rows: Streaming<Row>) -> u32;
                #[rpc(idempotent)]
                async fn blob(&self, key: u32, data: Bulk) -> Bulk;
                fn list(&self, key: u32) -> impl Stream<Item = Row>;
                fn both(&self, key: u32, rows: Streaming<Row>) -> impl Stream<Item = Row>;
            }

            impl Orders for Desk {
                async fn get(&self, key: u32) -> Result<Pair, Refused> {
                    self.run(key, $number).await;
                    if is_refused(key) { Err(Refused::write(key)) } else { Ok(Pair::write(key)) }
                }

                async fn put(&self, pair: Pair) -> u32 {
                    let pair = pair.read();
                    self.run_pair(pair, $number).await;
                    pair.0.wrapping_add(1)
                }

                async fn parcel(&self, key: u32) -> Parcel {
                    self.run(key, $number).await;
                    Parcel::write(key)
                }

                async fn store(&self, parcel: Parcel) -> u32 {
                    let seen = parcel.read();
                    let key = seen.key;
                    self.run_parcel(seen, $number).await;
                    key.wrapping_add(1)
                }

                async fn note(&self, pair: Pair) {
                    self.run_pair(pair.read(), $number).await;
                }

                async fn blob(&self, key: u32, data: Bulk) -> Bulk {
                    // Data that was cut off with its connection has no reader to tell.
                    if let Ok(data) = data.to_vec() {
                        self.run_blob(key, data, $number).await;
                    }
                    Bulk::from(blob(key, true))
                }

                async fn upload(&self, key: u32, mut items: Streaming<Row>) -> u32 {
                    self.run(key, $number).await;
                    let mut got = Vec::new();
                    while let Some(Ok(row)) = items.next().await {
                        got.push(row.read());
                        read_slowly(key, got.len()).await;
                        if !rows(key).starts_with(&got) {
                            self.wrong_items(key, $number, &got);
                        }
                    }
                    got.len() as u32
                }

                fn list(&self, key: u32) -> impl Stream<Item = Row> {
                    let desk = *self;
                    stream(async move |mut out| {
                        desk.run(key, $number).await;
                        for row in rows(key) {
                            out.send(Row::write(row)).await?;
                        }
                        Ok(())
                    })
                }

                fn both(&self, key: u32, mut items: Streaming<Row>) -> impl Stream<Item = Row> {
                    let desk = *self;
                    stream(async move |mut out| {
                        desk.run(key, $number).await;
                        let mut got = Vec::new();
                        while let Some(Ok(row)) = items.next().await {
                            let row = row.read();
                            got.push(row);
                            read_slowly(key, got.len()).await;
                            if !rows(key).starts_with(&got) {
                                desk.wrong_items(key, $number, &got);
                            }
                            out.send(Row::write(row)).await?;
                        }
                        Ok(())
                    })
                }
            }

            pub(super) async fn call(
                client: &OrdersClient,
                task: Task,
                key: u32,
                how: &How,
            ) -> Answer {
                macro_rules! one {
                    ($call:expr) => {{
                        let call = options!($call, key, how);
                        call.hedging(how.hedging).await
                    }};
                }
                let items = || iter(rows(key).into_iter().map(Row::write));
                match task {
                    Task::Get => match one!(client.get(key)) {
                        Ok(pair) => of_pair(pair),
                        Err(CallError::User(refused)) => Answer::Refused(refused.read()),
                        Err(CallError::Status(status)) => failed(&status),
                    },
                    Task::Put => of(one!(client.put(Pair::write(key))), Answer::Number),
                    Task::Parcel => {
                        of(one!(client.parcel(key)), |parcel| Answer::Parcel(parcel.read()))
                    }
                    Task::Store => of(one!(client.store(Parcel::write(key))), Answer::Number),
                    Task::Note => of(one!(client.note(Pair::write(key))), |()| Answer::Nothing),
                    Task::Blob => {
                        let sent = Bulk::from(blob(key, false));
                        match one!(client.blob(key, sent)) {
                            Ok(got) => got.to_vec().map_or_else(
                                |error| Answer::Failed(Code::Unavailable, error.to_string()),
                                Answer::Bytes,
                            ),
                            Err(status) => failed(&status),
                        }
                    }
                    Task::Upload => {
                        let call = options!(client.upload(key, items()), key, how);
                        of(call.await, Answer::Number)
                    }
                    Task::List => {
                        let call = options!(client.list(key), key, how);
                        match call.await {
                            Ok(rows) => all!(rows, key),
                            Err(status) => failed(&status),
                        }
                    }
                    Task::Both => {
                        let call = options!(client.both(key, items()), key, how);
                        match call.await {
                            Ok(rows) => all!(rows, key),
                            Err(status) => failed(&status),
                        }
                    }
                }
            }
        }
    };
}

macro_rules! options {
    ($call:expr, $key:expr, $how:expr) => {{
        let call = $call.metadata(KEY, $key.to_le_bytes().to_vec());
        let call = if $how.is_keyed { call.affinity($key) } else { call };
        match $how.timeout {
            Some(timeout) => call.timeout(timeout),
            None => call,
        }
    }};
}

/// All items of a stream of results.
macro_rules! all {
    ($rows:expr, $key:expr) => {{
        let (mut rows, mut got) = ($rows, Vec::new());
        loop {
            match rows.next().await {
                Some(Ok(row)) => {
                    got.push(row.read());
                    read_slowly($key, got.len()).await;
                }
                Some(Err(status)) => {
                    break Answer::Rows(got, Some((status.code(), status.to_string())));
                }
                None => break Answer::Rows(got, None),
            }
        }
    }};
}

version!(first, v1, 1);
version!(copy, v1, 1);
version!(second, v2, 2);
version!(third, v3, 3);

/// A client of one version.
#[derive(Debug, Clone)]
pub(crate) enum Client {
    First(first::OrdersClient),
    Copy(copy::OrdersClient),
    Second(second::OrdersClient),
    Third(third::OrdersClient),
}

impl Client {
    /// A client of this version.
    pub(crate) fn new(channel: Channel, version: u8) -> Self {
        match version {
            1 => Self::First(first::OrdersClient::new(channel)),
            2 => Self::Second(second::OrdersClient::new(channel)),
            _ => Self::Third(third::OrdersClient::new(channel)),
        }
    }

    /// A client of the second copy of version 1.
    pub(crate) fn copy(channel: Channel) -> Self {
        Self::Copy(copy::OrdersClient::new(channel))
    }

    pub(crate) fn version(&self) -> u8 {
        match self {
            Self::First(_) | Self::Copy(_) => 1,
            Self::Second(_) => 2,
            Self::Third(_) => 3,
        }
    }

    /// Makes the call of this key.
    pub(crate) async fn call(&self, task: Task, key: u32, how: &How) -> Answer {
        match self {
            Self::First(client) => first::call(client, task, key, how).await,
            Self::Copy(client) => copy::call(client, task, key, how).await,
            Self::Second(client) => second::call(client, task, key, how).await,
            Self::Third(client) => third::call(client, task, key, how).await,
        }
    }
}

/// Adds the service in this version.
pub(crate) fn serve(builder: ServerBuilder, desk: Desk, version: u8) -> ServerBuilder {
    match version {
        1 => builder.add_service(first::OrdersServer::new(desk)),
        2 => builder.add_service(second::OrdersServer::new(desk)),
        _ => builder.add_service(third::OrdersServer::new(desk)),
    }
}

fn of_pair(pair: impl AsPair) -> Answer {
    let (a, b) = pair.read();
    Answer::Pair(a, b)
}

fn of<T>(result: Result<T, Status>, then: impl FnOnce(T) -> Answer) -> Answer {
    result.map_or_else(|status| failed(&status), then)
}

fn failed(status: &Status) -> Answer {
    Answer::Failed(status.code(), status.to_string())
}
