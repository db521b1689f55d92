//! The oracle: the messages submitted at one end, and those that must and must not arrive at the
//! other.

use std::collections::HashMap;
use std::sync::Arc;

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::part::OutPart;
use rpc_transport::message::payload::Payload;
use rpc_transport::protocol::link::Lane;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Pending,
    Revoked,
    Delivered,
    /// Delivered, or on its way, and given up before its tail had left.
    Begun,
}

#[derive(Debug)]
struct Sent {
    len: usize,
    tail: usize,
    lane: Lane,
    fate: Fate,
    is_delivered: bool,
}

/// One direction. Tags count up, so they are the order of submission as well.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    sent: HashMap<u64, Sent>,
    pub(crate) next_tag: u64,
    last_delivered: HashMap<Lane, u64>,
    /// Deliveries of urgent or small messages while an older bulk message was pending.
    pub(crate) overtakes: u64,
}

/// The bytes of a message: its tag, then a pattern.
pub(crate) fn content(tag: u64, len: usize) -> Vec<u8> {
    let mut bytes = tag.to_le_bytes().to_vec();
    bytes.extend((8..len as u64).map(|at| (tag.wrapping_mul(2654435761) + at).to_le_bytes()[1]));
    bytes
}

/// Bytes of a tail, from `start` on.
fn tail_content(tag: u64, start: u64, len: usize) -> Vec<u8> {
    let word = |at: u64| (at ^ tag.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(31);
    let byte = |at: u64| word(at).to_le_bytes()[2] ^ at.to_le_bytes()[0];
    (start..start + len as u64).map(byte).collect()
}

impl Oracle {
    /// A new message with a head of at least 8 bytes, and a tail of parts of these lengths.
    pub(crate) fn submit(
        &mut self,
        lane: Lane,
        len: usize,
        parts: &[usize],
        eager_bytes: usize,
    ) -> (u64, OutBuf) {
        let tag = self.next_tag;
        self.next_tag += 1;
        let tail = parts.iter().sum();
        let lane = if len > eager_bytes || tail > 0 { Lane::Bulk } else { lane };
        self.sent.insert(tag, Sent { len, tail, lane, fate: Fate::Pending, is_delivered: false });
        let mut out = OutBuf::new();
        out.extend_from_slice(&content(tag, len));
        let whole = Arc::new(tail_content(tag, 0, tail));
        let mut at = 0;
        for part in parts {
            let end = at + *part as u64;
            out.push_tail(OutPart::shared(Arc::clone(&whole)).slice(at..end));
            at = end;
        }
        (tag, out)
    }

    /// Whether the tail of a message arrived unchanged.
    pub(crate) fn check_tail(&self, tag: u64, tail: &Payload) {
        let bytes = tail.to_vec().expect("the tail can be read");
        let expected = self.sent.get(&tag).map(|sent| tail_content(tag, 0, sent.tail));
        assert!(Some(bytes) == expected, "the tail of message {tag} changed: {tail:?}");
    }

    /// Whether a part of a tail arrived unchanged.
    pub(crate) fn check_part(tag: u64, at: u64, part: &Payload) {
        let bytes = part.to_vec().expect("the part can be read");
        assert!(bytes == tail_content(tag, at, bytes.len()), "the tail of {tag} changed at {at}");
    }

    /// Checks that a stream ended early only because its sender gave it up.
    pub(crate) fn check_begun(&self, tag: u64) {
        assert_eq!(self.sent.get(&tag).map(|sent| sent.fate), Some(Fate::Begun), "message {tag}");
    }

    pub(crate) fn on_revoked(&mut self, tag: u64, whole: Option<&[u8]>) {
        let sent = self.sent.get_mut(&tag).expect("only what was submitted is revoked");
        assert_eq!(sent.fate, Fate::Pending, "message {tag} revoked");
        sent.fate = Fate::Revoked;
        if let Some(bytes) = whole {
            assert_eq!(bytes, content(tag, sent.len), "message {tag} came back changed");
        }
    }

    /// A message that was given up was delivered, or will be, with its first segment.
    pub(crate) fn on_begun(&mut self, tag: u64) {
        let sent = self.sent.get_mut(&tag).expect("only what was submitted is revoked");
        assert!(matches!(sent.fate, Fate::Pending | Fate::Delivered), "message {tag} revoked");
        sent.fate = Fate::Begun;
    }

    pub(crate) fn begun_and_missing(&self) -> Vec<u64> {
        let missing = |sent: &Sent| sent.fate == Fate::Begun && !sent.is_delivered;
        self.sent.iter().filter(|(_, sent)| missing(sent)).map(|(tag, _)| *tag).collect()
    }

    pub(crate) fn on_delivered(&mut self, bytes: &[u8], has_tail: bool) -> u64 {
        let tag = u64::from_le_bytes(*bytes.first_chunk().expect("a tag"));
        let sent = self.sent.get_mut(&tag).expect("only what was submitted arrives");
        assert_ne!(sent.fate, Fate::Revoked, "message {tag} delivered");
        assert!(!std::mem::replace(&mut sent.is_delivered, true), "message {tag} delivered twice");
        assert!(bytes == content(tag, sent.len), "message {tag} arrived changed");
        assert_eq!(has_tail, sent.tail > 0, "the tail of message {tag}");
        if sent.fate == Fate::Pending {
            sent.fate = Fate::Delivered;
        }
        let (lane, before) = (sent.lane, self.last_delivered.insert(sent.lane, tag));
        assert!(before.is_none_or(|before| before < tag), "{before:?} before {tag} in {lane:?}");
        let older_bulk = |(other, sent): (&u64, &Sent)| {
            *other < tag && sent.lane == Lane::Bulk && sent.fate == Fate::Pending
        };
        if lane != Lane::Bulk && self.sent.iter().any(older_bulk) {
            self.overtakes += 1;
        }
        tag
    }

    pub(crate) fn pending(&self) -> Vec<u64> {
        let pending = |(tag, sent): (&u64, &Sent)| (sent.fate == Fate::Pending).then_some(*tag);
        let mut tags: Vec<u64> = self.sent.iter().filter_map(pending).collect();
        tags.sort_unstable();
        tags
    }
}
