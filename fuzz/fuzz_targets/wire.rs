//! Frames of the session, with and without a tail.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rpc_core::wire::{self, Frame, Parts};
use rpc_transport::message::outgoing::OutBuf;

fuzz_target!(|data: &[u8]| {
    let Some((tail, bytes)) = data.split_first_chunk::<2>() else { return };
    let tail = u64::from(u16::from_le_bytes(*tail));
    let read = wire::parse_with_tail(bytes, tail);
    if tail == 0 {
        assert_eq!(read, wire::parse(bytes));
        // The short parsers return what the general one returns.
        let plain =
            wire::plain_request(bytes)
                .map(|head| (Frame::Request { head, metadata_bytes: 0 }, wire::HEADER_BYTES))
                .or(wire::plain_response(bytes)
                    .map(|head| (Frame::Response(head), wire::HEADER_BYTES)));
        if let Some(plain) = plain {
            assert_eq!(read, Ok(plain));
        }
    }
    let Ok((frame, len)) = read else { return };
    assert!(len <= bytes.len(), "{frame:?} is longer than its bytes");
    let mut out = OutBuf::new();
    let (metadata, rest) = match frame {
        Frame::Request { metadata_bytes, .. } => bytes[len..].split_at(metadata_bytes),
        _ => (&[][..], &bytes[len..]),
    };
    out.extend_from_slice(rest);
    match frame {
        Frame::Hello(hello) => {
            out = wire::hello(&hello);
            // Fields of a later version are accepted and ignored.
            let known = out.len();
            out.extend_from_slice(&bytes[known..]);
        }
        Frame::Request { head, .. } => {
            check_parts(head.has_parts, rest, tail);
            if !metadata.is_empty() {
                wire::prepend_metadata(&mut out, metadata);
            }
            wire::prepend_request(&mut out, &head, !metadata.is_empty());
        }
        Frame::Response(head) => {
            check_parts(head.has_parts, &rest[usize::from(head.metadata_bytes)..], tail);
            wire::prepend_response(&mut out, &head);
        }
        Frame::Cancel(id) => out = wire::cancel(id),
        Frame::Cancelled(id) => out = wire::cancelled(id),
        Frame::GoAway { drained } => out = wire::go_away(drained),
        Frame::Item(head) => {
            check_parts(head.has_parts, rest, tail);
            wire::prepend_item(&mut out, &head);
        }
        Frame::HalfClose { id, items } => out = wire::half_close(id, items),
        Frame::Reset { id, code } => out = wire::reset(id, code),
        Frame::Credit { id, results, items, bytes } => {
            out = wire::credit(id, results, items, bytes);
        }
        Frame::Opened { id, accepted, read } => out = wire::opened(id, accepted, read),
        Frame::Stop { id, results, code } => out = wire::stop(id, results, code),
    }
    assert_eq!(wire::parse_with_tail(&out, tail), Ok((frame, len)));
});

/// The parts lie in order inside the body, and make up the tail.
fn check_parts(has_parts: bool, rest: &[u8], tail: u64) {
    if !has_parts {
        return assert_eq!(tail, 0);
    }
    let (parts, body) = Parts::split(rest);
    assert_eq!(parts.iter().count(), parts.count());
    assert_eq!(parts.iter().map(|part| part.len).sum::<u64>(), tail);
    assert!(parts.iter().is_sorted_by_key(|part| part.at));
    assert!(parts.iter().all(|part| part.at as usize <= body.len()));
}
