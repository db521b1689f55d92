//! How much locked memory the objects of a NIC take: functions of an object's size and the page
//! size.
//!
//! Owns the arithmetic; the operating system enforces a process's limit. The sizes are mlx5's: 64
//! bytes for a completion, 256 for a send, 16 for a receive; each queue is rounded up to a power of
//! two and to whole pages. Other NICs differ little.

use crate::device::QpCapacity;

/// A registered region of `len` bytes, bytes.
#[must_use]
pub fn region(len: usize) -> u64 {
    whole_pages((len as u64).max(1))
}

/// A completion queue of at least `entries` completions, bytes. The device's queue is half as large
/// again as requested (see `verbs::completion_channel`).
#[must_use]
pub fn completion_queue(entries: u32) -> u64 {
    queue(u64::from(entries) + u64::from(entries.div_ceil(2)), 64)
}

/// A queue pair, bytes.
#[must_use]
pub fn queue_pair(capacity: QpCapacity) -> u64 {
    // One send more than requested, for the drain WR.
    let sends = queue(u64::from(capacity.max_send_wr) + 1, 256);
    if capacity.uses_srq { sends } else { sends + queue(capacity.max_recv_wr.into(), 16) }
}

/// A shared receive queue, bytes: an entry has its place in a list besides its buffer's, and there
/// is one more.
#[must_use]
pub fn shared_receive_queue(max_recv_wr: u32) -> u64 {
    queue(u64::from(max_recv_wr) + 1, 32)
}

fn queue(entries: u64, bytes: u64) -> u64 {
    whole_pages(entries.next_power_of_two() * bytes)
}

fn whole_pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(rustix::param::page_size() as u64)
}
