//! Frames of the link: a peer's bytes are refused or understood, and then the frame fits its bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rpc_transport::protocol::frame::{Frame, close_frame, header, parse, segment_header};
use rpc_transport::protocol::handshake::Features;
use rpc_transport::text::is_printable;

const FEATURES: [Features; 4] = [
    Features::NONE,
    Features::ARENA,
    Features::ARENA.with(Features::REPLY_SLOTS),
    Features::ACK_IMMEDIATE,
];

fuzz_target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else { return };
    let features = FEATURES[usize::from(choice & 3)];
    let imm = (choice & 4 != 0).then(|| u32::from(*choice) << 13);
    let Ok((frame, start)) = parse(bytes, imm, features) else { return };
    assert!(start <= bytes.len(), "{frame:?} starts behind its end");
    if let Frame::Close(reason) = &frame {
        assert!(is_printable(&reason.to_string()), "{reason:?}");
    }
    // This side's encoding of the frame is decoded to an equal frame.
    let written = match &frame {
        Frame::Data(grant) => header(frame.kind(), *grant).to_vec(),
        Frame::Segment(grant, segment) => segment_header(*grant, *segment).to_vec(),
        Frame::Blocks(grant, blocks) | Frame::Release(grant, blocks) => {
            blocks.to_prefix(frame.kind(), *grant).to_vec()
        }
        Frame::Ack(grant) | Frame::Ping(grant) | Frame::Pong(grant) => {
            header(frame.kind(), *grant).to_vec()
        }
        Frame::Close(reason) => close_frame(reason).to_vec(),
        _ => return,
    };
    let imm = if matches!(frame, Frame::Ack(_)) && bytes.is_empty() { imm } else { None };
    let again = parse(&[&written[..], &bytes[start..]].concat(), imm, features);
    assert_eq!(again.map(|(frame, _)| frame), Ok(frame));
});
