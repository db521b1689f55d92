//! How much locked memory connections of a configuration need on a NIC.
//!
//! Owns the sum, for the check before anything is created and for the doctor.
//! The sizes of single objects are those of [`locked`].

use super::connection::{FIRST_SEND_BUFFERS, first_recvs, with_lendable};
use super::establish::{
    capacity, completions_per_connection, completions_with_shared_recvs, shares_recvs,
};
use crate::device::{QueueLimits, locked};
use crate::memory::region::BufferPool;
use crate::protocol::config::LinkConfig;

/// Number of connections that the first CQ of a server on a NIC is sized for: its memory is locked
/// as soon as it exists, and for 1024 connections that would be 16 MiB on mlx5, twice of what
/// systemd and container runtimes let a process lock.
pub const FIRST_CONNECTIONS_PER_CQ: u32 = 64;

/// Number of connections that no CQ of a server is sized beyond.
pub const CONNECTIONS_PER_CQ: u32 = 1024;

/// Number of connections for the CQ of a further shard on a NIC, where there are `count` shards and
/// the server is to have `shards`. Those that are added when all are full double what there is.
#[must_use]
pub fn connections_of_cq(count: usize, shards: usize) -> u32 {
    let added = (count + 1).saturating_sub(shards.max(1)).min(16);
    (FIRST_CONNECTIONS_PER_CQ << added).min(CONNECTIONS_PER_CQ)
}

/// Memory that a connection of this configuration registers before it is up, on a device that locks
/// what is registered, bytes. More comes with its windows, as far as there is any.
#[must_use]
pub fn registered_bytes(config: &LinkConfig) -> u64 {
    pool_bytes(config, first_recvs(config)) + pool_bytes(config, FIRST_SEND_BUFFERS)
}

fn buffer_bytes(config: &LinkConfig) -> u32 {
    config.settled(true, Some(true)).receive_buffer()
}

/// The same with the connection's queues, for a NIC that counts them, bytes. Without its share of a
/// CQ.
#[must_use]
pub fn connection_bytes(config: &LinkConfig) -> u64 {
    registered_bytes(config) + locked::queue_pair(capacity(config, false))
}

/// Locked memory that a channel needs for its connection, which has a CQ to itself, bytes.
#[must_use]
pub fn channel_bytes(config: &LinkConfig) -> u64 {
    connection_bytes(config) + locked::completion_queue(completions_per_connection(config))
}

/// Locked memory that a server of `shards` shards needs on a NIC for so many connections, bytes.
/// Without the windows that grow and without large payloads, whose memory comes on demand.
#[must_use]
pub fn server_bytes(
    config: &LinkConfig,
    connections: u32,
    shards: usize,
    limits: QueueLimits,
) -> u64 {
    let QueueLimits { max_cqe, max_srq_wr } = limits;
    let shares = shares_recvs(config, max_srq_wr);
    let each = match shares {
        true => completions_with_shared_recvs(config),
        false => completions_per_connection(config),
    };
    let (mut queues, mut count, mut room) = (0, 0, 0_u64);
    // A shard for each connection until there are as many as wanted, then one whenever all are
    // full.
    while u64::from(connections) > room || (count < shards && count < connections as usize) {
        let entries = each.saturating_mul(connections_of_cq(count, shards)).min(max_cqe).max(each);
        queues += locked::completion_queue(entries);
        let mut room_here = entries / each;
        if shares {
            room_here = room_here.min(max_srq_wr / first_recvs(config));
            let recvs = room_here * first_recvs(config);
            queues += locked::shared_receive_queue(recvs) + pool_bytes(config, recvs);
        }
        room += u64::from(room_here);
        count += 1;
    }
    queues + served_bytes(config, shares) * u64::from(connections)
}

/// What a connection of a server has for itself, without receives that it shares.
fn served_bytes(config: &LinkConfig, shares: bool) -> u64 {
    if shares {
        return pool_bytes(config, FIRST_SEND_BUFFERS) + locked::queue_pair(capacity(config, true));
    }
    connection_bytes(config)
}

/// A pool of so many buffers of a frame each.
fn pool_bytes(config: &LinkConfig, count: u32) -> u64 {
    locked::region(BufferPool::region_bytes(buffer_bytes(config), count))
}

/// Most connections for which [`server_bytes`] is within a limit in bytes.
#[must_use]
pub fn most_connections(
    config: &LinkConfig,
    shards: usize,
    limits: QueueLimits,
    limit: u64,
) -> u32 {
    let fits = |count| server_bytes(config, count, shards, limits) <= limit;
    let by_size = limit / served_bytes(config, shares_recvs(config, limits.max_srq_wr));
    let (mut fitting, mut beyond) = (0, u32::try_from(by_size + 1).unwrap_or(u32::MAX));
    while beyond - fitting > 1 {
        let middle = fitting + (beyond - fitting) / 2;
        *(if fits(middle) { &mut fitting } else { &mut beyond }) = middle;
    }
    fitting
}

/// Locked memory that a connection of a server of this configuration takes at most when its window
/// grows, on a device that locks what is registered, bytes.
#[must_use]
pub fn growth_bytes(config: &LinkConfig, limits: QueueLimits) -> u64 {
    let more = config.window().data - config.first_window().data;
    if more == 0 || shares_recvs(config, limits.max_srq_wr) {
        return 0;
    }
    pool_bytes(config, with_lendable(more.into()))
}

/// What its arenas take at most beside that, bytes.
#[must_use]
pub fn arena_bytes(config: &LinkConfig) -> u64 {
    u64::from(config.arena.max_chunks) << config.arena.log2_chunk
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server may lock is not what its first connection does.
    #[test]
    fn server_need_counts_connections_and_their_queues() {
        let config = LinkConfig::default();
        let each = completions_per_connection(&config);
        let connection = connection_bytes(&config);
        let queues = |sizes: &[u32]| {
            sizes.iter().map(|size| locked::completion_queue(each * size)).sum::<u64>()
        };
        for (connections, shards, sizes) in [
            (0, 1, &[][..]),
            (1, 1, &[64]),
            (64, 1, &[64]),
            (65, 1, &[64, 128]),
            (192, 1, &[64, 128]),
            (193, 1, &[64, 128, 256]),
            (2, 3, &[64, 64]),
            (3, 3, &[64, 64, 64]),
            (193, 3, &[64, 64, 64, 128]),
        ] {
            let need = server_bytes(&config, connections, shards, QueueLimits::UNLIMITED);
            let wanted = connection * u64::from(connections) + queues(sizes);
            assert_eq!(need, wanted, "{connections} connections, {shards} shards");
        }
        // A device whose CQs are shorter has more of them.
        let limits = QueueLimits { max_cqe: each * 10 + 3, ..QueueLimits::UNLIMITED };
        let short = server_bytes(&config, 20, 1, limits);
        assert_eq!(short, connection * 20 + 2 * locked::completion_queue(each * 10 + 3));
    }

    /// The sum was that of shared receives also on irdma, which has none: too little by a twentieth
    /// with this configuration, and by a fifth with small buffers.
    #[test]
    fn unsupported_shared_receives_count_as_own_receives() {
        let own = LinkConfig::default().data_credits(2);
        let sharing = own.clone().shared_receive_queue(true);
        let on = |max_srq_wr| QueueLimits { max_srq_wr, ..QueueLimits::UNLIMITED };
        let need = |config, limits| server_bytes(config, 64, 1, limits);
        assert_eq!(need(&sharing, on(0)), need(&own, on(0)));
        assert!(need(&sharing, on(32_767)) < need(&own, on(32_767)));
        // One that is too short for the window of a single connection is not used.
        assert_eq!(need(&sharing, on(5)), need(&own, on(5)));
        let wide = LinkConfig::default();
        let growth =
            |max_srq_wr| growth_bytes(&wide.clone().shared_receive_queue(true), on(max_srq_wr));
        assert_eq!((growth(0), growth(100)), (growth_bytes(&wide, on(0)), 0));
        // 16 connections of 6 receives fill a queue of 100.
        let limits = on(100);
        let queues = |connections| server_bytes(&sharing, connections, 1, limits);
        let cq = |size| locked::completion_queue(completions_with_shared_recvs(&sharing) * size);
        let beyond = queues(17) - queues(16);
        assert!(beyond > cq(128) && queues(16) - queues(15) < cq(64), "{beyond}");
    }

    #[test]
    fn limit_fits_exactly_its_most_connections() {
        let shared = LinkConfig::default().shared_receive_queue(true).data_credits(2);
        let small = QueueLimits { max_cqe: 5_000, max_srq_wr: 400 };
        for (config, shards, limits) in [LinkConfig::default(), shared].into_iter().flat_map(|it| {
            [(it.clone(), 1, QueueLimits::UNLIMITED), (it.clone(), 3, small), (it, 1, small)]
        }) {
            for limit in [0, 65_536, 2 << 20, 8 << 20, 64 << 20, 1 << 40] {
                let most = most_connections(&config, shards, limits, limit);
                let need = |count| server_bytes(&config, count, shards, limits);
                assert!(need(most) <= limit && need(most + 1) > limit, "{most} of {limit}");
            }
        }
        let config = LinkConfig::default();
        let limits = QueueLimits::UNLIMITED;
        assert_eq!(most_connections(&config, 1, limits, 1 << 20), 0, "the CQ takes as much");
    }
}
