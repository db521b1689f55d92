//! The numbers, as they are read: plain values.

use std::collections::BTreeMap;
use std::time::Duration;

use rpc_transport::protocol::link::LinkMetrics;
use serde::{Deserialize, Serialize, Serializer};

use super::histogram::Histogram;
use crate::status::Code;

/// The calls of a method, of a server's or of a channel's.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct MethodStats {
    /// `Service.method`. Empty: all calls of methods that the server does not have.
    pub name: &'static str,
    /// At a server: requests that were given to a handler, or refused for what they are. At a channel:
    /// attempts that were handed to a connection, and calls that ended without one; a call that is
    /// tried again, or hedged, counts each time.
    pub started: u64,
    /// How they ended, by code, without those of `user_errors`. Codes without calls are left out.
    #[serde(serialize_with = "by_name")]
    pub ended: BTreeMap<Code, u64>,
    /// Calls that ended with the method's own error.
    pub user_errors: u64,
    /// Encoded arguments, bytes; items of streams not counted.
    pub request_bytes: u64,
    /// Encoded results and errors of the method, bytes; items of streams not counted.
    pub reply_bytes: u64,
    /// At a server: the times of handlers. At a channel: from when an attempt was sent until its answer
    /// was taken. A sample: see [`stats`](crate::observability::stats).
    pub took: Histogram,
}

impl MethodStats {
    /// Calls that have not ended.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.started.saturating_sub(self.ended.values().sum::<u64>() + self.user_errors)
    }
}

fn by_name<S: Serializer>(ended: &BTreeMap<Code, u64>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(ended.iter().map(|(code, count)| (format!("{code:?}"), count)))
}

/// One connection.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// Who is at the other end: `10.0.0.7:40312`, `process 4711 of user 1000`.
    pub peer: String,
    /// The device that it is on: `soft-shm`, `soft-tcp`, the name of a NIC.
    pub device: String,
    /// Time since it was set up.
    pub age: Duration,
    /// Calls of the peer that were not answered yet.
    pub calls_in: u64,
    /// Calls of this end: waiting, in flight, or answered and not taken yet.
    pub calls_out: u64,
    /// Calls of the peer that were refused before a handler was looked for: too many, too late, or no
    /// memory for them.
    pub refused_calls: u64,
    /// Messages that have arrived: requests, answers, items, and control messages.
    pub messages_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Messages that were handed to the link.
    pub messages_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Data credits held: messages that may be sent now.
    pub credits_held: u64,
    /// Data credits that the peer is owed.
    pub credits_owed: u64,
    /// Times that something had to wait because the peer had granted no credit.
    pub starved_count: u64,
    /// Free slots of the send queue, WRs.
    pub send_queue_free: u64,
    /// Times that something had to wait because the send queue was full.
    pub send_queue_full_count: u64,
    /// Messages that wait in the link.
    pub queued: u64,
    /// Chunks of this end's arenas.
    pub arena_chunks: u64,
    /// Of these, those that hold messages.
    pub arena_chunks_held: u64,
    /// Frames of large messages that were copied into registered memory to be sent.
    pub staged_copies: u64,
}

impl ConnectionStats {
    pub(crate) fn of_link(&mut self, link: &LinkMetrics) {
        let counters = &link.counters;
        self.credits_held = counters.data_credits.into();
        self.credits_owed = counters.owed.data.into();
        self.starved_count = link.starved_count;
        self.send_queue_free = counters.data_slots.into();
        self.send_queue_full_count = link.queue_full_count;
        self.queued = (link.urgent_count + link.small_count + link.bulk_count) as u64;
        self.arena_chunks = link.landing_chunks.into();
        self.arena_chunks_held = link.landing_held.into();
    }
}

/// A server: [`Server::stats`](crate::Server::stats).
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct ServerStats {
    /// Its methods, in the order of their names. One without a name counts the calls of methods that
    /// the server does not have.
    pub methods: Vec<MethodStats>,
    /// The connections that are up, those that are being closed included.
    pub connections: Vec<ConnectionStats>,
    /// Connections that were set up, ever.
    pub accepted: u64,
    /// Connections that were refused because of a limit or for want of memory, ever.
    pub refused: u64,
    /// Connections whose set-up failed, took too long, or was cut off, by others that waited or by the
    /// end of the server; ever.
    pub set_ups_failed: u64,
    /// Connections that are being set up.
    pub set_ups: u64,
    /// Whether the server shuts down.
    pub is_draining: bool,
    /// Memory of large messages that is in use, bytes.
    pub memory_used_bytes: u64,
    /// [`ServerBuilder::memory_budget`](crate::ServerBuilder::memory_budget).
    pub memory_limit_bytes: u64,
    /// Entries of the completion queues of all shards.
    pub cq_entries: u64,
    /// Queue pairs that were destroyed before all their work requests had been flushed, on the shards that
    /// run: it falls when one ends.
    pub unflushed: u64,
}

/// A channel: [`Channel::stats`](crate::Channel::stats).
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct ChannelStats {
    /// The methods that were called, in the order of their names.
    pub methods: Vec<MethodStats>,
    /// The methods that it serves itself ([`ChannelBuilder::serve`](crate::ChannelBuilder::serve)), as
    /// those of a server.
    pub served: Vec<MethodStats>,
    /// The connections that take calls; none of a channel to the peer of a connection.
    pub connections: Vec<ConnectionStats>,
    /// Connections that were made, ever.
    pub connected: u64,
    /// Attempts to connect that failed, ever.
    pub connect_failures: u64,
    /// Calls that wait for a connection.
    pub waiting_calls: u64,
}
