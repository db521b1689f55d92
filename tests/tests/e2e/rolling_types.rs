//! Three builds of one service, each a client and a server of each: nothing is refused, lost or
//! wrong, whichever way a fleet is rolled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rpc_core::client::resolve::StaticList;
use rpc_core::{Codec, PollMode};
use tests::depot::call_all;
use tests::load::Tally;
use tests::process::{Child, STOPPED};
use tests::scheme::Scheme;
use tests::world::{World, start_server};

use crate::SERVER;

on_every_scheme! {
    each_build_calls_each_build,
}

between_devices! {
    a_rolling_restart_of_builds_refuses_nothing,
}

async fn each_build_calls_each_build(scheme: Scheme) {
    for server in ["1", "2", "3"] {
        let world = World::start_with(SERVER, scheme, &["--depot", server]).await;
        for codec in [Codec::Bincode, Codec::Postcard] {
            // All of them on one connection, too.
            let shared = world.channel_with(|builder| builder.codec(codec)).await;
            for build in 1..=3 {
                let own = world.channel_with(|builder| builder.codec(codec)).await;
                for seed in 0..6 {
                    for channel in [&own, &shared] {
                        let called = call_all(build, channel, seed).await;
                        assert_eq!(called, Ok(()), "a client of {build}, a server of {server}");
                    }
                }
            }
        }
    }
}

/// A server that ends by SIGTERM, and comes back at its address as another build.
struct Backend {
    address: String,
    child: Child,
}

const LEAD: [&str; 2] = ["--drain-lead-ms", "50"];

impl Backend {
    async fn start(address: &str, build: &str) -> Self {
        let options = [LEAD[0], LEAD[1], "--depot", build];
        let (child, address) = start_server(SERVER, address, &options).await;
        Self { address, child }
    }

    async fn become_build(&mut self, build: &str) {
        self.child.terminate();
        assert_eq!(self.child.expect(STOPPED).await, "ok");
        assert!(self.child.wait().await.success());
        *self = Self::start(&self.address, build).await;
    }
}

async fn a_rolling_restart_of_builds_refuses_nothing(scheme: Scheme) {
    let mut backends = Vec::new();
    for _ in 0..3 {
        backends.push(Backend::start(&scheme.fresh_address_there(), "1").await);
    }
    let addresses: Vec<_> = backends.iter().map(|backend| backend.address.clone()).collect();
    let (stop, mut callers) = (Arc::new(AtomicBool::new(false)), Vec::new());
    for build in 1..=3 {
        let servers: StaticList = StaticList::new(addresses.clone()).expect("addresses");
        let builder = tests::device::channel().poll_mode(PollMode::Event).wait_for_ready(true);
        let channel = builder.connect_balanced(servers).expect("it is complete");
        let (tally, stop) = (Arc::<Tally>::default(), Arc::clone(&stop));
        let calls = {
            let tally = Arc::clone(&tally);
            async move {
                let mut seed = 0;
                while !stop.load(Ordering::SeqCst) {
                    let called = call_all(build, &channel, seed).await;
                    assert_eq!(called, Ok(()), "a client of {build}");
                    tally.one_more();
                    seed += 1;
                }
            }
        };
        callers.push((tally, tokio::spawn(calls)));
    }
    // Up to the newest build, back to the first, and up in one step.
    for build in ["2", "3", "1", "3"] {
        for backend in &mut backends {
            backend.become_build(build).await;
            for (tally, caller) in &mut callers {
                tokio::select! {
                    () = tally.advance(5) => {}
                    failed = caller => panic!("{failed:?}"),
                }
            }
        }
    }
    stop.store(true, Ordering::SeqCst);
    for (_, caller) in callers {
        caller.await.expect("nothing is refused or lost");
    }
}
