//! Streamed tails: read while they arrive, as they are too long to be put together.
//!
//! Owns the segments that have arrived and have not been read, which hold their chunks. A slow
//! reader blocks only the sender of this tail. Never copies.
//!
//! Invariants:
//! 1. Segments are returned in order and without gap; after the last one, or an error, nothing
//!    more.
//! 2. Unread private bytes are bounded by `assembly_bytes`. A sender that learns how far the stream
//!    was read (`StreamProgress`) must keep to the bound. With any other, going beyond it fails the
//!    stream, not the connection.
//! 3. Progress is reported to the sender whenever half of that bound has been read, so it never
//!    waits for a reader that has read everything. Dropping the stream counts as reading
//!    everything.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, ReadBuf};

use crate::lock::Mutex;
use crate::memory::budget::{BudgetExhausted, Reservation};
use crate::memory::process::Process;
use crate::message::payload::Payload;

/// Why a stream ends before its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The sender cancelled the message.
    #[error("the sender aborted the message after {0} bytes")]
    Aborted(u64),
    /// The connection ended.
    #[error("the connection ended after {0} bytes of the message")]
    ConnectionLost(u64),
    /// It was read too slowly, and the peer supports neither arenas nor waiting for its reader.
    #[error(
        "{waiting} bytes are waiting to be read, more than assembly_bytes = {max}; read faster, \
         raise that knob, or let arenas hold them"
    )]
    TooSlow {
        /// Unread bytes.
        waiting: u64,
        /// The limit.
        max: u64,
    },
    /// It belongs to the parent of this process, which reads on.
    #[error("the message {}", crate::memory::process::FORKED)]
    Forked,
    /// There is no memory for the segments that arrive.
    #[error("no memory for arriving bytes: {0}; read faster, or raise that budget")]
    OverBudget(BudgetExhausted),
}

/// Receives how much readers have read; called from any thread, holding no lock that it takes
/// itself.
pub(crate) trait StreamProgress: Send + Sync {
    /// Frames may carry `max_bytes` of the tail of this message, in total.
    fn on_read(&self, message: u32, max_bytes: u64);
}

/// Unread private segments are put together up to this length, bytes.
const MERGED_BYTES: u64 = 4096;

/// How many bytes of a tail may be sent in frames, as last reported to the sender.
struct Allowance {
    progress: Arc<dyn StreamProgress>,
    message: u32,
    max_bytes: u64,
    /// Bytes that came in frames, and how many of them were read.
    arrived: u64,
    read: u64,
    /// Most unread bytes.
    window: u64,
}

impl Allowance {
    /// `bytes` more were read. Returns a report for the sender, if it is time.
    fn on_read(&mut self, bytes: u64) -> Option<Report> {
        self.read += bytes;
        let max_bytes = self.read.saturating_add(self.window);
        let is_due = max_bytes.saturating_sub(self.max_bytes) >= (self.window / 2).max(1);
        is_due.then(|| self.report(max_bytes))
    }

    fn report(&mut self, max_bytes: u64) -> Report {
        self.max_bytes = max_bytes;
        Report { progress: Arc::clone(&self.progress), message: self.message, max_bytes }
    }
}

/// A report for the sender, to be sent without holding the mutex.
struct Report {
    progress: Arc<dyn StreamProgress>,
    message: u32,
    max_bytes: u64,
}

impl Report {
    fn send(self) {
        self.progress.on_read(self.message, self.max_bytes);
    }
}

#[derive(Default)]
struct Inner {
    /// Unread segments, each with its share of a memory budget.
    segments: VecDeque<(Payload, Option<Reservation>)>,
    /// Bytes that have arrived.
    arrived: u64,
    private: u64,
    end: Option<Result<(), StreamError>>,
    reader: Option<Waker>,
    is_dropped: bool,
    /// `None` if nothing can be reported to the sender.
    allowance: Option<Allowance>,
}

impl Inner {
    /// Appends a segment, to the last one if both are short: a handle takes a hundred bytes, and a
    /// sender may send segments of one.
    fn keep(&mut self, segment: Payload, charge: Option<Reservation>) {
        let Some((last, total)) = self.segments.back_mut().filter(|_| segment.len() < MERGED_BYTES)
        else {
            return self.segments.push_back((segment, charge));
        };
        if !last.absorb(&segment, MERGED_BYTES) {
            return self.segments.push_back((segment, charge));
        }
        match (total, charge) {
            (Some(total), Some(charge)) => total.absorb(charge),
            (total @ None, charge) => *total = charge,
            (Some(_), None) => {}
        }
    }

    /// Applies a change to the allowance; returns the update for the sender, if it still sends.
    fn news(&mut self, change: impl FnOnce(&mut Allowance) -> Option<Report>) -> Option<Report> {
        if self.end.is_some() { None } else { self.allowance.as_mut().and_then(change) }
    }
}

type Shared = Arc<Mutex<Inner>>;

/// The receiving end of a streamed tail: an [`AsyncRead`], or its segments one by one.
pub struct PayloadStream {
    shared: Shared,
    len: u64,
    /// A segment that has been read in part.
    current: Option<(Payload, u64)>,
    process: Process,
}

impl PayloadStream {
    /// Length of the whole tail, bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the tail has no bytes; it always has some.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The next segment. Dropping it gives its memory back to the sender. `None` at the end.
    ///
    /// # Errors
    /// [`StreamError`], and `None` after it.
    pub fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Payload, StreamError>>> {
        if !self.process.is_current() {
            return Poll::Ready(Some(Err(StreamError::Forked)));
        }
        if let Some((segment, read)) = self.current.take() {
            return Poll::Ready(Some(Ok(segment.slice(read..segment.len()))));
        }
        // Wakers are user code, so they are cloned and dropped outside of the mutex: the feeding
        // side takes the mutex under the lock of its shard.
        let waker = cx.waker().clone();
        let mut inner = self.shared.lock();
        if let Some((segment, _charge)) = inner.segments.pop_front() {
            if segment.is_private() {
                inner.private -= segment.len();
                let report = inner.news(|allowance| allowance.on_read(segment.len()));
                drop(inner);
                report.into_iter().for_each(Report::send);
            }
            return Poll::Ready(Some(Ok(segment)));
        }
        match inner.end {
            None => {
                let earlier = inner.reader.replace(waker);
                drop(inner);
                drop(earlier);
                Poll::Pending
            }
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(error)) => {
                inner.end = Some(Ok(()));
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    /// The next segment, as a future.
    ///
    /// # Errors
    /// [`StreamError`].
    pub async fn next(&mut self) -> Option<Result<Payload, StreamError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }
}

impl AsyncRead for PayloadStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let segment = match ready!(self.poll_next(cx)) {
            None => return Poll::Ready(Ok(())),
            Some(segment) => segment.map_err(io::Error::other)?,
        };
        let room = buf.initialize_unfilled();
        let len = room.len().min(usize::try_from(segment.len()).unwrap_or(usize::MAX));
        segment.copy_to(0, &mut room[..len])?;
        buf.advance(len);
        if (len as u64) < segment.len() {
            self.current = Some((segment, len as u64));
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for PayloadStream {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        let (segments, report) = {
            let mut inner = self.shared.lock();
            inner.is_dropped = true;
            let report = inner.news(|allowance| Some(allowance.report(u64::MAX)));
            (std::mem::take(&mut inner.segments), report)
        };
        drop(segments);
        report.into_iter().for_each(Report::send);
    }
}

impl fmt::Debug for PayloadStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrived = self.process.is_current().then(|| self.shared.lock().arrived);
        write!(f, "PayloadStream({arrived:?} of {} bytes)", self.len)
    }
}

/// The feeding half: the link pushes arriving segments in here.
pub(crate) struct StreamFeed {
    shared: Shared,
    max_private_bytes: u64,
}

impl StreamFeed {
    pub(crate) fn new(len: u64, max_private_bytes: u64) -> (Self, PayloadStream) {
        let shared = Shared::default();
        let process = Process::current();
        let stream = PayloadStream { shared: Arc::clone(&shared), len, current: None, process };
        (Self { shared, max_private_bytes }, stream)
    }

    /// From now on reports to the sender how far the message was read; the sender must keep to
    /// that.
    pub(crate) fn report_to(&self, message: u32, progress: Arc<dyn StreamProgress>) {
        let window = self.max_private_bytes;
        let (max_bytes, arrived, read) = (window, 0, 0);
        let allowance = Allowance { progress, message, max_bytes, arrived, read, window };
        self.shared.lock().allowance = Some(allowance);
    }

    /// `bytes` of the tail have come in a frame.
    ///
    /// # Errors
    /// The total that has come in frames and the total that was allowed, if it is exceeded.
    pub(crate) fn on_framed(&self, bytes: u64) -> Result<(), (u64, u64)> {
        let mut inner = self.shared.lock();
        let Some(allowance) = &mut inner.allowance else { return Ok(()) };
        allowance.arrived += bytes;
        let Allowance { arrived, max_bytes, .. } = *allowance;
        if arrived > max_bytes { Err((arrived, max_bytes)) } else { Ok(()) }
    }

    /// Appends a segment. The caller must wake the waker outside of any lock.
    pub(crate) fn push(&self, segment: Payload, charge: Option<Reservation>) -> Option<Waker> {
        let mut inner = self.shared.lock();
        inner.arrived += segment.len();
        if inner.is_dropped || inner.end.is_some() {
            return None;
        }
        if segment.is_private() {
            inner.private += segment.len();
            if inner.allowance.is_none() && inner.private > self.max_private_bytes {
                let (waiting, max) = (inner.private, self.max_private_bytes);
                inner.end = Some(Err(StreamError::TooSlow { waiting, max }));
                return inner.reader.take();
            }
        }
        inner.keep(segment, charge);
        inner.reader.take()
    }

    /// There is no memory for the rest, which is dropped.
    pub(crate) fn refuse(&self, reason: BudgetExhausted) -> Option<Waker> {
        // The rest is dropped and not counted, so the sender may send all of it.
        let report = self.shared.lock().news(|allowance| Some(allowance.report(u64::MAX)));
        report.into_iter().for_each(Report::send);
        self.end(|_| Err(StreamError::OverBudget(reason)))
    }

    /// The whole tail has arrived.
    pub(crate) fn finish(self) -> Option<Waker> {
        self.end(|_| Ok(()))
    }

    /// The sender gave up.
    pub(crate) fn abort(self) -> Option<Waker> {
        self.end(|arrived| Err(StreamError::Aborted(arrived)))
    }

    fn end(&self, how: impl FnOnce(u64) -> Result<(), StreamError>) -> Option<Waker> {
        let mut inner = self.shared.lock();
        if inner.end.is_none() {
            inner.end = Some(how(inner.arrived));
        }
        inner.reader.take()
    }
}

impl Drop for StreamFeed {
    fn drop(&mut self) {
        if let Some(reader) = self.end(|arrived| Err(StreamError::ConnectionLost(arrived))) {
            reader.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::memory::budget::MemoryBudget;

    fn segment(bytes: &[u8]) -> Payload {
        Payload::private(bytes.to_vec())
    }

    #[tokio::test]
    async fn segments_are_read_in_any_portions() {
        let (feed, mut stream) = StreamFeed::new(9, 100);
        assert!(feed.push(segment(b"abc"), None).is_none());
        let mut two = [0; 2];
        stream.read_exact(&mut two).await.unwrap();
        assert_eq!(&two, b"ab");
        for bytes in [&b"defg"[..], b"hi"] {
            assert!(feed.push(segment(bytes), None).is_none());
        }
        assert!(feed.finish().is_none());
        let rest = stream.next().await.unwrap().unwrap();
        assert_eq!(rest.to_vec().unwrap(), b"c");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"defghi");
        assert!(stream.next().await.is_none());
    }

    #[tokio::test]
    async fn an_early_end_follows_what_arrived_once() {
        let (feed, mut stream) = StreamFeed::new(9, 100);
        feed.push(segment(b"abc"), None);
        drop(feed);
        assert_eq!(stream.next().await.unwrap().unwrap().to_vec().unwrap(), b"abc");
        assert_eq!(stream.next().await.unwrap().unwrap_err(), StreamError::ConnectionLost(3));
        assert!(stream.next().await.is_none());
        let (feed, mut stream) = StreamFeed::new(9, 100);
        feed.abort();
        assert_eq!(stream.next().await.unwrap().unwrap_err(), StreamError::Aborted(0));
    }

    #[tokio::test]
    async fn private_bytes_that_wait_are_bounded() {
        let (feed, mut stream) = StreamFeed::new(900, 8);
        feed.push(segment(b"abcdef"), None);
        feed.push(segment(b"ghi"), None);
        assert_eq!(stream.next().await.unwrap().unwrap().to_vec().unwrap(), b"abcdef");
        let error = stream.next().await.unwrap().unwrap_err();
        assert_eq!(error, StreamError::TooSlow { waiting: 9, max: 8 });
        assert!(error.to_string().contains("assembly_bytes"));
    }

    /// Segments of one byte cost a hundred bytes of book-keeping each.
    #[tokio::test]
    #[cfg_attr(miri, ignore = "ten thousand segments are long under an interpreter")]
    async fn short_segments_are_put_together_while_they_wait() {
        let budget = MemoryBudget::new(1 << 20);
        let (feed, mut stream) = StreamFeed::new(10_100, 1 << 20);
        let sent: Vec<u8> = (0..10_000_u32).map(|at| (at % 251) as u8).collect();
        for byte in &sent {
            let charge = budget.reserve(1).expect("there is room");
            feed.push(segment(&[*byte]), Some(charge));
        }
        assert_eq!(stream.shared.lock().segments.len(), 3);
        assert_eq!(budget.used_bytes(), 10_000);
        // A part that was read, or is held, is not written to.
        let first = stream.next().await.unwrap().unwrap();
        assert_eq!(budget.used_bytes(), 10_000 - MERGED_BYTES);
        feed.push(segment(&[9; 100]), None);
        assert!(feed.finish().is_none());
        assert_eq!(first.len(), MERGED_BYTES);
        let mut read = first.to_vec().unwrap();
        stream.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, [&sent[..], &[9; 100]].concat());
        assert_eq!(budget.used_bytes(), 0);
    }

    /// So that the sender can go on while the reader does.
    #[tokio::test]
    async fn half_a_window_that_was_read_is_reported() {
        #[derive(Default)]
        struct Reports(Mutex<Vec<u64>>);

        impl StreamProgress for Reports {
            fn on_read(&self, _: u32, max_bytes: u64) {
                self.0.lock().push(max_bytes);
            }
        }

        let reports = Arc::<Reports>::default();
        let (feed, mut stream) = StreamFeed::new(100, 10);
        feed.report_to(7, Arc::clone(&reports) as _);
        for (bytes, reported) in [(4_u8, &[][..]), (1, &[15]), (4, &[15]), (2, &[15, 21])] {
            feed.on_framed(bytes.into()).unwrap();
            feed.push(segment(&[1; 4][..usize::from(bytes)]), None);
            stream.next().await.unwrap().unwrap();
            assert_eq!(*reports.0.lock(), reported, "{bytes}");
        }
    }

    #[test]
    fn a_sleeping_reader_is_woken() {
        let (feed, mut stream) = StreamFeed::new(9, 100);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(stream.poll_next(&mut cx).is_pending());
        assert!(feed.push(segment(b"abc"), None).is_some());
        assert!(feed.push(segment(b"abc"), None).is_none());
    }
}
