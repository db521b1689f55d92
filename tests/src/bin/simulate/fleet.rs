//! The servers of a world, which end and come back.

use std::rc::Rc;

use rpc_core::client::resolve::{Endpoint, Resolve, Resolving};
use rpc_core::server::ShutdownHandle;
use rpc_core::stats::StatsHandle;
use tokio::task::JoinHandle;

use crate::desk::Desk;
use crate::ends::{Ends, address};
use crate::ledger::ledger;
use crate::plan::{Feature, Plan};
use crate::rules::Rule;
use crate::services::serve;
use crate::trace::say;

/// All servers.
#[derive(Debug)]
pub(crate) struct Fleet {
    desk: Desk,
    ends: Rc<Ends>,
    has_farewell: bool,
    running: Vec<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    serving: JoinHandle<()>,
    shutdown: ShutdownHandle,
    stats: StatsHandle,
}

impl Fleet {
    /// Starts all servers of the plan.
    pub(crate) async fn start(plan: &Plan, ends: Rc<Ends>) -> Self {
        let running = plan.servers.iter().map(|_| None).collect();
        let (is_slow, has_panics) = (plan.has(Feature::Hedged), plan.has(Feature::Panics));
        let desk = Desk { seed: plan.seed, server: 0, is_slow, has_panics };
        let has_farewell = plan.has(Feature::Farewell);
        let mut fleet = Self { desk, ends, has_farewell, running };
        for (server, planned) in plan.servers.iter().enumerate() {
            fleet.serve(server, planned.version).await;
        }
        fleet
    }

    /// Starts a server of this version.
    pub(crate) async fn serve(&mut self, server: usize, version: u8) {
        say(format_args!("server {server} starts as v{version}"));
        ledger().has_old |= version == 1;
        let builder = serve(self.ends.server(), Desk { server, ..self.desk }, version);
        let bound = builder.bind(address(server)).await.expect("its name is free");
        let (shutdown, stats) = (bound.shutdown_handle(), bound.stats_handle());
        let serving = tokio::spawn(async move { drop(bound.serve().await) });
        self.running[server] = Some(Running { serving, shutdown, stats });
    }

    /// Ends a server, with or without a farewell.
    pub(crate) async fn end(&mut self, server: usize) {
        let Some(running) = self.running[server].take() else { return };
        if self.has_farewell {
            say(format_args!("server {server} shuts down"));
            running.shutdown.shutdown();
        } else {
            say(format_args!("server {server} is killed"));
            running.serving.abort();
        }
        let _ = running.serving.await;
        say(format_args!("server {server} has ended"));
    }

    /// Nothing is under way: no server counts anything.
    pub(crate) fn is_quiet(&self) {
        let running = self.running.iter().enumerate();
        for (server, running) in running.filter_map(|(at, it)| it.as_ref().map(|it| (at, it))) {
            let stats = running.stats.stats();
            for method in stats.methods.iter().filter(|method| method.in_flight() > 0) {
                let (name, count) = (method.name, method.in_flight());
                let text = format!("server {server} has {count} calls of {name} in flight");
                ledger().broken(Rule::Counters, 0, text);
            }
            if stats.set_ups > 0 {
                let text = format!("server {server} counts {} set-ups", stats.set_ups);
                ledger().broken(Rule::Counters, 0, text);
            }
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
