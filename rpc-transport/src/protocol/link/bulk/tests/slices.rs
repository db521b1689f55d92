//! Small messages leave between the slices of a large one.

use super::*;

/// What an end posts next: nothing, a kind of frame, or `None` for WRITEs whose frame comes later.
fn next_kind(end: &mut Link) -> Option<Option<u8>> {
    let next = end.poll_transmit().map(|transmit| {
        (transmit.frame.parts().0.first().copied(), transmit.signaled, transmit.token)
    });
    let Some((kind, signaled, token)) = next else {
        // Dropping freed memory may give the end something to tell the peer.
        return if end.take_freed().is_some() { next_kind(end) } else { None };
    };
    if signaled {
        end.on_send_completion(token);
    }
    Some(kind)
}

/// An end whose peer has an arena of so many chunks.
fn writer(config: &LinkConfig, chunks: u16) -> Link {
    let mut end = end_with(config, Instant::now());
    let (arena, first_chunk, log2_chunk, rkey, address) = (0, 0, 12, 9, 1 << 20);
    let arena = Advertisement { arena, first_chunk, chunks, log2_chunk, rkey, address };
    let blocks = Blocks { arena: Some(ArenaBlock::Advertise(arena)), ..Blocks::default() };
    let _none = receive(&mut end, &frame(Kind::Release, &blocks, &[])).unwrap();
    end
}

const SLICES: SliceBytes = SliceBytes { beside_small: 1000, alone: 4000 };
const DATA: Option<Option<u8>> = Some(Some(Kind::Data as u8));
const SLICE: Option<Option<u8>> = Some(None);

#[test]
fn small_messages_leave_between_slices() {
    let mut end = writer(&config(), 8);
    end.set_slices(SLICES);
    let mut large = out(1, 10);
    large.push_tail(OutPart::shared(Arc::new(pattern(1, 7500))));
    end.submit(Lane::Small, 1, large).unwrap();
    assert_eq!(next_kind(&mut end), SLICE, "4000 bytes of 7500");
    end.submit(Lane::Small, 2, out(2, 10)).unwrap();
    end.set_turn(false);
    assert_eq!(next_kind(&mut end), DATA, "the small one first");
    assert_eq!(next_kind(&mut end), None, "bulk waits for its turn");
    assert!(end.awaits_turn());
    end.set_turn(true);
    assert_eq!([0; 3].map(|_| next_kind(&mut end)), [SLICE; 3], "1000 bytes each");
    assert!(!end.is_idle());
    assert_eq!(next_kind(&mut end), DATA, "the frame leaves with the last 500");
    assert_eq!(next_kind(&mut end), None);
    assert!(end.is_idle() && !end.awaits_turn());
}

/// The segments of two large messages of two usual ones each, the second of which waits for the
/// first.
fn segments_of_two(slices: SliceBytes, beside_small: bool) -> usize {
    let config = config().arena_segment_bytes(4096);
    let mut end = writer(&config, 32);
    end.set_slices(slices);
    if beside_small {
        end.submit(Lane::Small, 0, out(0, 10)).unwrap();
        assert_eq!(next_kind(&mut end), DATA);
    }
    for tag in 1..=2 {
        let mut large = out(tag, 10);
        large.push_tail(OutPart::shared(Arc::new(pattern(tag, 8000))));
        end.submit(Lane::Small, tag, large).unwrap();
    }
    let frames = std::iter::from_fn(|| next_kind(&mut end)).filter(Option::is_some).count();
    assert!(end.is_idle());
    frames
}

#[test]
fn segment_is_long_if_only_bulk_waits() {
    assert_eq!(segments_of_two(SliceBytes::COPIED, false), 1 + 2);
    assert_eq!(segments_of_two(SliceBytes::COPIED, true), 2 + 2);
    assert_eq!(segments_of_two(SliceBytes::WHOLE, false), 2 + 2);
}

#[test]
fn slot_is_done_after_the_last_slice() {
    let offer = Offer::new(&config(), Features::ARENA.with(Features::REPLY_SLOTS), 7);
    let agreed = offer.agree_as_server(&offer).unwrap();
    let mut end = Link::new(&config(), &agreed, Instant::now()).unwrap();
    end.set_slices(SLICES);
    let slot = Some(SlotBlock { slot: 3, rkey: 1, address: 1 << 20, len: 8000 });
    let ask = frame(Kind::Data, &Blocks { slot, ..Blocks::default() }, b"ask");
    let Ok(Inbound::Message { slot: Some(slot), .. }) = end.on_frame(Instant::now(), None, &ask)
    else {
        panic!("no message with a slot")
    };
    let mut answer = out(1, 10);
    answer.push_tail(OutPart::shared(Arc::new(pattern(1, 7500))));
    answer.place_in(slot);
    end.submit(Lane::Small, 1, answer).unwrap();
    let kinds: Vec<_> = std::iter::from_fn(|| next_kind(&mut end)).map(Some).collect();
    assert_eq!(kinds, [SLICE, DATA, Some(Some(Kind::Release as u8))]);
}
