//! One direction between two sessions: a simplified link.
//!
//! Owns the messages that wait in the link, by lane, and those in flight. Messages above
//! [`BULK_BYTES`] leave in two steps; those above [`STREAM_BYTES`] have arrived with the first of
//! them, like a tail that exceeds the receiver's reassembly limit.

use std::collections::VecDeque;

use rpc_core::session::{Revoked, Transmit};
use rpc_core::wire::{self, Frame};

use test_kit::Rng;

pub(crate) const BULK_BYTES: usize = 60;
const STREAM_BYTES: usize = 180;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Nothing,
    /// Its first segment; the peer's link keeps it to itself.
    Part,
    /// Its first segment, with which it was delivered.
    Begun,
}

#[derive(Debug)]
struct Queued {
    tag: u64,
    bytes: Vec<u8>,
    sent: Sent,
}

#[derive(Debug, Default)]
pub(crate) struct Wire {
    urgent: VecDeque<Queued>,
    small: VecDeque<Queued>,
    bulk: VecDeque<Queued>,
    flying: VecDeque<Vec<u8>>,
}

impl Wire {
    pub(crate) fn submit(&mut self, transmit: &Transmit) {
        let bytes = transmit.frame.to_vec();
        let lane = match (transmit.urgent, bytes.len() > BULK_BYTES) {
            (true, _) => &mut self.urgent,
            (false, true) => &mut self.bulk,
            (false, false) => &mut self.small,
        };
        lane.push_back(Queued { tag: transmit.tag, bytes, sent: Sent::Nothing });
    }

    /// Takes a message back; returns which.
    pub(crate) fn revoke(&mut self, tag: u64) -> (Revoked, Option<Frame>) {
        for lane in [&mut self.small, &mut self.bulk] {
            if let Some(at) = lane.iter().position(|queued| queued.tag == tag) {
                let taken = lane.remove(at).expect("found");
                let (frame, _) = wire::parse(&taken.bytes).expect("unchanged");
                let revoked = match taken.sent {
                    Sent::Nothing => Revoked::Whole,
                    Sent::Part => Revoked::Aborted,
                    Sent::Begun => Revoked::Begun,
                };
                return (revoked, Some(frame));
            }
        }
        (Revoked::TooLate, None)
    }

    /// The link sends one message, or a part of a bulk one.
    pub(crate) fn send_one(&mut self, rng: &mut Rng) -> bool {
        let lanes = if rng.chance(50) {
            [&mut self.small, &mut self.bulk]
        } else {
            [&mut self.bulk, &mut self.small]
        };
        let [first, second] = lanes;
        for lane in [&mut self.urgent, first, second] {
            let Some(front) = lane.front_mut() else { continue };
            if front.tag != 0 && front.sent == Sent::Nothing && front.bytes.len() > BULK_BYTES {
                front.sent = Sent::Part;
                if front.bytes.len() > STREAM_BYTES {
                    front.sent = Sent::Begun;
                    self.flying.push_back(front.bytes.clone());
                }
                return true;
            }
            let Queued { bytes, sent, .. } = lane.pop_front().expect("has a front");
            if sent != Sent::Begun {
                self.flying.push_back(bytes);
            }
            return true;
        }
        false
    }

    /// Bytes of the messages that wait to be sent.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        let lanes = [&self.urgent, &self.small, &self.bulk];
        lanes.into_iter().flatten().map(|queued| queued.bytes.len() as u64).sum()
    }

    /// The next message arrives.
    pub(crate) fn arrive(&mut self) -> Option<Vec<u8>> {
        self.flying.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        [&self.urgent, &self.small, &self.bulk].iter().all(|lane| lane.is_empty())
            && self.flying.is_empty()
    }
}
