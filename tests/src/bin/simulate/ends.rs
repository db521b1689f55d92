//! How both ends of a world are set up: certificates, and settings of the link.
//!
//! Owns the builders of servers and channels, so that every channel of a world can reach every
//! server.

use std::time::Duration;

use rpc_core::client::resolve::Resolve;
use rpc_core::security::Tls;
use rpc_core::server::{AdaptiveLimit, Allow};
use rpc_core::{Channel, ChannelBuilder, ConnectError, PollMode, Server, ServerBuilder};
use rpc_transport::device::fault::FaultPlan;
use rpc_transport::{ArenaConfig, LinkConfig};
use test_kit::certificates::Authority;

use crate::chance::stream;
use crate::clock;
use crate::ledger::ledger;
use crate::plan::{Feature, Plan};
use crate::rules::Rule;

const SERVER: &str = "spiffe://simulated/server";
const CLIENT: &str = "spiffe://simulated/client";

/// How long a good client may take to connect to a server that is up, when all is calm.
const CONNECT_US: u64 = 5_000_000;

/// The settings of both ends.
#[derive(Debug)]
pub(crate) struct Ends {
    tls: Option<[Tls; 2]>,
    link: LinkConfig,
    shards: usize,
    max_age: Option<Duration>,
    faults: Option<u64>,
    limit: Option<AdaptiveLimit>,
}

/// The address of a server.
pub(crate) fn address(server: usize) -> String {
    format!("mem://server-{server}")
}

impl Ends {
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut rng = stream(plan.seed, "age");
        let age = Duration::from_millis(1500 + rng.below(20_000));
        Self {
            tls: plan.has(Feature::Tls).then(certificates),
            link: link(plan),
            shards: plan.shards,
            max_age: plan.has(Feature::Age).then_some(age),
            // A device with faults and TLS exclude each other.
            faults: (plan.has(Feature::Device) && !plan.has(Feature::Tls)).then_some(plan.seed),
            limit: plan
                .has(Feature::Limit)
                .then(|| AdaptiveLimit::default().at_least(1 << rng.below(4))),
        }
    }

    /// A server without services.
    pub(crate) fn server(&self) -> ServerBuilder {
        let builder = Server::builder().poll_mode(PollMode::Event).shards(self.shards);
        let mut builder = builder.link(self.link.clone()).max_connection_age(self.max_age);
        if let Some(seed) = self.faults {
            builder = builder.faults(faults(seed));
        }
        if let Some(limit) = &self.limit {
            builder = builder.adaptive_limit(*limit);
        }
        match &self.tls {
            None => builder,
            Some([server, _]) => {
                let anyone = Allow::nobody().rule(&["anyone"], &["*"]).expect("a rule");
                builder.tls(server.clone().authorize(|_| Ok(()))).allow(anyone)
            }
        }
    }

    /// A channel that leads nowhere yet.
    fn channel(&self) -> ChannelBuilder {
        let mut builder = Channel::builder().poll_mode(PollMode::Event).link(self.link.clone());
        if let Some(seed) = self.faults {
            builder = builder.faults(faults(!seed));
        }
        match &self.tls {
            None => builder,
            Some([_, client]) => builder.tls(client.clone()),
        }
    }

    /// A channel to all servers of a resolver.
    pub(crate) fn balanced(&self, resolver: impl Resolve) -> Channel {
        self.channel().connect_balanced(resolver).expect("the settings are right")
    }

    /// A channel to one server, that is not connected yet.
    pub(crate) fn lazy(&self, server: usize) -> Channel {
        self.channel().connect_lazy(address(server)).expect("an address")
    }

    /// A channel to one server, connected.
    pub(crate) async fn connect(&self, server: usize) -> Result<Channel, ConnectError> {
        self.channel().connect(address(server)).await
    }

    /// The same by a client that waits for nothing else: it has a time limit.
    pub(crate) async fn connect_well(&self, server: usize) -> Option<Channel> {
        let began_us = clock::elapsed_us();
        let result = self.connect(server).await;
        let took_us = clock::elapsed_us() - began_us;
        let mut ledger = ledger();
        if ledger.was_calm_at(began_us) && (result.is_err() || took_us > CONNECT_US) {
            let took = took_us as f64 / 1e6;
            let text = match &result {
                Ok(_) => format!("connecting to server {server} took {took:.1} s"),
                Err(error) => {
                    format!("connecting to server {server} failed after {took:.1} s: {error}")
                }
            };
            ledger.broken(Rule::Connects, 0, text);
        }
        result.ok()
    }
}

/// A device that does what devices may do.
fn faults(seed: u64) -> FaultPlan {
    FaultPlan::new(seed).delay_completions(4).interleave_queues(true).touch_memory_late(3)
}

/// Of servers, and of clients.
fn certificates() -> [Tls; 2] {
    let authority = Authority::new("the authority");
    let [server, client] = [SERVER, CLIENT].map(|name| {
        let leaf = authority.issue(&[name]);
        Tls::from_pem_bytes(&leaf.cert, &leaf.key, authority.pem()).expect("certificates")
    });
    [server, client.expect_peer(SERVER)]
}

fn link(plan: &Plan) -> LinkConfig {
    let link = LinkConfig::default();
    if !plan.has(Feature::Tight) {
        return link;
    }
    let mut rng = stream(plan.seed, "link");
    let is_plain = !plan.has(Feature::Tls);
    // With TLS, messages of the handshake have to fit.
    let credits = if is_plain { 1 + rng.below(12) } else { 8 + rng.below(12) };
    let buffer = if is_plain { 256 << rng.below(5) } else { 4096 };
    let mut arena = ArenaConfig::default();
    arena.arena_chunks = 1 + u16::from(rng.byte() % 8);
    link.data_credits(credits as u16)
        .receive_buffer_bytes(buffer)
        .send_queue_slots(1 + u16::from(rng.byte() % 32))
        .bulk_queue_bytes(1 << rng.below(20))
        .arena_threshold_bytes(1 << (8 + rng.below(8)))
        .arena(arena)
}
