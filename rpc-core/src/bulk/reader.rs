//! Reading a payload in order, whether it has arrived or is still arriving.

use std::future::poll_fn;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use rpc_transport::message::payload_stream::{PayloadStream, StreamError};
use tokio::io::{AsyncRead, ReadBuf};

use super::Bulk;

/// Maximum number of bytes copied in one step.
const STEP_BYTES: usize = 64 * 1024;

/// Reads a payload from start to end, as [`AsyncRead`] or, if it need not wait, as [`Read`].
///
/// [`Bulk::reader`] creates one; it may also replace a [`Bulk`] in an argument or result type. The
/// sender then passes `bulk.reader()`, and the receiver accepts payloads of any length: one longer
/// than its [`assembly_bytes`](crate::LinkConfig::assembly_bytes) is read while it arrives, through
/// the small memory that both ends agreed on. While it is not read, the peer's large messages wait,
/// so drop it early. Such a payload must be the only large one of its message.
///
/// To forward one that is still arriving, send it as a stream: see
/// [`into_pieces`](BulkReader::into_pieces). To send data of unknown length from a file or socket,
/// use [`read_pieces`](crate::bulk::read_pieces).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use rpc_core::bulk::BulkReader;
/// use rpc_core::{Bulk, Channel, LinkConfig, Server};
/// use tokio::io::AsyncReadExt;
///
/// #[rpc_core::service]
/// trait Sink {
///     async fn count(&self, data: BulkReader) -> u64;
/// }
///
/// struct Count;
/// impl Sink for Count {
///     async fn count(&self, mut data: BulkReader) -> u64 {
///         let (mut sum, mut step) = (0, vec![0; 10_000]);
///         while let Ok(count @ 1..) = AsyncReadExt::read(&mut data, &mut step).await {
///             sum += count as u64;
///         }
///         sum
///     }
/// }
///
/// let link = LinkConfig::default().assembly_bytes(64 << 10);
/// let server = Server::builder().add_service(SinkServer::new(Count)).link(link);
/// tokio::spawn(server.bind("mem://reader").await?.serve());
/// let sink = SinkClient::connect("mem://reader").await?;
/// let data = Bulk::from(vec![7; 1 << 20]);
/// assert_eq!(sink.count(data.reader()).await?, 1 << 20);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct BulkReader(Source);

#[derive(Debug)]
enum Source {
    Whole { bulk: Bulk, position: u64 },
    Arriving { stream: PayloadStream, left: u64 },
}

impl BulkReader {
    pub(super) fn new(bulk: Bulk) -> Self {
        Self(Source::Whole { bulk, position: 0 })
    }

    pub(super) fn of_stream(stream: PayloadStream) -> Self {
        let left = stream.len();
        Self(Source::Arriving { stream, left })
    }

    /// Number of bytes not read yet.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        match &self.0 {
            Source::Whole { bulk, position } => bulk.len() - position,
            Source::Arriving { left, .. } => *left,
        }
    }

    /// Whether the payload is longer than this end's `assembly_bytes`, and so is read while it
    /// arrives.
    #[must_use]
    pub fn is_arriving(&self) -> bool {
        matches!(self.0, Source::Arriving { .. })
    }

    /// The unread rest, if all of it has arrived.
    #[must_use]
    pub fn unread(&self) -> Option<Bulk> {
        match &self.0 {
            Source::Whole { bulk, position } => Some(bulk.slice(*position..bulk.len())),
            Source::Arriving { .. } => None,
        }
    }

    /// The next piece, in place; `None` at the end. Dropping it makes room for more.
    ///
    /// # Errors
    /// The sender aborted, the connection ended, or it was read too slowly.
    pub async fn next_piece(&mut self) -> Option<io::Result<Bulk>> {
        let piece = poll_fn(|cx| self.poll_piece(cx)).await;
        piece.map(|piece| piece.map_err(io::Error::other))
    }

    pub(super) fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bulk, StreamError>>> {
        match &mut self.0 {
            Source::Whole { bulk, position } if *position < bulk.len() => {
                let rest = bulk.slice(*position..bulk.len());
                *position = bulk.len();
                Poll::Ready(Some(Ok(rest)))
            }
            Source::Whole { .. } => Poll::Ready(None),
            Source::Arriving { stream, left } => stream.poll_next(cx).map_ok(|piece| {
                *left = left.saturating_sub(piece.len());
                Bulk::from(piece)
            }),
        }
    }
}

/// Returns `WouldBlock` if nothing has arrived.
impl Read for BulkReader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let mut to = ReadBuf::new(to);
        match Pin::new(self).poll_read(&mut Context::from_waker(Waker::noop()), &mut to) {
            Poll::Ready(read) => read.map(|()| to.filled().len()),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl AsyncRead for BulkReader {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Source::Whole { bulk, position } => {
                let room = to.remaining().min(STEP_BYTES);
                let count = bulk.read_at(*position, to.initialize_unfilled_to(room))?;
                *position += count as u64;
                to.advance(count);
                Poll::Ready(Ok(()))
            }
            Source::Arriving { stream, left } => {
                let before = to.filled().len();
                let polled = Pin::new(stream).poll_read(cx, to);
                *left = left.saturating_sub((to.filled().len() - before) as u64);
                polled
            }
        }
    }
}
