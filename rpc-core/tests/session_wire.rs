//! The session's bytes: golden vectors, and all cut or changed frames.

use rpc_core::session::{Revoked, Role, Session, SessionLimits};
use rpc_core::wire::{
    self, CallStreams, Frame, Hello, HowRead, ItemHead, Kind, Part, Parts, ReplyKind, RequestHead,
    ResponseHead, StreamWindow, WireError, WireId,
};
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;

const ID: WireId = WireId { slot: 0x0102_0304, generation: 0x0506_0708 };

fn body(bytes: &[u8]) -> OutBuf {
    let mut out = OutBuf::new();
    out.extend_from_slice(bytes);
    out
}

fn request(head: &RequestHead, metadata: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut frame = body(bytes);
    if !metadata.is_empty() {
        wire::prepend_metadata(&mut frame, metadata);
    }
    wire::prepend_request(&mut frame, head, !metadata.is_empty());
    frame.to_vec()
}

fn response_head(kind: ReplyKind, is_same: bool) -> ResponseHead {
    ResponseHead {
        id: ID,
        kind,
        read: if is_same { HowRead::Same } else { HowRead::Unsaid },
        has_parts: false,
        items: 0,
        is_reset: false,
        metadata_bytes: 0,
    }
}

fn response(kind: ReplyKind, is_same: bool, bytes: &[u8]) -> Vec<u8> {
    response_of(&response_head(kind, is_same), bytes)
}

fn response_of(head: &ResponseHead, bytes: &[u8]) -> Vec<u8> {
    let mut frame = body(bytes);
    wire::prepend_response(&mut frame, head);
    frame.to_vec()
}

const ITEM: ItemHead = ItemHead {
    id: ID,
    results: false,
    number: 0x3132_3334,
    has_parts: false,
    is_metadata: false,
    read: HowRead::Unsaid,
};

fn item(head: &ItemHead, bytes: &[u8]) -> Vec<u8> {
    let mut frame = body(bytes);
    wire::prepend_item(&mut frame, head);
    frame.to_vec()
}

const PLAIN: RequestHead = RequestHead {
    id: ID,
    method: 0xa1a2_a3a4,
    codec: 9,
    no_cancel: false,
    remaining_micros: None,
    signature: None,
    has_parts: false,
    streams: CallStreams::NONE,
};

/// Every kind of frame that is sent, with its bytes in hexadecimal and its head.
fn golden() -> Vec<(Vec<u8>, &'static str, Frame)> {
    let full = RequestHead {
        no_cancel: true,
        remaining_micros: Some(0x1112_1314_1516_1718),
        signature: Some(0x2122_2324_2526_2728),
        ..PLAIN
    };
    let old_hello = Hello {
        min_version: 1,
        max_version: 2,
        max_calls: 1024,
        features: 0x80,
        stream_window: None,
    };
    let window = StreamWindow { items: 16, bytes: 65_536 };
    let hello = Hello { features: 0x91, stream_window: Some(window), ..old_hello };
    let streamed = RequestHead {
        remaining_micros: Some(1),
        streams: CallStreams { arguments: true, results: true, idle_deadline: true },
        ..PLAIN
    };
    let status = ReplyKind::Status { code: 14, retryable: true, details_bytes: 0 };
    let detailed = ReplyKind::Status { code: 5, retryable: false, details_bytes: 2 };
    let plain_reply = response_head(ReplyKind::Ok, false);
    let counted = ResponseHead { items: 0x3132_3334, ..plain_reply };
    let beside = ResponseHead { metadata_bytes: 2, ..response_head(detailed, false) };
    let head = |kind, is_same| Frame::Response(response_head(kind, is_same));
    vec![
        (
            wire::hello(&old_hello).to_vec(),
            "01000000 00000000 00000000 00000000 0100 0200 00040000 8000000000000000",
            Frame::Hello(old_hello),
        ),
        (
            wire::hello(&hello).to_vec(),
            "01000000 00000000 00000000 00000000 0100 0200 00040000 9100000000000000 10000000 \
             00000100",
            Frame::Hello(hello),
        ),
        (
            request(&streamed, b"", b"args"),
            "02e10900 a4a3a2a1 04030201 08070605 0100000000000000 61726773",
            Frame::Request { head: streamed, metadata_bytes: 0 },
        ),
        (
            request(&PLAIN, b"", b"args"),
            "02000900 a4a3a2a1 04030201 08070605 61726773",
            Frame::Request { head: PLAIN, metadata_bytes: 0 },
        ),
        (
            request(&full, b"md", b"args"),
            "020f0900 a4a3a2a1 04030201 08070605 1817161514131211 2827262524232221 0200 6d64 61726773",
            Frame::Request { head: full, metadata_bytes: 2 },
        ),
        (
            response(ReplyKind::Ok, false, b"result"),
            "03000000 00000000 04030201 08070605 726573756c74",
            head(ReplyKind::Ok, false),
        ),
        (
            response(ReplyKind::UserError, true, b"e"),
            "03090000 00000000 04030201 08070605 65",
            head(ReplyKind::UserError, true),
        ),
        (
            response(status, false, "späť".as_bytes()),
            "03020e00 00000000 04030201 08070605 7370c3a4c5a5",
            head(status, false),
        ),
        (
            response(detailed, false, b"\xff\x00no"),
            "03040500 00000000 04030201 08070605 02000000 ff00 6e6f",
            head(detailed, false),
        ),
        (
            response_of(&counted, b"r"),
            "03200000 34333231 04030201 08070605 72",
            Frame::Response(counted),
        ),
        (
            response_of(&ResponseHead { kind: status, is_reset: true, ..counted }, b"no"),
            "03620e00 34333231 04030201 08070605 6e6f",
            Frame::Response(ResponseHead { kind: status, is_reset: true, ..counted }),
        ),
        (
            response_of(&ResponseHead { metadata_bytes: 2, ..plain_reply }, b"mdr"),
            "03800000 00000000 04030201 08070605 0200 6d64 72",
            Frame::Response(ResponseHead { metadata_bytes: 2, ..plain_reply }),
        ),
        (
            response_of(&beside, b"md\xff\x00no"),
            "03840500 00000000 04030201 08070605 02000000 0200 6d64 ff00 6e6f",
            Frame::Response(beside),
        ),
        (item(&ITEM, b"item"), "06000000 34333231 04030201 08070605 6974656d", Frame::Item(ITEM)),
        (
            item(&ItemHead { results: true, ..ITEM }, b"item"),
            "06010000 34333231 04030201 08070605 6974656d",
            Frame::Item(ItemHead { results: true, ..ITEM }),
        ),
        (
            item(&ItemHead { results: true, is_metadata: true, ..ITEM }, b"md"),
            "06050000 34333231 04030201 08070605 6d64",
            Frame::Item(ItemHead { results: true, is_metadata: true, ..ITEM }),
        ),
        (
            wire::half_close(ID, 0x3132_3334).to_vec(),
            "07000000 34333231 04030201 08070605",
            Frame::HalfClose { id: ID, items: 0x3132_3334 },
        ),
        (
            wire::reset(ID, 1).to_vec(),
            "08000100 00000000 04030201 08070605",
            Frame::Reset { id: ID, code: 1 },
        ),
        (
            wire::credit(ID, true, 0x3132_3334, 0x4142_4344_4546_4748).to_vec(),
            "09010000 34333231 04030201 08070605 4847464544434241",
            Frame::Credit {
                id: ID,
                results: true,
                items: 0x3132_3334,
                bytes: 0x4142_4344_4546_4748,
            },
        ),
        (
            wire::opened(ID, false, HowRead::Unsaid).to_vec(),
            "0b000000 00000000 04030201 08070605",
            Frame::Opened { id: ID, accepted: false, read: HowRead::Unsaid },
        ),
        (
            wire::stop(ID, true, 8).to_vec(),
            "0c010800 00000000 04030201 08070605",
            Frame::Stop { id: ID, results: true, code: 8 },
        ),
        (wire::cancel(ID).to_vec(), "04000000 00000000 04030201 08070605", Frame::Cancel(ID)),
        (wire::cancelled(ID).to_vec(), "05000000 00000000 04030201 08070605", Frame::Cancelled(ID)),
        (
            wire::go_away(false).to_vec(),
            "0a000000 00000000 00000000 00000000",
            Frame::GoAway { drained: false },
        ),
        (
            wire::go_away(true).to_vec(),
            "0a010000 00000000 00000000 00000000",
            Frame::GoAway { drained: true },
        ),
    ]
}

/// Parts of 3 and 4 GiB, at the start and behind the second byte, of a body of four.
const PARTS: [Part; 2] = [Part { at: 0, len: 3 }, Part { at: 2, len: 1 << 32 }];
const TAIL_BYTES: u64 = (1 << 32) + 3;
const PARTS_BLOCK: &str = "0200 00000000 0300000000000000 02000000 0000000001000000";

/// The kinds of frame that have a tail, as above.
fn golden_with_tail() -> Vec<(Vec<u8>, String, Frame)> {
    let parted = || {
        let mut frame = body(b"args");
        wire::prepend_parts(&mut frame, PARTS.into_iter());
        frame
    };
    let head = RequestHead { remaining_micros: Some(1), has_parts: true, ..PLAIN };
    let mut request = parted();
    wire::prepend_metadata(&mut request, b"md");
    wire::prepend_request(&mut request, &head, true);
    let reply = ResponseHead { has_parts: true, ..response_head(ReplyKind::Ok, true) };
    let mut response = parted();
    wire::prepend_response(&mut response, &reply);
    let with_metadata = ResponseHead { metadata_bytes: 2, ..reply };
    let mut beside = parted();
    beside.prepend(b"md");
    wire::prepend_response(&mut beside, &with_metadata);
    vec![
        (
            beside.to_vec(),
            format!("03980000 00000000 04030201 08070605 0200 6d64 {PARTS_BLOCK} 61726773"),
            Frame::Response(with_metadata),
        ),
        (
            request.to_vec(),
            format!(
                "02150900 a4a3a2a1 04030201 08070605 0100000000000000 0200 6d64 {PARTS_BLOCK} \
                 61726773"
            ),
            Frame::Request { head, metadata_bytes: 2 },
        ),
        (
            response.to_vec(),
            format!("03180000 00000000 04030201 08070605 {PARTS_BLOCK} 61726773"),
            Frame::Response(reply),
        ),
        (
            item(&ItemHead { has_parts: true, ..ITEM }, &parted()),
            format!("06100000 34333231 04030201 08070605 {PARTS_BLOCK} 61726773"),
            Frame::Item(ItemHead { has_parts: true, ..ITEM }),
        ),
    ]
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ascii"), 16);
    digits.chunks(2).map(|digits| pair(digits).expect("hexadecimal")).collect()
}

#[test]
fn frames_are_as_they_are_written_down() {
    for (bytes, expected, frame) in golden() {
        assert_eq!(bytes, hex(expected), "{frame:?}");
        let (parsed, head_bytes) = wire::parse(&bytes).expect("well-formed");
        assert_eq!(parsed, frame);
        assert!(head_bytes <= bytes.len());
    }
}

#[test]
fn frames_with_a_tail_match_the_document() {
    for (bytes, expected, frame) in golden_with_tail() {
        assert_eq!(bytes, hex(&expected), "{frame:?}");
        let (parsed, head_bytes) = wire::parse_with_tail(&bytes, TAIL_BYTES).expect("well-formed");
        assert_eq!(parsed, frame);
        let metadata_bytes = match frame {
            Frame::Request { metadata_bytes, .. } => metadata_bytes,
            Frame::Response(head) => usize::from(head.metadata_bytes),
            _ => 0,
        };
        let (parts, body) = Parts::split(&bytes[head_bytes + metadata_bytes..]);
        assert_eq!((parts.count(), parts.get(1), parts.get(2)), (2, Some(PARTS[1]), None));
        assert!(parts.iter().eq(PARTS));
        assert_eq!(body, b"args");
    }
}

#[test]
fn a_tail_that_is_not_understood_is_refused() {
    for (bytes, _, frame) in golden_with_tail() {
        for at in 0..bytes.len() {
            for value in 0..=u8::MAX {
                let changed = changed(&bytes, at, value);
                let Ok((frame, head)) = wire::parse_with_tail(&changed, TAIL_BYTES) else {
                    continue;
                };
                let again = encode_again(&frame, &changed[head..]).expect("no hello has a tail");
                assert_eq!(again, changed, "byte {at} = {value}");
            }
        }
        for len in 0..bytes.len() - 2 {
            wire::parse_with_tail(&bytes[..len], TAIL_BYTES).expect_err("a part is beyond the end");
        }
        let mismatch = |tail_bytes| WireError::TailMismatch { total: TAIL_BYTES, tail_bytes };
        for tail in [0, 1, TAIL_BYTES - 1, TAIL_BYTES + 1, u64::MAX] {
            assert_eq!(wire::parse_with_tail(&bytes, tail), Err(mismatch(tail)), "{frame:?}");
        }
    }
    for (bytes, _, frame) in golden() {
        let refused = wire::parse_with_tail(&bytes, 1).expect_err("it has no parts");
        assert!(matches!(refused, WireError::UnexpectedTail(_)), "{frame:?}: {refused}");
    }
}

#[test]
fn each_parts_rule_has_its_error() {
    let judged = |block: &[u8], tail_bytes| {
        let head = ResponseHead { has_parts: true, ..response_head(ReplyKind::Ok, false) };
        let mut frame = body(block);
        wire::prepend_response(&mut frame, &head);
        wire::parse_with_tail(&frame, tail_bytes).map(drop)
    };
    let block = |parts: &[Part]| {
        let mut block = body(b"args");
        wire::prepend_parts(&mut block, parts.iter().copied());
        block.to_vec()
    };
    let part = |at, len| Part { at, len };
    assert_eq!(judged(&block(&[part(4, 1), part(4, 1)]), 2), Ok(()));
    assert_eq!(judged(&[1], 1), Err(WireError::PartsTruncated));
    assert_eq!(judged(&[2, 0, 0, 0], 1), Err(WireError::PartsTruncated));
    assert_eq!(judged(&[0, 0], 0), Err(WireError::EmptyBlock(Kind::Response)));
    assert_eq!(judged(&[1, 16], 1), Err(WireError::TooManyParts(4097)));
    assert_eq!(judged(&block(&[part(0, 0)]), 0), Err(WireError::EmptyPart));
    let order = block(&[part(1, 1), part(0, 1)]);
    assert_eq!(judged(&order, 2), Err(WireError::PartsOutOfOrder));
    let beyond = WireError::PartBeyondBody { at: 5, body_bytes: 4 };
    assert_eq!(judged(&block(&[part(5, 1)]), 1), Err(beyond));
    let huge = block(&[part(0, u64::MAX), part(0, u64::MAX)]);
    let mismatch = WireError::TailMismatch { total: u64::MAX, tail_bytes: 5 };
    assert_eq!(judged(&huge, 5), Err(mismatch));
    let mut status = body(&block(&[part(0, 1)]));
    let kind = ReplyKind::Status { code: 5, retryable: false, details_bytes: 0 };
    let head = ResponseHead { has_parts: true, ..response_head(kind, false) };
    wire::prepend_response(&mut status, &head);
    let conflict = WireError::ResponseFlagsConflict { flags: 0x10, code: 5 };
    assert_eq!(wire::parse_with_tail(&status, 1).map(drop), Err(conflict));
}

/// Encodes a parsed head again.
fn encode_again(frame: &Frame, rest: &[u8]) -> Option<Vec<u8>> {
    Some(match frame {
        Frame::Request { head, metadata_bytes: 0 } => request(head, b"", rest),
        Frame::Request { head, metadata_bytes } => {
            request(head, &rest[..*metadata_bytes], &rest[*metadata_bytes..])
        }
        Frame::Response(head) => {
            let mut frame = body(rest);
            wire::prepend_response(&mut frame, head);
            frame.to_vec()
        }
        Frame::Cancel(id) => wire::cancel(*id).to_vec(),
        Frame::Cancelled(id) => wire::cancelled(*id).to_vec(),
        Frame::GoAway { drained } => wire::go_away(*drained).to_vec(),
        Frame::Item(head) => item(head, rest),
        Frame::HalfClose { id, items } => wire::half_close(*id, *items).to_vec(),
        Frame::Reset { id, code } => wire::reset(*id, *code).to_vec(),
        Frame::Credit { id, results, items, bytes } => {
            wire::credit(*id, *results, *items, *bytes).to_vec()
        }
        Frame::Opened { id, accepted, read } => wire::opened(*id, *accepted, *read).to_vec(),
        Frame::Stop { id, results, code } => wire::stop(*id, *results, *code).to_vec(),
        Frame::Hello(_) => return None,
    })
}

#[test]
fn parsed_frames_encode_to_the_same_bytes() {
    for (bytes, _, _) in golden() {
        for at in 0..bytes.len() {
            for value in 0..=u8::MAX {
                let mut changed = bytes.clone();
                changed[at] = value;
                let Ok((frame, head_bytes)) = wire::parse(&changed) else { continue };
                let Some(again) = encode_again(&frame, &changed[head_bytes..]) else { continue };
                assert_eq!(again, changed, "byte {at} = {value}");
            }
        }
    }
}

/// The fast paths agree with `parse` on the frames that they read, and read the plain golden
/// frames.
#[test]
fn fast_paths_agree_with_parse() {
    let mut taken = 0;
    for (bytes, _, _) in golden() {
        for at in 0..bytes.len() {
            for value in 0..=u8::MAX {
                let mut changed = bytes.clone();
                changed[at] = value;
                let request = wire::plain_request(&changed);
                let response = wire::plain_response(&changed);
                let short = match (request, response) {
                    (Some(head), None) => Frame::Request { head, metadata_bytes: 0 },
                    (None, Some(head)) => Frame::Response(head),
                    (None, None) => continue,
                    both => panic!("{both:?}"),
                };
                assert_eq!(wire::parse(&changed), Ok((short, wire::HEADER_BYTES)));
                taken += 1;
            }
        }
    }
    assert!(taken > 1000, "{taken}");
    let plain = request(&PLAIN, b"", b"body");
    assert_eq!(wire::plain_request(&plain), Some(PLAIN));
    assert_eq!(wire::plain_request(&changed(&plain, 1, 1)), None);
    assert!(wire::plain_response(&response(ReplyKind::Ok, false, b"")).is_some());
    assert_eq!(wire::plain_response(&response(ReplyKind::Ok, true, b"")), None);
    for len in 0..wire::HEADER_BYTES {
        assert_eq!(wire::plain_request(&plain[..len]), None);
        assert_eq!(wire::plain_response(&plain[..len]), None);
    }
}

#[test]
fn a_cut_frame_is_refused_or_shorter() {
    for (bytes, _, frame) in golden() {
        let (_, head_bytes) = wire::parse(&bytes).expect("well-formed");
        let metadata = match frame {
            Frame::Request { metadata_bytes, .. } => metadata_bytes,
            Frame::Response(ResponseHead {
                kind: ReplyKind::Status { details_bytes, .. },
                metadata_bytes,
                ..
            }) => details_bytes as usize + usize::from(metadata_bytes),
            Frame::Response(head) => usize::from(head.metadata_bytes),
            // Some of it, as its length is not told.
            Frame::Item(head) => usize::from(head.is_metadata),
            _ => 0,
        };
        for len in 0..bytes.len() {
            let cut = wire::parse(&bytes[..len]);
            let has_head = len >= head_bytes + metadata;
            match cut {
                Ok((parsed, _)) => assert!(has_head && parsed == frame, "{len} of {frame:?}"),
                Err(WireError::StatusTextNotUtf8) => assert!(has_head),
                Err(_) => assert!(len < head_bytes + metadata, "{len} of {frame:?}"),
            }
        }
    }
}

fn error(bytes: &[u8]) -> WireError {
    wire::parse(bytes).expect_err("breaks a rule")
}

fn changed(bytes: &[u8], at: usize, value: u8) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] = value;
    bytes
}

#[test]
fn credentials_follow_the_fields_of_a_hello() {
    let plain =
        Hello { min_version: 1, max_version: 2, max_calls: 1024, features: 8, stream_window: None };
    let window = StreamWindow { items: 16, bytes: 65_536 };
    let streams = Hello { features: 9, stream_window: Some(window), ..plain };
    for (hello, golden) in [
        (plain, "0100 0200 00040000 0800000000000000 0300 746f6b"),
        (streams, "0100 0200 00040000 0900000000000000 10000000 00000100 0300 746f6b"),
    ] {
        let mut frame = wire::hello(&hello);
        wire::append_credentials(&mut frame, b"tok");
        let header = "01000000 00000000 00000000 00000000";
        assert_eq!(&*frame, [hex(header), hex(golden)].concat());
        let (parsed, head_bytes) = wire::parse(&frame).expect("a good hello");
        assert_eq!((parsed, head_bytes), (Frame::Hello(hello), frame.len()));
        assert_eq!(wire::credentials(&hello, &frame), Ok(Some(&b"tok"[..])));
        let later = [&frame[..], b"of a later version"].concat();
        assert_eq!(wire::credentials(&hello, &later), Ok(Some(&b"tok"[..])));
        for cut in 1..=5 {
            let cut = &frame[..frame.len() - cut];
            assert_eq!(wire::credentials(&hello, cut), Err(WireError::HelloTruncated));
        }
        let old = Hello { features: hello.features & !8, ..hello };
        assert_eq!(wire::credentials(&old, &frame), Ok(None));
        let mut long = wire::hello(&hello);
        long.extend_from_slice(&[0x01, 0x20]);
        long.extend_from_slice(&[7; 0x2001]);
        assert_eq!(wire::credentials(&hello, &long), Err(WireError::CredentialsTooLong(0x2001)));
    }
}

#[test]
fn each_broken_rule_has_its_own_error() {
    let plain = request(&PLAIN, b"", b"");
    let ok = response(ReplyKind::Ok, false, b"");
    let cancel = wire::cancel(ID).to_vec();
    let hello =
        Hello { min_version: 1, max_version: 1, max_calls: 1, features: 0, stream_window: None };
    let hello = wire::hello(&hello).to_vec();
    let zero = |bytes: &[u8]| [&bytes[..12], &[0; 4][..], &bytes[16..]].concat();

    assert_eq!(error(&plain[..15]), WireError::HeaderTruncated(15));
    assert_eq!(error(&changed(&plain, 0, 0)), WireError::UnknownKind(0));
    assert_eq!(error(&changed(&plain, 0, 13)), WireError::UnknownKind(13));
    let flags = |kind, flags| WireError::UnknownFlags { kind, flags };
    let metadata = changed(&ok, 1, 0x80);
    assert_eq!(error(&metadata), WireError::MetadataTruncated);
    let long = [&metadata[..], &[3, 0, 1, 2]].concat();
    assert_eq!(error(&long), WireError::MetadataTruncated);
    let empty = [&metadata[..], &[0, 0]].concat();
    assert_eq!(error(&empty), WireError::EmptyBlock(Kind::Response));
    assert_eq!(error(&changed(&plain, 1, 0x10)), WireError::PartsTruncated);
    assert_eq!(error(&changed(&cancel, 1, 1)), flags(Kind::Cancel, 1));
    assert_eq!(error(&changed(&plain, 3, 1)), WireError::UnusedFieldSet(Kind::Request));
    assert_eq!(error(&changed(&ok, 4, 1)), WireError::UnusedFieldSet(Kind::Response));
    assert_eq!(error(&changed(&cancel, 2, 1)), WireError::UnusedFieldSet(Kind::Cancel));
    assert_eq!(error(&changed(&hello, 8, 1)), WireError::UnusedFieldSet(Kind::Hello));
    assert_eq!(error(&zero(&plain)), WireError::ZeroGeneration(Kind::Request));
    assert_eq!(error(&zero(&ok)), WireError::ZeroGeneration(Kind::Response));
    assert_eq!(error(&zero(&cancel)), WireError::ZeroGeneration(Kind::Cancel));
    assert_eq!(error(&changed(&plain, 1, 1)), WireError::DeadlineTruncated);
    assert_eq!(error(&changed(&plain, 1, 2)), WireError::SignatureTruncated);
    assert_eq!(error(&changed(&plain, 1, 4)), WireError::MetadataTruncated);
    let metadata = [&changed(&plain, 1, 4)[..], &[3, 0, 1, 2]].concat();
    assert_eq!(error(&metadata), WireError::MetadataTruncated);
    let empty = [&changed(&plain, 1, 4)[..], &[0, 0]].concat();
    assert_eq!(error(&empty), WireError::EmptyBlock(Kind::Request));
    let empty = [&changed(&changed(&ok, 1, 4), 2, 3)[..], &[0; 4]].concat();
    assert_eq!(error(&empty), WireError::EmptyBlock(Kind::Response));
    assert_eq!(error(&changed(&ok, 2, 17)), WireError::UnknownStatus(17));
    let conflict = |flags, code| WireError::ResponseFlagsConflict { flags, code };
    assert_eq!(error(&changed(&ok, 1, 2)), conflict(2, 0));
    assert_eq!(error(&changed(&changed(&ok, 1, 1), 2, 3)), conflict(1, 3));
    let detailed = changed(&changed(&ok, 1, 4), 2, 3);
    assert_eq!(error(&detailed), WireError::DetailsTruncated);
    let huge = [&detailed[..], &[0xff; 4]].concat();
    assert_eq!(error(&huge), WireError::DetailsTruncated);
    let text = [&changed(&ok, 2, 3)[..], &[0xc3]].concat();
    assert_eq!(error(&text), WireError::StatusTextNotUtf8);
    let trailing = [&cancel[..], &[0]].concat();
    assert_eq!(error(&trailing), WireError::TrailingBytes { kind: Kind::Cancel, count: 1 });
    assert_eq!(error(&hello[..31]), WireError::HelloTruncated);
    let empty = WireError::HelloVersionRange { min: 2, max: 1 };
    assert_eq!(error(&changed(&hello, 16, 2)), empty);
    let longer = [&hello[..], &[1, 2, 3]].concat();
    let (_, head_bytes) = wire::parse(&longer).expect("a later version's hello");
    assert_eq!(head_bytes, longer.len());
}

/// For every changed byte in every frame, a session accepts it or names a rule.
#[test]
fn a_session_survives_mutated_frames() {
    let hello = golden().remove(0).0;
    let mut refused = 0;
    for (bytes, _, _) in golden() {
        let cuts = (0..bytes.len()).map(|len| bytes[..len].to_vec());
        let changes = (0..bytes.len())
            .flat_map(|at| (0..=u8::MAX).map(move |value| (at, value)))
            .map(|(at, value)| changed(&bytes, at, value));
        for frame in cuts.chain(changes) {
            let mut session: Session<(), ()> = Session::new(Role::Server, SessionLimits::default());
            let now = std::time::Instant::now;
            let mut late = |_| Revoked::TooLate;
            let mut take = |bytes| session.on_message(Message::copied(bytes), now, &mut late);
            take(&hello).expect("a good hello");
            refused += u32::from(take(&frame).is_err());
            while session.poll_event().is_some() {}
            while session.poll_transmit(now).is_some() {}
        }
    }
    assert!(refused > 1000);
}
