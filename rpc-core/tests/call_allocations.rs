//! A call allocates in steady state only for the method's own types, at either end.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::atomic::{AtomicU64, Ordering};

use allocation_counter::measure;
use rpc_core::interceptor::{ClientInterceptor, Ended, ServerInterceptor};
use rpc_core::{Channel, Codec, Context, PollMode, Server};

#[rpc_core::service]
trait Echo {
    async fn echo(&self, payload: &[u8]) -> Vec<u8>;
    async fn count(&self, payload: &[u8]) -> u64;
}

struct Service;

impl Echo for Service {
    async fn echo(&self, payload: &[u8]) -> Vec<u8> {
        payload.to_vec()
    }

    async fn count(&self, payload: &[u8]) -> u64 {
        payload.len() as u64
    }
}

/// Enough calls for a method whose first call was slow to run in place again.
const WARM_UP: u32 = 640;
const CALLS: u32 = 500;
const SERIES: u32 = 6;

async fn call_in_turn(client: &EchoClient, calls: u32) {
    for _ in 0..calls {
        assert_eq!(client.echo(&[7; 64]).await.unwrap(), [7; 64]);
    }
}

async fn count_in_turn(client: &EchoClient, calls: u32) {
    for _ in 0..calls {
        assert_eq!(client.count(&[7; 64]).await, Ok(64));
    }
}

async fn count_together(client: &EchoClient, calls: u32) {
    let mut started = Vec::with_capacity(32);
    for _ in 0..calls / 32 {
        started.extend((0..32).map(|_| client.count(&[7; 64]).start()));
        for call in started.drain(..) {
            assert_eq!(call.await, Ok(64));
        }
    }
}

/// Both ends on one thread, whose allocations are counted.
fn calls_allocate_at_most_what_their_results_take(mode: PollMode, address: &str) {
    for codec in [Codec::Bincode, Codec::Postcard] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let address = address.replace("CODEC", &format!("{codec:?}"));
        let client = runtime.block_on(async {
            let server = Server::builder().add_service(EchoServer::new(Service)).poll_mode(mode);
            let server = server.bind(&address).await.unwrap();
            let address = server.local_address().to_string();
            tokio::spawn(server.serve());
            EchoClient::new(
                Channel::builder().codec(codec).poll_mode(mode).connect(&address).await.unwrap(),
            )
        });
        // The minimum of a few series: if this thread is preempted within a handler, the handler
        // looks slow and gets its own task for a while.
        let counted = |run: &dyn Fn(u32)| {
            let series = (0..SERIES).map(|_| {
                run(WARM_UP);
                measure(|| run(CALLS)).count_total
            });
            series.min().unwrap()
        };
        let in_turn = counted(&|calls| runtime.block_on(call_in_turn(&client, calls)));
        let counts = counted(&|calls| runtime.block_on(count_in_turn(&client, calls)));
        let together = counted(&|calls| runtime.block_on(count_together(&client, calls)));
        let calls = f64::from(CALLS);
        println!(
            "{mode:?} {codec:?}: {:.3}, {:.3} if results take none, {:.3} together, both ends",
            in_turn as f64 / calls,
            counts as f64 / calls,
            together as f64 / calls
        );
        // The method's result at both ends, and a few by the runtime itself.
        assert!(in_turn >= 2 * u64::from(CALLS), "they are counted");
        assert!(in_turn <= 2 * u64::from(CALLS) + 10, "{mode:?} {codec:?}: {in_turn}");
        assert!(counts <= 10, "{mode:?} {codec:?}: {counts} for results that need none");
        assert!(together <= 10, "{mode:?} {codec:?}: {together} together");
    }
}

#[test]
fn adaptive_calls_allocate_only_their_results() {
    calls_allocate_at_most_what_their_results_take(
        PollMode::Adaptive,
        "mem://allocs-adaptive-CODEC",
    );
}

#[test]
fn event_calls_allocate_only_their_results() {
    calls_allocate_at_most_what_their_results_take(PollMode::Event, "mem://allocs-event-CODEC");
}

#[test]
fn busy_calls_allocate_only_their_results() {
    calls_allocate_at_most_what_their_results_take(PollMode::Busy, "mem://allocs-busy-CODEC");
}

/// Counts calls.
#[derive(Default)]
struct Calls(AtomicU64);

impl ServerInterceptor for Calls {
    fn after(&self, _: &Context, _: &Ended<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl ClientInterceptor for Calls {
    fn after(&self, _: &Ended<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Regression: each call took three boxes for them.
#[test]
fn calls_that_interceptors_see_allocate_nothing_more() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(async {
        let server = Server::builder().interceptor(Calls::default()).poll_mode(PollMode::Event);
        let server = server.add_service(EchoServer::new(Service));
        tokio::spawn(server.bind("mem://allocs-interceptors").await.unwrap().serve());
        let channel = Channel::builder().interceptor(Calls::default()).poll_mode(PollMode::Event);
        EchoClient::new(channel.connect("mem://allocs-interceptors").await.unwrap())
    });
    let series = (0..SERIES).map(|_| {
        runtime.block_on(count_together(&client, WARM_UP));
        measure(|| runtime.block_on(count_together(&client, CALLS))).count_total
    });
    let least = series.min().unwrap();
    assert!(least <= 10, "{least} of {CALLS} calls");
}

/// Needs a device of this machine. `tests/bench_in_lab` runs it on Soft-RoCE.
#[cfg(feature = "verbs")]
#[test]
fn calls_over_rdma_allocate_only_their_results() {
    let report = rpc_transport::device::verbs::preflight();
    let mut addresses = report.addresses().into_iter();
    let host = addresses.find(std::net::IpAddr::is_ipv4);
    let address = format!("rdma://{}:0", host.expect("an RDMA port with an IPv4 address"));
    for mode in [PollMode::Busy, PollMode::Adaptive, PollMode::Event] {
        calls_allocate_at_most_what_their_results_take(mode, &address);
    }
}
