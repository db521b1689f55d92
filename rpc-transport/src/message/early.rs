//! An encrypted tail that is opened while it arrives.
//!
//! Owns the opened bytes until their reader takes them. A thread that has received a segment opens
//! it once it has released the lock of its shard, while the next one is on its way.
//!
//! Invariants:
//! 1. The opened bytes are the beginning of the tail, and each of their records has passed its
//!    check. Behind a record that failed it, or a gap, nothing is opened here.
//! 2. Memory is allocated as far as the message has reserved it, and for one tag more.
//! 3. What was not opened here, for whatever reason, is opened by the reader.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::task::Wake;

use crate::lock::Mutex;
use crate::memory::pages;
use crate::memory::process::Process;
use crate::message::read_error::ReadError;
use crate::message::record::TAG_BYTES;
use crate::message::sealed::SealedPiece;

/// The tail of one message. It is woken to open what has arrived.
pub(crate) struct EarlyTail {
    due: Mutex<Due>,
    /// Locked while a piece is opened; `None` once nothing more is.
    opened: Mutex<Option<Vec<u8>>>,
    process: Process,
}

/// What has arrived and is not opened.
#[derive(Default)]
struct Due {
    pieces: VecDeque<Arc<SealedPiece>>,
    /// The end in the tail of all that was due ever.
    end: u64,
    /// What is reserved for the tail, bytes.
    room: usize,
}

impl EarlyTail {
    pub(crate) fn new() -> Self {
        let opened = Mutex::new(Some(Vec::new()));
        Self { due: Mutex::default(), opened, process: Process::current() }
    }

    /// Adds a piece that begins at `at` of the tail, for which `room` bytes are reserved. Returns
    /// whether it continues what was added before.
    pub(crate) fn push(&self, at: u64, piece: &Arc<SealedPiece>, room: usize) -> bool {
        let mut due = self.due.lock();
        let fits = at == due.end && at + piece.len() as u64 <= room as u64;
        if fits {
            due.pieces.push_back(Arc::clone(piece));
            due.end += piece.len() as u64;
            due.room = room;
        }
        fits
    }

    /// Takes the opened bytes, the beginning of the tail. `None`: they cannot be had here.
    pub(crate) fn take(&self) -> Option<Vec<u8>> {
        if !self.process.is_current() {
            return None;
        }
        let opened = self.opened.lock().take();
        let _pieces = mem::take(&mut self.due.lock().pieces);
        opened
    }

    /// Appends bytes of the tail, if all of them are opened and not taken.
    pub(crate) fn append(&self, range: Range<u64>, to: &mut Vec<u8>) -> bool {
        let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        let range = index(range.start)..index(range.end);
        self.process.is_current()
            && self.opened.lock().as_ref().and_then(|opened| opened.get(range)).is_some_and(
                |bytes| {
                    to.extend_from_slice(bytes);
                    true
                },
            )
    }

    /// Opens the next piece. Returns whether there was one.
    fn open_next(&self) -> bool {
        let mut opened = self.opened.lock();
        let Some(bytes) = opened.as_mut() else { return false };
        let (piece, room) = {
            let mut due = self.due.lock();
            let Some(piece) = due.pieces.pop_front() else { return false };
            (piece, due.room)
        };
        let (len, before) = (bytes.len(), bytes.capacity());
        let has_room = bytes.try_reserve_exact((room + TAG_BYTES).saturating_sub(len)).is_ok();
        pages::on_growth(bytes, before);
        let appended = if has_room { piece.append_all(bytes) } else { Ok(()) };
        if !has_room || appended.is_err() {
            *opened = None;
        }
        // The piece is dropped and reported without a lock.
        drop(opened);
        if appended == Err(ReadError::Forged) {
            piece.report_forged();
        }
        true
    }
}

impl Wake for EarlyTail {
    fn wake(self: Arc<Self>) {
        while self.open_next() {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::message::payload::{Payload, Piece};
    use crate::message::record::RECORD_BYTES;
    use crate::message::sealed::tests::{pattern, piece};

    const LEN: usize = RECORD_BYTES + 100;

    fn pieces(
        early: &EarlyTail,
        bytes: &[u8],
    ) -> [(Arc<SealedPiece>, impl Fn() -> u32 + use<>); 2] {
        [0, 1].map(|at| {
            let (piece, _, key, _) = piece(&bytes[at * LEN..][..LEN]);
            let piece = Arc::new(piece);
            assert!(early.push((at * LEN) as u64, &piece, 2 * LEN));
            (piece, move || key.0.load(Ordering::Relaxed))
        })
    }

    #[test]
    fn opened_bytes_are_read_without_a_copy() {
        let (early, bytes) = (Arc::new(EarlyTail::new()), pattern(2 * LEN));
        let [(first, in_first), (second, in_second)] = pieces(&early, &bytes);
        Arc::clone(&early).wake();
        assert_eq!((in_first(), in_second()), (2, 2));
        let address = early.opened.lock().as_ref().map(Vec::as_ptr);
        let sealed = [first, second].map(Piece::Sealed).into();
        let payload = Payload::from_arrived(sealed, Some(early));
        let part = 5..LEN as u64 + 9;
        assert_eq!(payload.slice(part).to_vec().unwrap(), bytes[5..LEN + 9]);
        let read = payload.to_vec().unwrap();
        assert_eq!((Some(read.as_ptr()), &read), (address, &bytes));
        assert_eq!((in_first(), in_second()), (2, 2));
        // Another handle opens them itself, as they were taken.
        assert_eq!(payload.to_vec().unwrap(), bytes);
        assert_eq!((in_first(), in_second()), (4, 4));
    }

    #[test]
    fn the_reader_opens_what_is_left() {
        let (early, bytes) = (Arc::new(EarlyTail::new()), pattern(2 * LEN));
        let [(first, in_first), (second, in_second)] = pieces(&early, &bytes);
        assert!(early.open_next());
        assert_eq!((in_first(), in_second()), (2, 0));
        let sealed = [first, second].map(Piece::Sealed).into();
        let payload = Payload::from_arrived(sealed, Some(Arc::clone(&early)));
        assert_eq!(payload.into_vec().unwrap(), bytes);
        assert_eq!((in_first(), in_second()), (2, 2));
        assert!(!early.open_next());
    }

    #[test]
    fn a_forged_record_ends_early_opening() {
        let bytes = pattern(LEN);
        let (sealed, region, _, reports) = piece(&bytes);
        region.scribble(LEN - 1, &[1]);
        let (early, sealed) = (Arc::new(EarlyTail::new()), Arc::new(sealed));
        assert!(early.push(0, &sealed, LEN));
        Arc::clone(&early).wake();
        assert_eq!(reports.0.load(Ordering::Relaxed), 1);
        assert!(early.opened.lock().is_none());
        let payload = Payload::from_arrived(vec![Piece::Sealed(sealed)], Some(early));
        assert_eq!(payload.to_vec(), Err(ReadError::Forged));
    }

    #[test]
    fn only_what_follows_and_has_room_is_opened() {
        let early = EarlyTail::new();
        let sealed = Arc::new(piece(&pattern(LEN)).0);
        assert!(!early.push(1, &sealed, 2 * LEN), "a gap");
        assert!(!early.push(0, &sealed, LEN - 1), "more than is reserved");
        assert!(early.push(0, &sealed, LEN));
        assert!(!early.push(0, &sealed, 2 * LEN), "twice");
    }
}
