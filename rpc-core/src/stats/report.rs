//! Snapshots of the numbers, as plain values.

use std::collections::BTreeMap;
use std::time::Duration;

use rpc_transport::protocol::link::LinkMetrics;
use serde::{Deserialize, Serialize, Serializer};

use super::histogram::Histogram;
use crate::status::Code;

/// The calls of a method, at a server or a channel.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct MethodStats {
    /// `Service.method`. Empty: all calls of unknown methods.
    pub name: &'static str,
    /// At a server: requests that were passed to a handler, or rejected as invalid. At a channel:
    /// attempts that were passed to a connection, and calls that ended without one. Each retry and
    /// each hedged attempt counts; an attempt that was returned unsent counts once.
    pub started: u64,
    /// Ended calls by code, without those in `user_errors`. Codes without calls are omitted.
    #[serde(serialize_with = "by_name")]
    pub ended: BTreeMap<Code, u64>,
    /// Calls that ended with the method's own error.
    pub user_errors: u64,
    /// Encoded arguments, bytes, without items of streams.
    pub request_bytes: u64,
    /// Encoded results and own errors of the method, bytes, without items of streams.
    pub reply_bytes: u64,
    /// At a server: the durations of handlers. At a channel: the time from sending an attempt to
    /// taking its answer. Sampled: see [`stats`](crate::stats).
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
    /// The peer, and what it has proven to be: `10.0.0.7:40312`, `pid 4711 uid 1000`,
    /// `spiffe://prod.example/cart at 10.0.0.7:40312`.
    pub peer: String,
    /// How it is protected: `Encrypt` or `Authenticate`
    /// ([`Protection`](crate::identity::Protection)); empty without TLS.
    pub protection: String,
    /// The TLS cipher suite; empty without TLS.
    pub cipher_suite: String,
    /// The device: `soft-shm`, `soft-tcp`, or the name of a NIC.
    pub device: String,
    /// Time since it was set up.
    pub age: Duration,
    /// Calls of the peer without an answer yet.
    pub calls_in: u64,
    /// Calls of this end: waiting, in flight, or answered but not taken yet.
    pub calls_out: u64,
    /// Calls of the peer that were refused before the look-up of a handler: too many, too late, or
    /// no memory for them.
    pub refused_calls: u64,
    /// Received messages: requests, responses, items and control messages.
    pub messages_in: u64,
    /// Their length, bytes.
    pub bytes_in: u64,
    /// Messages passed to the link.
    pub messages_out: u64,
    /// Their length, bytes.
    pub bytes_out: u64,
    /// Data credits held: messages that may be sent now.
    pub credits_held: u64,
    /// Data credits owed to the peer.
    pub credits_owed: u64,
    /// Number of waits for a credit from the peer.
    pub starved_count: u64,
    /// Free slots of the send queue, WRs.
    pub send_queue_free: u64,
    /// Number of waits for a slot of the send queue.
    pub send_queue_full_count: u64,
    /// Messages waiting in the link.
    pub queued: u64,
    /// Chunks of this end's arenas.
    pub arena_chunks: u64,
    /// The chunks that hold messages.
    pub arena_chunks_held: u64,
    /// Frames of large messages that were copied into registered memory for sending.
    pub staged_copies: u64,
}

impl ConnectionStats {
    pub(crate) fn of_link(&mut self, link: &LinkMetrics) {
        let counters = &link.counters;
        self.credits_held = counters.data_credits.into();
        self.credits_owed = counters.owed.data().into();
        self.starved_count = link.starved_count;
        self.send_queue_free = counters.data_slots.into();
        self.send_queue_full_count = link.queue_full_count;
        self.queued = (link.urgent_count + link.small_count + link.bulk_count) as u64;
        self.arena_chunks = link.landing_chunks.into();
        self.arena_chunks_held = link.landing_held.into();
    }
}

/// Messages of a method whose types differ at a peer: this end converts what the peer writes. The
/// numbers are those of the process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ConvertedStats {
    /// `Service.method`.
    pub method: String,
    /// A hash of the schema of this end, hexadecimal.
    pub own_schema: String,
    /// A hash of the schema of the peers. Peers with equal types have one entry.
    pub peer_schema: String,
    /// The converted messages.
    pub messages: u64,
    /// Time since the last one: whether such peers are still there.
    pub idle: Duration,
}

/// What overload control does: [`ServerStats::overload`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct OverloadStats {
    /// The limit of calls in flight, which follows the capacity.
    pub limit: u32,
    /// The calls in flight that count towards it.
    pub in_flight: u32,
    /// Total number of calls refused because of the limit.
    pub shed: u64,
}

/// A server: [`Server::stats`](crate::Server::stats).
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct ServerStats {
    /// Its methods, sorted by name. One without a name counts the calls of unknown methods.
    pub methods: Vec<MethodStats>,
    /// The open connections, including those being closed.
    pub connections: Vec<ConnectionStats>,
    /// Messages of clients whose types differ; at most 64 entries, those used last.
    pub converted: Vec<ConvertedStats>,
    /// Total number of connections set up.
    pub accepted: u64,
    /// Total number of connections refused because of a limit or a lack of memory.
    pub refused: u64,
    /// Total number of connections that [`admit`](crate::ServerBuilder::admit) or
    /// [`authenticate`](crate::ServerBuilder::authenticate) refused, whose TLS handshake failed, or
    /// that came without TLS to a server that requires it.
    pub denied: u64,
    /// Total number of calls that the rules of [`allow`](crate::ServerBuilder::allow) refused, at
    /// all servers that have them.
    pub calls_denied: u64,
    /// Total number of connections without TLS that were set up although the server has TLS:
    /// `security::Tls::optional`.
    pub accepted_plain: u64,
    /// Total number of failed set-ups, including those that took too long or were cut off by other
    /// waiting connections or the end of the server.
    pub set_ups_failed: u64,
    /// Connections that are being set up.
    pub set_ups: u64,
    /// Whether the server is shutting down.
    pub is_draining: bool,
    /// What overload control does, if the server has it:
    /// [`ServerBuilder::adaptive_limit`](crate::ServerBuilder::adaptive_limit).
    pub overload: Option<OverloadStats>,
    /// Memory in use for large messages, bytes.
    pub memory_used_bytes: u64,
    /// The limit of that memory, bytes:
    /// [`ServerBuilder::memory_budget`](crate::ServerBuilder::memory_budget).
    pub memory_limit_bytes: u64,
    /// Entries of the completion queues of all shards.
    pub cq_entries: u64,
    /// Queue pairs destroyed before all their work requests had been flushed, on the running
    /// shards: the number falls when a shard ends.
    pub unflushed: u64,
}

/// A server of a channel to several: [`ChannelStats::members`].
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct MemberStats {
    /// Its address, as the resolver names it.
    pub address: String,
    /// Its weight, from 1 to 1,000.
    pub weight: u32,
    /// Its priority; lower ones come first.
    pub priority: u8,
    /// Its zone; empty if it has none.
    pub zone: String,
    /// Whether the resolver says that it is about to shut down.
    pub is_draining: bool,
    /// Whether it has a connection that accepts calls.
    pub is_connected: bool,
    /// Whether it gets no calls because it failed more than the others
    /// ([`BalancingPolicy`](crate::client::BalancingPolicy)).
    pub is_ejected: bool,
    /// `serving`, also where health is not watched; `unknown` before the first answer; `draining`;
    /// `not serving`. Empty without a connection.
    pub health: &'static str,
    /// Its calls in flight.
    pub calls_in_flight: u64,
    /// The latency of late; `None` before the first answer.
    pub latency: Option<Duration>,
}

/// What the resolver of a channel says: [`ChannelStats::resolver`].
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct ResolverStats {
    /// Its name.
    pub name: String,
    /// Time since it last said which servers there are; `None` if it never did. That of etcd says
    /// so again about every 10 s; others that watch may be silent while nothing changes.
    pub age: Option<Duration>,
    /// The number of servers that it named then. The channel may use fewer
    /// ([`BalancingPolicy::subset`](crate::client::BalancingPolicy::subset)), or more while it does
    /// not believe that so many are gone.
    pub servers: u64,
    /// Why its last answer was of no use; `None` if it was.
    pub error: Option<String>,
}

/// A channel: [`Channel::stats`](crate::Channel::stats).
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct ChannelStats {
    /// The methods called so far, sorted by name.
    pub methods: Vec<MethodStats>,
    /// The methods that it serves itself ([`ChannelBuilder::serve`](crate::ChannelBuilder::serve)),
    /// counted as at a server.
    pub served: Vec<MethodStats>,
    /// The connections that accept calls. Empty for a channel to the peer of a connection.
    pub connections: Vec<ConnectionStats>,
    /// Messages of servers whose types differ; at most 64 entries, those used last.
    pub converted: Vec<ConvertedStats>,
    /// Total number of connections made.
    pub connected: u64,
    /// Total number of failed attempts to connect.
    pub connect_failures: u64,
    /// Calls waiting for a connection.
    pub waiting_calls: u64,
    /// Total number of failed calls not retried because of the throttle
    /// ([`RetryPolicy::throttle`](crate::client::RetryPolicy::throttle)).
    pub retries_throttled: u64,
    /// The servers of a channel to several; empty for other channels.
    pub members: Vec<MemberStats>,
    /// The resolver of a channel to several servers.
    pub resolver: Option<ResolverStats>,
    /// Total number of times that a server was ejected.
    pub ejections: u64,
}
