//! Records that are opened, whole and in part, and those that were changed.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::device::soft;
use crate::memory::region::Access;
use crate::message::payload::{Payload, Piece};
use crate::message::record::RecordError;

#[derive(Default)]
pub(crate) struct Reports(pub(crate) AtomicU32);

impl ForgeryReports for Reports {
    fn on_forged(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A key that counts what it opens, and protects nothing.
#[derive(Default)]
pub(crate) struct Counting(pub(crate) AtomicU32);

impl Counting {
    fn tag(number: u64, record: &[u8]) -> Tag {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let mut tag = [0; TAG_BYTES];
        tag[..8].copy_from_slice(&record.iter().fold(!number, step).to_le_bytes());
        tag
    }
}

impl RecordKey for Counting {
    fn seal(&self, number: u64, record: &mut [u8]) -> Result<Tag, RecordError> {
        record.iter_mut().for_each(|byte| *byte ^= 0x5a);
        Ok(Self::tag(number, record))
    }

    fn open(&self, number: u64, sealed: &mut [u8]) -> Result<(), RecordError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let (record, tag) = sealed.split_last_chunk_mut().unwrap();
        let is_right = *tag == Self::tag(number, record);
        record.iter_mut().for_each(|byte| *byte ^= 0x5a);
        if is_right { Ok(()) } else { Err(RecordError) }
    }
}

pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 251 + at).to_le_bytes()[0]).collect()
}

/// Bytes in two spans of a region, in the wrong order there, and the keys that open them.
pub(crate) fn piece(bytes: &[u8]) -> (SealedPiece, MemoryRegion, Arc<Counting>, Arc<Reports>) {
    let domain = soft::mem_device().allocate_pd().unwrap();
    let region = domain.allocate(bytes.len(), Access::REMOTE_WRITE).unwrap();
    let key = Arc::new(Counting::default());
    let mut sealed = bytes.to_vec();
    let seal = |(number, record)| key.seal(number, record).unwrap();
    let tags = (70..).zip(sealed.chunks_mut(RECORD_BYTES)).map(seal).collect();
    let first = bytes.len() / 3;
    let behind = bytes.len() - first;
    let opens = Arc::clone(&key) as Arc<dyn RecordKey>;
    let span = |offset, len| Span { region: region.clone(), offset, len };
    region.scribble(behind, &sealed[..first]);
    region.scribble(0, &sealed[first..]);
    let reports = Arc::new(Reports::default());
    let piece = SealedPiece::new(
        vec![span(behind, first), span(0, behind)],
        Records { key: opens, first: 70, tags },
        Arc::clone(&reports) as Arc<dyn ForgeryReports>,
    );
    (piece, region, key, reports)
}

#[test]
fn a_reader_keeps_one_record_at_most() {
    let bytes = pattern(3 * RECORD_BYTES + 100);
    let (piece, _region, key, _) = piece(&bytes);
    let opened = || key.0.load(Ordering::Relaxed);
    let kept = |piece: &SealedPiece| piece.opened.lock().as_ref().map(|(at, _)| *at);
    // In steps, as a reader does: each record is opened once.
    for (step, at) in (0..bytes.len()).step_by(1000).enumerate() {
        let end = (at + 1000).min(bytes.len());
        let mut room = [0; 1000];
        piece.copy_to(at..end, &mut room[..end - at]).unwrap();
        assert_eq!(room[..end - at], bytes[at..end], "step {step}");
        assert_eq!(opened() as usize, end.div_ceil(RECORD_BYTES));
    }
    assert_eq!(kept(&piece), None, "all is read");
    // At any place: the last one is kept.
    for at in [RECORD_BYTES, 0, 2 * RECORD_BYTES + 7] {
        piece.append_to(at..at + 10, &mut Vec::new()).unwrap();
        assert_eq!(kept(&piece), Some(at / RECORD_BYTES));
    }
    // Whole ones are not.
    piece.forget();
    let before = opened();
    piece.append_to(0..bytes.len(), &mut Vec::new()).unwrap();
    assert_eq!((kept(&piece), opened() - before), (None, 4));
}

/// Room for the tags of records is where the next bytes come.
#[test]
fn a_whole_read_takes_no_other_memory() {
    let bytes = pattern(2 * RECORD_BYTES + 9);
    let payload = Payload::from_pieces([Piece::Sealed(Arc::new(piece(&bytes).0))]);
    let mut room = Vec::with_capacity(bytes.len() + TAG_BYTES);
    let address = room.as_ptr();
    payload.append_to(0..payload.len(), &mut room).unwrap();
    assert_eq!((room.as_ptr(), &room), (address, &bytes));
}

#[test]
fn a_wrong_tag_is_reported_and_gives_nothing() {
    let bytes = pattern(RECORD_BYTES + 50);
    let (piece, region, _, reports) = piece(&bytes);
    let moved = piece.moved(Vec::new());
    region.scribble(bytes.len() - 1, &[1]);
    let (mut room, mut short) = (Vec::new(), [0; 50]);
    assert_eq!(piece.append_to(0..bytes.len(), &mut room), Err(ReadError::Forged));
    assert_eq!(reports.0.load(Ordering::Relaxed), 1);
    // The other record is as it was, and so is the copy.
    piece.copy_to(RECORD_BYTES..bytes.len(), &mut short).unwrap();
    assert_eq!(short, bytes[RECORD_BYTES..]);
    room.clear();
    moved.append_to(0..bytes.len(), &mut room).unwrap();
    assert_eq!(room, bytes);
}

/// Somebody writes all the time while it is read.
#[test]
#[cfg_attr(miri, ignore = "long under an interpreter")]
fn memory_under_attack_gives_right_bytes_or_none() {
    let bytes = pattern(RECORD_BYTES + 5000);
    let (piece, region, ..) = piece(&bytes);
    let mut right = Vec::new();
    region.append_to(0, bytes.len(), &mut right);
    let payload = Payload::from_pieces([Piece::Sealed(Arc::new(piece))]);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 1;
            while !is_over.load(Ordering::Relaxed) {
                at = at * 7919 % (bytes.len() - 64);
                region.scribble(at, &[!right[at]; 64]);
                region.scribble(at, &right[at..at + 64]);
            }
        });
        for _ in 0..200 {
            match payload.to_vec() {
                Ok(read) => assert!(read == bytes, "changed bytes were given out"),
                Err(error) => assert_eq!(error, ReadError::Forged),
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
