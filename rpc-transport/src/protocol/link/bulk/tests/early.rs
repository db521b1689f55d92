//! Tails that are copied while the rest of them arrives.

use super::*;
use crate::memory::budget::MemoryBudget;
use crate::message::payload::Payload;
use crate::message::received::Message;
use crate::protocol::link::bulk::early_copies::EARLY_COPIES;

/// Bytes of a tail, in two segments.
const TAIL: u64 = 2 * CHUNK;

/// An end with an arena, on which messages arrive one after the other.
struct Peer {
    end: Link,
    number: u32,
}

impl Peer {
    fn new(budget: &MemoryBudget) -> Self {
        Self::of(owner(), budget)
    }

    fn of(mut end: Link, budget: &MemoryBudget) -> Self {
        end.set_memory_budget(budget.share());
        Self { end, number: 0 }
    }

    /// A segment arrives whose bytes lie in one chunk: the first of a tail, or the one behind that.
    fn segment(&mut self, chunk: u16, is_first: bool, tail: u64) -> Inbound {
        self.segment_at(if is_first { 0 } else { CHUNK }, chunk, tail)
    }

    fn segment_at(&mut self, at: u64, chunk: u16, tail: u64) -> Inbound {
        let is_first = at == 0;
        // What was given back is told to the peer, as when time passes.
        self.end.arenas.as_mut().unwrap().on_timeout(Instant::now());
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
        let inbound = self.end.on_frame(Instant::now(), None, &frame).unwrap();
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

    /// Messages arrive whose reader copies their tails, until one has been copied early.
    fn learn(&mut self) {
        for number in 0..10 {
            let tail = self.tail();
            if tail.is_private() {
                assert!(number > 1, "nobody has copied any yet");
                return;
            }
            assert_eq!(tail.into_vec().len() as u64, TAIL);
        }
        panic!("none was copied early");
    }
}

fn peer() -> Peer {
    Peer::new(&MemoryBudget::unlimited())
}

#[test]
fn where_readers_copy_tails_the_next_is_copied_while_it_arrives() {
    let mut peer = peer();
    peer.learn();
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
fn where_tails_are_read_in_place_none_is_copied_early() {
    let mut peer = peer();
    for _ in 0..20 {
        let tail = peer.tail();
        assert!(!tail.is_private());
        assert_eq!(tail.slice(0..5).into_vec(), [0; 5]);
    }
    peer.learn();
    // The one in so many that is left where it is tells that readers have changed their minds.
    let early = (0..2 * EARLY_COPIES).filter(|_| peer.tail().is_private()).count();
    assert_eq!(early + 1, EARLY_COPIES as usize);
}

#[test]
fn where_readers_go_on_copying_one_tail_in_so_many_is_left_where_it_is() {
    let mut peer = peer();
    peer.learn();
    let mut left = 0;
    for _ in 0..3 * (EARLY_COPIES + 1) {
        let tail = peer.tail();
        left += u32::from(!tail.is_private());
        drop(tail.into_vec());
    }
    assert_eq!(left, 3);
}

#[test]
fn beside_large_messages_of_connections_that_share_the_budget_none_is_copied_early() {
    let budget = MemoryBudget::unlimited();
    let (mut one, mut other) = (Peer::new(&budget), Peer::new(&budget));
    one.learn();
    other.learn();
    let held = one.message([0, 1]);
    assert!(held.tail().unwrap().is_private());
    assert!(!other.tail().is_private());
    drop(held);
    other.learn();
}

#[test]
fn while_another_large_message_is_held_none_is_copied_early() {
    let mut peer = peer();
    peer.learn();
    let bytes = super::message(peer.number, 100, &[(3, 1)]);
    let Ok(Inbound::Assembled(mut short)) = receive(&mut peer.end, &bytes) else {
        panic!("no message")
    };
    peer.number += 1;
    for _ in 0..3 {
        let tail = peer.tail();
        assert!(!tail.is_private());
        drop(tail.into_vec());
    }
    drop(short.take_tail().unwrap().into_vec());
    drop(short);
    assert!(peer.tail().is_private());
}

/// A peer that announces what it does not send.
#[test]
fn no_more_is_reserved_for_a_tail_than_has_arrived_of_an_earlier_one() {
    let mut peer = peer();
    peer.learn();
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
fn a_message_that_is_aborted_stops_no_early_copies() {
    let mut peer = peer();
    peer.learn();
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
fn streams_of_connections_that_share_the_budget_stop_no_early_copies() {
    let budget = MemoryBudget::unlimited();
    let mut peer = Peer::new(&budget);
    peer.learn();
    let end = end_with(&config().assembly_bytes(CHUNK), Instant::now());
    let mut other = Peer::of(with_arena(end), &budget);
    let Inbound::Assembled(mut message) = other.segment(0, true, TAIL) else {
        panic!("a stream is delivered with its head");
    };
    let stream = message.take_stream().unwrap();
    assert!(peer.tail().is_private());
    drop(stream);
}

/// Bytes that had arrived counted before there was room for them, so that the last ones found none: a tail moved
/// once more at its end.
#[test]
fn room_for_a_tail_that_is_put_together_is_that_for_all_of_it_once_half_has_arrived() {
    let mut peer = peer();
    let tail = 5 * CHUNK;
    for number in 0..3 {
        assert!(matches!(peer.segment_at(number * CHUNK, 0, tail), Inbound::None));
    }
    let reserved = peer.end.assembly.reserved_bytes() as u64;
    assert!((tail..tail + 100).contains(&reserved), "{reserved} bytes are reserved for {tail}");
}
