//! Memory that users hand in is dropped where its destructor may do anything: call on the same channel,
//! or panic. Each test is one place where a body ends; all of them run over every software device.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use rpc_core::{
    Bulk, Channel, ChannelBuilder, CloseCause, Context, LinkConfig, PollMode, Server, Status,
};
use tokio::runtime::{Builder, Runtime};

/// Longer than anything here takes; what hangs is killed.
const LIMIT: Duration = Duration::from_secs(20);
/// More than a peer that does not look can be sent.
const LARGE: usize = 24 << 20;

/// What an owner does when it is dropped, beside telling so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Habit {
    Calls,
    Panics,
}

/// How memory gets into a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Owned,
    Registered,
}

type Deed = Box<dyn FnOnce() + Send + Sync>;

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

/// A string of bytes whose owner says when it is gone.
fn owned(kind: Kind, len: usize, deed: Option<Deed>, pool: &rpc_core::BulkPool) -> (Bulk, Gone) {
    let (gone, is_gone) = channel();
    let owner = Owner { bytes: vec![7; len], deed, gone };
    let bulk = match kind {
        Kind::Owned => Bulk::from(Bytes::from_owner(owner)),
        Kind::Registered => pool.register(owner).unwrap(),
    };
    (bulk, Gone(is_gone))
}

struct Gone(Receiver<()>);

impl Gone {
    /// Waits for it. What hangs hangs for ever, the test's own end included.
    fn wait(&self, what: &str) {
        expect(&self.0, what);
    }
}

fn expect<T>(from: &Receiver<T>, what: &str) -> T {
    match from.recv_timeout(LIMIT) {
        Ok(value) => value,
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            eprintln!("{what}: hangs");
            std::process::abort();
        }
    }
}

/// Ends the process when a test has not ended in time.
struct Watchdog(#[expect(dead_code, reason = "its end is what counts")] Sender<()>);

impl Watchdog {
    fn start() -> Self {
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
trait Sink {
    /// Keeps its thread until it is told, and with it whoever drives the server.
    async fn stall(&self) -> bool;
    /// Waits until it is cancelled.
    async fn wait(&self) -> bool;
    async fn put(&self, data: Bulk) -> u64;
    async fn get(&self) -> Bulk;
    /// Keeps its thread, not the driver's, until it is told.
    #[rpc(spawn)]
    async fn late(&self) -> Bulk;
    async fn ping(&self) -> u64;
}

/// What the server's side has in common with the test.
struct Shared {
    address: Mutex<String>,
    /// Tells that a handler runs.
    begun: Sender<()>,
    /// Tells handlers that keep a thread to go on.
    go: Mutex<Receiver<()>>,
    /// What a reply is to be made of.
    reply: Mutex<Option<(Kind, Habit, usize)>>,
    /// Where the ends of replies are told.
    gone: Sender<Gone>,
    /// Owners that could not do what they wanted.
    failed: Arc<AtomicBool>,
}

impl Shared {
    fn keep_thread(&self) {
        self.begun.send(()).unwrap();
        let _ = self.go.lock().unwrap().recv();
    }

    /// Memory of a reply, whose owner needs the server.
    fn make_reply(&self) -> Bulk {
        let (kind, habit, len) = self.reply.lock().unwrap().unwrap();
        let address = self.address.lock().unwrap().clone();
        let failed = Arc::clone(&self.failed);
        // Not waited for: the tasks that it takes may be behind this thread's own. That nothing is
        // dropped under the lock of this shard is checked by the shard itself, in debug builds.
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

/// A server on a runtime of its own, and a client of it on another.
struct World {
    shared: Arc<Shared>,
    begun: Receiver<()>,
    go: Sender<()>,
    gone: Receiver<Gone>,
    channel: Channel,
    client: SinkClient,
    habit: Habit,
    kind: Kind,
    name: String,
    // Dropped in this order.
    near: Option<Runtime>,
    far: Option<Runtime>,
}

fn runtime(threads: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap()
}

struct Options {
    channel: ChannelBuilder,
    max_calls: u32,
    /// The client's driver runs only while the test waits for a future.
    by_hand: bool,
}

impl Default for Options {
    fn default() -> Self {
        let link = LinkConfig::default().keep_alive(None);
        Self { channel: Channel::builder().link(link), max_calls: 64, by_hand: false }
    }
}

impl World {
    fn new(scheme: &str, habit: Habit, kind: Kind, options: Options) -> Self {
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
        // Until it has said hello the server is believed to take few calls.
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

    fn near(&self) -> &Runtime {
        self.near.as_ref().unwrap()
    }

    /// Arguments whose owner calls on the same channel, or panics.
    fn argument(&self, len: usize) -> (Bulk, Gone) {
        let client = self.client.clone();
        let deed: Deed = Box::new(move || drop(client.ping().start()));
        let deed = (self.habit == Habit::Calls).then_some(deed);
        owned(self.kind, len, deed, &self.channel.bulk_pool())
    }

    /// Memory that waits to be sent, and will not be: the server's driver is kept.
    fn stall(&self) -> rpc_core::Call<'static, Result<bool, Status>> {
        let call = self.client.stall().start();
        expect(&self.begun, "stalled");
        call
    }

    fn replies_are_of(&self, len: usize) {
        *self.shared.reply.lock().unwrap() = Some((self.kind, self.habit, len));
    }

    /// Everybody else's calls go on.
    fn check(&self) {
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

    fn check_owners(&self) {
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

/// Runs a test with everything that it may depend on.
fn everywhere(options: impl Fn() -> Options, test: impl Fn(&mut World)) {
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

#[test]
fn a_request_that_was_sent() {
    everywhere(Options::default, |world| {
        for len in [100_000, 3 << 20] {
            let (data, gone) = world.argument(len);
            let sent = world.near().block_on(async { world.client.put(data).await });
            assert_eq!(sent, Ok(len as u64), "{}", world.name);
            // Whatever is kept for the device leaves with what is sent next.
            while gone.0.try_recv().is_err() {
                world.check();
            }
        }
        world.check();
    });
}

#[test]
fn a_request_that_is_given_up_while_it_waits_in_the_link() {
    everywhere(Options::default, |world| {
        let stalled = world.stall();
        let (first, first_gone) = world.argument(LARGE);
        let (second, second_gone) = world.argument(LARGE);
        let (first, second) = (world.client.put(first).start(), world.client.put(second).start());
        drop(second);
        second_gone.wait(&world.name);
        // Of this one a part was sent.
        drop(first);
        world.go.send(()).unwrap();
        first_gone.wait(&world.name);
        drop(stalled);
        world.check();
    });
}

#[test]
fn a_request_whose_deadline_passes_in_the_link() {
    everywhere(Options::default, |world| {
        let stalled = world.stall();
        let (first, first_gone) = world.argument(LARGE);
        let (second, second_gone) = world.argument(LARGE);
        let limit = Duration::from_millis(20);
        let first = world.client.put(first).timeout(limit).start();
        let second = world.client.put(second).timeout(limit).start();
        second_gone.wait(&world.name);
        world.go.send(()).unwrap();
        first_gone.wait(&world.name);
        drop((first, second, stalled));
        world.check();
    });
}

fn one_call() -> Options {
    Options { max_calls: 1, ..Options::default() }
}

#[test]
fn a_request_that_is_given_up_before_it_has_a_slot() {
    everywhere(one_call, |world| {
        let waits = world.client.wait().start();
        expect(&world.begun, &world.name);
        let (data, gone) = world.argument(100_000);
        drop(world.client.put(data).start());
        gone.wait(&world.name);
        drop(waits);
        world.check();
    });
}

#[test]
fn a_request_whose_deadline_passes_before_it_has_a_slot() {
    everywhere(one_call, |world| {
        let waits = world.client.wait().start();
        expect(&world.begun, &world.name);
        let (data, gone) = world.argument(100_000);
        let late = world.client.put(data).timeout(Duration::from_millis(20)).start();
        gone.wait(&world.name);
        drop((late, waits));
        world.check();
    });
}

/// Some wait for a slot, some in the link, one is on its way.
#[test]
fn requests_whose_connection_ends() {
    let impatient = || {
        let silence = Duration::from_millis(100);
        let link = LinkConfig::default().keep_alive(Some(silence)).keep_alive_timeout(silence);
        Options { channel: Channel::builder().link(link), max_calls: 3, by_hand: false }
    };
    everywhere(impatient, |world| {
        let stalled = world.stall();
        let (calls, gone): (Vec<_>, Vec<_>) = (0..4)
            .map(|_| {
                let (data, gone) = world.argument(LARGE);
                (world.client.put(data).start(), gone)
            })
            .unzip();
        let cause = world.near().block_on(world.channel.closed());
        assert!(matches!(cause, CloseCause::PingTimeout(_)), "{}: {cause}", world.name);
        // Those of which nothing was sent keep their memory, to go again.
        drop(calls);
        for gone in gone {
            gone.wait(&world.name);
        }
        world.go.send(()).unwrap();
        drop(stalled);
    });
}

#[test]
fn a_reply_that_was_sent() {
    everywhere(Options::default, |world| {
        for len in [100_000, 3 << 20] {
            world.replies_are_of(len);
            let reply = world.near().block_on(async { world.client.get().await }).unwrap();
            assert_eq!(reply.len(), len as u64, "{}", world.name);
            drop(reply);
            let gone = expect(&world.gone, &world.name);
            while gone.0.try_recv().is_err() {
                world.check();
            }
        }
        world.check();
    });
}

fn by_hand() -> Options {
    Options { by_hand: true, ..Options::default() }
}

#[test]
fn replies_that_wait_in_the_link_and_are_cancelled() {
    everywhere(by_hand, |world| {
        world.replies_are_of(LARGE);
        let calls: Vec<_> = {
            let _runtime = world.near().enter();
            (0..3).map(|_| world.client.get().start()).collect()
        };
        let gone: Vec<_> = calls.iter().map(|_| expect(&world.gone, &world.name)).collect();
        calls.iter().for_each(|_| expect(&world.begun, &world.name));
        drop(calls);
        world.check();
        for gone in gone {
            gone.wait(&world.name);
        }
        world.check();
    });
}

#[test]
fn replies_whose_connection_ends() {
    everywhere(by_hand, |world| {
        world.replies_are_of(LARGE);
        let calls: Vec<_> = {
            let _runtime = world.near().enter();
            (0..3).map(|_| world.client.get().start()).collect()
        };
        let gone: Vec<_> = calls.iter().map(|_| expect(&world.gone, &world.name)).collect();
        calls.iter().for_each(|_| expect(&world.begun, &world.name));
        // With it the driver of the client ends, and its queue pair.
        drop(world.near.take());
        drop(calls);
        for gone in gone {
            gone.wait(&world.name);
        }
        world.check_owners();
    });
}

#[test]
fn a_reply_whose_caller_is_gone() {
    everywhere(Options::default, |world| {
        world.replies_are_of(100_000);
        let late = world.client.late().start();
        let gone = expect(&world.gone, &world.name);
        expect(&world.begun, &world.name);
        drop(late);
        // Behind the cancel.
        world.check();
        world.go.send(()).unwrap();
        gone.wait(&world.name);
        world.check();
    });
}

#[test]
fn a_reply_that_is_longer_than_the_caller_takes() {
    let modest = || {
        let link = LinkConfig::default().keep_alive(None).max_message_bytes(1 << 20);
        Options { channel: Channel::builder().link(link), ..Options::default() }
    };
    everywhere(modest, |world| {
        world.replies_are_of(2 << 20);
        let reply = world.near().block_on(async { world.client.get().await.map(|_| ()) });
        assert_eq!(reply.unwrap_err().code(), rpc_core::Code::ResourceExhausted, "{}", world.name);
        expect(&world.gone, &world.name).wait(&world.name);
        world.check();
    });
}

/// A waker of the user's making, which calls back or panics in every way that it can.
struct Busy {
    client: SinkClient,
    panics: bool,
    woken: Sender<()>,
}

impl Busy {
    fn act(&self) {
        let _ = self.woken.send(());
        assert!(!self.panics, "on purpose");
        drop(self.client.ping().start());
    }
}

impl Wake for Busy {
    fn wake(self: Arc<Self>) {
        self.act();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        drop(self.client.ping().start());
    }
}

#[test]
fn wakers_that_panic_or_call_back() {
    let _watchdog = Watchdog::start();
    for scheme in ["mem", "shm", "tcp"] {
        for panics in [false, true] {
            // Else the caller polls, and is woken by its own poll.
            let options = Options {
                channel: Channel::builder().poll_mode(PollMode::Event),
                ..Options::default()
            };
            let world = World::new(scheme, Habit::Calls, Kind::Owned, options);
            let _runtime = world.near().enter();
            let (woken, is_woken) = channel();
            let client = world.client.clone();
            let waker = || {
                Waker::from(Arc::new(Busy { client: client.clone(), panics, woken: woken.clone() }))
            };
            let mut stalled = Box::pin(world.client.stall().start());
            expect(&world.begun, &world.name);
            for _ in 0..2 {
                // The second takes the place of the first.
                let polled = stalled.as_mut().poll(&mut TaskContext::from_waker(&waker()));
                assert!(polled.is_pending());
            }
            world.go.send(()).unwrap();
            expect(&is_woken, &world.name);
            assert_eq!(world.near().block_on(stalled), Ok(true), "{}", world.name);
            // Dropped with its call.
            let mut call = pin!(world.client.wait().start());
            assert!(matches!(
                call.as_mut().poll(&mut TaskContext::from_waker(&waker())),
                Poll::Pending
            ));
            expect(&world.begun, &world.name);
            world.check();
        }
    }
}
