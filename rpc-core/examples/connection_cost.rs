//! What a connection over tcp costs, with TLS and without: CPU time to make it, and heap while it
//! is open. Both ends share a thread, and each number is the sum of both.
//!
//!     cargo run --release -p rpc-over-rdma --features tls --example connection_cost
//!
//! Each number is the median of the rounds of one run; compare those of one run. With a number of
//! rounds and one of `event`, `adaptive`, `plain` and `tls`, only those: for a profiler.

use std::time::Duration;

use rpc_core::security::Tls;
use rpc_core::{Channel, ChannelBuilder, PollMode, Server};
use rustix::time::{ClockId, clock_gettime};
use test_kit::certificates::Authority;

/// Connections of a round, all of which stay open until its end.
const COUNT: usize = 200;
const ROUNDS: usize = 15;
const SERVER: &str = "spiffe://prod.example/ns/shop/sa/kv";
const CLIENT: &str = "spiffe://prod.example/ns/shop/sa/cart";

#[rpc_core::service]
trait Store {
    async fn get(&self) -> u64;
}

struct Shelf;

impl Store for Shelf {
    async fn get(&self) -> u64 {
        7
    }
}

/// The cost of one connection, both ends.
struct Cost {
    cpu_us: f64,
    heap_bytes: f64,
}

fn cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

async fn connect(channel: &ChannelBuilder, address: &str) -> Channel {
    let channel = channel.clone().connect(address).await.expect("a connection");
    StoreClient::new(channel.clone()).get().await.expect("an answer");
    channel
}

/// A runtime of its own, so that nothing of an earlier round is left in it.
fn round(mode: PollMode, tls: Option<&[Tls; 2]>) -> Cost {
    let (mut server, mut channel) = (Server::builder(), Channel::builder().poll_mode(mode));
    if let Some([of_server, of_client]) = tls {
        server = server.tls(of_server.clone());
        channel = channel.tls(of_client.clone());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let server = server.poll_mode(mode).add_service(StoreServer::new(Shelf));
    let server = runtime.block_on(server.bind("tcp://127.0.0.1:0")).expect("a server");
    let address = server.local_address().to_string();
    runtime.spawn(server.serve());
    // Pays for what all connections share.
    let first = runtime.block_on(connect(&channel, &address));
    let mut open = Vec::with_capacity(COUNT);
    let mut taken = Duration::ZERO;
    let heap = allocation_counter::measure(|| {
        let before = cpu();
        for _ in 0..COUNT {
            open.push(runtime.block_on(connect(&channel, &address)));
        }
        taken = cpu() - before;
    });
    drop((open, first));
    Cost {
        cpu_us: taken.as_secs_f64() * 1e6 / COUNT as f64,
        heap_bytes: heap.bytes_current as f64 / COUNT as f64,
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let ca = Authority::new("ca");
    let tls = |name| {
        let leaf = ca.issue(&[name]);
        Tls::from_pem_bytes(&leaf.cert, &leaf.key, ca.pem()).expect("certificates")
    };
    let tls = [tls(SERVER), tls(CLIENT).expect_peer(SERVER)];
    let mut arguments = std::env::args().skip(1);
    let rounds = arguments.next().map_or(ROUNDS, |rounds| rounds.parse().expect("rounds"));
    let only: Vec<_> = arguments.collect();
    let is_wanted = |name: &str, other: &str| {
        only.iter().any(|it| it == name) || !only.iter().any(|it| it == other)
    };
    for (name, other, mode) in
        [("event", "adaptive", PollMode::Event), ("adaptive", "event", PollMode::Adaptive)]
    {
        if !is_wanted(name, other) {
            continue;
        }
        let mut costs = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            if is_wanted("plain", "tls") {
                costs[0].push(round(mode, None));
            }
            if is_wanted("tls", "plain") {
                costs[1].push(round(mode, Some(&tls)));
            }
        }
        for (costs, what) in costs.into_iter().zip(["plain", "tls"]) {
            if costs.is_empty() {
                continue;
            }
            let cpu = median(costs.iter().map(|cost| cost.cpu_us).collect());
            let heap = median(costs.iter().map(|cost| cost.heap_bytes).collect());
            println!("{name:<10}{what:<8}{cpu:>8.0} us of CPU{heap:>9.0} bytes of heap");
        }
    }
}
