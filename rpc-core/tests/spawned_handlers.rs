//! Methods marked `#[rpc(spawn)]`: a handler that blocks its thread keeps no call of its connection
//! from being served, as long as another thread of the runtime is free.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rpc_core::{Channel, PollMode, Server};

#[rpc_core::service]
trait Work {
    #[rpc(spawn)]
    async fn block(&self);
    async fn release(&self);
}

/// Where blocked handlers wait.
#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: bool,
    released: bool,
}

impl Gate {
    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    /// Waits on this thread.
    fn wait(&self, until: impl Fn(&State) -> bool) -> bool {
        let limit = Duration::from_secs(20);
        let state = self.state.lock().unwrap();
        let (_state, waited) =
            self.changed.wait_timeout_while(state, limit, |state| !until(state)).unwrap();
        !waited.timed_out()
    }
}

struct Blocking(Arc<Gate>);

impl Work for Blocking {
    async fn block(&self) {
        self.0.set(|state| state.waiting = true);
        assert!(self.0.wait(|state| state.released), "the other call was not served meanwhile");
        self.0.set(|state| *state = State::default());
    }

    async fn release(&self) {
        self.0.set(|state| state.released = true);
    }
}

fn workers(count: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(count).enable_all().build().unwrap()
}

#[test]
fn a_handler_that_blocks_its_thread_keeps_no_other_call_waiting() {
    for address in ["tcp://127.0.0.1:0".to_owned(), format!("shm://spawn-{}", std::process::id())] {
        let gate = Arc::new(Gate::default());
        let (serving, calling) = (workers(2), workers(1));
        let address = serving.block_on(async {
            let server = Server::builder()
                .add_service(WorkServer::new(Blocking(Arc::clone(&gate))))
                .poll_mode(PollMode::Event)
                .bind(&address)
                .await
                .unwrap();
            let address = server.local_address().to_string();
            tokio::spawn(server.serve());
            address
        });
        let connecting = Channel::builder().poll_mode(PollMode::Event).connect(&address);
        let client = WorkClient::new(calling.block_on(connecting).unwrap());
        for _ in 0..20 {
            let blocked = client.block().start();
            assert!(gate.wait(|state| state.waiting));
            calling.block_on(client.release()).unwrap();
            calling.block_on(blocked).unwrap();
        }
    }
}
