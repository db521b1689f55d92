//! Servers that come back: for each rule that keeps calls from a server of a channel, it applies to
//! one for two minutes. A minute later the server has its share again. Over `mem://` and virtual
//! time.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use rpc_core::client::BalancingPolicy;
use rpc_core::client::resolve::{Endpoint, Resolve, Resolving, Watching};
use rpc_core::health::{HealthReporter, ServingStatus};
use rpc_core::server::AdaptiveLimit;
use rpc_core::stats::StatsHandle;
use rpc_core::{Channel, Server, Status};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

#[rpc_core::service]
trait Work {
    async fn work(&self) -> Result<(), Status>;
}

/// What the test sets of a server, and what it counts.
#[derive(Default)]
struct Knobs {
    fails: AtomicBool,
    takes_ms: AtomicU64,
    /// It works on one call at a time.
    is_busy: AtomicBool,
    worker: tokio::sync::Mutex<()>,
    done: AtomicU64,
    health: HealthReporter,
}

struct Worker(Arc<Knobs>);

impl Work for Worker {
    async fn work(&self) -> Result<(), Status> {
        let Self(knobs) = self;
        let is_busy = knobs.is_busy.load(Ordering::SeqCst);
        let _worker = if is_busy { Some(knobs.worker.lock().await) } else { None };
        tokio::time::sleep(Duration::from_millis(knobs.takes_ms.load(Ordering::SeqCst))).await;
        if knobs.fails.load(Ordering::SeqCst) {
            return Err(Status::internal("as the test wants it"));
        }
        knobs.done.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

struct Member {
    address: String,
    knobs: Arc<Knobs>,
    task: Option<JoinHandle<()>>,
    stats: Option<StatsHandle>,
}

/// A registry that reports each set by itself.
#[derive(Clone, Default)]
struct Registry(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    set: Vec<Endpoint>,
    listeners: Vec<mpsc::UnboundedSender<Vec<Endpoint>>>,
}

impl Registry {
    fn say(&self, set: Vec<Endpoint>) {
        let mut book = self.0.lock();
        book.listeners.retain(|to| to.send(set.clone()).is_ok());
        book.set = set;
    }
}

impl Resolve for Registry {
    fn name(&self) -> String {
        "the registry".to_owned()
    }

    fn resolve(&self) -> Resolving<'_> {
        let set = self.0.lock().set.clone();
        Box::pin(async move { Ok(set) })
    }

    fn watch(&self) -> Option<Watching<'_>> {
        let (to, mut told) = mpsc::unbounded_channel();
        let mut book = self.0.lock();
        to.send(book.set.clone()).unwrap();
        book.listeners.push(to);
        Some(Box::pin(futures::stream::poll_fn(move |cx| {
            told.poll_recv(cx).map(|set| set.map(Ok))
        })))
    }
}

fn connect(row: &Row, registry: &Registry) -> WorkClient {
    let policy = (row.policy)(BalancingPolicy::new());
    let channel = Channel::builder().balancing(policy).connect_balanced(registry.clone());
    WorkClient::new(channel.unwrap())
}

/// Some servers, and a client of them.
struct World {
    row: &'static Row,
    registry: Registry,
    servers: Vec<Member>,
    client: WorkClient,
    key: Cell<u64>,
}

impl World {
    async fn new(row: &'static Row) -> Self {
        let registry = Registry::default();
        let (servers, key) = (Vec::new(), Cell::new(0));
        let client = connect(row, &registry);
        let mut world = Self { row, registry, servers, client, key };
        for at in 0..row.servers {
            let address = format!("mem://recovery-{}-{at}", row.name.replace(' ', "-"));
            let knobs = Arc::<Knobs>::default();
            knobs.takes_ms.store(2, Ordering::SeqCst);
            world.servers.push(Member { address, knobs, task: None, stats: None });
        }
        world.start(0..row.servers).await;
        world.say(|_, it| Some(it));
        // A channel chooses its own subset.
        while !world.has_chosen().await {
            world.client = connect(row, &world.registry);
        }
        world
    }

    /// Whether server 0 is a member.
    async fn has_chosen(&self) -> bool {
        self.client.work().await.unwrap();
        let members = self.client.channel().stats().members;
        members.iter().any(|it| it.address == self.servers[0].address)
    }

    async fn start(&mut self, range: Range<usize>) {
        for server in &mut self.servers[range] {
            let mut builder = Server::builder()
                .add_service(WorkServer::new(Worker(Arc::clone(&server.knobs))))
                .health(&server.knobs.health);
            if let Some((least, most)) = self.row.limit {
                let limit = AdaptiveLimit::default().at_least(least).at_most(most);
                builder = builder.adaptive_limit(limit);
            }
            let bound = builder.bind(&*server.address).await.unwrap();
            server.stats = Some(bound.stats_handle());
            server.task = Some(tokio::spawn(async move { drop(bound.serve().await) }));
        }
    }

    async fn stop(&mut self, range: Range<usize>) {
        for server in &mut self.servers[range] {
            let task = server.task.take().unwrap();
            task.abort();
            drop(task.await);
        }
    }

    /// What the registry says: all servers, each changed so, or left out.
    fn say(&self, change: impl Fn(usize, Endpoint) -> Option<Endpoint>) {
        let all = self.servers.iter().enumerate().filter_map(|(at, it)| {
            let it: Endpoint = it.address.parse().unwrap();
            change(at, (self.row.place)(at, it))
        });
        self.registry.say(all.collect());
    }

    /// Calls for so long. Gives the share of those that server 0 has answered.
    async fn share(&self, long: Duration) -> f64 {
        self.servers.iter().for_each(|it| it.knobs.done.store(0, Ordering::SeqCst));
        let (until, made) = (tokio::time::Instant::now() + long, Cell::new(0_u32));
        let made = &made;
        let caller = |number: u32| async move {
            tokio::time::sleep(Duration::from_millis(3) * number).await;
            while tokio::time::Instant::now() < until {
                let call = self.client.work();
                self.key.set(self.key.get() + 1);
                let call = if self.row.has_keys { call.affinity(self.key.get()) } else { call };
                drop(call.await);
                made.set(made.get() + 1);
                tokio::time::sleep(self.row.rests).await;
            }
        };
        join_all((0..self.row.callers).map(caller)).await;
        self.servers[0].knobs.done.load(Ordering::SeqCst) as f64 / f64::from(made.get())
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for server in &self.servers {
            let done = server.knobs.done.load(Ordering::SeqCst);
            let limit = server.stats.as_ref().and_then(|it| it.stats().overload);
            write!(f, "{}: {done} {:?}; ", server.address, limit.map(|it| it.limit))?;
        }
        Ok(())
    }
}

type Change = for<'a> fn(&'a mut World) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A rule that keeps calls from server 0.
struct Row {
    name: &'static str,
    servers: usize,
    /// How the registry names a server.
    place: fn(usize, Endpoint) -> Endpoint,
    policy: fn(BalancingPolicy) -> BalancingPolicy,
    has_keys: bool,
    /// The bounds of its adaptive limit, if it has one.
    limit: Option<(u32, u32)>,
    callers: u32,
    rests: Duration,
    /// From now on the rule applies, and then no longer.
    take: Change,
    bring: Change,
    /// Its share meanwhile, at most.
    most: f64,
}

const PLAIN: Row = Row {
    name: "plain",
    servers: 3,
    place: |_, it| it,
    policy: |policy| policy,
    has_keys: false,
    limit: None,
    callers: 4,
    rests: SECOND,
    take: |world| Box::pin(world.stop(0..1)),
    bring: |world| Box::pin(world.start(0..1)),
    most: 0.0,
};

static ROWS: &[Row] = &[
    PLAIN,
    Row { name: "key", has_keys: true, ..PLAIN },
    Row {
        name: "priority",
        servers: 4,
        place: |at, it| it.with_priority(u8::from(at >= 2)),
        take: |world| Box::pin(world.stop(0..2)),
        bring: |world| Box::pin(world.start(0..2)),
        ..PLAIN
    },
    Row {
        name: "most of a priority",
        servers: 6,
        place: |at, it| it.with_priority(u8::from(at >= 4)),
        take: |world| Box::pin(world.stop(0..3)),
        bring: |world| Box::pin(world.start(0..3)),
        ..PLAIN
    },
    Row {
        name: "priority in the registry",
        take: |world| {
            Box::pin(async {
                world.say(|at, it| Some(if at == 0 { it.with_priority(1) } else { it }));
            })
        },
        bring: |world| Box::pin(async { world.say(|_, it| Some(it)) }),
        ..PLAIN
    },
    Row {
        name: "zone",
        servers: 4,
        place: |at, it| it.with_zone(if at < 2 { "here" } else { "there" }),
        policy: |policy| policy.zone("here"),
        take: |world| Box::pin(world.stop(0..2)),
        bring: |world| Box::pin(world.start(0..2)),
        ..PLAIN
    },
    Row {
        name: "zone in the registry",
        place: |_, it| it.with_zone("here"),
        policy: |policy| policy.zone("here"),
        take: |world| {
            Box::pin(async {
                world.say(|at, it| Some(if at == 0 { it.with_zone("there") } else { it }));
            })
        },
        bring: |world| Box::pin(async { world.say(|_, it| Some(it)) }),
        ..PLAIN
    },
    Row {
        name: "slow zone",
        servers: 4,
        place: |at, it| it.with_zone(if at < 2 { "here" } else { "there" }),
        policy: |policy| policy.zone("here"),
        take: |world| {
            Box::pin(async {
                for at in 0..2 {
                    world.servers[at].knobs.takes_ms.store(200, Ordering::SeqCst);
                }
            })
        },
        bring: |world| {
            Box::pin(async {
                for at in 0..2 {
                    world.servers[at].knobs.takes_ms.store(2, Ordering::SeqCst);
                }
            })
        },
        most: 0.2,
        ..PLAIN
    },
    Row { name: "subset", servers: 4, policy: |policy| policy.subset(2), ..PLAIN },
    Row {
        name: "weight",
        take: |world| {
            Box::pin(async {
                world.say(|at, it| Some(if at == 0 { it.with_weight(1) } else { it }));
            })
        },
        bring: |world| Box::pin(async { world.say(|_, it| Some(it)) }),
        most: 0.05,
        ..PLAIN
    },
    Row {
        name: "left and named again",
        servers: 4,
        // Most of them, so that those that answer leave in steps.
        take: |world| {
            Box::pin(async {
                world.say(|at, it| (at == 3).then_some(it));
                world.stop(0..1).await;
                world.start(0..1).await;
            })
        },
        bring: |world| Box::pin(async { world.say(|_, it| Some(it)) }),
        most: 0.2,
        ..PLAIN
    },
    Row {
        name: "ejection",
        take: |world| {
            Box::pin(async { world.servers[0].knobs.fails.store(true, Ordering::SeqCst) })
        },
        bring: |world| {
            Box::pin(async { world.servers[0].knobs.fails.store(false, Ordering::SeqCst) })
        },
        ..PLAIN
    },
    Row {
        name: "health",
        policy: |policy| policy.health_service(""),
        take: |world| {
            Box::pin(async { world.servers[0].knobs.health.set("", ServingStatus::NotServing) })
        },
        bring: |world| {
            Box::pin(async { world.servers[0].knobs.health.set("", ServingStatus::Serving) })
        },
        ..PLAIN
    },
    Row {
        name: "drain in its health",
        policy: |policy| policy.health_service(""),
        take: |world| {
            Box::pin(async { world.servers[0].knobs.health.set("", ServingStatus::Draining) })
        },
        bring: |world| {
            Box::pin(async { world.servers[0].knobs.health.set("", ServingStatus::Serving) })
        },
        ..PLAIN
    },
    Row {
        name: "drain in the registry",
        take: |world| {
            Box::pin(async {
                world.say(|at, it| Some(if at == 0 { it.draining() } else { it }));
            })
        },
        bring: |world| Box::pin(async { world.say(|_, it| Some(it)) }),
        ..PLAIN
    },
    Row {
        name: "limit",
        servers: 1,
        limit: Some((2, 8)),
        callers: 10,
        rests: Duration::from_millis(400),
        take: |world| {
            Box::pin(async {
                world.servers[0].knobs.takes_ms.store(200, Ordering::SeqCst);
                world.servers[0].knobs.is_busy.store(true, Ordering::SeqCst);
            })
        },
        // Calls still take longer than before, but any number may run at once.
        bring: |world| {
            Box::pin(async { world.servers[0].knobs.is_busy.store(false, Ordering::SeqCst) })
        },
        most: 0.5,
        ..PLAIN
    },
];

#[tokio::test(start_paused = true)]
async fn each_rule_gives_a_server_back() {
    let mut wrong = Vec::new();
    for row in ROWS {
        let mut world = World::new(row).await;
        // The slow start of new servers.
        world.share(20 * SECOND).await;
        let before = world.share(MINUTE).await;
        (row.take)(&mut world).await;
        let _settling = world.share(MINUTE).await;
        let meanwhile = world.share(MINUTE).await;
        (row.bring)(&mut world).await;
        world.share(MINUTE).await;
        let after = world.share(MINUTE).await;
        let text = format!("{}: {before:.2}, {meanwhile:.2}, {after:.2}; {world}", row.name);
        println!("{text}");
        // Far from what the draws of so few calls may give.
        if before < 0.12 || meanwhile > row.most || after < before / 2.0 {
            wrong.push(text);
        }
    }
    assert!(wrong.is_empty(), "before, meanwhile, after:\n{}", wrong.join("\n"));
}
