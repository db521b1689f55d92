//! All kinds of memory are read in the same way.

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

/// A name unique to the test.
fn scratch_path(what: &str) -> std::path::PathBuf {
    let (process, thread) = (std::process::id(), std::thread::current().id());
    std::env::temp_dir().join(format!("bulk-{what}-{process}-{thread:?}"))
}

/// A file unique to the test.
#[allow(unsafe_code, reason = "maps a file of its own")]
fn mapped() -> MappedFile {
    let path = scratch_path("mapped");
    std::fs::write(&path, [b"((", TEXT].concat()).unwrap();
    let file = File::open(&path).unwrap();
    // SAFETY: written completely, and never opened for writing again.
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
                assert_eq!(part.to_vec().unwrap(), bytes);
                assert_eq!(part.to_bytes().unwrap(), bytes);
                assert_eq!(part, *bytes);
                assert_eq!(part.clone().detach().unwrap().as_slice(), Some(bytes));
                let mut copy = vec![0; bytes.len()];
                part.copy_to(&mut copy).unwrap();
                assert_eq!(copy, bytes);
                let mut out = OutBuf::new();
                part.push_to(&mut out).unwrap();
                let mut sent = Vec::new();
                for part in out.tail() {
                    part.append_to(0..part.len(), &mut sent);
                }
                assert_eq!(sent, bytes);
                assert_eq!(part.into_vec().unwrap(), bytes);
            }
        }
    }
}

#[test]
fn reading_stops_at_the_end() {
    for bulk in of_each_kind() {
        let mut to = [0; 8];
        assert_eq!(bulk.read_at(TEXT.len() as u64 - 3, &mut to), Ok(3));
        assert_eq!(&to[..3], &TEXT[TEXT.len() - 3..]);
        assert_eq!(bulk.read_at(TEXT.len() as u64, &mut to), Ok(0));
        assert_eq!(bulk.read_at(u64::MAX, &mut to), Ok(0));
    }
}

#[tokio::test]
async fn no_way_out_gives_unreadable_bytes() {
    let bulk = Bulk::from(Payload::unreadable(TEXT.len()));
    let mut room = vec![0; TEXT.len()];
    let failed = [
        bulk.to_vec().map(drop),
        bulk.clone().into_vec().map(drop),
        bulk.to_bytes().map(drop),
        bulk.clone().detach().map(drop),
        bulk.copy_to(&mut room),
        bulk.read_at(3, &mut room[..5]).map(drop),
        bulk.append_to(&mut room),
        bulk.push_to(&mut OutBuf::new()),
    ];
    assert_eq!(failed, [Err(ReadError::Forked); 8]);
    let null = File::options().write(true).open("/dev/null").unwrap();
    let mut pieces = crate::stream::iter([Ok::<_, ReadError>(bulk.clone())]);
    let failed = [
        bulk.write_to(null),
        Read::read(&mut bulk.reader(), &mut room).map(drop),
        AsyncReadExt::read(&mut bulk.reader(), &mut room).await.map(drop),
        AsyncReadExt::read(&mut PieceReader::new(&mut pieces), &mut room).await.map(drop),
    ];
    for error in failed.map(Result::unwrap_err) {
        assert_eq!(error.downcast::<ReadError>().unwrap(), ReadError::Forked);
    }
    assert_eq!((bulk.as_slice(), room.len()), (None, TEXT.len()));
    let mut other = bulk.clone();
    assert_eq!(bulk, other);
    other = Bulk::from(Payload::unreadable(TEXT.len()));
    let copied = Bulk::from(room.clone());
    assert!(bulk != other && bulk != room && bulk != copied);
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
    assert_eq!(bulk.to_bytes().unwrap().as_ptr(), address);
    assert_eq!(bulk.clone().detach().unwrap().as_slice().unwrap().as_ptr(), address);
    let bytes = bulk.into_vec().unwrap();
    assert_eq!(bytes.as_ptr(), address);
    let pooled = BulkPool::new(domain()).take(10).unwrap().freeze();
    assert_eq!(pooled.to_bytes().unwrap().as_ptr(), pooled.as_slice().unwrap().as_ptr());
}

#[test]
fn a_buffer_is_reused_after_its_last_handle() {
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

/// Regression: the limit was checked only when a new buffer was allocated.
#[test]
fn a_pool_frees_memory_above_its_limit() {
    let pool = BulkPool::new(domain());
    // Never touched, so this only takes address space.
    for shift in [25, 24, 23, 25, 24, 23, 22] {
        let taken: Vec<_> = (0..10).map(|_| pool.take(1 << shift).unwrap()).collect();
        assert!(pool.allocated_bytes() >= 10 << shift);
        drop(taken);
        assert!(pool.allocated_bytes() <= 128 << 20, "{pool:?}");
    }
}

/// Regression: the memory of a burst was kept until the next one.
#[tokio::test(start_paused = true)]
async fn idle_memory_is_freed_after_some_seconds() {
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

/// Regression: a task that had ended with its runtime was taken for a running one.
#[test]
fn idle_buffers_are_trimmed_in_another_runtime() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().unwrap()
    };
    let first = runtime();
    let pool = first.block_on(async { BulkPool::new(domain()) });
    drop(pool.take(1_000_000).unwrap());
    drop(first);
    // Outside any runtime.
    drop(pool.take(1_000_000).unwrap());
    assert_eq!(pool.allocated_bytes(), 1 << 20);
    runtime().block_on(async {
        drop(pool.take(1_000_000).unwrap());
        for _ in 0..1000 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(pool.allocated_bytes(), 0);
    });
}

#[test]
fn only_a_whole_unshared_buffer_is_refilled() {
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
fn slicing_past_the_end_panics() {
    let _ = Bulk::from(vec![0; 8]).slice(3..9);
}

/// As in the standard library: `WouldBlock` is not the end of the data.
#[test]
fn an_empty_read_does_not_wait() {
    use futures::FutureExt;

    let pieces = futures::stream::pending::<Result<Bulk, std::io::Error>>();
    let mut reader = super::PieceReader::new(pieces);
    assert!(matches!(reader.read(&mut []).now_or_never(), Some(Ok(0))));
    assert!(reader.read(&mut [0]).now_or_never().is_none());
}
