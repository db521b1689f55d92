//! How many handshakes compute at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use rpc_transport::engine::security::Security;
use rpc_transport::protocol::lock::fake::FakeFactory;
use rpc_transport::protocol::lock::{
    FrameKeys, Handshake, HandshakeFactory, HandshakeFailure, Level, Protection, Role, Secured,
    Start,
};
use tokio::task::JoinSet;

use super::{World, config, connect};
use crate::probe::{Habit, Probe};
use crate::world::{PATIENCE, run};

/// What all handshakes of a factory do.
#[derive(Debug, Default)]
struct Watch {
    computing: AtomicUsize,
    most: AtomicUsize,
    /// Handshakes whose hook runs; those of servers wait there for this many.
    finishing: Mutex<usize>,
    together: usize,
    changed: Condvar,
}

impl Watch {
    /// A step of computing, long enough for another thread to begin one.
    fn compute(&self) {
        let now = self.computing.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        (0..200).for_each(|_| std::thread::yield_now());
        self.computing.fetch_sub(1, Ordering::SeqCst);
    }

    fn finish(&self) {
        let mut finishing = self.finishing.lock().unwrap();
        *finishing += 1;
        self.changed.notify_all();
        while *finishing < self.together {
            finishing = self.changed.wait(finishing).unwrap();
        }
    }
}

#[derive(Debug)]
struct Watched(FakeFactory, Arc<Watch>);

impl HandshakeFactory for Watched {
    fn protection(&self, scheme: &str) -> Protection {
        self.0.protection(scheme)
    }

    fn start(&self, start: Start<'_>) -> Result<Box<dyn Handshake>, HandshakeFailure> {
        self.1.compute();
        let (inner, watch) = (self.0.start(start)?, Arc::clone(&self.1));
        Ok(Box::new(WatchedHandshake { inner, watch, role: start.role }))
    }
}

struct WatchedHandshake {
    inner: Box<dyn Handshake>,
    watch: Arc<Watch>,
    role: Role,
}

impl Handshake for WatchedHandshake {
    fn read(&mut self, message: &[u8]) -> Result<(), HandshakeFailure> {
        self.watch.compute();
        self.inner.read(message)
    }

    fn write(&mut self, into: &mut Vec<u8>) -> Result<Option<Level>, HandshakeFailure> {
        self.inner.write(into)
    }

    fn read_level(&self) -> Level {
        self.inner.read_level()
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn seal(
        &mut self,
        level: Level,
        number: u64,
        header: &[u8; 8],
        payload: &mut Vec<u8>,
    ) -> Result<(), HandshakeFailure> {
        self.inner.seal(level, number, header, payload)
    }

    fn open(
        &mut self,
        level: Level,
        number: u64,
        header: &[u8; 8],
        payload: &mut Vec<u8>,
    ) -> Result<(), HandshakeFailure> {
        self.inner.open(level, number, header, payload)
    }

    fn peer_parameters(&self) -> Option<&[u8]> {
        self.inner.peer_parameters()
    }

    fn finish(&mut self) -> Result<Secured, HandshakeFailure> {
        if self.role == Role::Server {
            // Other tasks of this thread go on.
            tokio::task::block_in_place(|| self.watch.finish());
        }
        self.inner.finish()
    }

    fn frame_keys(&mut self) -> Result<FrameKeys, HandshakeFailure> {
        self.inner.frame_keys()
    }
}

/// Connects so many pairs at once, each end on a task of its own.
async fn meet_all(pairs: u32, watch: &Arc<Watch>) {
    let mut world = World::for_connections("mem", pairs + 1).await;
    let factory = Watched(FakeFactory::new(1, "peer"), Arc::clone(watch));
    let security = Security::new(Arc::new(factory));
    let mut tasks = JoinSet::new();
    for _ in 0..pairs {
        let (shard, address, security) =
            (Arc::clone(&world.near), world.address.clone(), security.clone());
        tasks.spawn(async move {
            let probe = Probe::new(Habit::Keep);
            let connected = connect(&shard, &address, probe, Some(&security), PATIENCE).await;
            (shard, connected.unwrap().key)
        });
    }
    for _ in 0..pairs {
        let incoming = world.listener.incoming().await.unwrap();
        let (shard, security) = (Arc::clone(&world.far), security.clone());
        tasks.spawn(async move {
            let probe = Probe::new(Habit::Keep);
            let accepted = shard.accept_with(incoming, &config(), probe, Some(&security)).await;
            (shard, accepted.unwrap().key)
        });
    }
    // A connection that ends at once may be an error of the other end's set-up.
    for (shard, key) in tasks.join_all().await {
        shard.release(key);
    }
    world.end().await;
}

#[test]
fn handshakes_take_turns_to_compute() {
    run("turns", async {
        let watch = Arc::new(Watch::default());
        meet_all(20, &watch).await;
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let most = watch.most.load(Ordering::SeqCst);
        assert!((1..=(cores / 2).max(1)).contains(&most), "{most} on {cores} cores");
    });
}

/// Two hooks wait for each other: with one turn for both, neither would end.
#[test]
fn a_hook_that_waits_keeps_no_turn() {
    run("hooks", async {
        let watch = Arc::new(Watch { together: 2, ..Watch::default() });
        meet_all(2, &watch).await;
        assert_eq!(*watch.finishing.lock().unwrap(), 2);
    });
}
