use super::*;
use crate::memory::region::Access;

fn pair(slots: usize) -> (Ring, Ring) {
    let segment = || Arc::new(Mapping::anonymous(segment_bytes(slots)).unwrap());
    let (a, b) = (segment(), segment());
    (Ring::new(a.clone(), b.clone(), slots), Ring::new(b, a, slots))
}

fn take(ring: &mut Ring) -> Option<Vec<u8>> {
    let head = Head::decode(ring.peek()?).unwrap();
    let mut bytes = vec![0; head.payload_bytes()];
    let to = NonNull::from(&mut bytes[..]).cast();
    // SAFETY: `to` has room for the payload.
    unsafe { ring.copy_body(head.extension_bytes(), to, head.payload_bytes()) };
    ring.consume(usize::from(head.body_bytes));
    Some(bytes)
}

/// A payload that looks like sequence numbers must never be mistaken for packets.
#[test]
fn payload_never_passes_for_a_packet() {
    let seed = 0x5eed_u64;
    let mut random = seed;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    let (mut a, mut b) = pair(16);
    let mut sent = std::collections::VecDeque::new();
    let (mut pushed, mut taken) = (0_u64, 0_u64);
    let steps = if cfg!(miri) { 40 } else { 200_000_u64 };
    for step in 0..steps {
        if next(2) == 0 {
            let len = usize::try_from(next(a.max_body_bytes() as u64 + 1)).unwrap();
            // The first word expected at one of the next 64 positions, repeated.
            let fake = sequence(a.tail() + next(64));
            let word = u64::from(fake) | u64::from(Op::Send as u32 | 2 << 8) << 32;
            let bytes: Vec<u8> = word.to_le_bytes().into_iter().cycle().take(len).collect();
            let pieces = [Piece::from(&bytes[..len / 3]), Piece::from(&bytes[len / 3..])];
            if a.push(Op::Send, Flags::LAST, Extension::None, pieces).is_ok() {
                sent.push_back(bytes);
                pushed += 1;
            }
        } else {
            assert_eq!(take(&mut b), sent.pop_front(), "seed {seed:#x}, step {step}");
            taken += 1;
            if b.owes_much() {
                b.publish();
            }
        }
    }
    assert!(pushed > steps / 20 && taken > steps / 20);
}

#[test]
fn full_ring_refuses_until_the_peer_publishes() {
    let (mut a, mut b) = pair(8);
    let byte = [Piece::from(&b"x"[..]), Piece::EMPTY];
    let push = |a: &mut Ring| a.push(Op::Send, Flags::LAST, Extension::None, byte);
    for _ in 0..7 {
        assert!(push(&mut a).is_ok());
    }
    assert_eq!(push(&mut a), Err(Unsent::Full));
    assert_eq!(take(&mut b).unwrap(), b"x");
    assert_eq!(push(&mut a), Err(Unsent::Full));
    b.publish();
    assert!(push(&mut a).is_ok());
    assert_eq!(a.feedback(), Ok(Feedback { accepted: 1, nak: None }));
    b.refuse(Nak::NotReady);
    assert_eq!(a.feedback(), Ok(Feedback { accepted: 1, nak: Some(Nak::NotReady) }));
}

/// A packet that is too long must not wait forever for room, nor touch what was published.
#[test]
fn oversized_packet_is_refused_and_writes_nothing() {
    for slots in [MIN_SLOTS, DEFAULT_SLOTS, MAX_SLOTS] {
        let (mut a, mut b) = pair(slots);
        let bytes = vec![7; a.max_body_bytes() + (1 << 17)];
        let push = |a: &mut Ring, extension, len: usize| {
            let pieces = [Piece::from(&bytes[..len / 2]), Piece::from(&bytes[len / 2..len])];
            a.push(Op::Send, Flags::LAST.with(Flags::IMM), extension, pieces)
        };
        let most = a.max_body_bytes() - 4;
        push(&mut a, Extension::Word(1), most).unwrap();
        for len in [most + 1, most + 4, 1 << 16, (1 << 16) + most, bytes.len()] {
            assert_eq!(push(&mut a, Extension::Word(1), len), Err(Unsent::TooLong), "{len}");
        }
        assert_eq!(take(&mut b).unwrap(), bytes[..most]);
        assert_eq!(take(&mut b), None);
    }
}

/// For miri: with plain copies, a peer that overwrites its earlier bytes makes the engine race with
/// the reader of its last message.
#[test]
fn peer_that_overwrites_during_reads_causes_no_race() {
    let pd = crate::device::soft::domain::SoftDomain::allocate();
    let region = pd.allocate(64, Access::REMOTE_WRITE).unwrap();
    let rounds = if cfg!(miri) { 8 } else { 10_000 };
    let (mut a, mut b) = pair(8);
    let reader = region.clone();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut bytes, mut more) = ([0; 64], Vec::new());
            for _ in 0..rounds {
                reader.copy_out(0, &mut bytes);
                reader.append_to(0, 64, &mut more);
                assert!(bytes.iter().chain(&more).all(|byte| *byte < 2), "{bytes:?}");
                more.clear();
            }
        });
        for round in 0..rounds {
            let bytes = [u8::try_from(round % 2).unwrap(); 64];
            let pieces = [Piece::from(&bytes[..]), Piece::EMPTY];
            a.push(Op::Write, Flags::LAST, Extension::None, pieces).unwrap();
            let head = Head::decode(b.peek().unwrap()).unwrap();
            // SAFETY: the region has 64 bytes, and lies in no segment.
            unsafe { b.copy_body(0, region.base(), 64) };
            b.consume(usize::from(head.body_bytes));
            b.publish();
            // The bytes that the peer writes may also be on their way out.
            let piece = Piece { base: region.base(), len: 64 };
            b.push(Op::Send, Flags::LAST, Extension::None, [piece, Piece::EMPTY]).unwrap();
            take(&mut a).unwrap();
            a.publish();
        }
    });
}

#[test]
fn a_doorbell_answers_each_arming_once() {
    let (mut a, mut b) = pair(16);
    let sent = |a: &mut Ring| {
        a.push(Op::Send, Flags::LAST, Extension::None, [Piece::EMPTY; 2]).unwrap();
        a.needs_notify()
    };
    assert!(!sent(&mut a));
    b.arm();
    assert!(!a.needs_notify(), "nothing was sent since");
    assert!(sent(&mut a));
    assert!(!sent(&mut a));
    b.disarm();
    b.arm();
    assert!(sent(&mut a));
    b.disarm();
    assert!(!sent(&mut a));
}

#[test]
fn positions_that_the_peer_makes_up_are_refused() {
    let (mut a, b) = pair(8);
    for made_up in [1, 8, u64::MAX] {
        b.own.long(ACCEPTED).store(made_up, Ordering::Release);
        assert_eq!(a.feedback(), Err(BadFeedback));
    }
    b.own.long(ACCEPTED).store(0, Ordering::Release);
    b.own.control(NAK).store(99, Ordering::Release);
    assert_eq!(a.feedback(), Err(BadFeedback));
}

/// The fast path leaves both segments in the same state as the slow one, and accepts and refuses
/// the same packets.
#[test]
fn small_send_is_identical_on_both_paths() {
    const SLOTS: usize = MIN_SLOTS;
    let bytes_of = |ring: &Ring| {
        let mut bytes = vec![0; SLOTS * SLOT_BYTES];
        // SAFETY: there is room for all slots.
        unsafe { ring.own.get(0, NonNull::from(&mut bytes[..]).cast(), bytes.len()) };
        bytes
    };
    let ((mut fast, mut fast_peer), (mut slow, mut slow_peer)) = (pair(SLOTS), pair(SLOTS));
    let whole = Flags::FIRST.with(Flags::LAST);
    for round in 0..1000_usize {
        let payload = vec![round.to_le_bytes()[0]; (round * 7) % (SLOT_BYTES - WORD_BYTES + 1)];
        let ack = round % 3 == 0;
        let pieces = [Piece::from(&payload[..]), Piece::EMPTY];
        let slowly =
            slow.push(Op::Send, whole.with_if(Flags::ACK, ack), Extension::None, pieces).ok();
        assert_eq!(fast.push_send(&payload, ack), slowly, "round {round}");
        assert_eq!(fast.needs_notify(), slow.needs_notify());
        assert!(bytes_of(&fast) == bytes_of(&slow), "round {round}");
        // Also with a full ring, and after a lap.
        if slowly.is_none() || round % 5 == 0 {
            for (ring, peer) in [(&mut fast, &mut fast_peer), (&mut slow, &mut slow_peer)] {
                while take(peer).is_some() {}
                peer.publish();
                assert_eq!(ring.feedback().map(|feedback| feedback.accepted), Ok(ring.tail()));
            }
        }
        let ends = |ring: &Ring| (ring.tail, ring.accepted, ring.awaited, ring.bell_due);
        assert_eq!(ends(&fast), ends(&slow), "round {round}");
    }
    let longest = [0; SLOT_BYTES - WORD_BYTES + 1];
    assert_eq!(fast.push_send(&longest, false), None, "left to the slow path");
}
