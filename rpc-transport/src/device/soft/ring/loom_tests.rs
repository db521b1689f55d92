//! Every interleaving of publishing and consuming, and every outcome of weak memory:
//! `RUSTFLAGS="--cfg rpc_loom"`. The ring is the production one. loom sees every access to its
//! memory, so reading an incomplete packet, or writing a slot while it is read, is a data race.
#![allow(unsafe_code, reason = "copies to and from the ring take pointers")]

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::thread;

use super::*;

const SLOTS: usize = MIN_SLOTS;
const BODY_BYTES: usize = SLOT_BYTES - WORD_BYTES;

/// A word whose accesses can be made relaxed.
#[derive(Debug)]
struct Long {
    word: AtomicU64,
    is_ordered: bool,
}

impl LongWord for Long {
    fn load(&self, order: Ordering) -> u64 {
        self.word.load(if self.is_ordered { order } else { Ordering::Relaxed })
    }

    fn store(&self, value: u64, order: Ordering) {
        self.word.store(value, if self.is_ordered { order } else { Ordering::Relaxed });
    }
}

/// A segment that loom observes.
#[derive(Debug)]
struct Watched {
    accepted: Long,
    control: AtomicU32,
    starts: Vec<Long>,
    bodies: Vec<UnsafeCell<[u8; BODY_BYTES]>>,
}

// SAFETY: loom checks that nobody reads a body while another writes it.
unsafe impl Send for Watched {}
// SAFETY: as above.
unsafe impl Sync for Watched {}

impl Watched {
    fn new(is_ordered: bool) -> Arc<Self> {
        let long = || Long { word: AtomicU64::new(0), is_ordered };
        Arc::new(Self {
            accepted: long(),
            control: AtomicU32::new(0),
            starts: (0..SLOTS).map(|_| long()).collect(),
            bodies: (0..SLOTS).map(|_| UnsafeCell::new([0; BODY_BYTES])).collect(),
        })
    }

    /// Cuts a range of the slots: slot, offset in it, range of the bytes.
    fn cut(at: usize, len: usize) -> Vec<(usize, usize, std::ops::Range<usize>)> {
        let (mut done, mut cuts) = (0, Vec::new());
        while done < len {
            let (slot, offset) = ((at + done) / SLOT_BYTES, (at + done) % SLOT_BYTES);
            let end = if offset < WORD_BYTES { WORD_BYTES } else { SLOT_BYTES };
            let step = (end - offset).min(len - done);
            assert!(offset >= WORD_BYTES || step == WORD_BYTES, "a part of a slot's first word");
            cuts.push((slot, offset, done..done + step));
            done += step;
        }
        cuts
    }
}

impl Segment for Watched {
    type Word = AtomicU32;
    type Long = Long;

    fn len(&self) -> usize {
        segment_bytes(SLOTS)
    }

    fn control(&self, _: usize) -> &AtomicU32 {
        &self.control
    }

    fn long(&self, offset: usize) -> &Long {
        match offset.checked_sub(CONTROL_BYTES) {
            None => &self.accepted,
            Some(at) => &self.starts[at / SLOT_BYTES],
        }
    }

    unsafe fn put(&self, at: usize, from: NonNull<u8>, len: usize) {
        // SAFETY: by the caller.
        let bytes = unsafe { std::slice::from_raw_parts(from.as_ptr(), len) };
        // SAFETY: by the caller.
        unsafe { self.put_private(at, bytes) };
    }

    unsafe fn put_private(&self, at: usize, bytes: &[u8]) {
        for (slot, offset, range) in Self::cut(at, bytes.len()) {
            let part = &bytes[range];
            if offset < WORD_BYTES {
                let word = u64::from_le_bytes(part.try_into().unwrap());
                self.starts[slot].store(word, Ordering::Relaxed);
                continue;
            }
            let at = offset - WORD_BYTES;
            self.bodies[slot].with_mut(|body| {
                // SAFETY: loom checks that nobody else accesses it.
                let body = unsafe { &mut *body };
                body[at..at + part.len()].copy_from_slice(part);
            });
        }
    }

    unsafe fn get(&self, at: usize, to: NonNull<u8>, len: usize) {
        // SAFETY: by the caller.
        let bytes = unsafe { std::slice::from_raw_parts_mut(to.as_ptr(), len) };
        for (slot, offset, range) in Self::cut(at, len) {
            let part = &mut bytes[range];
            if offset < WORD_BYTES {
                let word = self.starts[slot].load(Ordering::Relaxed);
                part.copy_from_slice(&word.to_le_bytes());
                continue;
            }
            let at = offset - WORD_BYTES;
            self.bodies[slot].with(|body| {
                // SAFETY: loom checks that nobody writes it.
                let body = unsafe { &*body };
                part.copy_from_slice(&body[at..at + part.len()]);
            });
        }
    }

    fn prefetch(&self, _: usize) {}
}

type Watch = Ring<Watched>;

fn pair(is_ordered: bool) -> (Watch, Watch) {
    let (a, b) = (Watched::new(is_ordered), Watched::new(is_ordered));
    (Ring::new(a.clone(), b.clone(), SLOTS), Ring::new(b, a, SLOTS))
}

fn push(ring: &mut Watch, bytes: &[u8]) -> bool {
    ring.push(Op::Send, Flags::LAST, Extension::None, [bytes.into(), Piece::EMPTY]).is_ok()
}

fn take(ring: &mut Watch) -> Option<Vec<u8>> {
    let head = Head::decode(ring.peek()?).unwrap();
    let mut bytes = vec![0; head.payload_bytes()];
    // SAFETY: there is room for the payload.
    unsafe { ring.copy_body(0, NonNull::from(&mut bytes[..]).cast(), head.payload_bytes()) };
    ring.consume(usize::from(head.body_bytes));
    Some(bytes)
}

/// Sends, takes and publishes, so that the next packet starts at `position`.
fn advance(from: &mut Watch, to: &mut Watch, position: u64) {
    while from.tail() < position {
        assert!(push(from, b"before"));
        assert_eq!(take(to).unwrap(), b"before");
        to.publish();
    }
}

/// Packets of one slot and of two, on both paths, are found whole and in order or not at all.
fn published(is_ordered: bool) {
    let (mut from, mut to) = pair(is_ordered);
    let long = [7; BODY_BYTES + WORD_BYTES + 5];
    let sender = thread::spawn(move || {
        assert!(from.push_send(b"small", false).is_some());
        assert!(push(&mut from, &long));
        from
    });
    let mut found = Vec::new();
    for _ in 0..2 {
        found.extend(take(&mut to));
    }
    let _from = sender.join().unwrap();
    while let Some(packet) = take(&mut to) {
        found.push(packet);
    }
    assert_eq!(found, [b"small".to_vec(), long.to_vec()]);
}

/// A slot is written again only after its contents have been read.
fn consumed(is_ordered: bool) {
    let (mut from, mut to) = pair(is_ordered);
    for number in 0..SLOTS as u8 - 1 {
        assert!(push(&mut from, &[number]));
    }
    let receiver = thread::spawn(move || {
        for number in 0..2 {
            assert_eq!(take(&mut to).unwrap(), [number]);
        }
        to.publish();
        to
    });
    // Room for two: the second lies where the receiver may be reading.
    let mut sent = (0..2).filter(|_| push(&mut from, b"next")).count();
    let mut to = receiver.join().unwrap();
    sent += (sent..2).filter(|_| push(&mut from, b"next")).count();
    assert_eq!(sent, 2);
    for number in 2..SLOTS as u8 - 1 {
        assert_eq!(take(&mut to).unwrap(), [number]);
    }
    assert_eq!([take(&mut to).unwrap(), take(&mut to).unwrap()], [b"next", b"next"]);
    assert!(take(&mut to).is_none());
}

/// The remains of an earlier lap in a slot are never mistaken for the packet that is expected
/// there.
fn invalidated(is_ordered: bool) {
    let (mut from, mut to) = pair(is_ordered);
    // Its payload looks like the packet at position 9, in the slot of that packet.
    let mut mimic = vec![1; BODY_BYTES];
    let head = Head { op: Op::Send, flags: Flags::LAST, body_bytes: 1 }.encode();
    let word = u64::from(sequence(SLOTS as u64 + 1)) | u64::from(head) << 32;
    mimic.extend_from_slice(&word.to_le_bytes());
    assert!(push(&mut from, &mimic));
    assert_eq!(take(&mut to).unwrap(), mimic);
    to.publish();
    advance(&mut from, &mut to, SLOTS as u64);
    // Without a body, since reading one would add an ordering of its own.
    let sender = thread::spawn(move || {
        assert!(push(&mut from, b""));
        from
    });
    if let Some(packet) = take(&mut to) {
        assert!(packet.is_empty());
        assert_eq!(take(&mut to), None, "nothing was sent there");
    }
    let _from = sender.join().unwrap();
}

#[test]
fn packet_is_found_whole_or_not_at_all() {
    loom::model(|| published(true));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn relaxed_orderings_tear_a_packet() {
    loom::model(|| published(false));
}

#[test]
fn slot_is_rewritten_only_after_it_was_read() {
    loom::model(|| consumed(true));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn relaxed_orderings_overwrite_a_slot_being_read() {
    loom::model(|| consumed(false));
}

#[test]
fn earlier_lap_is_never_taken_for_a_packet() {
    loom::model(|| invalidated(true));
}

#[test]
#[should_panic(expected = "nothing was sent there")]
fn relaxed_orderings_mistake_an_earlier_lap() {
    loom::model(|| invalidated(false));
}
