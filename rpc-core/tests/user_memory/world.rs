//! Memory with a user-defined destructor, and a client and a server that send it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rpc_core::{Bulk, Channel, ChannelBuilder, Context, LinkConfig, Server, Status};
use tokio::runtime::{Builder, Runtime};

/// Longer than any test; a hanging test is killed.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// More than can be sent to a peer that does not receive.
pub(crate) const LARGE: usize = 24 << 20;

/// The action of an owner on drop, after it has reported the drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Habit {
    Calls,
    Panics,
}

/// The ways for memory to get into a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Owned,
    Registered,
}

pub(crate) type Deed = Box<dyn FnOnce() + Send + Sync>;

struct Owner {
    bytes: Vec<u8>,
    deed: Option<Deed>,
    gone: Sender<()>,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        match self.deed.take() {
            Some(deed) => {
                deed();
                let _ = self.gone.send(());
            }
            None => {
                let _ = self.gone.send(());
                panic!("on purpose");
            }
        }
    }
}

/// A byte string whose owner reports its drop.
fn owned(kind: Kind, len: usize, deed: Option<Deed>, pool: &rpc_core::BulkPool) -> (Bulk, Gone) {
    let (gone, is_gone) = channel();
    let owner = Owner { bytes: vec![7; len], deed, gone };
    let bulk = match kind {
        Kind::Owned => Bulk::from(Bytes::from_owner(owner)),
        Kind::Registered => pool.register(owner).unwrap(),
    };
    (bulk, Gone(is_gone))
}

pub(crate) struct Gone(pub(crate) Receiver<()>);

impl Gone {
    /// Waits for the drop. If it hangs, so does the end of the test.
    pub(crate) fn wait(&self, what: &str) {
        expect(&self.0, what);
    }
}

pub(crate) fn expect<T>(from: &Receiver<T>, what: &str) -> T {
    match from.recv_timeout(LIMIT) {
        Ok(value) => value,
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            eprintln!("{what}: hangs");
            std::process::abort();
        }
    }
}

/// Ends the process if a test takes too long.
pub(crate) struct Watchdog(#[expect(dead_code, reason = "its end is what counts")] Sender<()>);

impl Watchdog {
    pub(crate) fn start() -> Self {
        let (alive, dead) = channel::<()>();
        std::thread::spawn(move || {
            if dead.recv_timeout(3 * LIMIT) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the test hangs");
                std::process::abort();
            }
        });
        Self(alive)
    }
}

#[rpc_core::service]
pub(crate) trait Sink {
    /// Blocks its thread, and with it the server's driver, until released.
    async fn stall(&self) -> bool;
    /// Waits until it is cancelled.
    async fn wait(&self) -> bool;
    async fn put(&self, data: Bulk) -> u64;
    async fn get(&self) -> Bulk;
    /// Blocks its thread, which is not the driver's, until released.
    #[rpc(spawn)]
    async fn late(&self) -> Bulk;
    async fn ping(&self) -> u64;
}

/// State shared by the server's side and the test.
struct Shared {
    address: Mutex<String>,
    /// Reports that a handler runs.
    begun: Sender<()>,
    /// Releases handlers that block a thread.
    go: Mutex<Receiver<()>>,
    /// The kind of memory for a reply.
    reply: Mutex<Option<(Kind, Habit, usize)>>,
    /// Reports the drops of replies.
    gone: Sender<Gone>,
    /// Number of owners whose action failed.
    failed: Arc<AtomicBool>,
}

impl Shared {
    fn keep_thread(&self) {
        self.begun.send(()).unwrap();
        let _ = self.go.lock().unwrap().recv();
    }

    /// Memory of a reply whose owner needs the server.
    fn make_reply(&self) -> Bulk {
        let (kind, habit, len) = self.reply.lock().unwrap().unwrap();
        let address = self.address.lock().unwrap().clone();
        let failed = Arc::clone(&self.failed);
        // Not waited for: the tasks that it needs may be queued behind this thread's own. The shard
        // itself checks in debug builds that nothing is dropped under its lock.
        let deed: Deed = Box::new(move || {
            std::thread::spawn(move || {
                let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                let connected = runtime.block_on(Channel::connect(address));
                failed.fetch_or(connected.is_err(), Ordering::SeqCst);
            });
        });
        let deed = (habit == Habit::Calls).then_some(deed);
        let context = Context::current();
        let (bulk, gone) = owned(kind, len, deed, context.bulk_pool().unwrap());
        self.gone.send(gone).unwrap();
        bulk
    }
}

struct Service(Arc<Shared>);

impl Sink for Service {
    async fn stall(&self) -> bool {
        self.0.keep_thread();
        true
    }

    async fn wait(&self) -> bool {
        self.0.begun.send(()).unwrap();
        std::future::pending().await
    }

    async fn put(&self, data: Bulk) -> u64 {
        data.len()
    }

    async fn get(&self) -> Bulk {
        let reply = self.0.make_reply();
        self.0.begun.send(()).unwrap();
        reply
    }

    async fn late(&self) -> Bulk {
        let reply = self.0.make_reply();
        self.0.keep_thread();
        reply
    }

    async fn ping(&self) -> u64 {
        1
    }
}

/// A server and its client on separate runtimes.
pub(crate) struct World {
    shared: Arc<Shared>,
    pub(crate) begun: Receiver<()>,
    pub(crate) go: Sender<()>,
    pub(crate) gone: Receiver<Gone>,
    pub(crate) channel: Channel,
    pub(crate) client: SinkClient,
    pub(crate) habit: Habit,
    pub(crate) kind: Kind,
    pub(crate) name: String,
    // Dropped in this order.
    pub(crate) near: Option<Runtime>,
    pub(crate) far: Option<Runtime>,
}

fn runtime(threads: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap()
}

pub(crate) struct Options {
    pub(crate) channel: ChannelBuilder,
    pub(crate) max_calls: u32,
    /// The client's driver runs only while the test waits for a future.
    pub(crate) by_hand: bool,
}

impl Default for Options {
    fn default() -> Self {
        let link = LinkConfig::default().keep_alive(None);
        Self { channel: Channel::builder().link(link), max_calls: 64, by_hand: false }
    }
}

impl World {
    pub(crate) fn new(scheme: &str, habit: Habit, kind: Kind, options: Options) -> Self {
        use std::sync::atomic::AtomicU32;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let address = match scheme {
            "tcp" => "tcp://127.0.0.1:0".to_owned(),
            scheme => format!("{scheme}://user-memory-{}-{number}", std::process::id()),
        };
        let (begun, has_begun) = channel();
        let (go, may_go) = channel();
        let (gone, goes) = channel();
        let shared = Arc::new(Shared {
            address: Mutex::default(),
            begun,
            go: Mutex::new(may_go),
            reply: Mutex::new(None),
            gone,
            failed: Arc::default(),
        });
        let far = runtime(2);
        let server = Server::builder()
            .add_service(SinkServer::new(Service(Arc::clone(&shared))))
            .link(LinkConfig::default().keep_alive(None))
            .max_calls_per_connection(options.max_calls)
            .shards(1);
        let server = far.block_on(server.bind(&address)).unwrap();
        let address = server.local_address().to_string();
        *shared.address.lock().unwrap() = address.clone();
        far.spawn(server.serve());
        let near = if options.by_hand {
            Builder::new_current_thread().enable_all().build().unwrap()
        } else {
            runtime(2)
        };
        let channel = near.block_on(options.channel.connect(&address)).unwrap();
        let client = SinkClient::new(channel.clone());
        // Before its hello, the server is assumed to accept few calls.
        assert_eq!(near.block_on(async { client.ping().await }), Ok(1));
        Self {
            shared,
            begun: has_begun,
            go,
            gone: goes,
            channel,
            client,
            habit,
            kind,
            name: format!("{scheme}, {habit:?}, {kind:?}"),
            near: Some(near),
            far: Some(far),
        }
    }

    pub(crate) fn near(&self) -> &Runtime {
        self.near.as_ref().unwrap()
    }

    /// Arguments whose owner calls on the same channel, or panics.
    pub(crate) fn argument(&self, len: usize) -> (Bulk, Gone) {
        let client = self.client.clone();
        let deed: Deed = Box::new(move || drop(client.ping().start()));
        let deed = (self.habit == Habit::Calls).then_some(deed);
        owned(self.kind, len, deed, &self.channel.bulk_pool())
    }

    /// Memory that waits to be sent, and will not be: the server's driver is blocked.
    pub(crate) fn stall(&self) -> rpc_core::Call<'static, Result<bool, Status>> {
        let call = self.client.stall().start();
        expect(&self.begun, "stalled");
        call
    }

    pub(crate) fn replies_are_of(&self, len: usize) {
        *self.shared.reply.lock().unwrap() = Some((self.kind, self.habit, len));
    }

    /// All other calls continue.
    pub(crate) fn check(&self) {
        assert!(
            self.channel.close_cause().is_none(),
            "{}: {:?}",
            self.name,
            self.channel.close_cause()
        );
        let ping = self.near().block_on(async { self.client.ping().await });
        assert_eq!(ping, Ok(1), "{}", self.name);
        self.check_owners();
    }

    pub(crate) fn check_owners(&self) {
        assert!(
            !self.shared.failed.load(Ordering::SeqCst),
            "{}: an owner got no connection",
            self.name
        );
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for runtime in [self.near.take(), self.far.take()].into_iter().flatten() {
            runtime.shutdown_timeout(LIMIT / 4);
        }
    }
}

/// Runs a test in all variants.
pub(crate) fn everywhere(options: impl Fn() -> Options, test: impl Fn(&mut World)) {
    let _watchdog = Watchdog::start();
    for scheme in ["mem", "shm", "tcp"] {
        for habit in [Habit::Calls, Habit::Panics] {
            for kind in [Kind::Owned, Kind::Registered] {
                let mut world = World::new(scheme, habit, kind, options());
                println!("{}", world.name);
                test(&mut world);
            }
        }
    }
}
