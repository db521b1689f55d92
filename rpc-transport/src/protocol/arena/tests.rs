use std::time::{Duration, Instant};

use super::*;

const CHUNK: u64 = 4096;

fn extent(first: u16, count: u16) -> Extent {
    Extent { first, count }
}

fn extents(list: &[Extent]) -> Extents {
    Extents::from_slice(list).unwrap()
}

fn config(arena_chunks: u16, arenas: u32) -> ArenaConfig {
    let max_chunks = u32::from(arena_chunks) * arenas;
    ArenaConfig { log2_chunk: 12, arena_chunks, max_chunks, ..ArenaConfig::default() }
}

fn arena(number: u16, first_chunk: u16, chunks: u16) -> Advertisement {
    let rkey = 100 + u32::from(number);
    let address = u64::from(rkey) << 32;
    Advertisement { arena: number, first_chunk, chunks, log2_chunk: 12, rkey, address }
}

/// An owner of as many arenas of 8 chunks as it may have.
fn owner(arenas: u32) -> ArenaOwner {
    let mut owner = ArenaOwner::new(config(8, arenas), Instant::now());
    for number in 0..arenas {
        let rkey = 100 + number;
        owner.add(u64::from(rkey) << 32, rkey).unwrap();
    }
    owner
}

fn writer(arenas: u16) -> ArenaWriter {
    let mut writer = ArenaWriter::new();
    for number in 0..arenas {
        writer.on_advertise(arena(number, number * 8, 8)).unwrap();
    }
    writer
}

fn announce(writer: &mut ArenaWriter, bytes: u64) -> Extents {
    let allocation = writer.allocate(bytes).unwrap();
    assert_eq!(allocation.bytes(), bytes);
    writer.announce(allocation)
}

#[test]
fn message_lies_in_one_run_if_possible() {
    let mut writer = writer(2);
    assert_eq!(*announce(&mut writer, CHUNK), [extent(0, 1)]);
    // The smallest run that fits: 7 chunks are left of arena 0.
    assert_eq!(*announce(&mut writer, 7 * CHUNK), [extent(1, 7)]);
    let allocation = writer.allocate(2 * CHUNK + 1).unwrap();
    let writes: Vec<ArenaWrite> = writer.writes(&allocation).collect();
    let bytes = 0..2 * CHUNK + 1;
    assert_eq!(writes, [ArenaWrite { address: 101 << 32, rkey: 101, bytes }]);
    assert_eq!(*writer.announce(allocation), [extent(8, 3)]);
}

#[test]
fn a_message_may_lie_in_several_arenas() {
    let mut writer = writer(2);
    for first in [5, 3] {
        let _taken = announce(&mut writer, first * CHUNK);
    }
    let taken = announce(&mut writer, 4 * CHUNK);
    assert_eq!(*taken, [extent(8, 4)]);
    writer.on_release(&extents(&[extent(6, 2)])).unwrap();
    let allocation = writer.allocate(5 * CHUNK + 9).unwrap();
    let writes: Vec<ArenaWrite> = writer.writes(&allocation).collect();
    assert_eq!(writes[0].bytes, 0..4 * CHUNK);
    assert_eq!(writes[1].bytes, 4 * CHUNK..5 * CHUNK + 9);
    assert_eq!(writes[1].address, (100 << 32) + 6 * CHUNK);
    assert_eq!(**allocation.extents(), [extent(12, 4), extent(6, 2)]);
    writer.abandon(allocation);
    assert_eq!(writer.free_count(), 6);
}

#[test]
fn more_than_half_goes_in_quarters() {
    let mut writer = writer(1);
    let whole = writer.allocate(4 * CHUNK).unwrap();
    assert_eq!(whole.bytes(), 4 * CHUNK);
    writer.abandon(whole);
    let part = writer.allocate(4 * CHUNK + 1).unwrap();
    assert_eq!(part.bytes(), 2 * CHUNK);
    writer.abandon(part);
    let huge = writer.allocate(u64::MAX).unwrap();
    assert_eq!(huge.bytes(), 2 * CHUNK);
    writer.abandon(huge);
}

#[test]
fn scattered_chunks_carry_a_part() {
    let mut writer = ArenaWriter::new();
    writer.on_advertise(arena(0, 0, 64)).unwrap();
    for _ in 0..64 {
        let _taken = announce(&mut writer, CHUNK);
    }
    for first in (0..64).step_by(2) {
        writer.on_release(&extents(&[extent(first, 1)])).unwrap();
    }
    let allocation = writer.allocate(32 * CHUNK).unwrap();
    assert_eq!(allocation.extents().len(), MAX_EXTENTS);
    assert_eq!(allocation.bytes(), 16 * CHUNK);
    writer.abandon(allocation);
}

#[test]
fn chunk_shortage_is_reported_once() {
    let mut writer = writer(1);
    let taken = announce(&mut writer, 4 * CHUNK);
    let _more = announce(&mut writer, 4 * CHUNK);
    assert!(!writer.take_starved());
    assert!(writer.allocate(1).is_none() && writer.take_starved());
    assert!(writer.allocate(1).is_none() && !writer.take_starved());
    writer.on_release(&taken).unwrap();
    assert!(writer.allocate(4 * CHUNK).is_some_and(|some| some.bytes() == 4 * CHUNK));
    assert!(writer.allocate(1).is_none() && writer.take_starved());
}

#[test]
fn without_an_arena_every_message_asks_for_one() {
    let mut writer = ArenaWriter::new();
    for _ in 0..2 {
        assert!(writer.allocate(1).is_none() && writer.take_starved());
        assert_eq!(writer.usable_count(), 0);
    }
    assert!(writer.allocate(0).is_none() && !writer.take_starved());
}

#[test]
fn owner_grows_on_demand_up_to_its_budget() {
    let mut owner = ArenaOwner::new(config(8, 2), Instant::now());
    assert_eq!(owner.wanted_bytes(), None);
    for number in 0..2 {
        owner.on_starved();
        assert_eq!(owner.wanted_bytes(), Some(8 * CHUNK));
        assert_eq!(owner.add(0, 7).unwrap().first_chunk, number * 8);
        assert_eq!(owner.wanted_bytes(), None);
    }
    owner.on_starved();
    assert_eq!(owner.wanted_bytes(), None);
    let error = owner.add(0, 7).unwrap_err();
    assert_eq!(error, ArenaError::OverBudget { chunks: 8, used: 16, max: 16 });
    let mut poor = ArenaOwner::new(config(8, 2), Instant::now());
    poor.on_starved();
    poor.decline();
    assert_eq!(poor.wanted_bytes(), None);
    poor.on_starved();
    assert!(poor.wanted_bytes().is_some());
}

#[test]
fn releases_wait_for_half_or_a_blocked_writer() {
    let now = Instant::now();
    let mut owner = owner(1);
    let land = |owner: &mut ArenaOwner, first, count| {
        let landed =
            owner.on_message(now, extents(&[extent(first, count)]), CHUNK * u64::from(count));
        owner.release(landed.unwrap());
    };
    land(&mut owner, 0, 3);
    assert!(!owner.is_release_due());
    land(&mut owner, 5, 1);
    assert!(owner.is_release_due());
    land(&mut owner, 3, 1);
    // Adjacent chunks are joined.
    assert_eq!(*owner.take_releases(), [extent(0, 4), extent(5, 1)]);
    assert!(owner.take_releases().is_empty());
    owner.on_starved();
    assert!(!owner.is_release_due());
    land(&mut owner, 7, 1);
    assert!(owner.is_release_due());
    assert_eq!(*owner.take_releases(), [extent(7, 1)]);
    land(&mut owner, 7, 1);
    assert!(!owner.is_release_due());
}

#[test]
fn releases_beyond_a_header_wait_for_the_next() {
    let now = Instant::now();
    let mut owner = ArenaOwner::new(config(64, 1), now);
    owner.add(0, 1).unwrap();
    for first in (0..64).step_by(2) {
        let landed = owner.on_message(now, extents(&[extent(first, 1)]), 1).unwrap();
        owner.release(landed);
    }
    assert_eq!(owner.take_releases().len(), MAX_EXTENTS);
    assert_eq!(owner.releasing_count(), 16);
    assert_eq!(owner.take_releases().first(), Some(&extent(32, 1)));
    assert_eq!(owner.releasing_count(), 0);
}

#[test]
fn the_application_holds_at_most_half() {
    let now = Instant::now();
    let mut owner = owner(1);
    let mut landed: Vec<Landed> = [(0, 3), (3, 2), (5, 1)]
        .map(|(first, count)| {
            let list = extents(&[extent(first, count)]);
            owner.on_message(now, list, CHUNK * u64::from(count)).unwrap()
        })
        .into();
    let verdicts: Vec<bool> = landed.iter_mut().map(|landed| owner.lend(landed)).collect();
    assert_eq!(verdicts, [true, false, true]);
    assert!(owner.lend(&mut landed[0]), "lent already");
    assert_eq!(owner.lent_count(), 4);
    for landed in landed {
        owner.release(landed);
    }
    assert_eq!((owner.lent_count(), owner.held_count()), (0, 0));
}

#[test]
fn idle_arena_is_recalled_and_given_up() {
    let now = Instant::now();
    let mut owner = owner(2);
    let mut writer = writer(2);
    let idle = now + Duration::from_secs(11);
    let landed = owner.on_message(now, announce(&mut writer, CHUNK), CHUNK).unwrap();
    assert_eq!(owner.poll_ask_back(idle), None, "in use");
    owner.release(landed);
    assert_eq!(owner.poll_ask_back(idle), None, "a release waits");
    let releases = owner.take_releases();
    assert_eq!(owner.poll_ask_back(now + Duration::from_secs(9)), None);
    // The writer has not seen the release yet, and takes the other arena.
    let crossing = announce(&mut writer, 8 * CHUNK);
    assert_eq!(*crossing, [extent(8, 8)]);
    assert_eq!(owner.poll_ask_back(idle), Some(1));
    assert_eq!(owner.poll_ask_back(idle), None, "one at a time");
    writer.on_ask_back(1).unwrap();
    assert_eq!(writer.poll_given_up(), None);
    assert_eq!(writer.usable_count(), 8);
    let landed = owner.on_message(idle, crossing, 8 * CHUNK).unwrap();
    assert_eq!(owner.on_given_up(1), Err(ArenaError::GivenUpInUse(1)));
    owner.release(landed);
    writer.on_release(&releases).unwrap();
    writer.on_release(&owner.take_releases()).unwrap();
    assert_eq!(writer.poll_given_up(), Some(1));
    owner.on_given_up(1).unwrap();
    assert_eq!((owner.chunk_count(), writer.chunk_count()), (8, 8));
    // The number is free again.
    assert_eq!(owner.add(0, 1).unwrap().arena, 1);
}

#[test]
fn kept_arena_is_not_recalled() {
    let now = Instant::now();
    let mut owner = ArenaOwner::new(ArenaConfig { keep_chunks: 8, ..config(8, 1) }, now);
    owner.add(0, 1).unwrap();
    assert_eq!(owner.next_deadline(), None);
    assert_eq!(owner.poll_ask_back(now + Duration::from_secs(100)), None);
}

#[test]
fn each_wrong_message_has_its_error() {
    use ArenaError as E;
    let now = Instant::now();
    let mut owner = owner(2);
    let held = owner.on_message(now, extents(&[extent(4, 1)]), CHUNK).unwrap();
    let waiting = owner.on_message(now, extents(&[extent(5, 1)]), CHUNK).unwrap();
    owner.release(waiting);
    let mismatch = |written, chunks| E::WrittenMismatch { written, chunks, log2_chunk: 12 };
    for (list, bytes, error) in [
        (&[][..], 0, E::NoExtents),
        (&[extent(3, 0)], 0, E::EmptyExtent(3)),
        (&[extent(16, 1)], 1, E::UnknownChunks(extent(16, 1))),
        (&[extent(u16::MAX, u16::MAX)], 1, E::UnknownChunks(extent(u16::MAX, u16::MAX))),
        (&[extent(7, 2)], 1, E::CrossesArenas(extent(7, 2))),
        (&[extent(15, 2)], 1, E::CrossesArenas(extent(15, 2))),
        (&[extent(0, 2), extent(1, 1)], 1, E::DuplicateChunks(extent(1, 1))),
        (&[extent(3, 2)], 1, E::ChunkInUse(4)),
        (&[extent(5, 1)], 1, E::ChunkInUse(5)),
        (&[extent(8, 8), extent(0, 1)], 1, E::BeyondShare { chunks: 9, share: 8 }),
        (&[extent(0, 2)], CHUNK, mismatch(CHUNK, 2)),
        (&[extent(0, 2)], 2 * CHUNK + 1, mismatch(2 * CHUNK + 1, 2)),
        (&[extent(0, 1)], 0, mismatch(0, 1)),
        (&[extent(0, 1)], u64::MAX, mismatch(u64::MAX, 1)),
    ] {
        let refused = owner.on_message(now, extents(list), bytes).map(|landed| landed.bytes());
        assert_eq!(refused, Err(error));
    }
    let seventeen = [extent(0, 1); MAX_EXTENTS + 1];
    assert_eq!(Extents::from_slice(&seventeen), Err(E::TooManyExtents(17)));
    assert_eq!(owner.on_given_up(9), Err(E::UnknownArena(9)));
    assert_eq!(owner.on_given_up(1), Err(E::NotAskedBack(1)));
    let good = owner.on_message(now, extents(&[extent(0, 2)]), CHUNK + 1).unwrap();
    owner.release(good);
    owner.release(held);
}

#[test]
fn each_wrong_owner_word_has_its_error() {
    use ArenaError as E;
    let mut writer = writer(2);
    let taken = announce(&mut writer, CHUNK);
    let pending = writer.allocate(CHUNK).unwrap();
    for (list, error) in [
        (&[extent(0, 0)][..], E::EmptyExtent(0)),
        (&[extent(16, 1)], E::UnknownChunks(extent(16, 1))),
        (&[extent(7, 2)], E::CrossesArenas(extent(7, 2))),
        (&[extent(0, 1), extent(0, 1)], E::DuplicateChunks(extent(0, 1))),
        (&[extent(2, 1)], E::NotAnnounced(2)),
        (&[extent(0, 2)], E::NotAnnounced(1)),
    ] {
        assert_eq!(writer.on_release(&extents(list)), Err(error));
    }
    writer.abandon(pending);
    writer.on_release(&taken).unwrap();
    assert_eq!(writer.on_ask_back(2), Err(E::UnknownArena(2)));
    let good = arena(2, 16, 8);
    for (bad, error) in [
        (Advertisement { log2_chunk: 11, ..good }, E::BadChunkSize(11)),
        (Advertisement { log2_chunk: 27, ..good }, E::BadChunkSize(27)),
        (Advertisement { log2_chunk: 13, ..good }, E::ChunkSizeChanged { first: 12, now: 13 }),
        (Advertisement { chunks: 0, ..good }, E::BadChunkCount(0)),
        (Advertisement { chunks: 4097, ..good }, E::BadChunkCount(4097)),
        (Advertisement { arena: 1, ..good }, E::ArenaExists(1)),
        (Advertisement { first_chunk: 15, ..good }, E::ArenasOverlap(extent(15, 8))),
        (Advertisement { first_chunk: 65529, ..good }, E::BeyondChunkNumbers(extent(65529, 8))),
        (
            Advertisement { address: u64::MAX - 8 * CHUNK + 1, ..good },
            E::BeyondAddressSpace(u64::MAX - 8 * CHUNK + 1),
        ),
    ] {
        assert_eq!(writer.on_advertise(bad), Err(error));
    }
    writer.on_advertise(Advertisement { first_chunk: 65528, ..good }).unwrap();
    let _busy = announce(&mut writer, CHUNK);
    writer.on_ask_back(0).unwrap();
    assert_eq!(writer.on_ask_back(0), Err(E::AskedBackTwice(0)));
    for number in 3..66 {
        let first_chunk = number * 8;
        let verdict = writer.on_advertise(Advertisement { arena: number, first_chunk, ..good });
        assert_eq!(verdict, if number < 64 { Ok(()) } else { Err(E::TooManyArenas) });
    }
}

#[test]
fn a_bad_config_is_named() {
    let base = ArenaConfig::default;
    base().validate().unwrap();
    for (config, part) in [
        (ArenaConfig { log2_chunk: 11, ..base() }, "log2_chunk is 11, allowed is 12 to 26"),
        (ArenaConfig { arena_chunks: 0, ..base() }, "arena_chunks is 0, allowed is 1 to 4096"),
        (ArenaConfig { max_chunks: 65537, ..base() }, "max_chunks is 65537"),
    ] {
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn an_extent_survives_the_wire() {
    let some = extent(0x0102, 0x0304);
    assert_eq!(some.to_bytes(), [2, 1, 4, 3]);
    assert_eq!(Extent::from_bytes(some.to_bytes()), some);
}
