//! Locked memory that the objects of a NIC take: pure functions of what is created.
//!
//! Owns the reckoning; the limit of a process is the operating system's. The sizes are those of mlx5
//! (64 bytes for a completion, 256 for a send, 16 for a receive, each queue rounded up to a power of
//! two, all of it in whole pages); others differ by little.

use crate::device::QpCapacity;

/// A page of memory, bytes.
const PAGE_BYTES: u64 = 4096;

/// A registered region of `len` bytes, bytes.
#[must_use]
pub fn region(len: usize) -> u64 {
    (len as u64).max(1).next_multiple_of(PAGE_BYTES)
}

/// A completion queue of at least `entries` completions, bytes. A device's is half as large again as
/// what is asked for (see `verbs::completion_channel`).
#[must_use]
pub fn completion_queue(entries: u32) -> u64 {
    queue(u64::from(entries) + u64::from(entries.div_ceil(2)), 64)
}

/// A queue pair, bytes.
#[must_use]
pub fn queue_pair(capacity: QpCapacity) -> u64 {
    // One send more than is asked for: the one that drains.
    let sends = queue(u64::from(capacity.max_send_wr) + 1, 256);
    if capacity.uses_srq { sends } else { sends + queue(capacity.max_recv_wr.into(), 16) }
}

/// A shared receive queue, bytes: an entry has its place in a list besides its buffer's, and there is
/// one more.
#[must_use]
pub fn shared_receive_queue(max_recv_wr: u32) -> u64 {
    queue(u64::from(max_recv_wr) + 1, 32)
}

fn queue(entries: u64, bytes: u64) -> u64 {
    (entries.next_power_of_two() * bytes).next_multiple_of(PAGE_BYTES)
}
