//! Peers that break the rules of arenas, and one that keeps them too slowly.

use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;

use super::super::*;
use crate::device::soft;
use crate::memory::region::{Access, MemoryRegion};
use crate::message::part::OutPart;
use crate::message::reply_slot::SlotOffer;
use crate::protocol::arena::{
    Advertisement, ArenaBlock, ArenaConfig, ArenaError, Extent, Extents, MAX_EXTENTS,
};
use crate::protocol::credit::Grant;
use crate::protocol::frame::{Blocks, Placed, Segment, SlotBlock, Written};
use crate::protocol::handshake::Offer;
use crate::protocol::link::tests::{out, pattern, small_config};

mod early;
mod readers;
mod records;
mod refused;
mod slices;

const CHUNK: u64 = 4096;

fn config() -> LinkConfig {
    let arena = ArenaConfig { log2_chunk: 12, arena_chunks: 8, ..ArenaConfig::default() };
    small_config().arena(arena).arena_threshold_bytes(0).max_message_bytes(100_000)
}

fn end(now: Instant) -> Link {
    end_with(&config(), now)
}

fn end_with(config: &LinkConfig, now: Instant) -> Link {
    let offer = Offer::new(config, Features::ARENA, 7);
    Link::new(config, &offer.agree_as_server(&offer).unwrap(), now).unwrap()
}

fn region(bytes: u64) -> MemoryRegion {
    let domain = soft::mem_device().allocate_pd().unwrap();
    domain.allocate(usize::try_from(bytes).unwrap(), Access::REMOTE_WRITE).unwrap()
}

fn extents(list: &[(u16, u16)]) -> Extents {
    let extent = |(first, count): &(u16, u16)| Extent { first: *first, count: *count };
    Extents::from_slice(&list.iter().map(extent).collect::<Vec<_>>()).unwrap()
}

fn frame(kind: Kind, blocks: &Blocks, payload: &[u8]) -> Vec<u8> {
    let mut frame = blocks.to_prefix(kind, Grant::default());
    frame.extend_from_slice(payload);
    frame.to_vec()
}

fn receive(end: &mut Link, bytes: &[u8]) -> Result<Inbound, ProtocolError> {
    let result = end.on_frame(Instant::now(), None, bytes);
    while end.poll_transmit().is_some() {}
    result
}

/// A segment that is a whole message, of which `written` bytes lie in `chunks`.
fn message(number: u32, written: u64, chunks: &[(u16, u16)]) -> Vec<u8> {
    let segment =
        Segment { number, last: true, abort: false, head_end: true, offset: 0, total: 4 + written };
    let written = Some(Written { bytes: written, extents: extents(chunks) });
    frame(Kind::Data, &Blocks { segment: Some(segment), written, ..Blocks::default() }, b"head")
}

/// An end with an arena of 8 chunks, which the peer asked for.
fn owner() -> Link {
    with_arena(end(Instant::now()))
}

fn with_arena(mut end: Link) -> Link {
    let starved = Blocks { starved: true, ..Blocks::default() };
    let _none = receive(&mut end, &frame(Kind::Release, &starved, &[])).unwrap();
    assert_eq!(end.wanted_arena(), Some(8 * CHUNK));
    end.add_arena(region(8 * CHUNK)).unwrap();
    assert_eq!(end.wanted_arena(), None);
    while end.poll_transmit().is_some() {}
    end
}

fn refused(end: &mut Link, bytes: &[u8]) -> ProtocolError {
    receive(end, bytes).map(drop).unwrap_err()
}

#[test]
fn extents_that_cannot_be_are_refused_by_name() {
    use ArenaError as E;
    let unknown = Extent { first: 8, count: 1 };
    let crossing = Extent { first: 7, count: 2 };
    for (bytes, error) in [
        (message(0, 1, &[(8, 1)]), E::UnknownChunks(unknown)),
        (message(0, CHUNK + 1, &[(7, 2)]), E::CrossesArenas(crossing)),
        (message(0, 1, &[(0, 0)]), E::EmptyExtent(0)),
        (
            message(0, CHUNK + 1, &[(3, 1), (3, 1)]),
            E::DuplicateChunks(Extent { first: 3, count: 1 }),
        ),
        (message(0, 4 * CHUNK + 1, &[(0, 5)]), E::BeyondShare { chunks: 5, share: 4 }),
        (
            message(0, CHUNK, &[(0, 2)]),
            E::WrittenMismatch { written: CHUNK, chunks: 2, log2_chunk: 12 },
        ),
        (
            message(0, CHUNK + 1, &[(0, 1)]),
            E::WrittenMismatch { written: CHUNK + 1, chunks: 1, log2_chunk: 12 },
        ),
    ] {
        assert_eq!(refused(&mut owner(), &bytes), ProtocolError::Arena(error));
    }
}

#[test]
fn occupied_chunk_takes_no_other_message() {
    let mut end = owner();
    let Ok(Inbound::Assembled(mut held)) = receive(&mut end, &message(0, 100, &[(2, 1)])) else {
        panic!("no message")
    };
    let tail = held.take_tail().unwrap();
    assert!(!tail.is_private());
    let again = refused(&mut end, &message(1, 100, &[(2, 1)]));
    assert_eq!(again, ProtocolError::Arena(ArenaError::ChunkInUse(2)));
    drop(tail);
}

#[test]
fn copies_for_a_full_share_grow_the_arenas() {
    let mut end = owner();
    let mut tail_of = |number, chunks: &[(u16, u16)]| {
        let Ok(Inbound::Assembled(mut message)) =
            receive(&mut end, &message(number, 3 * CHUNK, chunks))
        else {
            panic!("no message")
        };
        (message.take_tail().unwrap(), end.wanted_arena())
    };
    let (held, wanted) = tail_of(0, &[(0, 3)]);
    assert_eq!((held.is_private(), wanted), (false, None));
    let (copied, wanted) = tail_of(1, &[(3, 3)]);
    assert_eq!((copied.is_private(), wanted), (true, Some(8 * CHUNK)));
    end.add_arena(region(8 * CHUNK)).unwrap();
    let Ok(Inbound::Assembled(mut third)) = receive(&mut end, &message(2, 3 * CHUNK, &[(8, 3)]))
    else {
        panic!("no message")
    };
    assert!(!third.take_tail().unwrap().is_private());
    assert_eq!(end.wanted_arena(), None);
    drop(held);
}

#[test]
fn message_beyond_all_chunks_grows_no_arena() {
    let mut end = owner();
    let first = 4 * CHUNK;
    let segment = Segment {
        number: 0,
        last: false,
        abort: false,
        head_end: true,
        offset: 0,
        total: 4 + first + 1,
    };
    let written = Some(Written { bytes: first, extents: extents(&[(0, 4)]) });
    let blocks = Blocks { segment: Some(segment), written, ..Blocks::default() };
    let _none = receive(&mut end, &frame(Kind::Data, &blocks, b"head")).unwrap();
    assert_eq!(end.wanted_arena(), None);
}

#[test]
fn other_broken_bulk_rules_are_named() {
    use ProtocolError as E;
    let segment = Segment {
        number: 0,
        last: false,
        abort: false,
        head_end: false,
        offset: 0,
        total: 100_000,
    };
    let written = |bytes, chunks: &[(u16, u16)]| Some(Written { bytes, extents: extents(chunks) });
    let data = |segment, written, payload: &[u8]| {
        let blocks = Blocks { segment: Some(segment), written, ..Blocks::default() };
        frame(Kind::Data, &blocks, payload)
    };
    let one = || written(10, &[(0, 1)]);
    let beyond = Segment { total: 100_001, ..segment };
    let abort = Segment { abort: true, ..segment };
    let short = Segment { total: 9, ..segment };
    let release = |blocks: Blocks| frame(Kind::Release, &blocks, &[]);
    let arena = |arena| release(Blocks { arena: Some(arena), ..Blocks::default() });
    let advertised = Advertisement {
        arena: 0,
        first_chunk: 0,
        chunks: 4,
        log2_chunk: 12,
        rkey: 1,
        address: u64::MAX - 10,
    };
    let releases = Blocks { releases: extents(&[(0, 1)]), ..Blocks::default() };
    for (bytes, error) in [
        (data(beyond, one(), &[]), E::MessageTooLarge { total: 100_001, max: 100_000 }),
        (data(segment, one(), b"head"), E::PayloadBesideWritten),
        (data(abort, one(), &[]), E::AbortWithBytes(0)),
        (data(short, one(), &[]), E::BeyondTotal { end: 10, total: 9 }),
        (
            data(segment, written(u64::MAX, &[(0, 1)]), &[]),
            E::BeyondTotal { end: u64::MAX, total: 100_000 },
        ),
        (
            arena(ArenaBlock::Advertise(advertised)),
            E::Arena(ArenaError::BeyondAddressSpace(u64::MAX - 10)),
        ),
        (arena(ArenaBlock::AskBack(3)), E::Arena(ArenaError::UnknownArena(3))),
        (arena(ArenaBlock::GivenUp(0)), E::Arena(ArenaError::NotAskedBack(0))),
        (release(releases), E::Arena(ArenaError::UnknownChunks(Extent { first: 0, count: 1 }))),
    ] {
        assert_eq!(refused(&mut owner(), &bytes), error);
    }
}

#[test]
fn arena_block_without_the_feature_is_refused() {
    let now = Instant::now();
    let offer = Offer::new(&config(), Features::NONE, 7);
    let agreed = offer.agree_as_server(&offer).unwrap();
    let release = frame(Kind::Release, &Blocks { starved: true, ..Blocks::default() }, &[]);
    for (bytes, name) in [(release, "Release frame"), (message(0, 9, &[(0, 1)]), "arena extents")] {
        let mut end = Link::new(&config(), &agreed, now).unwrap();
        assert_eq!(refused(&mut end, &bytes), ProtocolError::NotAgreed(name));
    }
}

/// Large messages wait and can be revoked; small ones are sent meanwhile.
#[test]
fn peer_that_never_releases_blocks_only_bulk() {
    let mut end = end(Instant::now());
    let advertised = Advertisement {
        arena: 0,
        first_chunk: 0,
        chunks: 4,
        log2_chunk: 12,
        rkey: 9,
        address: 1 << 20,
    };
    let blocks = Blocks { arena: Some(ArenaBlock::Advertise(advertised)), ..Blocks::default() };
    let _none = receive(&mut end, &frame(Kind::Release, &blocks, &[])).unwrap();
    for tag in 0..4 {
        let mut large = out(tag, 10);
        large.push_tail(OutPart::shared(Arc::new(pattern(tag, 5000))));
        end.submit(Lane::Bulk, tag, large).unwrap();
    }
    let mut written = 0;
    while let Some(transmit) = end.poll_transmit() {
        written += transmit.writes.len();
        assert!(transmit.writes.iter().all(|put| put.to.rkey == 9));
        let (signaled, token) = (transmit.signaled, transmit.token);
        if signaled {
            end.on_send_completion(token);
        }
    }
    // Two messages of two chunks each, and STARVED; the third waits.
    assert_eq!(written, 2);
    let ack =
        Grant { data: end.credits.remote().data - end.credits.counters().data_credits, ack: 0 };
    receive_ack(&mut end, ack);
    while let Some(transmit) = end.poll_transmit() {
        assert!(transmit.writes.is_empty());
    }
    assert_eq!(end.metrics().peer_free, 0);
    for round in 0..20 {
        end.submit(Lane::Small, 100 + round, out(round, 20)).unwrap();
        let transmit = end.poll_transmit().expect("a small message waits for nothing");
        let (signaled, token) = (transmit.signaled, transmit.token);
        if signaled {
            end.on_send_completion(token);
        }
        receive_ack(&mut end, Grant { data: 1, ack: 0 });
    }
    for tag in [2, 3] {
        let Revoked::Whole(message) = end.revoke(tag) else { panic!("nothing of it was sent") };
        assert_eq!(message.tail_len(), 5000);
    }
    assert!(end.is_idle());
}

fn receive_ack(end: &mut Link, grant: Grant) {
    let ack = frame::header(Kind::Data, grant);
    let _data = end.on_frame(Instant::now(), None, &ack).unwrap();
}

#[test]
fn broken_rules_of_reply_slots_have_their_names() {
    use ProtocolError as E;
    let offer = Offer::new(&config(), Features::ARENA.with(Features::REPLY_SLOTS), 7);
    let agreed = offer.agree_as_server(&offer).unwrap();
    let asked = || {
        let mut end = Link::new(&config(), &agreed, Instant::now()).unwrap();
        let mut ask = out(1, 10);
        ask.offer_slot(SlotOffer::new(region(8192), 0, 8000, None));
        end.submit(Lane::Small, 1, ask).unwrap();
        let frame = end.poll_transmit().unwrap().frame.parts().0.to_vec();
        // Number 0, as the first.
        assert_eq!(frame[1], frame::flags::SLOT_ADVERTISE);
        assert_eq!(frame[8..12], [0; 4]);
        end
    };
    let segment =
        Segment { number: 0, last: true, abort: false, head_end: true, offset: 0, total: 104 };
    let placed = |slot, bytes, segment: Segment| {
        let placed = Some(Placed { slot, bytes });
        let segment = Segment { total: 4 + bytes, ..segment };
        let blocks = Blocks { segment: Some(segment), placed, ..Blocks::default() };
        frame(Kind::Data, &blocks, b"head")
    };
    let done = |done: &[u32]| {
        frame(Kind::Release, &Blocks { done: done.to_vec(), ..Blocks::default() }, &[])
    };
    let mut end = asked();
    let Ok(Inbound::Assembled(mut reply)) = receive(&mut end, &placed(0, 8000, segment)) else {
        panic!("no reply")
    };
    assert_eq!(reply.take_tail().unwrap().len(), 8000);
    assert_eq!(end.metrics().open_slots, 1);
    let _none = receive(&mut end, &done(&[0])).unwrap();
    assert_eq!(end.metrics().open_slots, 0);
    let again = placed(0, 100, Segment { number: 1, ..segment });
    assert_eq!(refused(&mut end, &again), E::UnknownSlot(0));

    let misplaced = {
        let slot = Some(SlotBlock { slot: 0, rkey: 1, address: 1, len: 1 });
        let segment = Segment { abort: true, last: false, head_end: false, ..segment };
        frame(Kind::Data, &Blocks { segment: Some(segment), slot, ..Blocks::default() }, &[])
    };
    let head = {
        let placed = Some(Placed { slot: 0, bytes: 10 });
        let segment = Segment { head_end: false, last: false, ..segment };
        frame(Kind::Data, &Blocks { segment: Some(segment), placed, ..Blocks::default() }, &[])
    };
    let none = {
        let placed = Some(Placed { slot: 0, bytes: 10 });
        frame(Kind::Data, &Blocks { placed, ..Blocks::default() }, &[])
    };
    let mut crowded = done(&[1]);
    crowded[8] = 65;
    let mut reserved = done(&[1]);
    reserved[10] = 1;
    for (bytes, error) in [
        (placed(3, 100, segment), E::UnknownSlot(3)),
        (placed(0, 8001, segment), E::BeyondSlot { slot: 0, end: 8001, len: 8000 }),
        (done(&[0, 0]), E::UnknownSlot(0)),
        (done(&[9]), E::UnknownSlot(9)),
        (misplaced, E::SlotMisplaced),
        (head, E::PlacedHead),
        (none, E::PlacedBesideExtents),
        (crowded, E::DoneCount(65)),
        (reserved, E::ReservedNotZero("DONE")),
    ] {
        assert_eq!(refused(&mut asked(), &bytes), error);
    }
}

/// A tail in the receiver's own slot needs no other memory, so `assembly_bytes` does not limit it;
/// but all of such a tail must be written into the slot.
#[test]
fn oversized_tail_may_only_fill_a_slot() {
    let config = config().assembly_bytes(1000);
    let offer = Offer::new(&config, Features::ARENA.with(Features::REPLY_SLOTS), 7);
    let agreed = offer.agree_as_server(&offer).unwrap();
    let asked = || {
        let mut end = Link::new(&config, &agreed, Instant::now()).unwrap();
        let mut ask = out(1, 10);
        ask.offer_slot(SlotOffer::new(region(8192), 0, 8000, None));
        end.submit(Lane::Small, 1, ask).unwrap();
        let _frame = end.poll_transmit().unwrap();
        end
    };
    let segment = |offset, last| {
        let head_end = offset == 0;
        Segment { number: 0, last, abort: false, head_end, offset, total: 8004 }
    };
    let placed = |segment: Segment, payload: &[u8]| {
        let placed = Some(Placed { slot: 0, bytes: 4000 });
        let blocks = Blocks { segment: Some(segment), placed, ..Blocks::default() };
        frame(Kind::Data, &blocks, payload)
    };
    let first = placed(segment(0, false), b"head");
    let mut end = asked();
    let begun = receive(&mut end, &first).unwrap();
    assert!(matches!(begun, Inbound::None), "nothing is delivered before it is whole");
    let Ok(Inbound::Assembled(mut reply)) = receive(&mut end, &placed(segment(4004, true), b""))
    else {
        panic!("no reply")
    };
    assert_eq!(reply.take_tail().unwrap().len(), 8000);

    let inline = Blocks { segment: Some(segment(4004, false)), ..Blocks::default() };
    for other in [frame(Kind::Data, &inline, &[0; 100]), {
        let header = frame::segment_header(Grant::default(), segment(4004, false));
        header.into_iter().chain([0; 100]).collect()
    }] {
        let mut end = asked();
        let _begun = receive(&mut end, &first).unwrap();
        assert_eq!(refused(&mut end, &other), ProtocolError::TailBesideSlot);
    }
}

#[test]
fn a_list_of_sixteen_runs_is_the_longest() {
    let mut end = owner();
    let mut bytes = message(0, 1, &[(0, 1)]);
    bytes[7] = u8::try_from(MAX_EXTENTS).unwrap() + 1;
    bytes.resize(4 * MAX_EXTENTS + 100, 0);
    let error = ProtocolError::Arena(ArenaError::TooManyExtents(MAX_EXTENTS + 1));
    assert_eq!(refused(&mut end, &bytes), error);
}

proptest! {
    /// Any blocks of a peer cause a named error at worst, and every chunk stays accounted for.
    #[test]
    fn made_up_blocks_are_harmless(
        frames in prop::collection::vec(
            (0_u8..6, (0_u16..12, 0_u16..4), (0_u16..12, 0_u16..4), 0_u64..20_000, 0_u16..3),
            1..40,
        ),
        hold in any::<bool>(),
    ) {
        let mut end = owner();
        let (mut held, mut number) = (Vec::new(), 0);
        for (what, one, two, bytes, arena) in frames {
            let bytes = match what {
                0 => message(number, 1 + bytes, &[one]),
                1 => message(number, 1 + bytes, &[one, two]),
                2 => message(number, 1 + bytes % 4096, &[(one.0 % 8, 1)]),
                3 => {
                    let releases = extents(&[one, two]);
                    frame(Kind::Release, &Blocks { releases, ..Blocks::default() }, &[])
                }
                4 => {
                    let advertised = Advertisement {
                        arena,
                        first_chunk: one.0,
                        chunks: one.1,
                        log2_chunk: 12,
                        rkey: 1,
                        address: bytes,
                    };
                    let arena = Some(ArenaBlock::Advertise(advertised));
                    frame(Kind::Release, &Blocks { arena, ..Blocks::default() }, &[])
                }
                _ => {
                    let arena = Some(ArenaBlock::GivenUp(arena));
                    let blocks = Blocks { arena, starved: true, ..Blocks::default() };
                    frame(Kind::Release, &blocks, &[])
                }
            };
            match receive(&mut end, &bytes) {
                Ok(Inbound::Assembled(message)) => {
                    number += 1;
                    held.extend(hold.then_some(message));
                }
                Ok(_) => {}
                Err(error) => {
                    prop_assert!(!error.to_string().is_empty());
                    break;
                }
            }
            // Like a peer whose credits never run out.
            let owed = end.metrics().counters.owed.data();
            if owed > 4 {
                break;
            }
        }
        held.clear();
        while end.poll_transmit().is_some() {}
        prop_assert_eq!(end.metrics().landing_held, 0);
    }
}

/// Feeds rounds of frames to an end whose peer never returns a credit; returns the rule that ends
/// the connection.
fn flooded(
    end: &mut Link,
    rounds: u32,
    mut frames: impl FnMut(u32) -> Vec<Vec<u8>>,
) -> Option<ProtocolError> {
    for round in 0..rounds {
        for bytes in frames(round) {
            let result = end.on_frame(Instant::now(), None, &bytes);
            while let Some(transmit) = end.poll_transmit() {
                let (signaled, token) = (transmit.signaled, transmit.token);
                if signaled {
                    end.on_send_completion(token);
                }
            }
            if let Err(error) = result {
                return Some(error);
            }
            // The peer gives ack credits back, and no data credit.
            let acks = end.credits.remote().ack - end.credits.counters().ack_credits;
            if acks > 0 {
                let _ = end.credits.on_ack(Grant { data: 0, ack: acks });
            }
        }
    }
    None
}

/// Regression test: nobody replied into the slots, and the list of slots whose DONE waits to be
/// sent grew by 4 bytes a frame.
#[test]
fn peer_without_credits_cannot_grow_done_slots() {
    let offer = Offer::new(&config(), Features::ARENA.with(Features::REPLY_SLOTS), 7);
    let agreed = offer.agree_as_server(&offer).unwrap();
    let mut end = Link::new(&config(), &agreed, Instant::now()).unwrap();
    let error = flooded(&mut end, 5000, |slot| {
        let slot = Some(SlotBlock { slot, rkey: 1, address: 0, len: 100 });
        vec![frame(Kind::Data, &Blocks { slot, ..Blocks::default() }, b"stale cancel")]
    });
    assert_eq!(error, Some(ProtocolError::TooManySlots(1024)));
}

/// Regression test: each arena came and went, and the list of given up arenas to report grew with
/// each.
#[test]
fn peer_without_credits_cannot_grow_returned_arenas() {
    let arena = |number: u32| Advertisement {
        arena: u16::try_from(number % 3).unwrap(),
        first_chunk: u16::try_from(number % 3).unwrap(),
        chunks: 1,
        log2_chunk: 12,
        rkey: 1,
        address: 0,
    };
    let release =
        |arena| frame(Kind::Release, &Blocks { arena: Some(arena), ..Blocks::default() }, &[]);
    let mut end = end(Instant::now());
    let error = flooded(&mut end, 1000, |round| {
        let arena = arena(round);
        vec![release(ArenaBlock::Advertise(arena)), release(ArenaBlock::AskBack(arena.arena))]
    });
    assert!(matches!(error, Some(ProtocolError::Arena(ArenaError::ArenaExists(_)))), "{error:?}");
}

/// Regression test: a peer could give an arena up before the AskBack was sent, which then still was
/// queued.
#[test]
fn arena_is_given_up_only_after_recall() {
    let now = Instant::now();
    let mut end = owner();
    while end.poll_transmit().is_some() {}
    while end.credits.counters().data_credits > 0 {
        let _stamp = end.credits.send(1).unwrap();
    }
    end.on_timeout(now + std::time::Duration::from_secs(60), None).unwrap();
    let given_up = Blocks { arena: Some(ArenaBlock::GivenUp(0)), ..Blocks::default() };
    let error = refused(&mut end, &frame(Kind::Release, &given_up, &[]));
    assert_eq!(error, ProtocolError::Arena(ArenaError::NotAskedBack(0)));
}

#[test]
fn stream_beyond_its_readers_room_is_refused() {
    let mut end = end_with(&config().assembly_bytes(1000), Instant::now());
    let segment = |offset, head_end| {
        let (last, abort, total) = (false, false, 5000);
        let segment = Segment { number: 0, last, abort, head_end, offset, total };
        frame(Kind::Data, &Blocks { segment: Some(segment), ..Blocks::default() }, &[7; 200])
    };
    let Inbound::Assembled(mut message) = receive(&mut end, &segment(0, true)).unwrap() else {
        panic!("a stream is delivered with its head");
    };
    let stream = message.take_stream().unwrap();
    for at in 1..=5 {
        let _none = receive(&mut end, &segment(200 * at, false)).unwrap();
    }
    let error = refused(&mut end, &segment(1200, false));
    assert_eq!(error, ProtocolError::BeyondMaxStreamData { end: 1200, max: 1000 });
    drop(stream);
    let max = Some(crate::protocol::frame::MaxStreamData { number: 3, bytes: 9 });
    let unknown = Blocks { max_stream_data: max, ..Blocks::default() };
    let error = refused(&mut end, &frame(Kind::Release, &unknown, &[]));
    assert_eq!(error, ProtocolError::StreamDataOfNoMessage(3));
}
