//! Received bytes that are still encrypted: the records of one frame.
//!
//! Owns the encrypted bytes and what opens them. They are opened by their reader, or while the
//! rest arrives ([`early`](crate::message::early)), in memory that no peer can write. Never where
//! they lie: a peer that writes them meanwhile would change what has passed the check.
//!
//! Invariants:
//! 1. No byte is given out of a record whose tag is wrong, nor any other byte of that read.
//! 2. The first such record is reported, and the connection ends.
//! 3. One record is kept opened at most, while only a part of it was read.

use std::ops::Range;
use std::sync::Arc;

use crate::lock::Mutex;
use crate::memory::process::Process;
use crate::memory::region::MemoryRegion;
use crate::message::read_error::ReadError;
use crate::message::record::{RECORD_BYTES, RecordKey, TAG_BYTES, Tag};

/// Receives that a record failed its check; called from any thread, holding no lock that it takes
/// itself.
pub(crate) trait ForgeryReports: Send + Sync {
    /// Somebody wrote the bytes who does not have the key.
    fn on_forged(&self);
}

/// What opens the records of a frame.
#[derive(Clone)]
pub(crate) struct Records {
    pub(crate) key: Arc<dyn RecordKey>,
    /// The number of the first.
    pub(crate) first: u64,
    pub(crate) tags: Vec<Tag>,
}

/// A run of encrypted bytes.
pub(crate) struct Span {
    pub(crate) region: MemoryRegion,
    /// First byte in the region.
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// Where the encrypted bytes are.
enum Memory {
    /// In memory that peers may write.
    Remote(Vec<Span>),
    Private(Vec<u8>),
}

/// The bytes of the records of one frame.
pub(crate) struct SealedPiece {
    memory: Memory,
    len: usize,
    records: Records,
    /// The record of which a part was read last.
    opened: Mutex<Option<(usize, Arc<Vec<u8>>)>>,
    reports: Arc<dyn ForgeryReports>,
    process: Process,
    /// Gives the memory back when the piece is dropped.
    pub(crate) lease: Option<Box<dyn Send + Sync>>,
}

impl SealedPiece {
    /// In memory of these spans, in order. There is a tag for each record.
    pub(crate) fn new(
        spans: Vec<Span>,
        records: Records,
        reports: Arc<dyn ForgeryReports>,
    ) -> Self {
        let len = spans.iter().map(|span| span.len).sum();
        Self::of(Memory::Remote(spans), len, records, reports)
    }

    fn of(memory: Memory, len: usize, records: Records, reports: Arc<dyn ForgeryReports>) -> Self {
        debug_assert_eq!(records.tags.len(), len.div_ceil(RECORD_BYTES));
        let (opened, process, lease) = (Mutex::new(None), Process::current(), None);
        Self { memory, len, records, opened, reports, process, lease }
    }

    /// The same bytes, still encrypted, in the memory `to`, which has room for them.
    pub(crate) fn moved(&self, mut to: Vec<u8>) -> Self {
        self.append_sealed(0..self.len, &mut to);
        Self::of(Memory::Private(to), self.len, self.records.clone(), Arc::clone(&self.reports))
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends encrypted bytes.
    fn append_sealed(&self, range: Range<usize>, to: &mut Vec<u8>) {
        let spans = match &self.memory {
            Memory::Private(bytes) => return to.extend_from_slice(&bytes[range]),
            Memory::Remote(spans) => spans,
        };
        let mut at = 0;
        for Span { region, offset, len } in spans {
            let (start, end) = (range.start.max(at), range.end.min(at + len));
            if start < end {
                region.append_to(offset + start - at, end - start, to);
            }
            at += len;
        }
    }

    /// Copies encrypted bytes.
    fn copy_sealed(&self, range: Range<usize>, to: &mut [u8]) {
        let spans = match &self.memory {
            Memory::Private(bytes) => return to.copy_from_slice(&bytes[range]),
            Memory::Remote(spans) => spans,
        };
        let mut at = 0;
        for Span { region, offset, len } in spans {
            let (start, end) = (range.start.max(at), range.end.min(at + len));
            if start < end {
                let part = &mut to[start - range.start..end - range.start];
                region.copy_out(offset + start - at, part);
            }
            at += len;
        }
    }

    /// The records that `range` touches, each with its bytes in the piece.
    fn touched(&self, range: &Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let (len, end) = (self.len, range.end.div_ceil(RECORD_BYTES));
        (range.start / RECORD_BYTES..end).map(move |index| {
            let start = index * RECORD_BYTES;
            (index, start..(start + RECORD_BYTES).min(len))
        })
    }

    fn check_process(&self) -> Result<(), ReadError> {
        if self.process.is_current() { Ok(()) } else { Err(ReadError::Forked) }
    }

    /// Opens a record that lies before its tag.
    fn open(&self, index: usize, sealed: &mut [u8]) -> Result<(), ReadError> {
        let Records { key, first, .. } = &self.records;
        key.open(first + index as u64, sealed).map_err(|_| {
            self.reports.on_forged();
            ReadError::Forged
        })
    }

    /// Appends all bytes, and reports nothing. Memory for one tag more avoids another allocation.
    ///
    /// # Errors
    /// [`ReadError`]; `to` has more bytes then, which are of no use.
    pub(crate) fn append_all(&self, to: &mut Vec<u8>) -> Result<(), ReadError> {
        self.check_process()?;
        let Records { key, first, tags } = &self.records;
        for (index, record) in self.touched(&(0..self.len)) {
            let at = to.len();
            self.append_sealed(record.clone(), to);
            to.extend_from_slice(&tags[index]);
            let opened = key.open(first + index as u64, &mut to[at..]);
            opened.map_err(|_| ReadError::Forged)?;
            to.truncate(at + record.len());
        }
        Ok(())
    }

    /// A record has failed its check.
    pub(crate) fn report_forged(&self) {
        self.reports.on_forged();
    }

    /// Appends the bytes of `range`. Memory for one tag more avoids another allocation.
    ///
    /// # Errors
    /// [`ReadError`]; `to` has more bytes then, which are of no use.
    pub(crate) fn append_to(&self, range: Range<usize>, to: &mut Vec<u8>) -> Result<(), ReadError> {
        self.check_process()?;
        for (index, record) in self.touched(&range) {
            let part = record.start.max(range.start)..record.end.min(range.end);
            if part == record {
                let at = to.len();
                self.append_sealed(record.clone(), to);
                to.extend_from_slice(&self.records.tags[index]);
                self.open(index, &mut to[at..])?;
                to.truncate(at + record.len());
            } else {
                let keep = part.end < record.end;
                let (opened, within) = self.part(index, record, part, keep)?;
                to.extend_from_slice(&opened[within]);
            }
        }
        Ok(())
    }

    /// Copies the bytes of `range` to the beginning of `to`. What it has behind them may be changed
    /// too.
    ///
    /// # Errors
    /// [`ReadError`]; what `to` holds then is of no use.
    pub(crate) fn copy_to(&self, range: Range<usize>, to: &mut [u8]) -> Result<(), ReadError> {
        self.check_process()?;
        let mut at = 0;
        for (index, record) in self.touched(&range) {
            let part = record.start.max(range.start)..record.end.min(range.end);
            let (end, is_whole) = (at + part.len(), part == record);
            if is_whole && end + TAG_BYTES <= to.len() {
                self.copy_sealed(record, &mut to[at..end]);
                // The next bytes take the place of the tag.
                to[end..end + TAG_BYTES].copy_from_slice(&self.records.tags[index]);
                self.open(index, &mut to[at..end + TAG_BYTES])?;
            } else if is_whole {
                let mut opened = Vec::with_capacity(record.len() + TAG_BYTES);
                self.append_to(record, &mut opened)?;
                to[at..end].copy_from_slice(&opened);
            } else {
                let keep = part.end < record.end;
                let (opened, within) = self.part(index, record, part, keep)?;
                to[at..end].copy_from_slice(&opened[within]);
            }
            at = end;
        }
        Ok(())
    }

    /// The bytes from the beginning of `range` to the end of their record, or of the range. The
    /// record is kept until [`SealedPiece::forget`].
    ///
    /// # Errors
    /// [`ReadError`].
    pub(crate) fn first_of(
        &self,
        range: Range<usize>,
    ) -> Result<(Arc<Vec<u8>>, Range<usize>), ReadError> {
        self.check_process()?;
        let Some((index, record)) = self.touched(&range).next() else {
            return Ok((Arc::default(), 0..0));
        };
        let end = record.end.min(range.end);
        self.part(index, record, range.start..end, true)
    }

    /// Drops the record that is kept.
    pub(crate) fn forget(&self) {
        let _record = self.opened.lock().take();
    }

    /// The opened bytes of a record of which `part` is read, and where they have that part.
    fn part(
        &self,
        index: usize,
        record: Range<usize>,
        part: Range<usize>,
        keep: bool,
    ) -> Result<(Arc<Vec<u8>>, Range<usize>), ReadError> {
        let within = part.start - record.start..part.end - record.start;
        let kept = self.opened.lock().clone().filter(|(at, _)| *at == index);
        let opened = match kept {
            Some((_, opened)) => opened,
            None => {
                let mut opened = Vec::with_capacity(record.len() + TAG_BYTES);
                self.append_to(record, &mut opened)?;
                Arc::new(opened)
            }
        };
        let kept = keep.then(|| (index, Arc::clone(&opened)));
        let _before = std::mem::replace(&mut *self.opened.lock(), kept);
        Ok((opened, within))
    }
}

#[cfg(test)]
pub(super) mod tests;
