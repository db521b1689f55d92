//! Shards of probes, connected over a wire of choice.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rpc_transport::address::Address;
use rpc_transport::connect::schemes;
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::device::fault::{self, FaultPlan};
use rpc_transport::device::{Device, Listener, Outgoing};
use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::engine::driver::Driver;
use rpc_transport::engine::establish::server_completions;
use rpc_transport::engine::shard::Shard;
use rpc_transport::engine::spin::PollMode;
use rpc_transport::memory::region::BufferPool;
use rpc_transport::message::received::Message;
use rpc_transport::protocol::config::LinkConfig;
use test_kit::Watchdog;
use tokio::task::JoinHandle;

use crate::probe::{Events, Habit, Probe, Record, Runner};
use crate::random::Random;

pub(crate) type ProbeShard = Arc<Shard<Probe>>;
pub(crate) type ProbeDriver = Driver<Probe, Runner>;

/// Nothing here takes longer; a test that does hangs, and is killed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test on two threads, and kills the process if it does not end.
pub(crate) fn run(name: &str, test: impl Future<Output = ()>) {
    let _watchdog = Watchdog::start(name);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test);
}

/// Runs a test on one thread, which a paused clock requires.
pub(crate) fn run_on_one_thread(name: &str, test: impl Future<Output = ()>) {
    let _watchdog = Watchdog::start(name);
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

/// The wires that all tests run on.
pub(crate) const WIRES: [&str; 3] = ["mem", "shm", "tcp"];

/// An unused address.
pub(crate) fn fresh_address(wire: &str) -> Address {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("shard-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let text = match wire {
        "tcp" => "tcp://127.0.0.1:0".to_owned(),
        wire => format!("{wire}://{name}"),
    };
    text.parse().unwrap()
}

/// A shard with room for `connections`, and the driver for it.
pub(crate) fn shard(
    device: &Arc<dyn Device>,
    config: &LinkConfig,
    connections: u32,
    mode: PollMode,
) -> (ProbeShard, ProbeDriver) {
    let domain = device.allocate_pd().unwrap();
    let entries = server_completions(config, &**device) * connections;
    let shard = Shard::of_server(Arc::clone(device), domain, entries, config).unwrap();
    let driver = Driver::new(Arc::clone(&shard), Runner, mode).unwrap();
    (shard, driver)
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) shard: ProbeShard,
    pub(crate) key: ConnectionKey,
    pub(crate) record: Arc<Record>,
}

impl End {
    /// Waits until `look` returns a value; it is called at every change.
    pub(crate) async fn until<R>(&self, mut look: impl FnMut(&Self) -> Option<R>) -> R {
        loop {
            let changed = self.record.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = look(self) {
                return found;
            }
            changed.await;
        }
    }

    pub(crate) fn events(&self) -> Events {
        self.record.events()
    }

    pub(crate) fn send(&self, bytes: &[u8]) {
        self.with(|probe| probe.send(bytes));
    }

    pub(crate) fn with<R>(&self, step: impl FnOnce(&mut Probe) -> R) -> R {
        self.shard.with(self.key, step).expect("the connection is there")
    }

    pub(crate) async fn received(&self, count: u64) {
        self.until(|end| (end.events().received >= count).then_some(())).await;
    }

    /// The next kept message.
    pub(crate) async fn next(&self) -> Message {
        self.until(|end| end.shard.look(end.key, |probe| probe.inbox.pop_front()).flatten()).await
    }

    /// Waits for the end of the connection.
    pub(crate) async fn cause(&self) -> CloseCause {
        self.until(|end| end.events().closed.first().cloned()).await
    }

    /// Waits until the connection's QP has been destroyed.
    pub(crate) async fn gone(&self) {
        self.until(|end| (end.events().released == 1).then_some(())).await;
        assert_eq!(self.events().closed.len(), 1, "the end is reported once");
    }

    pub(crate) fn pools(&self) -> Vec<BufferPool> {
        self.shard.pools(self.key)
    }

    /// Closes in order, waits for the QP's end, and forgets the connection.
    pub(crate) async fn leave(&self) {
        self.shard.release(self.key);
        self.gone().await;
    }
}

/// Checks that every buffer is in its pool.
pub(crate) fn assert_home(pools: &[BufferPool]) {
    assert!(!pools.is_empty());
    for pool in pools {
        assert_eq!(pool.free_count(), pool.count() as usize, "buffers are missing");
    }
}

/// Parameters of a pair of connected ends.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Of the client and the server, like all pairs here.
    pub(crate) configs: [LinkConfig; 2],
    pub(crate) mode: PollMode,
    pub(crate) habits: [Habit; 2],
    /// Faults of each end's device.
    pub(crate) faults: Option<[FaultPlan; 2]>,
}

impl Options {
    /// Both ends configured alike.
    pub(crate) fn alike(config: LinkConfig) -> Self {
        Self { configs: [config.clone(), config], ..Self::default() }
    }
}

impl Default for Options {
    fn default() -> Self {
        // Silent except for the test's own messages.
        let config = LinkConfig::default().keep_alive(None);
        let configs = [config.clone(), config];
        Self { configs, mode: PollMode::Event, habits: [Habit::Keep, Habit::Echo], faults: None }
    }
}

/// Two connected ends on a shard each. The drivers run unless they were taken.
pub(crate) struct Pair {
    pub(crate) client: End,
    pub(crate) server: End,
    pub(crate) drivers: [JoinHandle<()>; 2],
    receive_pools: Vec<BufferPool>,
    _listener: Box<dyn Listener>,
}

impl Pair {
    pub(crate) async fn new(wire: &str) -> Self {
        Self::with(wire, &Options::default()).await
    }

    pub(crate) async fn with(wire: &str, options: &Options) -> Self {
        let (client, server, drivers, listener) = unspawned(wire, options).await;
        let receive_pools = [client.pools(), server.pools()].concat();
        let drivers = drivers.map(tokio::spawn);
        Self { client, server, drivers, receive_pools, _listener: listener }
    }

    /// Releases both ends and waits until every buffer has been returned and both drivers have
    /// ended.
    pub(crate) async fn end(self) {
        let pools = [self.client.pools(), self.server.pools(), self.receive_pools].concat();
        self.client.leave().await;
        self.server.leave().await;
        for end in [&self.client, &self.server] {
            end.shard.shutdown();
        }
        for driver in self.drivers {
            driver.await.unwrap();
        }
        assert_home(&pools);
        for end in [&self.client, &self.server] {
            let stats = end.shard.stats();
            assert_eq!((stats.entries, stats.queue_pairs, stats.deadlines), (0, 0, 0));
            assert_eq!(stats.unflushed, 0, "a queue pair was destroyed before its flush");
        }
    }
}

/// Two connected ends, and their drivers, which nobody polls yet.
pub(crate) async fn unspawned(
    wire: &str,
    options: &Options,
) -> (End, End, [ProbeDriver; 2], Box<dyn Listener>) {
    let Options { configs: [ours, theirs], mode, faults, .. } = options;
    let mut listener = schemes::listen(&fresh_address(wire)).await.unwrap();
    if let Some([_, plan]) = faults {
        listener = fault::listener(listener, plan.clone());
    }
    let address = listener.local_address();
    let device = async |end| Arc::clone(resolve(&address, options, end).await.device());
    let (client, client_driver) = shard(&device(0).await, ours, 1, *mode);
    let (server, server_driver) = shard(&device(1).await, theirs, 1, *mode);
    let (client, server) = join(&client, &server, &mut *listener, options).await;
    (client, server, [client_driver, server_driver], listener)
}

/// A connection to an address, over the device of an end: 0 is the client's.
pub(crate) async fn resolve(address: &Address, options: &Options, end: usize) -> Box<dyn Outgoing> {
    let outgoing = schemes::resolve(address).await.unwrap().outgoing;
    match &options.faults {
        Some(plans) => fault::outgoing(outgoing, &plans[end]),
        None => outgoing,
    }
}

/// A driver that is polled by hand, on the test's own thread.
pub(crate) struct ByHand(Pin<Box<ProbeDriver>>);

impl ByHand {
    pub(crate) fn new(driver: ProbeDriver) -> Self {
        Self(Box::pin(driver))
    }

    pub(crate) fn poll(&mut self) -> Poll<()> {
        self.0.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Polls until it sleeps; it must have something to sleep for.
    pub(crate) fn until_parked(&mut self, shard: &ProbeShard) {
        loop {
            assert!(self.poll().is_pending(), "the driver has ended");
            if shard.stats().is_parked {
                return;
            }
        }
    }
}

/// Waits until the driver sleeps.
pub(crate) async fn parked(shard: &ProbeShard) {
    while !shard.stats().is_parked {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Connects one more pair of ends between two shards.
pub(crate) async fn join(
    client: &ProbeShard,
    server: &ProbeShard,
    listener: &mut dyn Listener,
    options: &Options,
) -> (End, End) {
    let Options { configs, habits: [ours, theirs], .. } = options;
    let address = listener.local_address();
    let outgoing = resolve(&address, options, 0).await;
    let (near, far) = (Probe::new(*ours), Probe::new(*theirs));
    let (near_record, far_record) = (near.record(), far.record());
    let accept = async {
        let incoming = listener.incoming().await.unwrap();
        server.accept(incoming, &configs[1], far).await.unwrap()
    };
    let connect = client.connect(outgoing, &address, &configs[0], PATIENCE, near);
    let (near, far) = tokio::join!(connect, accept);
    let (near, far) = (near.unwrap().key, far.key);
    (
        End { shard: Arc::clone(client), key: near, record: near_record },
        End { shard: Arc::clone(server), key: far, record: far_record },
    )
}

/// Bytes that differ by position and by message, up to 2 MiB.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    const SEEDS: usize = 4096;
    static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut random = Random::new(1);
        (0..(2 << 20) / 8 + SEEDS).flat_map(|_| random.next().to_le_bytes()).collect()
    });
    let start = usize::try_from(seed).unwrap() * 7 % SEEDS;
    BYTES[start..start + len].to_vec()
}
