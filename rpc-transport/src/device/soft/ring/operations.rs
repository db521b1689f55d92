//! Drives both rings of a connection by random operations, and compares the result with two queues
//! of sent packets. Either side may leave at any point; its packets stay readable.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::device::soft::packet::Span;

/// One operation of one side.
#[derive(Debug, Clone)]
enum Operation {
    /// Sends a packet: bytes of payload, in two pieces, and the extension. The payload looks like
    /// the packet this many slots ahead.
    Push {
        len: usize,
        cut: usize,
        extension: u8,
        ack: bool,
        mimic: u64,
    },
    /// Sends a small packet on the fast path.
    PushSend {
        len: usize,
        ack: bool,
    },
    /// Asks for acknowledgement of everything sent.
    AwaitAll,
    /// Receives the next packet.
    Take,
    Publish,
    Feedback,
    Arm,
    Disarm,
    /// Checks whether the other side needs a doorbell.
    LookAtBell,
    /// Closes and drops the ring.
    Drop,
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let len = prop_oneof![0..300_usize, 0..5000_usize, Just(usize::MAX)];
    let push = (len, any::<usize>(), 0..3_u8, any::<bool>(), 0..24_u64)
        .prop_map(|(len, cut, extension, ack, mimic)| Push { len, cut, extension, ack, mimic });
    let small = (0..140_usize, any::<bool>()).prop_map(|(len, ack)| PushSend { len, ack });
    prop_oneof![
        6 => push,
        6 => small,
        1 => Just(AwaitAll),
        12 => Just(Take),
        4 => Just(Publish),
        2 => Just(Feedback),
        1 => Just(Arm),
        1 => Just(Disarm),
        2 => Just(LookAtBell),
        // Rare, so that in most runs both sides stay to the end.
        1 => prop_oneof![30 => Just(Take), 1 => Just(Drop)],
    ]
}

/// A packet as it must be received.
#[derive(Debug, Clone, PartialEq)]
struct Packet {
    op: Op,
    extension: Extension,
    payload: Vec<u8>,
}

impl Packet {
    fn slots(&self) -> u64 {
        let body = self.extension.encode().1 + self.payload.len();
        (WORD_BYTES + body).div_ceil(SLOT_BYTES) as u64
    }
}

/// One side, and the packets that it has sent.
#[derive(Debug)]
struct Side {
    /// `None` once this side is gone.
    ring: Option<Ring>,
    sent: VecDeque<Packet>,
    tail: u64,
    /// The number of packets that the other side has received, and acknowledged.
    taken: u64,
    published: u64,
    /// The other side may be waiting for something since its doorbell was last checked.
    bell_due: bool,
    /// This side has asked for a doorbell and got none yet.
    armed: bool,
}

impl Side {
    fn new(ring: Ring) -> Self {
        Self {
            ring: Some(ring),
            sent: VecDeque::new(),
            tail: 0,
            taken: 0,
            published: 0,
            bell_due: false,
            armed: false,
        }
    }

    fn on_sent(&mut self, packet: Packet) {
        self.tail += packet.slots();
        self.sent.push_back(packet);
        self.bell_due = true;
    }
}

/// Bytes that differ from packet to packet, and look like the start of the packet at `position`.
fn payload(position: u64, len: usize) -> Vec<u8> {
    let word = u64::from(sequence(position)) | u64::from(Op::Send as u32 | 2 << 8) << 32;
    word.to_le_bytes().into_iter().cycle().take(len).collect()
}

fn extension(kind: u8, seed: u64) -> (Op, Flags, Extension) {
    let whole = Flags::FIRST.with(Flags::LAST);
    match kind {
        0 => (Op::Send, whole, Extension::None),
        1 => (Op::Send, whole.with(Flags::IMM), Extension::Word(sequence(seed))),
        _ => {
            let span = Span { address: seed, rkey: 1, aux: 2, len: 3 };
            (Op::Write, whole, Extension::Span(span))
        }
    }
}

/// Runs one operation at `side`, and checks it against the model of both sides.
fn act(side: &mut Side, other: &mut Side, slots: u64, operation: Operation) {
    let Some(ring) = side.ring.as_mut() else { return };
    let room = slots - (side.tail - side.published);
    let most = ring.max_body_bytes();
    match operation {
        Operation::Push { len, cut, extension: kind, ack, mimic } => {
            let (op, flags, extension) = extension(kind, side.tail);
            let longest = most - extension.encode().1;
            let len = if len == usize::MAX { longest } else { len };
            let bytes = payload(side.tail + mimic, len);
            let (a, b) = bytes.split_at(cut % (len + 1));
            let pieces = [Piece::from(a), Piece::from(b)];
            let pushed = ring.push(op, flags.with_if(Flags::ACK, ack), extension, pieces);
            let packet = Packet { op, extension, payload: bytes };
            if len > longest {
                assert_eq!(pushed, Err(Unsent::TooLong));
            } else if packet.slots() < room {
                assert_eq!(pushed, Ok(side.tail + packet.slots()));
                side.on_sent(packet);
            } else {
                assert_eq!(pushed, Err(Unsent::Full));
            }
        }
        Operation::PushSend { len, ack } => {
            let bytes = payload(side.tail, len);
            let pushed = ring.push_send(&bytes, ack);
            let fits = len <= SLOT_BYTES - WORD_BYTES && room >= 2;
            assert_eq!(pushed, fits.then_some(side.tail + 1));
            if fits {
                side.on_sent(Packet { op: Op::Send, extension: Extension::None, payload: bytes });
            }
        }
        Operation::AwaitAll => {
            let end = ring.await_all();
            if ring.tail() == side.tail {
                assert!(end == Some(side.tail) || (end.is_none() && room < 2));
            } else {
                assert_eq!(end, Some(side.tail + 1));
                let (extension, payload) = (Extension::None, Vec::new());
                side.on_sent(Packet { op: Op::Probe, extension, payload });
            }
        }
        Operation::Take => {
            let taken = take(ring);
            assert_eq!(taken, other.sent.pop_front());
            if let Some(packet) = taken {
                other.taken += packet.slots();
                assert_eq!(ring.owes(), other.taken != other.published);
                assert_eq!(ring.owes_much(), other.taken - other.published >= slots / 4);
            }
        }
        Operation::Publish => {
            ring.publish();
            other.published = other.taken;
            side.bell_due = true;
        }
        Operation::Feedback => {
            let feedback = Feedback { accepted: side.published, nak: None };
            assert_eq!(ring.feedback(), Ok(feedback));
            assert!(!ring.has_news());
        }
        Operation::Arm => {
            ring.arm();
            side.armed = true;
        }
        Operation::Disarm => {
            ring.disarm();
            side.armed = false;
        }
        Operation::LookAtBell => {
            let wanted = std::mem::take(&mut side.bell_due) && other.armed;
            assert_eq!(ring.needs_notify(), wanted);
            other.armed &= !wanted;
        }
        Operation::Drop => {
            ring.close();
            side.ring = None;
            if let Some(left) = &other.ring {
                assert!(left.peer_closed());
            }
        }
    }
}

fn take(ring: &mut Ring) -> Option<Packet> {
    assert_eq!(ring.has_packet(), ring.peek().is_some());
    let head = Head::decode(ring.peek()?).expect("a good head");
    let extension = ring.extension(head);
    let mut payload = vec![0; head.payload_bytes()];
    let to = NonNull::from(&mut payload[..]).cast();
    // SAFETY: `to` has room for the payload.
    unsafe { ring.copy_body(head.extension_bytes(), to, head.payload_bytes()) };
    ring.consume(usize::from(head.body_bytes));
    Some(Packet { op: head.op, extension, payload })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn operations_round_trip_through_the_ring(
        slots in prop_oneof![Just(8_usize), Just(16), Just(64)],
        operations in proptest::collection::vec((any::<bool>(), operation()), 0..600),
    ) {
        let segment = || Arc::new(Mapping::anonymous(segment_bytes(slots)).unwrap());
        let (a, b) = (segment(), segment());
        let mut near = Side::new(Ring::new(a.clone(), b.clone(), slots));
        let mut far = Side::new(Ring::new(b, a, slots));
        for (swap, operation) in operations {
            let (side, other) = if swap { (&mut far, &mut near) } else { (&mut near, &mut far) };
            act(side, other, slots as u64, operation);
        }
        // Packets of a side that has left still arrive.
        while near.ring.is_some() && !far.sent.is_empty() {
            act(&mut near, &mut far, slots as u64, Operation::Take);
        }
        while far.ring.is_some() && !near.sent.is_empty() {
            act(&mut far, &mut near, slots as u64, Operation::Take);
        }
    }
}
