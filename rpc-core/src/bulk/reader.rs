//! Reading a payload in order.

use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

use super::Bulk;

/// Most bytes that are copied in one step.
const STEP_BYTES: usize = 64 * 1024;

/// Reads a [`Bulk`] from its first byte to its last, as [`Read`] or [`AsyncRead`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// use rpc_core::Bulk;
/// use tokio::io::AsyncReadExt;
///
/// let bulk = Bulk::from(b"one two".to_vec());
/// let mut reader = bulk.reader();
/// let mut word = [0; 3];
/// reader.read_exact(&mut word).await?;
/// assert_eq!(&word, b"one");
/// assert_eq!(reader.remaining(), 4);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct BulkReader {
    bulk: Bulk,
    position: u64,
}

impl BulkReader {
    pub(super) fn new(bulk: Bulk) -> Self {
        Self { bulk, position: 0 }
    }

    /// Bytes not yet read.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.bulk.len() - self.position
    }
}

impl Read for BulkReader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.bulk.read_at(self.position, to);
        self.position += count as u64;
        Ok(count)
    }
}

impl AsyncRead for BulkReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = to.remaining().min(STEP_BYTES);
        let count = self.read(to.initialize_unfilled_to(room))?;
        to.advance(count);
        Poll::Ready(Ok(()))
    }
}
