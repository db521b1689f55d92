//! The calls of a world: lone ones, crowds, and calls together on new connections.
//!
//! Owns the tasks that make calls, of which others are in [`left`](crate::left). Each draws from a
//! stream of its own.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use rpc_core::Channel;
use rpc_core::client::HedgingPolicy;
use test_kit::Rng;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;

use crate::chance::stream;
use crate::ends::Ends;
use crate::ledger::ledger;
use crate::oracle::Task;
use crate::plan::{Feature, Plan};
use crate::services::{Client, How};

/// How long the calls that are under way may take when no more are made.
const LAST_CALLS: Duration = Duration::from_secs(30);

/// Callers that call again soon after each answer.
const BUSY: u64 = 40;

/// What all loads share.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) plan: Plan,
    pub(crate) ends: Rc<Ends>,
    /// Of the channel that all share.
    pub(crate) clients: Vec<Client>,
    pub(crate) has_ended: Cell<bool>,
}

impl Load {
    /// Calls through this channel, and through new ones.
    pub(crate) fn new(plan: &Plan, ends: &Rc<Ends>, channel: &Channel) -> Rc<Self> {
        let mut clients = vec![Client::new(channel.clone(), plan.client)];
        if plan.has(Feature::Copies) {
            clients.push(Client::copy(channel.clone()));
            clients.extend((1..=3).map(|version| Client::new(channel.clone(), version)));
        }
        let (plan, ends) = (plan.clone(), Rc::clone(ends));
        Rc::new(Self { plan, ends, clients, has_ended: Cell::new(false) })
    }

    /// Begins to make calls. The tasks end some time after [`Load::end`].
    pub(crate) fn begin(self: &Rc<Self>) -> Vec<JoinHandle<()>> {
        let mut tasks = vec![spawn_local(Rc::clone(self).calls())];
        if self.plan.has(Feature::Fresh) {
            tasks.push(spawn_local(Rc::clone(self).fresh()));
        }
        if self.plan.has(Feature::Limit) {
            tasks.extend((0..BUSY).map(|caller| spawn_local(Rc::clone(self).busy(caller))));
        }
        if self.plan.has(Feature::Notes) {
            tasks.push(spawn_local(Rc::clone(self).notes()));
        }
        if self.plan.has(Feature::Drops) {
            tasks.push(spawn_local(Rc::clone(self).drops()));
        }
        if self.plan.has(Feature::Left) {
            tasks.push(spawn_local(Rc::clone(self).left()));
        }
        tasks
    }

    /// Makes no more calls, and waits for those that are under way.
    pub(crate) async fn end(&self, loads: Vec<JoinHandle<()>>) {
        self.has_ended.set(true);
        // What has not ended by then is seen in the ledger.
        let _ = tokio::time::timeout(LAST_CALLS, futures::future::join_all(loads)).await;
    }

    /// Lone calls and crowds.
    async fn calls(self: Rc<Self>) {
        let mut rng = stream(self.plan.seed, "calls");
        let mut tasks: Vec<JoinHandle<()>> = Vec::new();
        while !self.has_ended.get() {
            // A crowd has a right to be refused where there is a limit.
            let may_crowd = self.plan.crowd > 1 && !self.plan.has(Feature::Limit);
            let is_crowd = rng.chance(2) && may_crowd;
            let count = if is_crowd { self.plan.crowd } else { 1 };
            for _ in 0..count {
                let client = self.clients[rng.index(self.clients.len())].clone();
                let (task, how) = (self.task(&mut rng), self.how(&mut rng));
                tasks.push(spawn_local(async move { call(&client, task, &how).await }));
            }
            let longest = if is_crowd { 1500 } else { 60 };
            sleep(Duration::from_millis(5 + rng.below(longest))).await;
            tasks.retain(|task| !task.is_finished());
        }
        futures::future::join_all(tasks).await;
    }

    /// Calls that begin together on a new connection.
    async fn fresh(self: Rc<Self>) {
        let mut rng = stream(self.plan.seed, "fresh");
        let mut tasks = Vec::new();
        while !self.has_ended.get() {
            sleep(Duration::from_millis(200 + rng.below(4000))).await;
            let server = rng.index(self.plan.servers.len());
            let client = Client::new(self.ends.lazy(server), self.plan.client);
            let same = self.streaming(&mut rng);
            for _ in 0..2 + rng.below(3) {
                let task = if rng.chance(80) { same } else { self.task(&mut rng) };
                let (client, how) = (client.clone(), How::default());
                tasks.push(spawn_local(async move { call(&client, task, &how).await }));
                if rng.chance(70) {
                    sleep(Duration::from_micros(rng.below(2000))).await;
                }
            }
        }
        futures::future::join_all(tasks).await;
    }

    /// One of many callers that call again soon after each answer.
    async fn busy(self: Rc<Self>, caller: u64) {
        let mut rng = stream(self.plan.seed ^ caller, "busy");
        while !self.has_ended.get() {
            call(
                &self.clients[0],
                Task::Get,
                &How { is_keyed: self.plan.has(Feature::Keyed), ..How::default() },
            )
            .await;
            sleep(Duration::from_millis(100 + rng.below(100))).await;
        }
    }

    pub(crate) fn task(&self, rng: &mut Rng) -> Task {
        if self.plan.has(Feature::Streams) && rng.chance(25) {
            return self.streaming(rng);
        }
        if self.plan.has(Feature::Bulk) && rng.chance(15) {
            return Task::Blob;
        }
        rng.pick(&[Task::Get, Task::Get, Task::Put, Task::Parcel, Task::Store])
    }

    fn streaming(&self, rng: &mut Rng) -> Task {
        rng.pick(&[Task::Upload, Task::Upload, Task::List, Task::Both])
    }

    pub(crate) fn how(&self, rng: &mut Rng) -> How {
        let hedging = HedgingPolicy::new().delay(Duration::from_millis(3)).budget(1.0);
        let timeout = if rng.chance(30) { 5 + rng.below(500) } else { 2000 + rng.below(8000) };
        let is_timed = rng.chance(50);
        How {
            is_keyed: self.plan.has(Feature::Keyed),
            hedging: self.plan.has(Feature::Hedged).then_some(hedging),
            timeout: (self.plan.has(Feature::Deadlines) && is_timed)
                .then(|| Duration::from_millis(timeout)),
        }
    }
}

/// Makes one call, and enters it in the ledger.
async fn call(client: &Client, task: Task, how: &How) {
    let timeout_us = how.timeout.map(|timeout| timeout.as_micros() as u64);
    let key = ledger().begin(task, client.version(), timeout_us);
    let answer = client.call(task, key, how).await;
    ledger().ended(key, answer);
}
