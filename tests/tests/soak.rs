//! Each kind of operation, many times and slowly, with a pause after each, under tiny limits.
//!
//! Finds faults that fast tests do not: a counter that only an event restores, which the fast path
//! skips, stops a connection after hours. All operations of a setting run concurrently, each on a
//! connection of its own. When they have ended, nothing is left: no call, no connection, no byte of
//! the memory budget, no file.
//!
//! `RPC_SOAK_SECONDS` sets the duration, a minute by default; an hour finds more.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::{Duration, Instant};

use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::transport::ArenaConfig;
use rpc_core::{Bulk, Code, LinkConfig, Status};
use test_kit::{Watchdog, variable};
use tests::device;
use tests::resources::of_this_process;
use tokio::time::timeout;

const SECONDS: u64 = 60;
/// After this time an operation counts as hanging, even on the busiest machine.
const HANGS: Duration = Duration::from_secs(150);
const LARGE: usize = 300_000;
/// A budget that all operations together exceed now and then, bytes.
const LITTLE_MEMORY: u64 = 2 << 20;

#[rpc_core::service]
trait Soak {
    async fn echo(&self, text: String) -> String;
    async fn bulk(&self, bulk: Bulk) -> Bulk;
    async fn never(&self) -> u64;
    async fn fails(&self) -> Result<(), Status>;
    fn lines(&self, count: u32, bytes: usize) -> impl Stream<Item = String>;
    async fn total(&self, texts: Streaming<String>) -> Result<u64, Status>;
    fn both(&self, texts: Streaming<String>) -> impl Stream<Item = Result<String, Status>>;
}

struct Service;

impl Soak for Service {
    async fn echo(&self, text: String) -> String {
        text
    }

    async fn bulk(&self, bulk: Bulk) -> Bulk {
        bulk
    }

    async fn never(&self) -> u64 {
        std::future::pending().await
    }

    async fn fails(&self) -> Result<(), Status> {
        Err(Status::not_found("on purpose"))
    }

    fn lines(&self, count: u32, bytes: usize) -> impl Stream<Item = String> {
        slowly(count, bytes)
    }

    async fn total(&self, mut texts: Streaming<String>) -> Result<u64, Status> {
        let mut bytes = 0;
        while let Some(text) = texts.try_next().await? {
            bytes += text.len() as u64;
        }
        Ok(bytes)
    }

    fn both(&self, mut texts: Streaming<String>) -> impl Stream<Item = Result<String, Status>> {
        stream::try_stream(async move |mut out| {
            while let Some(text) = texts.try_next().await? {
                out.send(text).await?;
            }
            Ok(())
        })
    }
}

/// The connection comes to rest. The pause is this test's load, not a way to wait.
async fn rest() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

fn slowly(count: u32, bytes: usize) -> impl Stream<Item = String> {
    stream::stream(async move |mut out| {
        for _ in 0..count {
            out.send("x".repeat(bytes)).await?;
            rest().await;
        }
        Ok(())
    })
}

async fn lines(client: &SoakClient, count: u32, bytes: usize) -> Result<(), Status> {
    let mut items = client.lines(count, bytes).await?;
    for _ in 0..count {
        assert_eq!(items.try_next().await?.unwrap().len(), bytes);
    }
    assert_eq!(items.try_next().await?, None);
    Ok(())
}

async fn both(client: &SoakClient, count: u32, bytes: usize) -> Result<(), Status> {
    let mut items = client.both(slowly(count, bytes)).await?;
    for _ in 0..count {
        assert_eq!(items.try_next().await?.unwrap().len(), bytes);
    }
    assert_eq!(items.try_next().await?, None);
    Ok(())
}

async fn upload(client: &SoakClient, count: u32, bytes: usize) -> Result<(), Status> {
    let total = client.total(slowly(count, bytes)).await?;
    assert_eq!(total, u64::from(count) * bytes as u64);
    Ok(())
}

async fn echo(client: &SoakClient, bytes: usize) -> Result<(), Status> {
    assert_eq!(client.echo("a".repeat(bytes)).await?.len(), bytes);
    Ok(())
}

/// Cancels the operation after a few milliseconds, a different number each time.
async fn given_up<T>(round: u64, operation: impl Future<Output = T>) {
    let _ = timeout(Duration::from_micros(500 * (round % 20)), operation).await;
}

const KINDS: [&str; 21] = [
    "small",
    "of 20 kB",
    "large",
    "four at once",
    "bulk",
    "failed",
    "cancelled",
    "deadline",
    "large, given up",
    "lines",
    "lines of 20 kB",
    "large lines",
    "lines, dropped",
    "large lines, dropped",
    "large lines, unread",
    "upload",
    "upload of 20 kB",
    "upload, given up",
    "both",
    "both of 20 kB",
    "mixed, given up",
];

async fn once(kind: &str, round: u64, client: &SoakClient) -> Result<(), Status> {
    match kind {
        "small" => echo(client, 1).await?,
        "of 20 kB" => echo(client, 20_000).await?,
        "large" => echo(client, LARGE).await?,
        "four at once" => {
            let calls = [0, 100, 9000, 40_000].map(|bytes| echo(client, bytes));
            futures::future::join_all(calls).await.into_iter().collect::<Result<(), _>>()?;
        }
        "bulk" => {
            let back = client.bulk(vec![7; LARGE].into()).await?;
            assert_eq!(back.len(), LARGE as u64);
        }
        "failed" => assert!(client.fails().await.is_err()),
        "cancelled" => given_up(round, client.never()).await,
        "deadline" => {
            let failed = client.never().timeout(Duration::from_millis(2)).await.unwrap_err();
            assert_eq!(failed.code(), Code::DeadlineExceeded);
        }
        "large, given up" => given_up(round, client.echo("a".repeat(1_000_000))).await,
        "lines" => lines(client, 40, 30).await?,
        "lines of 20 kB" => lines(client, 20, 20_000).await?,
        "large lines" => lines(client, 5, LARGE).await?,
        "lines, dropped" => drop(client.lines(40, 3000).await?.try_next().await?),
        "large lines, dropped" => drop(client.lines(40, LARGE).await?.try_next().await?),
        "large lines, unread" => {
            let items = client.lines(40, LARGE).await?;
            rest().await;
            echo(client, LARGE).await?;
            drop(items);
        }
        "upload" => upload(client, 40, 30).await?,
        "upload of 20 kB" => upload(client, 20, 20_000).await?,
        "upload, given up" => given_up(round, client.total(slowly(40, 3000))).await,
        "both" => both(client, 40, 30).await?,
        "both of 20 kB" => both(client, 20, 20_000).await?,
        "mixed, given up" => {
            let all = async {
                tokio::join!(
                    async { client.echo("a".repeat(1_000_000)).await.map(drop) },
                    async { client.total(slowly(40, 200_000)).await.map(drop) },
                    both(client, 40, 100_000),
                )
            };
            given_up(round, all).await;
        }
        other => unreachable!("no such kind: {other}"),
    }
    rest().await;
    // The remains of the operation block nobody.
    echo(client, if round.is_multiple_of(8) { LARGE } else { 10 }).await?;
    rest().await;
    Ok(())
}

struct Setting {
    name: &'static str,
    link: LinkConfig,
    memory_budget: u64,
    max_calls: u32,
}

fn settings() -> Vec<Setting> {
    let base = || LinkConfig::default().keep_alive(Some(Duration::from_secs(60)));
    let mut no_arena = ArenaConfig::default();
    no_arena.max_chunks = 0;
    // Small enough that a little memory has room for them.
    let mut small_arenas = ArenaConfig::default();
    (small_arenas.log2_chunk, small_arenas.arena_chunks) = (12, 16);
    // TLS needs more of them for its handshake.
    let credits = |least: u16| if device::has_tls() { 8 } else { least };
    let buffer_bytes = if device::has_tls() { 4096 } else { 256 };
    let setting = |name, link| Setting { name, link, memory_budget: 1 << 30, max_calls: 256 };
    let with_little_memory = |setting| Setting { memory_budget: LITTLE_MEMORY, ..setting };
    vec![
        setting("defaults", LinkConfig::default()),
        with_little_memory(setting("little memory", base().arena(small_arenas))),
        with_little_memory(setting("no arena", base().arena(no_arena))),
        setting("one credit", base().data_credits(credits(1))),
        setting("shared receives", base().shared_receive_queue(!device::has_tls())),
        setting("small buffers", base().receive_buffer_bytes(buffer_bytes)),
        setting("one slot", base().send_queue_slots(1)),
        setting("no queue", base().queued_bytes(1)),
        setting("short segments", base().bulk_queue_bytes(1).arena_segment_bytes(4096)),
        Setting { max_calls: 2, ..setting("two calls", base()) },
        with_little_memory(Setting {
            max_calls: 16,
            ..setting("short queue", base().queued_bytes(64 << 10).data_credits(credits(4)))
        }),
    ]
}

/// All kinds of operations under one setting, until the deadline, and a check of what they leave
/// behind. Returns how many succeeded, and how many were refused for memory.
async fn run(wire: &str, setting: &Setting, until: Instant) -> (u64, u64) {
    let Setting { name, link, memory_budget, max_calls } = setting;
    let has_little_memory = *memory_budget == LITTLE_MEMORY;
    let address = match wire {
        "tcp" => "tcp://127.0.0.1:0".to_owned(),
        _ => format!("{wire}://soak-{}-{}", name.replace(' ', "-"), std::process::id()),
    };
    let server = device::server().link(link.clone()).memory_budget(*memory_budget);
    let server = server.max_calls_per_connection(*max_calls).add_service(SoakServer::new(Service));
    let server = server.bind(&address).await.unwrap();
    let (stats, shutdown) = (server.stats_handle(), server.shutdown_handle());
    let address = server.local_address().to_string();
    let serving = tokio::spawn(server.serve());
    let operations = KINDS.map(|kind| {
        let channel = device::channel().link(link.clone()).max_calls(*max_calls);
        let address = address.clone();
        let operations = async move {
            let channel = channel.connect(&address).await.unwrap();
            let client = SoakClient::new(channel.clone());
            let (mut rounds, mut refused) = (0, 0);
            while rounds == 0 || Instant::now() < until {
                let round = rounds + refused;
                match timeout(HANGS, once(kind, round, &client)).await {
                    Ok(Ok(())) => rounds += 1,
                    Ok(Err(status)) if is_refusal(&status) && has_little_memory => refused += 1,
                    Ok(Err(status)) => panic!("{status}, in round {round}"),
                    Err(_) => panic!("it hangs, in round {round}: {:#?}", channel.stats()),
                }
            }
            (rounds, refused)
        };
        (kind, tokio::spawn(operations))
    });
    let (mut rounds, mut refused) = (0, 0);
    for (kind, operations) in operations {
        let ended = operations.await.unwrap_or_else(|end| panic!("{wire}, {name}, {kind}: {end}"));
        rounds += ended.0;
        refused += ended.1;
    }
    // The channels are gone.
    let is_left = || {
        let stats = stats.stats();
        !stats.connections.is_empty() || stats.memory_used_bytes != 0
    };
    let nothing_is_left = async {
        while is_left() {
            rest().await;
        }
    };
    let ended = timeout(HANGS, nothing_is_left).await;
    assert!(ended.is_ok(), "{wire}, {name}: something is left: {:#?}", stats.stats());
    shutdown.shutdown();
    serving.await.unwrap().unwrap();
    (rounds, refused)
}

/// Whether there was no memory for the operation, which ends it alone.
fn is_refusal(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted && status.message().contains("no memory for")
}

#[test]
fn slow_operations_leave_nothing_behind() {
    let seconds = variable("RPC_SOAK_SECONDS").unwrap_or(SECONDS);
    let _watchdog = Watchdog::within(Duration::from_secs(seconds) + 4 * HANGS);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    let (settings, wires) = (settings(), ["mem", "shm", "tcp"]);
    let each = Duration::from_secs(seconds) / u32::try_from(settings.len() * wires.len()).unwrap();
    // Resources that a process keeps after its first connections.
    for wire in wires {
        runtime.block_on(run(wire, &settings[0], Instant::now()));
    }
    let files = of_this_process().fds;
    for setting in &settings {
        for wire in wires {
            let (rounds, refused) = runtime.block_on(run(wire, setting, Instant::now() + each));
            let (name, mib) = (setting.name, of_this_process().rss_bytes >> 20);
            println!("{wire}, {name}: {rounds} rounds, {refused} refused, {mib} MiB of memory");
            let left = async {
                while of_this_process().fds > files {
                    rest().await;
                }
            };
            let closed = runtime.block_on(async { timeout(HANGS, left).await });
            assert!(closed.is_ok(), "{wire}, {}: files are left open", setting.name);
        }
    }
}
