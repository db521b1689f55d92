//! Doorbells that wait for the next poll, since each costs a system call over tcp: user code never
//! delays them.

use std::mem;
use std::sync::{Arc, mpsc};

use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::engine::driver::Driver;
use rpc_transport::engine::executor::Executor;
use rpc_transport::engine::shard::{Progress, State};
use rpc_transport::engine::spin::PollMode;
use tokio::sync::oneshot;

use crate::probe::{Action, Habit, Probe};
use crate::world::{End, Options, Pair, run, unspawned};

/// Both ends keep arriving messages, so nothing answers.
fn quiet() -> Options {
    Options { habits: [Habit::Keep; 2], ..Options::default() }
}

/// Sends one after the other, as awaited calls do.
fn send_three(client: &End) {
    for number in 0..3 {
        let send = |probe: &mut Probe| probe.send(&[number]);
        let wanted = |_: &mut Probe, (): &()| Progress::GiveUp;
        client.shard.with_progress(client.key, true, send, wanted).unwrap();
    }
}

#[test]
fn posts_do_not_wait_for_running_actions() {
    run("action", async {
        let pair = Pair::with("tcp", &quiet()).await;
        let (started, has_started) = oneshot::channel();
        let (go_on, may_go_on) = mpsc::channel();
        let blocks = move || {
            started.send(()).unwrap();
            may_go_on.recv().unwrap();
        };
        pair.client.with(|probe| probe.actions.push_back(Action::Run(Box::new(blocks))));
        has_started.await.unwrap();
        send_three(&pair.client);
        pair.server.received(3).await;
        go_on.send(()).unwrap();
        pair.end().await;
    });
}

/// Has a result of each action, and drops the rest of the first slowly.
struct DropsSlowly {
    has_results: bool,
    started: Option<oneshot::Sender<()>>,
    may_go_on: mpsc::Receiver<()>,
}

impl Executor<Probe> for DropsSlowly {
    fn execute(&mut self, _: ConnectionKey, action: Action) -> bool {
        match action {
            Action::Changed(record) => record.changed.notify_waiters(),
            Action::Run(_) => self.has_results = true,
        }
        false
    }

    fn discard(&mut self, _: Action) {}

    fn apply(&mut self, _: &mut State<Probe>) {
        self.has_results = false;
    }

    fn applied(&mut self) {
        if let Some(started) = mem::take(&mut self.started) {
            started.send(()).unwrap();
            self.may_go_on.recv().unwrap();
        }
    }

    fn has_results(&self) -> bool {
        self.has_results
    }
}

#[test]
fn posts_do_not_wait_for_dropped_values() {
    run("drops", async {
        let (client, server, [unused, theirs], _listener) = unspawned("tcp", &quiet()).await;
        // Dropping it would end the shard.
        mem::forget(unused);
        tokio::spawn(theirs);
        let (go_on, may_go_on) = mpsc::channel();
        let (started, has_started) = oneshot::channel();
        client.with(|probe| probe.actions.push_back(Action::Run(Box::new(|| ()))));
        let executor = DropsSlowly { has_results: false, started: Some(started), may_go_on };
        let driver = Driver::new(Arc::clone(&client.shard), executor, PollMode::Event).unwrap();
        let driver = tokio::spawn(driver);
        has_started.await.unwrap();
        send_three(&client);
        server.received(3).await;
        go_on.send(()).unwrap();
        client.leave().await;
        client.shard.shutdown();
        driver.await.unwrap();
    });
}
