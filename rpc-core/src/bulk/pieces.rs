//! Payloads as streams of pieces.
//!
//! Converts bytes of unknown length, or that are still arriving, into a stream of [`Bulk`]s, and
//! back. A stream has its own back-pressure, so such bytes do not block the rest of their
//! connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use pin_project_lite::pin_project;
use rpc_transport::message::payload_stream::StreamError;
use tokio::io::{AsyncRead, ReadBuf};

use super::{Bulk, BulkReader};
use crate::status::{Code, Status};

/// Longest piece, bytes.
const PIECE_BYTES: usize = 64 << 10;

/// A stream of pieces of at most 64 KiB: see [`BulkReader::into_pieces`].
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct Pieces {
    reader: Option<BulkReader>,
    /// The rest of a longer piece.
    rest: Bulk,
}

impl BulkReader {
    /// Returns the unread rest as a stream of pieces of at most 64 KiB. With it a payload can be
    /// forwarded while it arrives, as an argument or a result whose type is a stream of [`Bulk`].
    /// The back-pressure of the next hop's reader then reaches the sender of this payload.
    ///
    /// ```
    /// # use rpc_core::{Bulk, Status};
    /// # use rpc_core::bulk::BulkReader;
    /// # use rpc_core::stream::{Stream, Streaming};
    /// #[rpc_core::service]
    /// trait Store {
    ///     async fn put(&self, key: &str, data: Streaming<Bulk>) -> Result<u64, Status>;
    /// }
    ///
    /// #[rpc_core::service]
    /// trait Gateway {
    ///     async fn upload(&self, key: &str, data: BulkReader) -> Result<u64, Status>;
    /// }
    ///
    /// impl Gateway for StoreClient {
    ///     async fn upload(&self, key: &str, data: BulkReader) -> Result<u64, Status> {
    ///         Ok(self.put(key, data.into_pieces()).await?)
    ///     }
    /// }
    /// ```
    pub fn into_pieces(self) -> Pieces {
        Pieces { reader: Some(self), rest: Bulk::new() }
    }
}

impl Stream for Pieces {
    type Item = Result<Bulk, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        while this.rest.is_empty() {
            let Some(reader) = &mut this.reader else { return Poll::Ready(None) };
            match std::task::ready!(reader.poll_piece(cx)) {
                Some(Ok(piece)) => this.rest = piece,
                Some(Err(error)) => {
                    this.reader = None;
                    return Poll::Ready(Some(Err(not_arrived(error))));
                }
                None => this.reader = None,
            }
        }
        let len = this.rest.len();
        let at = len.min(PIECE_BYTES as u64);
        let piece = this.rest.slice(0..at);
        // An empty one holds no memory.
        this.rest = if at < len { this.rest.slice(at..len) } else { Bulk::new() };
        Poll::Ready(Some(Ok(piece)))
    }
}

/// The reason why the next hop does not get the rest.
#[cold]
fn not_arrived(error: StreamError) -> Status {
    let code = match error {
        StreamError::Aborted(_) => Code::Cancelled,
        StreamError::ConnectionLost(_) => Code::Unavailable,
        _ => Code::ResourceExhausted,
    };
    Status::new(code, format!("the payload did not arrive: {error}"))
}

pin_project! {
    /// A stream of pieces: see [`read_pieces`].
    #[derive(Debug)]
    #[must_use = "streams do nothing unless polled"]
    pub struct ReadPieces<R> {
        #[pin]
        source: Option<R>,
        buffer: Vec<u8>,
    }
}

/// Reads `source` to its end as a stream of pieces of at most 64 KiB, for an argument or a result
/// whose type is a stream of [`Bulk`].
///
/// # Errors
/// An error of the source becomes the last item, and so resets the stream: a [`Status`] with its
/// text and a code that matches its kind, or else `Unknown`. A `Status` inside the error is passed
/// on unchanged.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use rpc_core::bulk::read_pieces;
/// use rpc_core::stream::Streaming;
/// use rpc_core::{Bulk, Server, Status};
/// use tokio::io::AsyncReadExt;
///
/// #[rpc_core::service]
/// trait Sink {
///     async fn count(&self, data: Streaming<Bulk>) -> Result<u64, Status>;
/// }
///
/// struct Count;
/// impl Sink for Count {
///     async fn count(&self, data: Streaming<Bulk>) -> Result<u64, Status> {
///         let mut data = data.into_reader();
///         let mut all = Vec::new();
///         data.read_to_end(&mut all).await.map_err(|error| Status::aborted(error.to_string()))?;
///         Ok(all.len() as u64)
///     }
/// }
///
/// let server = Server::builder().add_service(SinkServer::new(Count)).bind("mem://pieces").await?;
/// tokio::spawn(server.serve());
/// let sink = SinkClient::connect("mem://pieces").await?;
/// // A file, a socket, what a child process prints ..
/// let source = tokio::io::repeat(7).take(1 << 20);
/// assert_eq!(sink.count(read_pieces(source)).await?, 1 << 20);
/// # Ok(()) }
/// ```
pub fn read_pieces<R: AsyncRead>(source: R) -> ReadPieces<R> {
    ReadPieces { source: Some(source), buffer: Vec::new() }
}

impl<R: AsyncRead> Stream for ReadPieces<R> {
    type Item = Result<Bulk, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut this = self.project();
        let Some(source) = this.source.as_mut().as_pin_mut() else { return Poll::Ready(None) };
        this.buffer.resize(PIECE_BYTES, 0);
        let mut to = ReadBuf::new(this.buffer);
        let read = std::task::ready!(source.poll_read(cx, &mut to)).map(|()| to.filled().len());
        let piece = match read {
            // The piece fills little of the buffer, which is kept for the next piece.
            Ok(count @ 1..) if count < PIECE_BYTES / 2 => {
                return Poll::Ready(Some(Ok(Bulk::copy_from_slice(&this.buffer[..count]))));
            }
            Ok(count @ 1..) => {
                let mut piece = std::mem::take(this.buffer);
                piece.truncate(count);
                return Poll::Ready(Some(Ok(Bulk::from(piece))));
            }
            Ok(0) => None,
            Err(error) => Some(Err(not_read(error))),
        };
        this.source.set(None);
        *this.buffer = Vec::new();
        Poll::Ready(piece)
    }
}

/// The status of a stream whose source failed.
#[cold]
fn not_read(error: io::Error) -> Status {
    use io::ErrorKind as Kind;
    let text = format!("the source failed: {error}");
    let code = match error.kind() {
        Kind::NotFound => Code::NotFound,
        Kind::PermissionDenied => Code::PermissionDenied,
        Kind::UnexpectedEof | Kind::InvalidData => Code::DataLoss,
        Kind::TimedOut => Code::DeadlineExceeded,
        Kind::OutOfMemory | Kind::StorageFull | Kind::QuotaExceeded => Code::ResourceExhausted,
        Kind::ConnectionReset
        | Kind::ConnectionAborted
        | Kind::ConnectionRefused
        | Kind::BrokenPipe
        | Kind::NotConnected => Code::Unavailable,
        _ => Code::Unknown,
    };
    match error.downcast::<Status>() {
        Ok(status) => status,
        Err(_) => Status::new(code, text),
    }
}

/// Reads a stream of pieces as one string of bytes:
/// [`Streaming::into_reader`](crate::stream::Streaming::into_reader) makes one.
///
/// The next piece is requested when the previous one has been read, so a slow reader only blocks
/// its own sender. The end is reached only when a read returns no bytes and no error: a sender that
/// is dropped or fails is an error, which wraps that of the stream.
#[derive(Debug)]
pub struct PieceReader<S> {
    pieces: S,
    piece: Bulk,
    position: u64,
}

impl<S> PieceReader<S> {
    pub(crate) fn new(pieces: S) -> Self {
        Self { pieces, piece: Bulk::new(), position: 0 }
    }
}

impl<S, E> AsyncRead for PieceReader<S>
where
    S: Stream<Item = Result<Bulk, E>> + Unpin,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if to.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        while this.position == this.piece.len() {
            // Released before waiting for the next one.
            (this.piece, this.position) = (Bulk::new(), 0);
            match std::task::ready!(Pin::new(&mut this.pieces).poll_next(cx)) {
                Some(Ok(piece)) => this.piece = piece,
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let left = usize::try_from(this.piece.len() - this.position).unwrap_or(usize::MAX);
        let room = to.remaining().min(PIECE_BYTES).min(left);
        let count = this.piece.read_at(this.position, to.initialize_unfilled_to(room))?;
        this.position += count as u64;
        to.advance(count);
        Poll::Ready(Ok(()))
    }
}
