//! The servers of a world, which are killed and come back.

use rpc_core::client::resolve::{Endpoint, Resolve, Resolving};
use rpc_core::{PollMode, Server};
use tokio::task::JoinHandle;

use crate::desk::Desk;
use crate::ledger::ledger;
use crate::plan::Plan;
use crate::services::serve;
use crate::trace::say;

/// The address of a server.
pub(crate) fn address(server: usize) -> String {
    format!("mem://server-{server}")
}

/// All servers.
#[derive(Debug)]
pub(crate) struct Fleet {
    seed: u64,
    is_slow: bool,
    running: Vec<Option<JoinHandle<()>>>,
}

impl Fleet {
    /// Starts all servers of the plan.
    pub(crate) async fn start(plan: &Plan) -> Self {
        let running = plan.servers.iter().map(|_| None).collect();
        let mut fleet = Self { seed: plan.seed, is_slow: plan.hedged, running };
        for (server, planned) in plan.servers.iter().enumerate() {
            fleet.serve(server, planned.version).await;
        }
        fleet
    }

    /// Starts a server of this version.
    pub(crate) async fn serve(&mut self, server: usize, version: u8) {
        say(format_args!("server {server} starts as v{version}"));
        ledger().has_old |= version == 1;
        let desk = Desk { seed: self.seed, server, is_slow: self.is_slow };
        let builder = serve(Server::builder().poll_mode(PollMode::Event), desk, version);
        let bound = builder.bind(address(server)).await.expect("its name is free");
        let serving = tokio::spawn(async move { drop(bound.serve().await) });
        self.running[server] = Some(serving);
    }

    /// Ends a server without any farewell.
    pub(crate) async fn kill(&mut self, server: usize) {
        say(format_args!("server {server} is killed"));
        if let Some(serving) = self.running[server].take() {
            serving.abort();
            let _ = serving.await;
        }
    }
}

/// A resolver that knows the servers of the plan.
#[derive(Debug)]
pub(crate) struct Book(Vec<Endpoint>);

impl Book {
    pub(crate) fn new(plan: &Plan) -> Self {
        let endpoint = |(server, priority): (usize, u8)| {
            let at: Endpoint = address(server).parse().expect("an address");
            at.with_priority(priority)
        };
        let priorities = plan.servers.iter().map(|server| server.priority);
        Self(priorities.enumerate().map(endpoint).collect())
    }
}

impl Resolve for Book {
    fn name(&self) -> String {
        "the book".to_owned()
    }

    fn resolve(&self) -> Resolving<'_> {
        Box::pin(async { Ok(self.0.clone()) })
    }
}
