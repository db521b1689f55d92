//! Long tails stream through a small arena, and the memory of the process stays flat. Separate from
//! the other tests, which use memory of their process.
#![allow(missing_docs, clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]
#![allow(dead_code, reason = "shared with tests that use more of it")]

#[path = "../shard/parts.rs"]
mod parts;
#[path = "../shard/probe.rs"]
mod probe;
#[path = "../support/random.rs"]
mod random;
#[path = "../shard/world.rs"]
mod world;

use crate::parts::{KEEP, region, send, streaming, warm_up, whole};
use crate::random::variable;
use crate::world::{Options, Pair, WIRES, pattern, run};

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Sends the same bytes again and again, as one message, and reads them as they arrive.
async fn stream(wire: &str, block: usize, count: usize) {
    let options = Options { habits: KEEP, ..Options::alike(streaming()) };
    let pair = Pair::with(wire, &options).await;
    let bytes = pattern(3, block);
    let region = whole(region(&pair.client, &bytes));
    warm_up(&pair.client, &pair.server).await;
    let before = resident_bytes();
    send(&pair.client, b"head", std::iter::repeat_n(region, count));
    let mut message = pair.server.next().await;
    assert_eq!(*message, *b"head");
    assert!(message.take_tail().is_none());
    let mut stream = message.take_stream().unwrap();
    assert_eq!(stream.len(), (block * count) as u64);
    let (mut at, mut most, mut remote) = (0_u64, before, 0_u64);
    let mut copy = vec![0; 1 << 20];
    while let Some(segment) = stream.next().await {
        let segment = segment.unwrap();
        let copy = &mut copy[..segment.len() as usize];
        segment.copy_to(0, copy).unwrap();
        remote += u64::from(!segment.is_private());
        // A segment lies in one block or in two.
        let start = at as usize % block;
        let (first, second) = copy.split_at(copy.len().min(block - start));
        assert!(*first == bytes[start..start + first.len()], "{wire} at {at}");
        assert!(*second == bytes[..second.len()], "{wire} at {at}");
        at += segment.len();
        most = most.max(resident_bytes());
    }
    assert_eq!(at, stream.len());
    assert!(remote > 0);
    let grown = most.saturating_sub(before);
    assert!(grown < 16 << 20, "{wire}: {grown} bytes more are resident");
    drop(stream);
    // The next message of the lane.
    warm_up(&pair.client, &pair.server).await;
    pair.end().await;
}

/// `RPC_TEST_LONG=1`: five gibibytes through half a mebibyte.
#[test]
fn long_tail_streams_with_flat_memory() {
    for wire in WIRES {
        run("stream", stream(wire, 1 << 20, 300));
    }
    let count = if variable("RPC_TEST_LONG").is_some() { 5 << 10 } else { 1 << 10 };
    run("gibibytes", stream("shm", 1 << 20, count));
}
