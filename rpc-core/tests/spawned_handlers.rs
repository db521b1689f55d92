//! Methods marked `#[rpc(spawn)]`, and long arguments: a handler that blocks its thread delays no
//! other call of its connection, as long as another thread of the runtime is free.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::{Arc, Condvar, LazyLock, Mutex};
use std::time::Duration;

use rpc_core::{Channel, PollMode, Server};
use serde::{Deserialize, Deserializer, Serialize};

#[rpc_core::service]
trait Work {
    #[rpc(spawn)]
    async fn block(&self);
    /// A method that only the server spawns.
    async fn block_here(&self);
    async fn release(&self);
    async fn release_decoding(&self);
    async fn count(&self, words: Vec<String>, end: End) -> u64;
}

/// Decoded last; blocks, if told to, until another call has been served.
#[derive(Clone, Copy, Serialize)]
struct End;

static DECODING: LazyLock<Gate> = LazyLock::new(Gate::default);

impl<'de> Deserialize<'de> for End {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // It is also decoded to learn the type's schema.
        if DECODING.is(|state| state.awaited) {
            DECODING.set(|state| state.waiting = true);
            let served = DECODING.wait(|state| state.released);
            DECODING.set(|state| *state = State::default());
            assert!(served, "the other call was not served meanwhile");
        }
        <()>::deserialize(from).map(|()| Self)
    }
}

/// Where blocked handlers wait.
#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    awaited: bool,
    waiting: bool,
    released: bool,
}

impl Gate {
    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    fn is(&self, state: impl FnOnce(&State) -> bool) -> bool {
        state(&self.state.lock().unwrap())
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

    async fn block_here(&self) {
        tokio::task::block_in_place(|| {
            self.0.set(|state| state.waiting = true);
            assert!(self.0.wait(|state| state.released), "the other call was not served meanwhile");
            self.0.set(|state| *state = State::default());
        });
    }

    async fn release(&self) {
        self.0.set(|state| state.released = true);
    }

    async fn release_decoding(&self) {
        DECODING.set(|state| state.released = true);
    }

    async fn count(&self, words: Vec<String>, _: End) -> u64 {
        words.len() as u64
    }
}

fn workers(count: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(count).enable_all().build().unwrap()
}

/// A server's gate, the runtimes of its handlers and of the calls, and its client.
type World = (Arc<Gate>, tokio::runtime::Runtime, tokio::runtime::Runtime, WorkClient);

/// One over each wire.
fn worlds(name: &str) -> impl Iterator<Item = World> {
    let shm = format!("shm://{name}-{}", std::process::id());
    ["tcp://127.0.0.1:0".to_owned(), shm].into_iter().map(|address| {
        let gate = Arc::new(Gate::default());
        let (serving, calling) = (workers(2), workers(1));
        let address = serving.block_on(async {
            let server = Server::builder()
                .add_service(WorkServer::new(Blocking(Arc::clone(&gate))))
                .spawn_calls_to("Work.block_here")
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
        (gate, serving, calling, client)
    })
}

#[test]
fn a_spawned_blocking_handler_blocks_no_call() {
    for (gate, _serving, calling, client) in worlds("spawn") {
        for _ in 0..20 {
            let blocked = client.block().start();
            assert!(gate.wait(|state| state.waiting));
            calling.block_on(client.release()).unwrap();
            calling.block_on(blocked).unwrap();
        }
    }
}

#[test]
fn a_server_says_which_calls_are_tasks() {
    for (gate, _serving, calling, client) in worlds("spawn-here") {
        for _ in 0..20 {
            let blocked = client.block_here().start();
            assert!(gate.wait(|state| state.waiting));
            calling.block_on(client.release()).unwrap();
            calling.block_on(blocked).unwrap();
        }
    }
}

#[tokio::test]
async fn only_calls_that_there_are_can_be_tasks() {
    let bind = async |name: &str| {
        let service = WorkServer::new(Blocking(Arc::default()));
        let server = Server::builder().add_service(service).spawn_calls_to(name);
        server.bind("mem://").await.map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(bind("Work").await, Ok(()), "all of them");
    for name in ["Work.blocks", "work", "", "Work."] {
        let error = bind(name).await.unwrap_err();
        let said = format!("there is no {name} here; pass the name of a service");
        assert!(error.contains(&said) && error.contains("Work.block_here"), "{error}");
    }
}

/// Regression: they were decoded by the driver, so everything else waited for slow decoding.
#[test]
fn slow_decoding_blocks_no_other_call() {
    let words = vec!["word".to_owned(); 20_000];
    for (_gate, _serving, calling, client) in worlds("decode") {
        assert_eq!(calling.block_on(client.count(Vec::new(), End)).unwrap(), 0);
        for _ in 0..5 {
            DECODING.set(|state| state.awaited = true);
            let counted = client.count(words.clone(), End).start();
            assert!(DECODING.wait(|state| state.waiting));
            calling.block_on(client.release_decoding()).unwrap();
            assert_eq!(calling.block_on(counted).unwrap(), 20_000);
        }
    }
}
