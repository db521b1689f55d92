//! Futures that are not awaited to their end: dropped after some polls, or left for a while.
//!
//! Owns what a careless user does: `select!`, `buffer_unordered`, a future in a structure that
//! nobody looks at. Others must not notice it.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;

use crate::chance::stream;
use crate::ledger::{SENT_AFTER_US, ledger};
use crate::load::Load;
use crate::oracle::Task;
use crate::services::{Client, How};

/// Polls a future that often at most. Waits for its wake-ups, as a task would.
async fn polled<F: Future + ?Sized>(mut future: Pin<&mut F>, times: u64) -> Option<F::Output> {
    let mut left = times;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

impl Load {
    /// Calls whose futures are dropped after some polls.
    pub(crate) async fn drops(self: Rc<Self>) {
        let mut rng = stream(self.plan.seed, "drops");
        let mut tasks: Vec<JoinHandle<()>> = Vec::new();
        while !self.has_ended.get() {
            sleep(Duration::from_millis(20 + rng.below(500))).await;
            for _ in 0..1 + rng.below(5) {
                let client = self.clients[rng.index(self.clients.len())].clone();
                let (task, how) = (self.task(&mut rng), self.how(&mut rng));
                let times = 1 + rng.below(6);
                tasks.push(spawn_local(async move {
                    let timeout_us = how.timeout.map(|timeout| timeout.as_micros() as u64);
                    let key = ledger().begin(task, client.version(), timeout_us);
                    let call = client.call(task, key, &how);
                    match polled(Box::pin(call).as_mut(), times).await {
                        Some(answer) => ledger().ended(key, answer),
                        None => ledger().dropped(key, false),
                    }
                }));
            }
            tasks.retain(|task| !task.is_finished());
        }
        futures::future::join_all(tasks).await;
    }

    /// Calls and connects that are polled for a while, and then left for a while.
    pub(crate) async fn left(self: Rc<Self>) {
        let mut rng = stream(self.plan.seed, "left");
        while !self.has_ended.get() {
            sleep(Duration::from_millis(200 + rng.below(3000))).await;
            let (server, count) = (rng.index(self.plan.servers.len()), rng.below(8));
            let mut connects: Vec<_> =
                (0..count).map(|_| Box::pin(self.ends.connect(server))).collect();
            for connect in &mut connects {
                let times = 1 + rng.below(8);
                if polled(connect.as_mut(), times).await.is_some() {
                    *connect = Box::pin(self.ends.connect(server));
                }
            }
            let mut calls = Vec::new();
            for _ in 0..rng.below(8) {
                let client = self.clients[rng.index(self.clients.len())].clone();
                let (task, how) =
                    (self.task(&mut rng), How { timeout: None, ..self.how(&mut rng) });
                let key = ledger().begin(task, client.version(), None);
                ledger().is_left(key);
                let mut call = Box::pin(async move { client.call(task, key, &how).await });
                match polled(call.as_mut(), 1 + rng.below(4)).await {
                    Some(answer) => ledger().ended(key, answer),
                    None => calls.push((key, call)),
                }
            }
            // Nobody polls them now, and others go on.
            let others = self.ends.connect_well(server).await;
            sleep(Duration::from_millis(100 + rng.below(6000))).await;
            drop(others);
            drop(connects);
            for (key, call) in calls {
                if rng.chance(50) {
                    ledger().dropped(key, false);
                } else {
                    let answer = call.await;
                    ledger().ended(key, answer);
                }
            }
        }
    }

    /// `no_cancel` calls that are dropped, the first ones of a new connection.
    pub(crate) async fn notes(self: Rc<Self>) {
        let mut rng = stream(self.plan.seed, "notes");
        while !self.has_ended.get() {
            sleep(Duration::from_millis(200 + rng.below(4000))).await;
            let server = rng.index(self.plan.servers.len());
            let Some(channel) = self.ends.connect_well(server).await else { continue };
            let client = Client::new(channel, self.plan.client);
            let held_us = rng.below(2 * SENT_AFTER_US);
            let key = ledger().begin(Task::Note, client.version(), None);
            let how = How::default();
            let one = client.clone();
            let mut call = Box::pin(async move { one.call(Task::Note, key, &how).await });
            match polled(call.as_mut(), 1).await {
                Some(answer) => ledger().ended(key, answer),
                None => {
                    // Not polled meanwhile, as in a `select!` that looks elsewhere.
                    sleep(Duration::from_micros(held_us)).await;
                    drop(call);
                    ledger().dropped(key, held_us >= SENT_AFTER_US);
                }
            }
            // Its connection stays for as long as the call may take.
            sleep(Duration::from_millis(500)).await;
        }
    }
}
