//! How much locked memory connections of a configuration need on a NIC.
//!
//! Owns the sum, for whoever checks it before anything is created and for whoever asks beforehand. The
//! sizes of single objects are those of [`locked`].

use super::connection::{FIRST_SEND_BUFFERS, first_locked, first_recvs, with_lendable};
use super::establish::{
    capacity, completions_per_connection, completions_with_shared_recvs,
    shared_recvs_per_connection,
};
use super::shared_recvs::STEP as SHARED_STEP;
use crate::device::locked;
use crate::memory::region::BufferPool;
use crate::protocol::config::LinkConfig;

/// Number of connections that the first CQ of a server on a NIC is sized for: its memory is locked as
/// soon as it exists, and for 1024 connections that would be 16 MiB on mlx5, twice of what systemd and
/// container runtimes let a process lock.
pub const FIRST_CONNECTIONS_PER_CQ: u32 = 64;

/// Number of connections that no CQ of a server is sized beyond.
pub const CONNECTIONS_PER_CQ: u32 = 1024;

/// Number of connections for the CQ of a further shard on a NIC, where there are `count` shards and the
/// server is to have `shards`. Those that are added when all are full double what there is.
#[must_use]
pub fn connections_of_cq(count: usize, shards: usize) -> u32 {
    let added = (count + 1).saturating_sub(shards.max(1)).min(16);
    (FIRST_CONNECTIONS_PER_CQ << added).min(CONNECTIONS_PER_CQ)
}

/// Memory that a connection of this configuration registers before it is up, on a device that locks
/// what is registered, bytes. More comes with its windows, as far as there is any.
#[must_use]
pub fn registered_bytes(config: &LinkConfig) -> u64 {
    pool_bytes(config, first_locked(config)) + pool_bytes(config, FIRST_SEND_BUFFERS)
}

fn buffer_bytes(config: &LinkConfig) -> u32 {
    config.settled(true).receive_buffer()
}

/// The same with the connection's queues, for a NIC that counts them, bytes. Without its share of a CQ.
#[must_use]
pub fn connection_bytes(config: &LinkConfig) -> u64 {
    registered_bytes(config) + locked::queue_pair(capacity(config, false))
}

/// Locked memory that a channel needs for its connection, which has a CQ to itself, bytes.
#[must_use]
pub fn channel_bytes(config: &LinkConfig) -> u64 {
    connection_bytes(config) + locked::completion_queue(completions_per_connection(config))
}

/// Locked memory that a server of `shards` shards needs on a NIC for so many connections, bytes. Without
/// the windows that grow and without large payloads, whose memory comes on demand. Where receives are to
/// be shared, on a device that can. `max_cqe`: most
/// entries of a CQ of the device.
#[must_use]
pub fn server_bytes(config: &LinkConfig, connections: u32, shards: usize, max_cqe: u32) -> u64 {
    let shares = config.wants_shared_recvs();
    let each = match shares {
        true => completions_with_shared_recvs(config),
        false => completions_per_connection(config),
    };
    let (mut queues, mut count, mut room) = (0, 0, 0_u64);
    // A shard for each connection until there are as many as wanted, then one whenever all are full.
    while u64::from(connections) > room || (count < shards && count < connections as usize) {
        let entries = each.saturating_mul(connections_of_cq(count, shards)).min(max_cqe).max(each);
        queues += locked::completion_queue(entries);
        if shares {
            let recvs = entries / each * shared_recvs_per_connection(config);
            queues += locked::shared_receive_queue(recvs);
        }
        room += u64::from(entries / each);
        count += 1;
    }
    let recvs = u64::from(first_recvs(config)) * u64::from(connections);
    let shared = match shares {
        true => pool_bytes(config, SHARED_STEP) * recvs.div_ceil(SHARED_STEP.into()),
        false => 0,
    };
    queues + shared + served_bytes(config) * u64::from(connections)
}

/// What a connection of a server has for itself, without receives that it shares.
fn served_bytes(config: &LinkConfig) -> u64 {
    if config.wants_shared_recvs() {
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
pub fn most_connections(config: &LinkConfig, shards: usize, max_cqe: u32, limit: u64) -> u32 {
    let fits = |count| server_bytes(config, count, shards, max_cqe) <= limit;
    let by_size = limit / served_bytes(config);
    let (mut fitting, mut beyond) = (0, u32::try_from(by_size + 1).unwrap_or(u32::MAX));
    while beyond - fitting > 1 {
        let middle = fitting + (beyond - fitting) / 2;
        *(if fits(middle) { &mut fitting } else { &mut beyond }) = middle;
    }
    fitting
}

/// Locked memory that a connection of a server of this configuration takes at most when its window grows,
/// on a device that locks what is registered, bytes.
#[must_use]
pub fn growth_bytes(config: &LinkConfig) -> u64 {
    let more = config.window().data - config.first_window().data;
    if more == 0 {
        return 0;
    }
    if config.wants_shared_recvs() {
        // On the average: one may have more, where others have less.
        let most = shared_recvs_per_connection(config) - first_recvs(config);
        return pool_bytes(config, most.min(more.into()));
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
    fn a_server_locks_its_connections_and_the_queues_that_they_are_spread_over() {
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
            let need = server_bytes(&config, connections, shards, u32::MAX);
            let wanted = connection * u64::from(connections) + queues(sizes);
            assert_eq!(need, wanted, "{connections} connections, {shards} shards");
        }
        // A device whose CQs are shorter has more of them.
        let short = server_bytes(&config, 20, 1, each * 10 + 3);
        assert_eq!(short, connection * 20 + 2 * locked::completion_queue(each * 10 + 3));
    }

    #[test]
    fn the_most_connections_of_a_limit_fit_and_one_more_does_not() {
        let shared = LinkConfig::default().shared_receive_queue(true).first_data_credits(2);
        for (config, shards) in
            [LinkConfig::default(), shared].into_iter().flat_map(|it| [(it.clone(), 1), (it, 3)])
        {
            for limit in [0, 65_536, 2 << 20, 8 << 20, 64 << 20, 1 << 40] {
                let most = most_connections(&config, shards, u32::MAX, limit);
                let need = |count| server_bytes(&config, count, shards, u32::MAX);
                assert!(need(most) <= limit && need(most + 1) > limit, "{most} of {limit}");
            }
        }
        let config = LinkConfig::default();
        assert_eq!(most_connections(&config, 1, u32::MAX, 1 << 20), 0, "the CQ takes as much");
    }
}
