//! Two sessions whose every frame is carried by hand.

use std::time::Instant;

use rpc_core::session::{Revoked, Session, SessionError};
use rpc_core::wire::{self, Frame};
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;

pub(crate) type End = Session<u32, u32>;

pub(crate) fn body(text: &str) -> OutBuf {
    let mut out = OutBuf::new();
    out.extend_from_slice(text.as_bytes());
    out
}

pub(crate) fn too_late(_: u64) -> Revoked {
    Revoked::TooLate
}

pub(crate) fn take(end: &mut End, frame: &[u8]) -> Result<(), SessionError> {
    end.on_message(Message::copied(frame), Instant::now, &mut too_late)
}

/// All frames that an end wants to send.
pub(crate) fn frames(end: &mut End) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| end.poll_transmit(Instant::now)).map(|sent| sent.frame.to_vec()).collect()
}

pub(crate) fn parsed(end: &mut End) -> Vec<Frame> {
    frames(end).iter().map(|frame| wire::parse(frame).expect("well-formed").0).collect()
}

/// Carries all frames from `from` to `to`; returns their number.
pub(crate) fn carry(from: &mut End, to: &mut End) -> usize {
    let frames = frames(from);
    for frame in &frames {
        take(to, frame).expect("a correct peer");
    }
    frames.len()
}
