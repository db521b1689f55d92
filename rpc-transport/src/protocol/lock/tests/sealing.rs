//! Sealed frames and records.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::super::fake::FakeKey;
use super::*;
use crate::protocol::credit::Grant;
use crate::protocol::frame::{self, HEADER_BYTES, Kind, MAX_RECORDS, RECORD_BYTES};

fn ends() -> (Sealer, Opener) {
    let key = |role| Box::new(FakeKey::new(5, role));
    (Sealer::new(key(Role::Client), 0), Opener::new(key(Role::Client), 0))
}

fn sealed(sealer: &mut Sealer, payload: &[u8]) -> Vec<u8> {
    let header = frame::header(Kind::Data, Grant { data: 3, ..Grant::default() });
    let mut frame = [&header[..], payload, &[0; TAG_BYTES]].concat();
    sealer.seal(&mut frame).unwrap();
    frame
}

#[test]
fn frames_are_opened_as_they_were_sealed() {
    let (mut sealer, mut opener) = ends();
    for len in [0, 1, 7, 100, 5000] {
        let payload = vec![0x77; len];
        let mut frame = sealed(&mut sealer, &payload);
        assert_eq!((frame[0], frame.len()), (0x81, HEADER_BYTES + len + TAG_BYTES));
        assert!(len < 7 || !frame.windows(7).any(|bytes| bytes == [0x77; 7]));
        let opened = opener.open(None, &mut frame).unwrap();
        assert_eq!(opened, HEADER_BYTES + len);
        assert_eq!((frame[0], &frame[HEADER_BYTES..opened]), (1, &payload[..]));
    }
}

#[test]
fn each_flipped_bit_is_found() {
    let bits = |sealer: &mut Sealer| sealed(sealer, b"call").len() * 8;
    for bit in 0..bits(&mut ends().0) {
        let (mut sealer, mut opener) = ends();
        let mut frame = sealed(&mut sealer, b"call");
        frame[bit / 8] ^= 1 << (bit % 8);
        let error = opener.open(None, &mut frame).unwrap_err();
        let expected = if bit == 7 { SealError::Plain } else { SealError::Forged };
        assert_eq!(error, expected, "bit {bit}");
        // Nothing is opened behind it.
        let mut next = sealed(&mut sealer, b"next");
        assert_eq!(opener.open(None, &mut next), Err(SealError::Forged));
    }
}

#[test]
fn frames_out_of_order_are_refused() {
    let frames = |count| {
        let (mut sealer, opener) = ends();
        let frames: Vec<_> = (0..count).map(|_| sealed(&mut sealer, b"same")).collect();
        (frames, opener)
    };
    for order in [[1, 0], [0, 0], [0, 2]] {
        let (frames, mut opener) = frames(3);
        let opened: Vec<_> =
            order.iter().map(|at| opener.open(None, &mut frames[*at].clone())).collect();
        assert_eq!(opened.last(), Some(&Err(SealError::Forged)), "{order:?}");
    }
}

#[test]
fn short_frames_and_immediates_are_refused() {
    for len in 0..HEADER_BYTES + TAG_BYTES {
        let mut frame = vec![0x81; len];
        let expected = if len == 0 { SealError::Plain } else { SealError::Truncated(len) };
        assert_eq!(ends().1.open(None, &mut frame), Err(expected));
        assert_eq!(ends().0.seal(&mut frame), Err(SealError::Truncated(len)));
    }
    let (mut sealer, mut opener) = ends();
    let mut frame = sealed(&mut sealer, b"");
    assert_eq!(opener.open(Some(3), &mut frame), Err(SealError::Immediate));
}

#[test]
fn keys_change_at_the_same_number() {
    let (mut sealer, mut opener) = ends();
    let first = sealed(&mut sealer, b"same");
    opener.open(None, &mut first.clone()).unwrap();
    for border in [REKEY_FRAMES, 2 * REKEY_FRAMES] {
        sealer.skip_to(border - 3);
        opener.skip_to(border - 3);
        let mut last = Vec::new();
        for _ in 0..6 {
            last = sealed(&mut sealer, b"same");
            assert_eq!(opener.open(None, &mut last.clone()), Ok(HEADER_BYTES + 4));
        }
        // The key before it does not open the same number.
        let mut old = Opener::new(Box::new(FakeKey::new(5, Role::Client)), border + 2);
        assert_eq!(old.open(None, &mut last), Err(SealError::Forged));
    }
}

/// The numbers of `docs/wire-format.md`: two ends that count alike, and otherwise, agree as well.
#[test]
fn keys_change_at_the_numbers_of_the_table() {
    let (mut sealer, mut opener) = ends();
    let numbers = [(0, 0), (1_048_575, 0), (1_048_576, 1), (2_097_151, 1), (2_097_152, 2)];
    for (number, changes) in numbers {
        sealer.skip_to(number);
        opener.skip_to(number);
        opener.open(None, &mut sealed(&mut sealer, b"call")).unwrap();
        assert_eq!(opener.record_keys().epoch(), changes, "frame {number}");
    }
}

/// The counts of the two directions have nothing to do with each other.
#[test]
fn a_key_changes_after_a_million_frames() {
    let (mut sealer, mut opener) = ends();
    let mut frame = sealed(&mut sealer, b"");
    let len = frame.len();
    opener.open(None, &mut frame).unwrap();
    let first_key = FakeKey::new(5, Role::Client);
    for number in 1..=REKEY_FRAMES {
        frame.resize(len, 0);
        sealer.seal(&mut frame).unwrap();
        if number >= REKEY_FRAMES - 1 {
            let (header, rest) = frame.split_first_chunk().unwrap();
            let opened = FrameKey::open(&first_key, number, header, &mut rest.to_vec());
            assert_eq!(opened.is_ok(), number < REKEY_FRAMES, "frame {number}");
        }
        opener.open(None, &mut frame).unwrap();
    }
    assert_eq!(format!("{sealer:?}"), format!("Sealer({} frames)", REKEY_FRAMES + 1));
}

#[test]
fn debug_shows_no_key() {
    let (sealer, opener) = ends();
    assert_eq!(format!("{sealer:?} {opener:?}"), "Sealer(0 frames) Opener(0 frames)");
}

/// In every field of every kind.
#[test]
fn each_kind_is_protected_whole() {
    let grant = Grant { data: 3, ack: 1 };
    let reason = frame::CloseReason::new(frame::CloseCode::Application, "over");
    let segment = frame::Segment {
        number: 1,
        last: false,
        abort: false,
        head_end: true,
        offset: 0,
        total: 99,
    };
    let blocks = frame::Blocks {
        starved: true,
        max_stream_data: Some(frame::MaxStreamData { number: 1, bytes: 5 }),
        ..frame::Blocks::default()
    };
    for plain in [
        [&frame::header(Kind::Data, grant)[..], b"call"].concat(),
        [&frame::segment_header(grant, segment)[..], b"part"].concat(),
        frame::header(Kind::Ack, grant).to_vec(),
        frame::header(Kind::Ping, grant).to_vec(),
        frame::header(Kind::Pong, grant).to_vec(),
        frame::close_frame(&reason).to_vec(),
        blocks.to_prefix(Kind::Release, grant).to_vec(),
    ] {
        let sealed = || {
            let (mut sealer, opener) = ends();
            let mut frame = [&plain[..], &[0; TAG_BYTES]].concat();
            sealer.seal(&mut frame).unwrap();
            (frame, opener)
        };
        let (mut frame, mut opener) = sealed();
        assert_eq!(opener.open(None, &mut frame), Ok(plain.len()));
        assert_eq!(frame[..plain.len()], plain);
        for bit in 0..frame.len() * 8 {
            let (mut frame, mut opener) = sealed();
            frame[bit / 8] ^= 1 << (bit % 8);
            assert!(opener.open(None, &mut frame).is_err(), "{plain:?} bit {bit}");
        }
    }
}

/// Keeps what was sealed with each key: path, number and the count of changes.
struct Counting {
    epoch: u64,
    used: Arc<Mutex<HashSet<(u8, u64, u64)>>>,
}

impl Counting {
    fn use_up(&self, path: u8, number: u64) -> [u8; TAG_BYTES] {
        let is_new = self.used.lock().unwrap().insert((path, self.epoch, number));
        assert!(is_new, "number {number} of path {path} is sealed twice with key {}", self.epoch);
        [0; TAG_BYTES]
    }
}

impl FrameKey for Counting {
    fn seal(&self, number: u64, _: &[u8; 8], _: &mut [u8]) -> Result<[u8; TAG_BYTES], SealError> {
        assert_eq!(number / REKEY_FRAMES, self.epoch);
        Ok(self.use_up(0, number))
    }

    fn open(&self, _: u64, _: &[u8; 8], _: &mut [u8]) -> Result<(), SealError> {
        Ok(())
    }

    fn advance(&mut self) {
        self.epoch += 1;
    }

    fn record_key(&self) -> Arc<dyn RecordKey> {
        Arc::new(Self { epoch: self.epoch, used: Arc::clone(&self.used) })
    }
}

impl RecordKey for Counting {
    fn seal(&self, number: u64, _: &mut [u8]) -> Result<[u8; TAG_BYTES], RecordError> {
        // Also with other keys: numbers of records never start again.
        (0..4).for_each(|epoch| {
            let has = self.used.lock().unwrap().contains(&(1, epoch, number));
            assert!(!has, "number {number} is used with key {epoch}");
        });
        Ok(self.use_up(1, number))
    }

    fn open(&self, _: u64, _: &mut [u8]) -> Result<(), RecordError> {
        Ok(())
    }
}

proptest! {
    /// Frames and records in any order, around two changes of the key: each is opened with the key
    /// that sealed it, and no number is used twice.
    #[test]
    fn records_and_frames_use_each_number_once(
        steps in prop::collection::vec((any::<bool>(), 0_usize..6), 1..40),
    ) {
        let used = Arc::<Mutex<HashSet<_>>>::default();
        let key = || Box::new(Counting { epoch: 0, used: Arc::clone(&used) });
        let (mut sealer, mut opener) = (Sealer::new(key(), 0), Opener::new(key(), 0));
        let mut expected = 0;
        for border in 1..3 {
            sealer.skip_to(border * REKEY_FRAMES - 3);
            opener.skip_to(border * REKEY_FRAMES - 3);
            for &(is_frame, records) in &steps {
                let mut bytes = vec![0; records * RECORD_BYTES - usize::from(records > 0)];
                let tags = sealer.seal_records(&mut bytes);
                if records > MAX_RECORDS {
                    prop_assert_eq!(tags, Err(SealError::TooLong(bytes.len())));
                    continue;
                }
                let tags = tags.unwrap();
                prop_assert_eq!((tags.first, tags.tags.len()), (expected, records));
                expected += records as u64;
                if is_frame {
                    // It names the records; if it is not sent, they are not named.
                    let mut frame = sealed(&mut sealer, b"");
                    opener.open(None, &mut frame).unwrap();
                    prop_assert!(opener.record_keys().of(tags.epoch).is_some());
                    let now = opener.record_keys().epoch();
                    prop_assert!(opener.record_keys().of(now + 1).is_none());
                    prop_assert!(now < 2 || opener.record_keys().of(now - 2).is_none());
                }
            }
        }
    }
}
