//! Sealed links: what is written travels in records, which their frame names.

use super::*;
use crate::memory::budget::MemoryBudget;
use crate::message::payload::Payload;
use crate::message::read_error::ReadError;
use crate::protocol::frame::{MAX_RECORDS, RECORD_BYTES, Tags};
use crate::protocol::lock::fake::FakeKey;
use crate::protocol::lock::{FrameKey, Opener, REKEY_FRAMES, RecordKey, RecordKeys, Role};

fn key() -> Box<FakeKey> {
    Box::new(FakeKey::new(9, Role::Client))
}

/// Frames have room for a TAGS block.
fn secure() -> LinkConfig {
    config().receive_buffer_bytes(4096)
}

fn sealed_end(config: &LinkConfig) -> Link {
    let offer = Offer::new(config, Features::ARENA.with(Features::SECURE), 7);
    let agreed = offer.agree_as_server(&offer).unwrap();
    Link::sealed(config, &agreed, Instant::now()).unwrap()
}

/// The keys of a frame behind `changes` changes.
fn keys(changes: u32) -> RecordKeys {
    let mut opener = Opener::new(key(), 0);
    opener.skip_to(u64::from(changes) * REKEY_FRAMES + 1);
    opener.record_keys().clone()
}

/// A sealed end with an arena, and the memory of the arena.
fn sealed_owner(config: &LinkConfig) -> (Link, MemoryRegion) {
    let mut end = sealed_end(config);
    end.set_record_keys(&keys(3));
    let starved = Blocks { starved: true, ..Blocks::default() };
    let _none = receive(&mut end, &frame(Kind::Release, &starved, &[])).unwrap();
    let region = region(end.wanted_arena().unwrap());
    end.add_arena(region.clone()).unwrap();
    while end.poll_transmit().is_some() {}
    (end, region)
}

/// Seals bytes as an end does whose key has changed `epoch` times, and writes them to the arena.
fn write(region: &MemoryRegion, at: usize, bytes: &[u8], epoch: u32, first: u64) -> Tags {
    let mut from = key();
    (0..epoch).for_each(|_| from.advance());
    let mut sealed = bytes.to_vec();
    let seal = |(number, record)| RecordKey::seal(&*from, number, record).unwrap();
    let tags = (first..).zip(sealed.chunks_mut(RECORD_BYTES)).map(seal).collect();
    region.scribble(at, &sealed);
    Tags { epoch, first, tags }
}

/// A whole message of a head and a tail, which lies in `chunks`.
fn named(number: u32, written: u64, chunks: &[(u16, u16)], tags: Tags) -> Vec<u8> {
    let segment =
        Segment { number, last: true, abort: false, head_end: true, offset: 0, total: 4 + written };
    let written = Some(Written { bytes: written, extents: extents(chunks) });
    let tags = Some(Box::new(tags));
    frame(
        Kind::Data,
        &Blocks { segment: Some(segment), written, tags, ..Blocks::default() },
        b"head",
    )
}

fn tail_of(end: &mut Link, bytes: &[u8]) -> Payload {
    let Ok(Inbound::Assembled(mut message)) = receive(end, bytes) else { panic!("no message") };
    assert_eq!(&*message, b"head");
    message.take_tail().unwrap()
}

fn tags(epoch: u32, first: u64, count: usize) -> Tags {
    Tags { epoch, first, tags: vec![[0; 16]; count] }
}

#[test]
fn records_of_two_keys_are_read() {
    let (mut end, region) = sealed_owner(&secure());
    let mut held = Vec::new();
    for (number, epoch) in [(0, 2), (1, 2), (2, 3)] {
        let bytes = pattern(number.into(), 3000);
        let at = usize::try_from(number).unwrap() * 4096;
        let tags = write(&region, at, &bytes, epoch, 40 + u64::from(number));
        let chunk = u16::try_from(number).unwrap();
        held.push((tail_of(&mut end, &named(number, 3000, &[(chunk, 1)], tags)), bytes));
    }
    // The keys live as long as what they sealed.
    end.set_record_keys(&keys(9));
    drop(end);
    for (tail, bytes) in held {
        assert!(!tail.is_private());
        assert_eq!(tail.to_vec().unwrap(), bytes);
    }
}

#[test]
fn wrong_records_are_refused_by_name() {
    use ProtocolError as E;
    let too_many = (MAX_RECORDS * RECORD_BYTES) as u64 + 1;
    let beyond = 1 << 62;
    let chunk = &[(0, 1)];
    let mut reserved = named(0, 100, chunk, tags(3, 0, 1));
    let at = reserved.len() - b"head".len() - 16 - 8 - 4;
    reserved[at] = 1;
    let mut cut = named(0, 100, chunk, tags(3, 0, 1));
    cut.truncate(cut.len() - b"head".len() - 1);
    for (bytes, error) in [
        (named(0, 100, chunk, tags(4, 0, 1)), E::RecordEpoch { epoch: 4, now: 3 }),
        (named(0, 100, chunk, tags(1, 0, 1)), E::RecordEpoch { epoch: 1, now: 3 }),
        (named(0, 100, chunk, tags(u32::MAX, 0, 1)), E::RecordEpoch { epoch: u32::MAX, now: 3 }),
        (named(0, 100, chunk, tags(3, beyond, 1)), E::RecordNumber { first: beyond, least: 0 }),
        (named(0, 100, chunk, tags(3, u64::MAX, 1)), E::RecordNumber { first: u64::MAX, least: 0 }),
        (
            named(0, too_many, chunk, tags(3, 0, MAX_RECORDS + 1)),
            E::TooManyRecords { bytes: too_many, max: MAX_RECORDS },
        ),
        (
            named(0, u64::MAX - 4, chunk, tags(3, 0, 1)),
            E::TooManyRecords { bytes: u64::MAX - 4, max: MAX_RECORDS },
        ),
        (reserved, E::ReservedNotZero("TAGS")),
        (cut.clone(), E::Truncated { len: cut.len(), need: cut.len() + 1 }),
        (
            named(0, 100, &[(9, 1)], tags(3, 0, 1)),
            ArenaError::UnknownChunks(Extent { first: 9, count: 1 }).into(),
        ),
    ] {
        assert_eq!(refused(&mut sealed_owner(&secure()).0, &bytes), error);
    }
}

/// Of a number that was named, also with another key.
#[test]
fn a_record_is_named_once() {
    for epoch in [2, 3] {
        let (mut end, region) = sealed_owner(&secure());
        let tags_of = |first| write(&region, 0, &[7; 100], 2, first);
        let _tail = tail_of(&mut end, &named(0, 100, &[(0, 1)], tags_of(5)));
        let again = named(1, 100, &[(1, 1)], tags(epoch, 5, 1));
        let expected = ProtocolError::RecordNumber { first: 5, least: 6 };
        assert_eq!(refused(&mut end, &again), expected);
    }
    // Numbers may be left out: their WRITE was posted, and its frame was not.
    let (mut end, _region) = sealed_owner(&secure());
    for (number, first) in [(0, 5), (1, 600)] {
        let chunk = u16::try_from(number).unwrap();
        let _tail = tail_of(&mut end, &named(number, 100, &[(chunk, 1)], tags(3, first, 1)));
    }
}

/// A head is read under the lock of the shard, where nothing is opened.
#[test]
fn heads_are_in_no_record() {
    let segment =
        Segment { number: 0, last: false, abort: false, head_end: false, offset: 0, total: 9000 };
    let written = Some(Written { bytes: 100, extents: extents(&[(0, 1)]) });
    let tags = Some(Box::new(tags(3, 0, 1)));
    let blocks = Blocks { segment: Some(segment), written, tags, ..Blocks::default() };
    let (mut end, _region) = sealed_owner(&secure());
    let bytes = frame(Kind::Data, &blocks, &[]);
    assert_eq!(refused(&mut end, &bytes), ProtocolError::HeadInRecords);

    // Nor does this end write one.
    let mut end = sealed_end(&secure());
    advertise(&mut end);
    end.set_staging_room(100_000);
    end.submit(Lane::Bulk, 1, out(1, 5000)).unwrap();
    while let Some(transmit) = end.poll_transmit() {
        assert!(transmit.writes.is_empty());
    }
}

/// The end may write 128 chunks of 4 KiB.
fn advertise(end: &mut Link) {
    let arena = Advertisement {
        arena: 0,
        first_chunk: 0,
        chunks: 128,
        log2_chunk: 12,
        rkey: 9,
        address: 1 << 20,
    };
    let blocks = Blocks { arena: Some(ArenaBlock::Advertise(arena)), ..Blocks::default() };
    let _none = receive(end, &frame(Kind::Release, &blocks, &[])).unwrap();
}

/// The engine seals what it copies, so all is copied: also memory of the connection's domain. And
/// all of a frame leaves at once, so that it names each record.
#[test]
fn a_whole_segment_is_posted_at_once() {
    let config = secure().arena_segment_bytes(300_000).max_message_bytes(1 << 20);
    let mut end = sealed_end(&config);
    advertise(&mut end);
    let memory = region(290_000);
    end.stage_other_domains(memory.domain());
    end.set_slices(SliceBytes::COPIED);
    let mut message = out(1, 10);
    message.push_tail(OutPart::region(memory, 0, 290_000, None));
    end.submit(Lane::Bulk, 1, message).unwrap();
    assert!(end.poll_transmit().is_none());
    let mut sizes = Vec::new();
    while let Some(bytes) = end.wanted_staging() {
        end.set_staging_room(bytes);
        if sizes.len() == 1 {
            // A small message goes between two segments, which are short from then on.
            end.submit(Lane::Small, 2, out(2, 10)).unwrap();
        }
        while let Some(transmit) = end.poll_transmit() {
            assert!(!matches!(transmit.frame, FrameBytes::Later), "a record without a name");
            let written: u64 = transmit.writes.iter().map(|write| write.part.len()).sum();
            sizes.extend((written > 0).then_some(written));
            let token = transmit.token;
            end.on_send_completion(token);
        }
    }
    assert_eq!(sizes.first(), Some(&((MAX_RECORDS * RECORD_BYTES) as u64)), "{sizes:?}");
    assert!(sizes.len() > 1, "{sizes:?}");
}

#[test]
fn changed_record_fails_its_reader_and_link() {
    let (mut end, region) = sealed_owner(&secure());
    let bytes = pattern(1, 3000);
    let tags = write(&region, 0, &bytes, 3, 0);
    let tail = tail_of(&mut end, &named(0, 3000, &[(0, 1)], tags));
    assert_eq!(tail.to_vec().unwrap(), bytes);
    assert!(!end.has_forged_record());
    region.scribble(1000, &[!bytes[1000] ^ 0xa5]);
    let mut room = vec![1; 3000];
    assert_eq!(tail.copy_to(0, &mut room), Err(ReadError::Forged));
    assert_eq!(room, vec![0; 3000]);
    assert!(end.has_forged_record());
}

/// A tail that the application may not hold in place stays encrypted until it is read.
#[test]
fn copied_records_are_opened_by_their_reader() {
    let (mut end, region) = sealed_owner(&secure());
    let bytes = pattern(3, 8000);
    // Half of the arena may be lent: the second tail is copied.
    let mut first = 0;
    let mut held = Vec::new();
    for number in 0..3_u32 {
        let at = usize::from(first) * 4096;
        let tags = write(&region, at, &bytes, 3, number.into());
        held.push(tail_of(&mut end, &named(number, 8000, &[(first, 2)], tags)));
        first += 2;
    }
    assert_eq!(end.metrics().landing_held, 4);
    region.scribble(0, &[0; 8 * 4096]);
    assert_eq!(held[2].to_vec().unwrap(), bytes);
    assert!(!held[2].is_private());
    assert_eq!(held[0].to_vec(), Err(ReadError::Forged));
}

/// One of two segments of a message, whose tail has 4000 bytes in each of two chunks.
fn half(region: &MemoryRegion, chunk: u16, part: &[u8]) -> Vec<u8> {
    let tags = write(region, usize::from(chunk) * 4096, part, 3, chunk.into());
    let (first, last) = (chunk == 0, chunk == 1);
    let offset = if first { 0 } else { 4 + 4000 };
    let segment = Segment { number: 0, last, abort: false, head_end: first, offset, total: 8004 };
    let written = Some(Written { bytes: 4000, extents: extents(&[(chunk, 1)]) });
    let tags = Some(Box::new(tags));
    let blocks = Blocks { segment: Some(segment), written, tags, ..Blocks::default() };
    frame(Kind::Data, &blocks, if first { b"head" } else { b"" })
}

/// By whom the link has woken, without a lock. The arena is not read afterwards.
#[test]
fn a_copied_tail_is_opened_as_it_arrives() {
    let (mut end, region) = sealed_owner(&secure());
    let budget = MemoryBudget::new(1 << 20);
    end.set_memory_budget(budget.clone());
    let bytes = pattern(6, 8000);
    let mut tail = None;
    for (chunk, part) in (0_u16..).zip(bytes.chunks(4000)) {
        let frame = half(&region, chunk, part);
        match end.on_frame_with(Instant::now(), None, &frame, &|_| true).unwrap() {
            Inbound::Assembled(mut message) => tail = message.take_tail().zip(Some(message)),
            other => assert!(chunk == 0 && matches!(other, Inbound::None)),
        }
        end.take_reader().expect("somebody opens it").wake();
        assert!(budget.used_bytes() >= 8000, "{} bytes reserved", budget.used_bytes());
    }
    region.scribble(0, &[0; 2 * 4096]);
    let (tail, _message) = tail.unwrap();
    assert!(!tail.is_private());
    assert_eq!(tail.to_vec().unwrap(), bytes);
    assert!(!end.has_forged_record());
}

/// A tail that is read while it arrives.
#[tokio::test]
async fn streams_open_their_segments() {
    use tokio::io::AsyncReadExt;

    let config = secure().assembly_bytes(5000);
    let bytes = pattern(5, 8000);
    for is_changed in [false, true] {
        let (mut end, region) = sealed_owner(&config);
        let mut stream = None;
        for (chunk, part) in (0_u16..).zip(bytes.chunks(4000)) {
            match receive(&mut end, &half(&region, chunk, part)).unwrap() {
                Inbound::Assembled(mut message) => stream = message.take_stream(),
                other => assert!(chunk == 1 && matches!(other, Inbound::None)),
            }
        }
        if is_changed {
            region.scribble(4096, &[0; 9]);
        }
        let mut stream = stream.unwrap();
        let mut read = vec![0; 3000];
        stream.read_exact(&mut read).await.unwrap();
        let rest = stream.read_to_end(&mut read).await;
        if is_changed {
            let error = rest.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
            assert_eq!(read, bytes[..4000]);
        } else {
            assert_eq!(read, bytes);
        }
    }
}
