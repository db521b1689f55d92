//! Tails that are copied while the rest of them arrives.

use super::*;
use crate::memory::budget::MemoryBudget;
use crate::message::payload::Payload;
use crate::message::received::Message;

/// Bytes of a tail, in two segments.
const TAIL: u64 = 2 * CHUNK;

/// An end with an arena, on which messages arrive one after the other.
struct Peer {
    end: Link,
    number: u32,
    /// What the layer above says of the next message.
    copies: bool,
}

impl Peer {
    fn new(budget: &MemoryBudget) -> Self {
        Self::of(owner(), budget)
    }

    fn of(mut end: Link, budget: &MemoryBudget) -> Self {
        end.set_memory_budget(budget.share());
        Self { end, number: 0, copies: true }
    }

    /// A segment arrives whose bytes lie in one chunk: the first of a tail, or the one behind that.
    fn segment(&mut self, chunk: u16, is_first: bool, tail: u64) -> Inbound {
        self.segment_at(if is_first { 0 } else { CHUNK }, chunk, tail)
    }

    fn segment_at(&mut self, at: u64, chunk: u16, tail: u64) -> Inbound {
        let is_first = at == 0;
        // Time passes, so that the peer learns which chunks were given back.
        self.end.assembly.landing_mut().unwrap().on_timeout(Instant::now());
        self.transmit();
        let (counters, window) = (self.end.credits.counters(), self.end.credits.remote());
        let (data, ack) = (window.data - counters.data_credits, window.ack - counters.ack_credits);
        let head = if is_first { &b"head"[..] } else { &[] };
        let offset = if is_first { 0 } else { 4 + at };
        let segment = Segment {
            number: self.number,
            last: offset + head.len() as u64 + CHUNK == 4 + tail,
            abort: false,
            head_end: is_first,
            offset,
            total: 4 + tail,
        };
        let written = Some(Written { bytes: CHUNK, extents: extents(&[(chunk, 1)]) });
        let blocks = Blocks { segment: Some(segment), written, ..Blocks::default() };
        let mut frame = blocks.to_prefix(Kind::Data, Grant { data, ack });
        frame.extend_from_slice(head);
        let copies_tail = |head: &[u8]| {
            assert_eq!(head, b"head", "all of it, and nothing of the tail");
            self.copies
        };
        let inbound = self.end.on_frame_with(Instant::now(), None, &frame, &copies_tail).unwrap();
        self.transmit();
        inbound
    }

    fn transmit(&mut self) {
        while let Some(transmit) = self.end.poll_transmit() {
            let (signaled, token) = (transmit.signaled, transmit.token);
            if signaled {
                self.end.on_send_completion(token);
            }
        }
    }

    /// A message arrives, whose tail lies in these two chunks.
    fn message(&mut self, chunks: [u16; 2]) -> Message {
        assert!(matches!(self.segment(chunks[0], true, TAIL), Inbound::None));
        let Inbound::Assembled(message) = self.segment(chunks[1], false, TAIL) else {
            panic!("no message")
        };
        self.number += 1;
        message
    }

    fn tail(&mut self) -> Payload {
        self.message([0, 1]).take_tail().unwrap()
    }
}

fn peer() -> Peer {
    Peer::new(&MemoryBudget::unlimited())
}

#[test]
fn tails_are_copied_while_they_arrive() {
    let mut peer = peer();
    let inbound = peer.segment(0, true, TAIL);
    assert!(matches!(inbound, Inbound::None));
    // The chunk is free before the second one is written.
    let Inbound::Assembled(mut message) = peer.segment(0, false, TAIL) else {
        panic!("no message")
    };
    let tail = message.take_tail().unwrap();
    assert!(tail.is_private() && tail.as_private_slice().is_some(), "it is one piece: {tail:?}");
    assert_eq!(peer.end.wanted_arena(), None, "nothing says that the application holds too much");
}

#[test]
fn tails_read_in_place_stay_in_the_arena() {
    let mut peer = peer();
    for copies in [false, true, false] {
        peer.copies = copies;
        assert_eq!(peer.tail().is_private(), copies);
    }
}

#[test]
fn a_shared_budget_has_one_early_copy() {
    let budget = MemoryBudget::unlimited();
    let (mut one, mut other) = (Peer::new(&budget), Peer::new(&budget));
    let held = one.message([0, 1]);
    assert!(held.tail().unwrap().is_private());
    assert!(!other.tail().is_private());
    drop(held);
    assert!(other.tail().is_private());
}

#[test]
fn a_held_large_message_stops_early_copies() {
    let mut peer = peer();
    let bytes = super::message(peer.number, 100, &[(3, 1)]);
    let Ok(Inbound::Assembled(mut short)) = receive(&mut peer.end, &bytes) else {
        panic!("no message")
    };
    peer.number += 1;
    for _ in 0..3 {
        assert!(!peer.tail().is_private());
    }
    drop(short.take_tail());
    drop(short);
    assert!(peer.tail().is_private());
}

/// A peer that announces what it does not send.
#[test]
fn announced_tails_reserve_what_earlier_ones_had() {
    let mut peer = peer();
    assert!(peer.tail().is_private());
    let tail = 3 * CHUNK;
    for round in 0..2 {
        assert!(matches!(peer.segment_at(0, 0, tail), Inbound::None));
        let reserved = peer.end.assembly.reserved_bytes() as u64;
        // The second one is known, and has its room at once.
        let known = if round == 0 { TAIL } else { tail };
        assert!((known..known + 100).contains(&reserved), "{reserved} bytes in round {round}");
        assert!(matches!(peer.segment_at(CHUNK, 1, tail), Inbound::None));
        let Inbound::Assembled(mut message) = peer.segment_at(2 * CHUNK, 2, tail) else {
            panic!("no message")
        };
        peer.number += 1;
        assert!(message.take_tail().unwrap().is_private(), "it is copied early");
    }
}

#[test]
fn an_aborted_message_stops_no_early_copies() {
    let mut peer = peer();
    assert!(matches!(peer.segment(0, true, TAIL), Inbound::None));
    let segment = Segment {
        number: peer.number,
        last: false,
        abort: true,
        head_end: false,
        offset: 4 + CHUNK,
        total: 4 + TAIL,
    };
    let abort = Blocks { segment: Some(segment), ..Blocks::default() };
    assert!(matches!(receive(&mut peer.end, &frame(Kind::Data, &abort, &[])), Ok(Inbound::None)));
    peer.number += 1;
    assert!(peer.tail().is_private());
}

#[test]
fn streams_stop_no_early_copies() {
    let budget = MemoryBudget::unlimited();
    let mut peer = Peer::new(&budget);
    let end = end_with(&config().assembly_bytes(CHUNK), Instant::now());
    let mut other = Peer::of(with_arena(end), &budget);
    let Inbound::Assembled(mut message) = other.segment(0, true, TAIL) else {
        panic!("a stream is delivered with its head");
    };
    let stream = message.take_stream().unwrap();
    assert!(peer.tail().is_private());
    drop(stream);
}

/// Bytes that had arrived counted before there was room for them, so that the last ones found none:
/// a tail moved once more at its end.
#[test]
fn half_of_a_tail_makes_room_for_all() {
    let mut peer = peer();
    peer.copies = false;
    let tail = 5 * CHUNK;
    for number in 0..3 {
        assert!(matches!(peer.segment_at(number * CHUNK, 0, tail), Inbound::None));
    }
    let reserved = peer.end.assembly.reserved_bytes() as u64;
    assert!((tail..tail + 100).contains(&reserved), "{reserved} bytes are reserved for {tail}");
}
