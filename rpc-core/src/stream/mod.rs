//! Streams of arguments and results.
//!
//! A method may return a stream, take one, or both:
//!
//! ```
//! use rpc_core::stream::{self, Stream, Streaming};
//! # use rpc_core::{CallError, Status};
//!
//! # use rpc_core::serde::{Deserialize, Serialize};
//! # #[derive(Debug, Serialize, Deserialize)] #[serde(crate = "rpc_core::serde")]
//! # pub enum Refused { NoSuchTable }
//! #[rpc_core::service]
//! pub trait Table {
//!     /// All words that begin with `prefix`.
//!     fn list(&self, prefix: &str) -> impl Stream<Item = String>;
//!     /// Refuses before the first item.
//!     async fn rows(&self, table: &str) -> Result<impl Stream<Item = u64>, Refused>;
//!     /// May end with an error after some items.
//!     fn scan(&self) -> impl Stream<Item = Result<u64, Refused>>;
//!     /// Takes rows and gives their number.
//!     async fn insert(&self, table: &str, rows: Streaming<u64>) -> Result<u64, Refused>;
//!     /// Both at once.
//!     fn double(&self, numbers: Streaming<u64>) -> impl Stream<Item = u64>;
//! }
//!
//! struct Words(Vec<String>);
//!
//! impl Table for Words {
//!     // The stream borrows the service and the argument.
//!     fn list(&self, prefix: &str) -> impl Stream<Item = String> {
//!         stream::iter(self.0.iter().filter(move |word| word.starts_with(prefix)).cloned())
//!     }
//!     async fn rows(&self, table: &str) -> Result<impl Stream<Item = u64>, Refused> {
//!         if table == "none" { Err(Refused::NoSuchTable) } else { Ok(stream::iter(0..3)) }
//!     }
//!     fn scan(&self) -> impl Stream<Item = Result<u64, Refused>> {
//!         stream::iter([Ok(1), Err(Refused::NoSuchTable)])
//!     }
//!     async fn insert(&self, _table: &str, mut rows: Streaming<u64>) -> Result<u64, Refused> {
//!         let mut count = 0;
//!         while let Some(Ok(_row)) = rows.next().await {
//!             count += 1;
//!         }
//!         Ok(count)
//!     }
//!     // Written as code that sends.
//!     fn double(&self, mut numbers: Streaming<u64>) -> impl Stream<Item = u64> {
//!         stream::stream(async move |mut out| {
//!             while let Some(Ok(number)) = numbers.next().await {
//!                 out.send(2 * number).await?;
//!             }
//!             Ok(())
//!         })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let words = Words(vec!["ant".into(), "bee".into(), "bat".into()]);
//! # let server = rpc_core::Server::builder().add_service(TableServer::new(words))
//! #     .bind("mem://streams").await?;
//! # tokio::spawn(server.serve());
//! let table = TableClient::connect("mem://streams").await?;
//! let mut words = table.list("b").await?; // accepted
//! while let Some(word) = words.try_next().await? {
//!     println!("{word}");
//! }
//! let Err(CallError::User(Refused::NoSuchTable)) = table.rows("none").await else { panic!() };
//!
//! // Any stream of rows will do; it is sent while the call is polled.
//! assert_eq!(table.insert("rows", stream::iter(0..1000)).await.unwrap(), 1000);
//!
//! let mut doubled = table.double(stream::iter([1, 2])).await?;
//! assert_eq!(doubled.next().await, Some(Ok(2)));
//! assert_eq!(doubled.next().await, Some(Ok(4)));
//! assert_eq!(doubled.next().await, None);
//! # Ok(()) }
//! ```
//!
//! # The call and its stream
//! A call of a method that returns a stream is a [`StreamCall`](crate::client::StreamCall). It has
//! the options of other calls (`timeout`, `metadata`, `start`), and awaiting it returns a
//! [`Streaming`] as soon as the server has accepted the call. The items of the client's own stream
//! are sent while the call, or its `Streaming`, is polled. No task is spawned.
//!
//! A client may also send a stream of `Result<T, E>`. An error is converted to a
//! [`Status`](crate::Status), resets the stream with its code, and ends the call with that status.
//!
//! # Metadata
//! [`Streaming::initial_metadata`] returns the metadata that the server has set before the first
//! item ([`Context::set_initial_metadata`](crate::Context::set_initial_metadata)); it need not wait
//! for that item. [`Streaming::metadata`] returns the metadata that came with the end
//! ([`Context::set_reply_metadata`](crate::Context::set_reply_metadata)).
//!
//! # Back-pressure
//! A slow reader only blocks its own sender. The stream's window bounds the items in flight: 16
//! items and 64 KiB at first (one item may be longer), up to 1 MiB for readers that keep up. Items
//! of several MiB are sent like large results, so a [`Bulk`](crate::Bulk) in an item is not copied
//! at the receiver.
//!
//! If the payload of an item is longer than the receiver's `assembly_bytes`, it must be read while
//! it arrives, as a [`BulkReader`](crate::bulk::BulkReader), and blocks the large messages of its
//! direction until then. Send such a payload in pieces instead: see
//! [`BulkReader::into_pieces`](crate::bulk::BulkReader::into_pieces) and
//! [`read_pieces`](crate::bulk::read_pieces). [`Streaming::into_reader`] turns a stream of pieces
//! into an `AsyncRead` again.
//!
//! # Ends
//! [`Streaming::end`] returns how a stream ended, once it has: regularly ([`StreamEnd::Finished`]),
//! with a status or the method's own error ([`StreamEnd::Failed`]), aborted by its sender
//! ([`StreamEnd::Reset`]), stopped by this end ([`StreamEnd::Stopped`]), or with its connection
//! ([`StreamEnd::Disconnected`]). Only a regular end is `None` without an error before it: a sender
//! that is dropped or panics is an error. Items that have arrived are returned before any end.
//!
//! A stream that is written as code ([`stream()`], [`try_stream`], [`producer`]) ends when the code
//! has returned and its [`Sender`] has been dropped, even if the `Sender` was moved elsewhere. An
//! error or a panic of the code ends it at once. In each case, the items that [`Sender::send`] has
//! accepted come first.
//!
//! Dropping a [`Streaming`] stops the sender, whose source is dropped at once; at a client it also
//! cancels the call. Streams are never resumed on another connection.
//!
//! # Deadlines
//! A deadline covers the whole call. With `#[rpc(stream_deadline = "idle")]` it restarts with each
//! item, in either direction, for methods that may run for ever while items arrive.

pub(crate) mod blocking;
pub(crate) mod call;
mod end;
pub(crate) mod item;
pub(crate) mod item_counts;
mod producer;
pub(crate) mod pump;
mod push;
mod receive;
pub(crate) mod stream_ref;
pub(crate) mod upload;

pub use futures::stream::{Iter, Stream, iter};

pub use self::blocking::BlockingStreaming;
pub use self::end::StreamEnd;
pub use self::item::IntoItem;
pub use self::producer::{Producer, Step};
pub use self::push::{Produced, Pushed, Pushing, Sender, Stopped, producer, stream, try_stream};
pub use self::receive::Streaming;
pub use self::upload::{NoUpload, Pump, Upload};
