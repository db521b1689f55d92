//! How many handshakes compute at once, and that none of them waits for a future that nobody polls.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;

use rpc_transport::address::Address;
use rpc_transport::connect::schemes;
use rpc_transport::device::connection_error::ConnectError;
use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::engine::establish::Connected;
use rpc_transport::engine::security::Security;
use rpc_transport::protocol::lock::fake::FakeFactory;
use rpc_transport::protocol::lock::{
    FrameKeys, Handshake, HandshakeFactory, HandshakeFailure, Level, Protection, Role, Secured,
    Start,
};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, JoinSet};

use super::{World, client, config, connect, server};
use crate::probe::{Habit, Probe};
use crate::world::{PATIENCE, ProbeShard, fresh_address, run};

/// What all handshakes of a factory do.
#[derive(Debug, Default)]
struct Watch {
    computing: AtomicUsize,
    most: AtomicUsize,
    /// Handshakes whose hook runs; those of servers wait there for this many.
    finishing: Mutex<usize>,
    together: usize,
    changed: Condvar,
    /// Each step of computing waits here while it is closed.
    is_closed: Mutex<bool>,
}

impl Watch {
    /// A step of computing, long enough for another thread to begin one.
    fn compute(&self) {
        let now = self.computing.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        (0..200).for_each(|_| std::thread::yield_now());
        let mut is_closed = self.is_closed.lock().unwrap();
        while *is_closed {
            is_closed = self.changed.wait(is_closed).unwrap();
        }
        drop(is_closed);
        self.computing.fetch_sub(1, Ordering::SeqCst);
    }

    fn open(&self) {
        *self.is_closed.lock().unwrap() = false;
        self.changed.notify_all();
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

/// As many handshakes may compute at once.
fn turns() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cores / 2).max(1)
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
        let most = watch.most.load(Ordering::SeqCst);
        assert!((1..=turns()).contains(&most), "{most} of {} turns", turns());
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

type Connecting = Pin<Box<dyn Future<Output = Result<Connected, ConnectError>> + Send>>;

/// A connect that is not begun yet.
fn later(shard: &ProbeShard, address: &Address, security: Security) -> Connecting {
    let (shard, address) = (Arc::clone(shard), address.clone());
    Box::pin(async move {
        connect(&shard, &address, Probe::new(Habit::Keep), Some(&security), PATIENCE).await
    })
}

/// Polls a future again and again, until `is_enough`.
async fn poll_until<F: Future + ?Sized>(
    future: &mut Pin<Box<F>>,
    mut is_enough: impl FnMut() -> bool,
) {
    while !is_enough() {
        let poll = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready()));
        assert!(!poll.await, "it was to be left");
        tokio::task::yield_now().await;
    }
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Takes every client at an address of its own.
struct Serving {
    address: Address,
    accepting: JoinHandle<()>,
    accepted: Arc<Mutex<Vec<ConnectionKey>>>,
}

impl Serving {
    async fn begin(shard: &ProbeShard) -> Self {
        let mut listener = schemes::listen(&fresh_address("mem")).await.unwrap();
        let (address, shard) = (listener.local_address(), Arc::clone(shard));
        let accepted = Arc::<Mutex<Vec<_>>>::default();
        let keys = Arc::clone(&accepted);
        let accepting = tokio::spawn(async move {
            let mut set_ups = JoinSet::new();
            loop {
                let incoming = listener.incoming().await.unwrap();
                let (shard, keys) = (Arc::clone(&shard), Arc::clone(&keys));
                set_ups.spawn(async move {
                    let (config, probe, security) = (config(), Probe::new(Habit::Keep), server());
                    let accept = shard.accept_with(incoming, &config, probe, Some(&security));
                    // Of those that are left nobody hears more.
                    if let Ok(connected) = accept.await {
                        keys.lock().unwrap().push(connected.key);
                    }
                });
            }
        });
        Self { address, accepting, accepted }
    }

    async fn end(self, shard: &ProbeShard) {
        self.accepting.abort();
        assert!(self.accepting.await.unwrap_err().is_cancelled());
        self.accepted.lock().unwrap().drain(..).for_each(|key| shard.release(key));
    }
}

/// Whose runtime stands still: that of the futures, or none but the futures are not polled.
async fn leave_futures_alone(with_their_runtime: bool) {
    let world = World::for_connections("mem", 20 + u32::try_from(turns()).unwrap()).await;
    let serving = Serving::begin(&world.far).await;
    let watch = Arc::new(Watch { is_closed: Mutex::new(true), ..Watch::default() });
    let gated = Watched(FakeFactory::new(1, "client"), Arc::clone(&watch));
    let gated = Security::new(Arc::new(gated)).expecting("server");
    let computing: Vec<_> = (0..turns())
        .map(|_| later(&world.near, &serving.address, gated.clone()))
        .map(|connecting| std::thread::spawn(|| one_thread().block_on(connecting)))
        .collect();
    while watch.computing.load(Ordering::SeqCst) < turns() {
        tokio::task::yield_now().await;
    }
    let mut left: Vec<_> = (0..8).map(|_| later(&world.near, &serving.address, client())).collect();
    let poll_all = async |left: &mut Vec<Connecting>| {
        for connecting in left {
            // Until it waits for its turn, and longer.
            let mut rounds = 0..200;
            poll_until(connecting, || rounds.next().is_none()).await;
        }
    };
    let still = one_thread();
    if with_their_runtime {
        let still = &still;
        let left = &mut left;
        std::thread::scope(|scope| {
            scope.spawn(|| still.block_on(poll_all(left)));
        });
    } else {
        poll_all(&mut left).await;
    }
    watch.open();
    let another = later(&world.near, &serving.address, client()).await.unwrap();
    world.near.release(another.key);
    for thread in computing {
        let connected = tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap();
        world.near.release(connected.unwrap().key);
    }
    drop(left);
    still.shutdown_background();
    serving.end(&world.far).await;
    world.end().await;
}

#[test]
fn futures_left_alone_keep_no_turn() {
    run("futures left alone", leave_futures_alone(false));
}

#[test]
fn a_runtime_left_alone_keeps_no_turn() {
    run("a runtime left alone", leave_futures_alone(true));
}

/// A handshake that has begun ends, whichever end is not polled.
#[test]
fn handshakes_go_on_while_nobody_polls() {
    run("handshakes go on", async {
        for client_is_left in [true, false] {
            let mut world = World::new("mem").await;
            let (ours, theirs) = (client(), server());
            let mut connect = later(&world.near, &world.address, ours.clone());
            let (far, configuration) = (Arc::clone(&world.far), config());
            let security = theirs.clone();
            let mut accept: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(async move {
                let (incoming, probe) = (world.listener.incoming().await, Probe::new(Habit::Keep));
                let incoming = incoming.unwrap();
                let connected =
                    far.accept_with(incoming, &configuration, probe, Some(&security)).await;
                (world, connected.unwrap())
            });
            let begun = |security: &Security| security.has_begun.load(Ordering::SeqCst);
            let (connected, (world, accepted)) = if client_is_left {
                let both = async {
                    poll_until(&mut connect, || begun(&ours)).await;
                    std::future::pending().await
                };
                let accepted = tokio::select! {
                    accepted = &mut accept => accepted,
                    () = both => unreachable!(),
                };
                (connect.await.unwrap(), accepted)
            } else {
                let both = async {
                    poll_until(&mut accept, || begun(&theirs)).await;
                    std::future::pending().await
                };
                let connected = tokio::select! {
                    connected = &mut connect => connected.unwrap(),
                    () = both => unreachable!(),
                };
                (connected, accept.await)
            };
            world.near.release(connected.key);
            world.far.release(accepted.key);
            world.end().await;
        }
    });
}

/// The task of a handshake ends with its runtime: the future says so, and nothing is left.
#[test]
fn a_handshake_ends_with_its_runtime() {
    run("the end of a runtime", async {
        let mut world = World::new("mem").await;
        let ours = client();
        let mut connect = later(&world.near, &world.address, ours.clone());
        let listener = &mut world.listener;
        let (far, probe, theirs) = (&world.far, Probe::new(Habit::Keep), server());
        let accept = super::accept(far, &mut **listener, probe, Some(&theirs));
        let (runtime, begun) = (one_thread(), || ours.has_begun.load(Ordering::SeqCst));
        let connecting = async {
            let handle = runtime.handle().clone();
            poll_fn(|context| {
                let _guard = handle.enter();
                assert!(connect.as_mut().poll(context).is_pending());
                if begun() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            runtime.shutdown_background();
            connect.await.unwrap_err()
        };
        let (error, accepted) = tokio::join!(connecting, accept);
        assert!(error.to_string().contains("the runtime"), "{error}");
        assert!(accepted.is_err());
        world.check_works().await;
        world.end().await;
    });
}
