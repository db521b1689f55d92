//! Every kind of memory reads alike.

use std::io::{Read, Seek, SeekFrom};
use std::time::Duration;

use rpc_transport::device::soft;
use rpc_transport::memory::region::ProtectionDomain;
use tokio::io::AsyncReadExt;

use super::*;

fn domain() -> ProtectionDomain {
    soft::mem_device().allocate_pd().unwrap()
}

const TEXT: &[u8] = b"some bytes of each kind";

/// A name that no other test has.
fn scratch_path(what: &str) -> std::path::PathBuf {
    let (process, thread) = (std::process::id(), std::thread::current().id());
    std::env::temp_dir().join(format!("bulk-{what}-{process}-{thread:?}"))
}

/// A file that nobody else has.
#[allow(unsafe_code, reason = "maps a file of its own")]
fn mapped() -> MappedFile {
    let path = scratch_path("mapped");
    std::fs::write(&path, [b"((", TEXT].concat()).unwrap();
    let file = File::open(&path).unwrap();
    // SAFETY: written completely, and nobody opens it for writing again.
    let mapped = unsafe { MappedFile::map(file, 2..2 + TEXT.len() as u64) }.unwrap();
    std::fs::remove_file(path).unwrap();
    mapped
}

fn of_each_kind() -> Vec<Bulk> {
    let pool = BulkPool::new(domain());
    let mut buffer = pool.take(TEXT.len()).unwrap();
    buffer.copy_from_slice(TEXT);
    let around = Bulk::from([b"((", TEXT, b"))"].concat());
    vec![
        Bulk::from(TEXT.to_vec()),
        Bulk::from(Bytes::from_static(TEXT)),
        Bulk::from(TEXT),
        Bulk::from(String::from_utf8(TEXT.to_vec()).unwrap()),
        Bulk::from(Payload::private(TEXT.to_vec())),
        buffer.freeze(),
        pool.register(TEXT.to_vec()).unwrap(),
        mapped().into(),
        pool.register(mapped()).unwrap(),
        around.slice(2..2 + TEXT.len() as u64),
    ]
}

#[test]
fn every_slice_of_every_kind_reads_alike() {
    for bulk in of_each_kind() {
        assert_eq!((bulk.len(), bulk.is_remote()), (TEXT.len() as u64, false), "{bulk:?}");
        for start in 0..=TEXT.len() {
            for end in start..=TEXT.len() {
                let (part, bytes) = (bulk.slice(start as u64..end as u64), &TEXT[start..end]);
                assert_eq!(part.as_slice(), Some(bytes), "{bulk:?}");
                assert_eq!(part.to_vec(), bytes);
                assert_eq!(part.to_bytes(), bytes);
                assert_eq!(part, *bytes);
                assert_eq!(part.clone().detach().as_slice(), Some(bytes));
                let mut copy = vec![0; bytes.len()];
                part.copy_to(&mut copy);
                assert_eq!(copy, bytes);
                let mut out = OutBuf::new();
                part.push_to(&mut out);
                let mut sent = Vec::new();
                for part in out.tail() {
                    part.append_to(0..part.len(), &mut sent);
                }
                assert_eq!(sent, bytes);
                assert_eq!(part.into_vec(), bytes);
            }
        }
    }
}

#[test]
fn reading_stops_at_the_end() {
    for bulk in of_each_kind() {
        let mut to = [0; 8];
        assert_eq!(bulk.read_at(TEXT.len() as u64 - 3, &mut to), 3);
        assert_eq!(&to[..3], &TEXT[TEXT.len() - 3..]);
        assert_eq!(bulk.read_at(TEXT.len() as u64, &mut to), 0);
        assert_eq!(bulk.read_at(u64::MAX, &mut to), 0);
    }
}

#[tokio::test]
async fn readers_and_files_get_all_bytes() {
    for bulk in of_each_kind() {
        let mut read = Vec::new();
        AsyncReadExt::read_to_end(&mut bulk.reader(), &mut read).await.unwrap();
        assert_eq!(read, TEXT);
        let mut text = String::new();
        Read::read_to_string(&mut bulk.reader(), &mut text).unwrap();
        assert_eq!(text.as_bytes(), TEXT);
        let path = scratch_path("written");
        let mut file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        bulk.write_to(&file).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut written = Vec::new();
        Read::read_to_end(&mut file, &mut written).unwrap();
        assert_eq!(written, TEXT);
    }
}

#[test]
fn nothing_is_copied_that_need_not_be() {
    let bytes = vec![1; 100];
    let address = bytes.as_ptr();
    let bulk = Bulk::from(bytes);
    assert_eq!(bulk.to_bytes().as_ptr(), address);
    assert_eq!(bulk.clone().detach().as_slice().unwrap().as_ptr(), address);
    let bytes = bulk.into_vec();
    assert_eq!(bytes.as_ptr(), address);
    let pooled = BulkPool::new(domain()).take(10).unwrap().freeze();
    assert_eq!(pooled.to_bytes().as_ptr(), pooled.as_slice().unwrap().as_ptr());
}

#[test]
fn a_buffer_goes_home_with_its_last_handle_and_is_used_again() {
    let pool = BulkPool::new(domain());
    let buffer = pool.take(100_000).unwrap();
    assert_eq!(pool.allocated_bytes(), 128 * 1024);
    let address = buffer.as_ptr();
    let bulk = buffer.freeze();
    let part = bulk.slice(5..10);
    drop(bulk);
    let other = pool.take(70_000).unwrap();
    assert_ne!(other.as_ptr(), address, "a part of it is still held");
    drop(part);
    assert_eq!(pool.take(66_000).unwrap().as_ptr(), address);
    drop(other);
    assert_eq!(pool.allocated_bytes(), 256 * 1024);
    pool.trim();
    assert_eq!(pool.allocated_bytes(), 0);
}

/// The limit was looked at only when a new buffer was allocated.
#[test]
fn what_comes_home_beyond_what_a_pool_may_keep_is_given_back() {
    let pool = BulkPool::new(domain());
    // Never touched, so this takes address space only.
    for shift in [25, 24, 23, 25, 24, 23, 22] {
        let taken: Vec<_> = (0..10).map(|_| pool.take(1 << shift).unwrap()).collect();
        assert!(pool.allocated_bytes() >= 10 << shift);
        drop(taken);
        assert!(pool.allocated_bytes() <= 128 << 20, "{pool:?}");
    }
}

/// A burst's memory was kept until the next one.
#[tokio::test(start_paused = true)]
async fn what_nobody_takes_for_some_seconds_is_given_back() {
    let pool = BulkPool::new(domain());
    let held = pool.take(1_000_000).unwrap();
    drop(pool.take(4 << 20).unwrap());
    drop(pool.slot(1 << 20).unwrap());
    while pool.allocated_bytes() > 1 << 20 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    drop(held);
    while pool.allocated_bytes() > 0 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[test]
fn only_a_whole_buffer_that_nobody_shares_is_filled_anew() {
    let pool = BulkPool::new(domain());
    let bulk = pool.take(10).unwrap().freeze();
    let clone = bulk.clone();
    let bulk = bulk.try_into_mut().unwrap_err();
    drop(clone);
    let bulk = bulk.slice(1..3).try_into_mut().unwrap_err();
    drop(bulk);
    let bulk = pool.take(10).unwrap().freeze();
    let mut buffer = bulk.try_into_mut().unwrap();
    assert_eq!(buffer.len(), 10);
    buffer.resize(20);
    buffer.truncate(15);
    assert_eq!((buffer.len(), buffer.capacity()), (15, 64 * 1024));
    assert!(Bulk::from(vec![1]).try_into_mut().is_err());
}

#[test]
fn slots_go_home_and_are_used_again() {
    let home = Arc::default();
    let domain = domain();
    let slot = slot::ReplySlot::take(&home, &domain, 100_000).unwrap();
    let other = slot::ReplySlot::take(&home, &domain, 70_000).unwrap();
    assert_eq!((slot.len(), home.idle_count()), (100_000, 0));
    drop((slot, other));
    assert_eq!(home.idle_count(), 2);
    let again = slot::ReplySlot::take(&home, &domain, 66_000).unwrap();
    assert_eq!(home.idle_count(), 1);
    home.trim();
    drop(again);
    assert_eq!(home.idle_count(), 1);
}

#[test]
fn a_buffer_that_cannot_be_is_refused() {
    let pool = BulkPool::new(domain());
    for len in [1 << 32, usize::MAX] {
        let error = pool.take(len).unwrap_err();
        assert!(error.to_string().contains(&len.to_string()), "{error}");
    }
}

/// serde's own deserializers know no payloads.
#[test]
fn in_other_formats_it_is_plain_bytes() {
    use serde::Deserialize;
    use serde::de::value::{BytesDeserializer, Error, SeqDeserializer};
    let from_bytes = Bulk::deserialize(BytesDeserializer::<Error>::new(b"abc")).unwrap();
    assert_eq!(from_bytes, *b"abc");
    let numbers = SeqDeserializer::<_, Error>::new([1_u8, 2].into_iter());
    assert_eq!(Bulk::deserialize(numbers).unwrap(), *b"\x01\x02");
}

#[test]
#[should_panic(expected = "slice 3..9 of a bulk of 8")]
fn a_slice_beyond_the_end_is_a_bug_of_the_caller() {
    let _ = Bulk::from(vec![0; 8]).slice(3..9);
}

/// As everywhere in the standard library: nothing is waited for, and it is no end.
#[test]
fn a_read_into_an_empty_buffer_waits_for_no_piece() {
    use futures::FutureExt;

    let pieces = futures::stream::pending::<Result<Bulk, std::io::Error>>();
    let mut reader = super::PieceReader::new(pieces);
    assert!(matches!(reader.read(&mut []).now_or_never(), Some(Ok(0))));
    assert!(reader.read(&mut [0]).now_or_never().is_none());
}
