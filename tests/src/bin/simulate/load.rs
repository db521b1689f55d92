//! The calls of a world: lone ones, crowds, calls together on new connections, and dropped ones.
//!
//! Owns the tasks that make calls. Each draws from a stream of its own.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use rpc_core::client::HedgingPolicy;
use rpc_core::{Channel, PollMode};
use test_kit::Rng;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;

use crate::chance::stream;
use crate::ledger::{SENT_AFTER_US, ledger};
use crate::oracle::Task;
use crate::plan::Plan;
use crate::services::{Client, How};

/// How long the calls that are under way may take when no more are made.
const LAST_CALLS: Duration = Duration::from_secs(30);

/// What all loads share.
#[derive(Debug)]
pub(crate) struct Load {
    plan: Plan,
    /// Of the channel that all share.
    clients: Vec<Client>,
    has_ended: Cell<bool>,
}

impl Load {
    /// Calls through this channel, and through new ones.
    pub(crate) fn new(plan: &Plan, channel: &Channel) -> Rc<Self> {
        let mut clients = vec![Client::new(channel.clone(), plan.client)];
        if plan.copies {
            clients.push(Client::copy(channel.clone()));
            clients.extend((1..=3).map(|version| Client::new(channel.clone(), version)));
        }
        Rc::new(Self { plan: plan.clone(), clients, has_ended: Cell::new(false) })
    }

    /// Begins to make calls. The tasks end some time after [`Load::end`].
    pub(crate) fn begin(self: &Rc<Self>) -> Vec<JoinHandle<()>> {
        let mut tasks = vec![spawn_local(Rc::clone(self).calls())];
        if self.plan.fresh {
            tasks.push(spawn_local(Rc::clone(self).fresh()));
        }
        if self.plan.notes {
            tasks.push(spawn_local(Rc::clone(self).notes()));
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
            let is_crowd = self.plan.crowd > 1 && rng.chance(2);
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
            let channel = Channel::builder().poll_mode(PollMode::Event);
            let Ok(channel) = channel.connect_lazy(crate::fleet::address(server)) else { continue };
            let client = Client::new(channel, self.plan.client);
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

    /// `no_cancel` calls that are dropped, the first ones of a new connection.
    async fn notes(self: Rc<Self>) {
        let mut rng = stream(self.plan.seed, "notes");
        while !self.has_ended.get() {
            sleep(Duration::from_millis(200 + rng.below(4000))).await;
            let server = rng.index(self.plan.servers.len());
            let channel = Channel::builder().poll_mode(PollMode::Event);
            let Ok(channel) = channel.connect(crate::fleet::address(server)).await else {
                continue;
            };
            let client = Client::new(channel.clone(), self.plan.client);
            let held_us = rng.below(2 * SENT_AFTER_US);
            let key = ledger().begin(Task::Note, client.version(), None);
            let how = How::default();
            let done = {
                let mut one = pin!(client.call(Task::Note, key, &how));
                let done = poll_fn(|cx| match one.as_mut().poll(cx) {
                    Poll::Ready(answer) => Poll::Ready(Some(answer)),
                    Poll::Pending => Poll::Ready(None),
                });
                let done = done.await;
                if done.is_none() {
                    // Not polled meanwhile, as in a `select!` that looks elsewhere.
                    sleep(Duration::from_micros(held_us)).await;
                }
                done
            };
            match done {
                Some(answer) => ledger().ended(key, answer),
                None => ledger().dropped(key, held_us >= SENT_AFTER_US),
            }
            // Its connection stays for as long as the call may take.
            sleep(Duration::from_millis(500)).await;
            drop(channel);
        }
    }

    fn task(&self, rng: &mut Rng) -> Task {
        if self.plan.streams && rng.chance(25) {
            return self.streaming(rng);
        }
        rng.pick(&[Task::Get, Task::Get, Task::Put, Task::Parcel, Task::Store])
    }

    fn streaming(&self, rng: &mut Rng) -> Task {
        rng.pick(&[Task::Upload, Task::Upload, Task::List, Task::Both])
    }

    fn how(&self, rng: &mut Rng) -> How {
        let hedging = HedgingPolicy::new().delay(Duration::from_millis(3)).budget(1.0);
        let timeout = if rng.chance(30) { 5 + rng.below(500) } else { 2000 + rng.below(8000) };
        let is_timed = rng.chance(50);
        How {
            is_keyed: self.plan.keyed,
            hedging: self.plan.hedged.then_some(hedging),
            timeout: (self.plan.deadlines && is_timed).then(|| Duration::from_millis(timeout)),
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
