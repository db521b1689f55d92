use proptest::prelude::*;

use super::*;
use crate::protocol::arena::{Advertisement, ArenaBlock, ArenaError, Extent, Extents};
use crate::protocol::credit::CreditError;

const ALL: Features = Features::ARENA.with(Features::REPLY_SLOTS);

const GRANT: Grant = Grant { data: 0x0102, ack: 0x0304 };
const SEGMENT: Segment = Segment {
    number: 0x1122_3344,
    last: true,
    abort: false,
    head_end: false,
    offset: 0x0102_0304_0506,
    total: 9,
};

/// Every kind of frame, byte by byte as in `docs/wire-format.md`, with what it says.
fn golden() -> Vec<(&'static str, Vec<u8>, Option<u32>, Frame)> {
    let segment = [
        &[1, 1, 0x02, 0x01, 0x04, 0x03, 0, 0][..],
        &[0x44, 0x33, 0x22, 0x11, 1, 0, 0, 0],
        &[6, 5, 4, 3, 2, 1, 0, 0],
        &[9, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    let mut abort = segment.clone();
    abort[12] = 2;
    let close = [&[6, 0, 0, 0, 0, 0, 0, 0][..], &[1, 0, 3, 0], b"bye"].concat();
    let segment_block = &segment[8..];
    let extents = |list: &[(u16, u16)]| {
        let list: Vec<_> =
            list.iter().map(|(first, count)| Extent { first: *first, count: *count }).collect();
        Extents::from_slice(&list).unwrap()
    };
    #[rustfmt::skip]
    let written = [
        &[1, 1, 0x02, 0x01, 0x04, 0x03, 1, 2][..],
        segment_block,
        &[9, 0, 3, 0],
        &[0, 0, 2, 0, 0, 0, 0, 0, 1, 0, 1, 0, 5, 0, 1, 0],
    ]
    .concat();
    let arena = Advertisement {
        arena: 2,
        first_chunk: 64,
        chunks: 32,
        log2_chunk: 16,
        rkey: 0x0708_090a,
        address: 0x1112_1314_1516_1718,
    };
    #[rustfmt::skip]
    let release = vec![
        3, 0x22, 2, 1, 4, 3, 1, 0,
        0, 16, 2, 0, 64, 0, 32, 0, 10, 9, 8, 7, 0, 0, 0, 0,
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
        7, 0, 8, 0,
    ];
    #[rustfmt::skip]
    let asking = vec![
        1, 4, 2, 1, 4, 3, 0, 0,
        5, 0, 0, 0, 10, 9, 8, 7,
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 0, 0, 0x10, 0, 0, 0, 0, 0,
    ];
    #[rustfmt::skip]
    let placed = [
        &[1, 0x19, 2, 1, 4, 3, 0, 0][..],
        segment_block,
        &[5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0],
        &[2, 0, 0, 0, 5, 0, 0, 0, 7, 0, 0, 0],
    ]
    .concat();
    vec![
        (
            "slot advertised",
            asking,
            None,
            Frame::Blocks(
                GRANT,
                Box::new(Blocks {
                    slot: Some(SlotBlock {
                        slot: 5,
                        rkey: 0x0708_090a,
                        address: 0x1112_1314_1516_1718,
                        len: 1 << 20,
                    }),
                    ..Blocks::default()
                }),
            ),
        ),
        (
            "placed in a slot, and done with two",
            placed,
            None,
            Frame::Blocks(
                GRANT,
                Box::new(Blocks {
                    segment: Some(SEGMENT),
                    placed: Some(Placed { slot: 5, bytes: 1 << 16 }),
                    done: vec![5, 7],
                    ..Blocks::default()
                }),
            ),
        ),
        (
            "written segment with releases",
            written,
            None,
            Frame::Blocks(
                GRANT,
                Box::new(Blocks {
                    segment: Some(SEGMENT),
                    releases: extents(&[(9, 3)]),
                    written: Some(Written { bytes: 1 << 17, extents: extents(&[(1, 1), (5, 1)]) }),
                    ..Blocks::default()
                }),
            ),
        ),
        (
            "data with releases",
            vec![1, 0, 2, 1, 4, 3, 1, 0, 9, 0, 3, 0],
            None,
            Frame::Blocks(
                GRANT,
                Box::new(Blocks { releases: extents(&[(9, 3)]), ..Blocks::default() }),
            ),
        ),
        (
            "release",
            release,
            None,
            Frame::Release(
                GRANT,
                Box::new(Blocks {
                    arena: Some(ArenaBlock::Advertise(arena)),
                    starved: true,
                    releases: extents(&[(7, 8)]),
                    ..Blocks::default()
                }),
            ),
        ),
        (
            "how far a stream was read",
            [
                &[3, 0x80, 2, 1, 4, 3, 0, 0][..],
                &[5, 0, 0, 0, 0, 0, 0, 0],
                &[0, 0, 1, 0, 0, 0, 0, 0],
            ]
            .concat(),
            None,
            Frame::Release(
                GRANT,
                Box::new(Blocks {
                    max_stream_data: Some(MaxStreamData { number: 5, bytes: 1 << 16 }),
                    ..Blocks::default()
                }),
            ),
        ),
        ("data", vec![1, 0, 2, 1, 4, 3, 0, 0], None, Frame::Data(GRANT)),
        ("segment", segment, None, Frame::Segment(GRANT, SEGMENT)),
        (
            "abort",
            abort,
            None,
            Frame::Segment(GRANT, Segment { last: false, abort: true, ..SEGMENT }),
        ),
        ("ack", vec![2, 0, 2, 1, 4, 3, 0, 0], None, Frame::Ack(GRANT)),
        ("ack imm", vec![2, 0, 2, 1, 4, 3, 0, 0], Some(0x0304_0102), Frame::Ack(GRANT)),
        ("ping", vec![4, 0, 2, 1, 4, 3, 0, 0], None, Frame::Ping(GRANT)),
        ("pong", vec![5, 0, 2, 1, 4, 3, 0, 0], None, Frame::Pong(GRANT)),
        ("close", close, None, Frame::Close(CloseReason::new(CloseCode::ShuttingDown, "bye"))),
    ]
}

#[test]
fn golden_vectors_are_read() {
    for (name, bytes, imm, frame) in golden() {
        let (read, payload_at) = parse(&bytes, imm, ALL).unwrap();
        assert_eq!(read, frame, "{name}");
        assert_eq!(payload_at, bytes.len(), "{name}");
    }
}

#[test]
fn golden_vectors_are_written() {
    for (name, bytes, _, frame) in golden() {
        let written = match &frame {
            Frame::Data(grant) => header(Kind::Data, *grant).to_vec(),
            Frame::Segment(grant, segment) => segment_header(*grant, *segment).to_vec(),
            Frame::Blocks(grant, blocks) => blocks.to_prefix(Kind::Data, *grant).to_vec(),
            Frame::Release(grant, blocks) => blocks.to_prefix(Kind::Release, *grant).to_vec(),
            Frame::Ack(grant) => header(Kind::Ack, *grant).to_vec(),
            Frame::Ping(grant) => header(Kind::Ping, *grant).to_vec(),
            Frame::Pong(grant) => header(Kind::Pong, *grant).to_vec(),
            Frame::Close(reason) => close_frame(reason).to_vec(),
        };
        assert_eq!(written, bytes, "{name}");
    }
}

#[test]
fn the_immediate_of_an_ack_is_its_payload() {
    let bytes = header(Kind::Ack, GRANT);
    assert_eq!(bytes[2..6], GRANT.to_imm().to_le_bytes());
}

#[test]
fn every_truncation_of_a_golden_vector_is_refused() {
    for (name, bytes, imm, _) in golden() {
        for len in 0..bytes.len() {
            let error = parse(&bytes[..len], imm, ALL).map(|_| ()).unwrap_err();
            assert!(matches!(error, ProtocolError::Truncated { .. }), "{name} {len}: {error}");
        }
    }
}

#[test]
fn corrupted_frame_parses_or_gives_named_error() {
    for (_, bytes, imm, _) in golden() {
        for at in 0..bytes.len() {
            for value in 0..=u8::MAX {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                if let Err(error) = parse(&bytes, imm, ALL) {
                    assert!(!error.to_string().is_empty());
                }
            }
        }
    }
}

#[test]
fn each_broken_rule_has_its_error() {
    use ProtocolError as E;
    let with = |at: usize, value, bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[at] = value;
        bytes
    };
    let data = header(Kind::Data, GRANT).to_vec();
    let ping = header(Kind::Ping, GRANT).to_vec();
    let segment = segment_header(GRANT, SEGMENT).to_vec();
    let close = close_frame(&CloseReason::new(CloseCode::Normal, "bye")).to_vec();
    let long = [&ping[..], &[0]].concat();
    let long_close = [&close[..], &[0]].concat();
    let not_agreed = E::NotAgreed;
    for (bytes, imm, error) in [
        (with(0, 0, &data), None, E::UnknownKind(0)),
        (with(0, 9, &data), None, E::UnknownKind(9)),
        (with(0, 7, &data), None, E::LockedOnly(Kind::Handshake)),
        (with(0, 8, &data), None, E::LockedOnly(Kind::Unlocked)),
        (with(0, 3, &data), None, not_agreed("Release frame")),
        (with(1, 0x80, &data), None, not_agreed("MAX_STREAM_DATA block")),
        (with(1, 0x02, &data), None, not_agreed("ARENA block")),
        (with(1, 0x04, &data), None, not_agreed("SLOT block")),
        (with(1, 0x08, &data), None, not_agreed("PLACED block")),
        (with(1, 0x10, &data), None, not_agreed("DONE block")),
        (with(1, 0x20, &data), None, not_agreed("STARVED flag")),
        (with(1, 0x40, &data), None, not_agreed("CRC32C block")),
        (with(6, 1, &data), None, not_agreed("released extents")),
        (with(7, 1, &data), None, not_agreed("arena extents")),
        (with(1, 1, &ping), None, E::FlagsOnControl { kind: Kind::Ping, flags: 1 }),
        (with(6, 1, &ping), None, E::CountsOnControl(Kind::Ping)),
        (with(7, 1, &ping), None, E::CountsOnControl(Kind::Ping)),
        (long, None, E::TrailingBytes { kind: Kind::Ping, extra: 1 }),
        (data, Some(0), E::UnexpectedImmediate(Kind::Data)),
        (ping, Some(0), E::UnexpectedImmediate(Kind::Ping)),
        (
            header(Kind::Ack, GRANT).to_vec(),
            Some(1),
            E::ImmediateMismatch { immediate: 1, payload: GRANT.to_imm() },
        ),
        (with(12, 8, &segment), None, E::UnknownSegmentFlags(8)),
        (with(15, 1, &segment), None, E::UnknownSegmentFlags(0x0100_0001)),
        (with(12, 3, &segment), None, E::LastAndAbort),
        (with(12, 6, &segment), None, E::LastAndAbort),
        (with(2, 1, &close), None, E::CloseWithGrant),
        (with(10, 101, &close), None, E::CloseTextTooLong { len: 101, max: 100 }),
        (with(10, 4, &close), None, E::Truncated { len: 15, need: 16 }),
        (with(10, 2, &close), None, E::TrailingBytes { kind: Kind::Close, extra: 1 }),
        (long_close, None, E::TrailingBytes { kind: Kind::Close, extra: 1 }),
        (with(11, 1, &close), None, E::CloseReserved(1)),
        (with(12, 0xff, &close), None, E::CloseTextNotUtf8),
    ] {
        assert_eq!(parse(&bytes, imm, Features::NONE).map(|_| ()), Err(error));
    }
}

#[test]
fn each_broken_rule_of_blocks_has_its_error() {
    use ProtocolError as E;
    let release = |flags, releases, extents, rest: &[u8]| {
        [&[3, flags, 0, 0, 0, 0, releases, extents][..], rest].concat()
    };
    let data = |flags, releases, extents, rest: &[u8]| {
        [&[1, flags, 0, 0, 0, 0, releases, extents][..], rest].concat()
    };
    let segment = &segment_header(GRANT, SEGMENT)[8..];
    let extent = [0; 12];
    for (bytes, error) in [
        (release(0, 0, 0, &[]), E::EmptyRelease),
        (release(0x20, 0, 0, &[1]), E::TrailingBytes { kind: Kind::Release, extra: 1 }),
        (release(0x21, 0, 0, segment), E::MessageInRelease),
        (release(0x20, 0, 1, &extent), E::MessageInRelease),
        (release(0x80, 0, 0, &[]), E::Truncated { len: 8, need: 12 }),
        (release(0x80, 0, 0, &[1; 16]), E::ReservedNotZero("MAX_STREAM_DATA")),
        (data(0x80, 0, 0, &[0; 16]), E::StreamDataBesideMessage),
        (release(0x04, 0, 0, &[0; 24]), E::MessageInRelease),
        (release(0x04, 0, 0, &[]), E::Truncated { len: 8, need: 12 }),
        (release(0x10, 0, 0, &[0, 0, 0, 0]), E::DoneCount(0)),
        (release(0x10, 0, 0, &[2, 0, 0, 0, 1, 0, 0, 0]), E::Truncated { len: 16, need: 20 }),
        (
            data(0x08, 0, 0, &[0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            E::ReservedNotZero("PLACED"),
        ),
        (release(0, 17, 0, &[0; 68]), E::Arena(ArenaError::TooManyExtents(17))),
        (release(0, 2, 0, &[0; 7]), E::Truncated { len: 15, need: 16 }),
        (release(0x02, 0, 0, &[9; 24]), E::Arena(ArenaError::UnknownOperation(9))),
        (data(0, 0, 1, &extent), E::WrittenWithoutSegment),
        (data(0, 0, 17, &[0; 76]), E::Arena(ArenaError::TooManyExtents(17))),
        (data(0, 0, 1, &[0; 11]), E::Truncated { len: 19, need: 20 }),
        (data(0x40, 0, 0, &[0; 4]), E::NotAgreed("CRC32C block")),
    ] {
        assert_eq!(parse(&bytes, None, ALL).map(|_| ()), Err(error));
    }
}

#[test]
fn a_long_close_text_is_cut_between_characters() {
    let text = format!("{}ß", "x".repeat(99));
    let frame = close_frame(&CloseReason::new(CloseCode::Other(77), text));
    assert_eq!(frame.len(), CONTROL_FRAME_MAX_BYTES - 1);
    let (Frame::Close(reason), _) = parse(&frame, None, ALL).unwrap() else {
        panic!("not a Close")
    };
    assert_eq!(reason, CloseReason::new(CloseCode::Other(77), "x".repeat(99)));
    assert_eq!(reason.to_string(), format!("Other(77): {}", "x".repeat(99)));
}

#[test]
fn every_close_code_survives_the_wire() {
    for code in 0..=u16::MAX {
        assert_eq!(CloseCode::from_wire(code).to_wire(), code);
    }
}

#[test]
fn a_credit_error_reads_like_one() {
    let error = ProtocolError::from(CreditError::EmptyAck);
    assert_eq!(error.to_string(), CreditError::EmptyAck.to_string());
}

proptest! {
    #[test]
    fn random_bytes_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        kind in 0_u8..8,
        imm in any::<Option<u32>>(),
    ) {
        let _refused = parse(&bytes, imm, ALL).is_err();
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        if let Ok((_, payload_at)) = parse(&bytes, imm, ALL) {
            prop_assert!(payload_at <= bytes.len());
        }
    }
}

/// A table of `docs/wire-format.md`: a sealed frame, opened.
#[test]
fn tags_block_is_the_golden_vector() {
    let sealed = ALL.with(Features::RECORDS);
    let segment =
        Segment { number: 1, last: true, abort: false, head_end: true, offset: 0, total: 70_001 };
    let extents = Extents::from_slice(&[Extent { first: 2, count: 2 }]).unwrap();
    let tags = Tags { epoch: 3, first: 0x0102, tags: vec![[0xaa; 16], [0xbb; 16]] };
    let blocks = Blocks {
        segment: Some(segment),
        written: Some(Written { bytes: 70_000, extents }),
        tags: Some(Box::new(tags)),
        ..Blocks::default()
    };
    #[rustfmt::skip]
    let golden = [
        &[1, 1, 2, 1, 4, 3, 0, 1][..],
        &[1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x71, 0x11, 1, 0, 0, 0, 0, 0],
        &[0x70, 0x11, 1, 0, 0, 0, 0, 0, 2, 0, 2, 0],
        &[3, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0],
        &[0xaa; 16],
        &[0xbb; 16],
        b"h",
    ]
    .concat();
    let mut frame = blocks.to_prefix(Kind::Data, GRANT).to_vec();
    frame.extend_from_slice(b"h");
    assert_eq!(frame, golden);
    let read = parse(&golden, None, sealed).unwrap();
    assert_eq!(read, (Frame::Blocks(GRANT, Box::new(blocks)), golden.len() - 1));
    for len in 0..golden.len() - 1 {
        let error = parse(&golden[..len], None, sealed).map(drop).unwrap_err();
        assert!(matches!(error, ProtocolError::Truncated { .. }), "{len}: {error}");
    }
    for at in 0..golden.len() {
        let mut changed = golden.clone();
        changed[at] ^= 0x80;
        let _named_or_read = parse(&changed, None, sealed).map_err(|error| error.to_string());
    }
}
