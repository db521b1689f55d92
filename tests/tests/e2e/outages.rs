//! Servers that die, stop, move and come back while clients keep one channel: no call is lost that
//! may be retried, none is executed twice that may not.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::future::join_all;
use rpc_core::client::HedgingPolicy;
use rpc_core::client::resolve::StaticList;
use rpc_core::{ChannelBuilder, Code, Context, LinkConfig, PollMode, Status};
use test_kit::Rng;
use tests::ledger::{LedgerClient, LedgerFile};
use tests::limit::{long, paced};
use tests::load::{DEADLINE, Tally, load};
use tests::probe::{Mark, ProbeClient};
use tests::process::{ADVANCE, ADVANCED, BOOKED, Child, READY, SHUTDOWN, STOP, STOPPED};
use tests::resources;
use tests::scheme::Scheme;
use tests::world::{marked, start_server};
use tokio::task::JoinSet;

use crate::{CLIENT, SERVER};

between_devices! {
    a_gateway_survives_twenty_backend_kills,
}

between_processes! {
    a_rolling_restart_fails_no_call_at_all,
    a_rolling_restart_fails_no_call,
    a_stopped_and_resumed_server_is_found_again,
    a_stopped_servers_calls_are_answered_elsewhere,
    chaos,
}

/// Concurrent calls.
const CALLERS: u64 = 16;

fn patient() -> ChannelBuilder {
    tests::device::channel().poll_mode(PollMode::Event).wait_for_ready(true)
}

/// A server that is restarted at its address.
struct Backend {
    address: String,
    child: Child,
    ledger: Arc<LedgerFile>,
}

impl Backend {
    async fn start(scheme: Scheme, ledger: &Arc<LedgerFile>) -> Self {
        let options = Self::options(ledger);
        let address = scheme.fresh_address_there();
        let (child, address) = start_server(SERVER, &address, &options).await;
        Self { address, child, ledger: Arc::clone(ledger) }
    }

    fn options(ledger: &LedgerFile) -> [&str; 4] {
        ["--ledger", ledger.path(), "--drain-lead-ms", "50"]
    }

    async fn again(&mut self) {
        let options = Self::options(&self.ledger);
        (self.child, _) = start_server(SERVER, &self.address, &options).await;
    }

    async fn kill(&mut self) {
        self.child.kill().await;
    }

    /// Ends in order: it completes the calls that it has begun.
    async fn shut_down(&mut self) {
        self.child.command(SHUTDOWN).await;
        assert_eq!(self.child.expect(STOPPED).await, "ok");
        self.child.kill().await;
    }

    /// Ends in order by SIGTERM, as an init system does it.
    async fn terminate(&mut self) {
        self.child.terminate();
        assert_eq!(self.child.expect(STOPPED).await, "ok");
        assert!(self.child.wait().await.success());
    }
}

/// Callers, each with all of the clients.
struct Load {
    tally: Arc<Tally>,
    callers: JoinSet<Vec<u64>>,
}

impl Load {
    fn start(clients: &[LedgerClient]) -> Self {
        let (tally, mut callers) = (Arc::<Tally>::default(), JoinSet::new());
        for _ in 0..CALLERS {
            callers.spawn(load(clients.to_vec(), Arc::clone(&tally)));
        }
        Self { tally, callers }
    }

    /// Ends the load, and compares the callers' certain results with the ledger.
    async fn check(mut self, ledger: &LedgerFile) -> u64 {
        self.tally.stop();
        let mut sure = Vec::new();
        while let Some(booked) = self.callers.join_next().await {
            sure.extend(booked.expect("no caller fails"));
        }
        let booked = ledger.booked();
        for id in &sure {
            assert_eq!(booked.get(id), Some(&1), "{id} was answered");
        }
        assert!(booked.values().all(|count| *count == 1), "nothing is done twice");
        let unknown = self.tally.unknown.load(Ordering::SeqCst);
        let more = (booked.len() - sure.len()) as u64;
        assert!(more <= unknown, "{more} were done of {unknown} of which nobody knows");
        unknown
    }
}

/// A service in front of others.
#[rpc_core::service]
trait Gateway {
    async fn read(&self, id: u64) -> Result<u64, Status>;
    async fn book(&self, id: u64) -> Result<u64, Status>;
}

struct Front(Vec<LedgerClient>);

impl Front {
    fn backend(&self, id: u64) -> &LedgerClient {
        assert!(Context::current_deadline().is_some(), "it is passed on");
        &self.0[usize::try_from(id).expect("small") % self.0.len()]
    }
}

impl Gateway for Front {
    async fn read(&self, id: u64) -> Result<u64, Status> {
        self.backend(id).read(id).await
    }

    async fn book(&self, id: u64) -> Result<u64, Status> {
        self.backend(id).book(id).await
    }
}

/// Requests through the gateway: each one is answered.
async fn requests(gateway: GatewayClient, tally: Arc<Tally>) -> Vec<u64> {
    let mut booked = Vec::new();
    while tally.goes_on() {
        let id = tally.next.fetch_add(1, Ordering::SeqCst);
        if id % 4 != 3 {
            let read = gateway.read(id).timeout(DEADLINE).await;
            assert_eq!(read.map_err(Status::from), Ok(id), "no idempotent request is lost");
        } else {
            match gateway.book(id).timeout(DEADLINE).await.map_err(Status::from) {
                Ok(_) => booked.push(id),
                Err(status) => {
                    assert_eq!(status.code(), Code::Unavailable, "{status}");
                    tally.unknown.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
        tally.one_more();
    }
    booked
}

async fn a_gateway_survives_twenty_backend_kills(scheme: Scheme) {
    let ledger = Arc::new(LedgerFile::new());
    let mut backends =
        [Backend::start(scheme, &ledger).await, Backend::start(scheme, &ledger).await];
    let mut channels = Vec::new();
    for backend in &backends {
        channels.push(patient().connect_lazy(&backend.address).expect("an address"));
    }
    let front = Front(channels.iter().cloned().map(LedgerClient::new).collect());
    let server = tests::device::server().poll_mode(PollMode::Event);
    let server = server.add_service(GatewayServer::new(front));
    let server = server.bind(Scheme::ShmName.fresh_address()).await.expect("the name is free");
    let address = server.local_address().to_string();
    let serving = tokio::spawn(server.serve());
    let channel = patient().connect(&address).await.expect("it listens");
    let (tally, mut callers) = (Arc::<Tally>::default(), JoinSet::new());
    for _ in 0..CALLERS {
        callers.spawn(requests(GatewayClient::new(channel.clone()), Arc::clone(&tally)));
    }
    let mut early = None;
    // On an emulated machine, recognized by its pace, a few are enough.
    let kills = if paced(DEADLINE) > DEADLINE { 8 } else { 20 };
    for round in 0..kills {
        tally.advance(100).await;
        let backend = &mut backends[round % 2];
        backend.kill().await;
        backend.again().await;
        if round == 5 {
            early = Some(resources::of_this_process());
        }
    }
    tally.advance(100).await;
    let (early, late) = (early.expect("there were five"), resources::of_this_process());
    let load = Load { tally, callers };
    load.check(&ledger).await;
    assert!(late.fds <= early.fds + 16, "{early:?} {late:?}");
    assert!(late.tasks <= early.tasks + 16, "{early:?} {late:?}");
    assert!(late.rss_bytes <= early.rss_bytes + (32 << 20), "{early:?} {late:?}");
    serving.abort();
}

/// Two servers end in order, one after the other, and are restarted; eight channels connect to
/// both. Calls in flight are completed, others go to the successor: not one call fails.
async fn a_rolling_restart_fails_no_call_at_all(scheme: Scheme) {
    let ledger = Arc::new(LedgerFile::new());
    let mut backends =
        [Backend::start(scheme, &ledger).await, Backend::start(scheme, &ledger).await];
    let mut clients = Vec::new();
    for number in 0..8 {
        let address = &backends[number % 2].address;
        let channel = patient().connect_lazy(address).expect("an address");
        clients.push(LedgerClient::new(channel));
    }
    let load = Load::start(&clients);
    for round in 0..4 {
        load.tally.advance(200).await;
        let backend = &mut backends[round % 2];
        backend.shut_down().await;
        backend.again().await;
    }
    load.tally.advance(200).await;
    assert_eq!(load.check(&ledger).await, 0, "nothing fails, idempotent or not");
}

/// Two servers behind a list, each with a ledger of its own, and eight processes that call both.
/// Each server ends by SIGTERM, after it has served something, and is restarted: no process sees a
/// call fail, and nothing is executed twice.
async fn a_rolling_restart_fails_no_call(scheme: Scheme) {
    let mut backends = [
        Backend::start(scheme, &Arc::new(LedgerFile::new())).await,
        Backend::start(scheme, &Arc::new(LedgerFile::new())).await,
    ];
    let [first, second] = [0, 1].map(|number: usize| backends[number].address.clone());
    // On an emulated machine, recognized by its pace, a few are enough.
    let count = if paced(DEADLINE) > DEADLINE { 3 } else { 8 };
    let mut clients: Vec<_> = (0..count)
        .map(|number: u64| {
            let number = number.to_string();
            Child::start(CLIENT, ["--address", &first, "load", &number, &second])
        })
        .collect();
    for client in &mut clients {
        client.expect(READY).await;
    }
    for round in 0..4 {
        let backend = &mut backends[round % 2];
        let before = backend.ledger.booked().len();
        loop {
            for client in &mut clients {
                client.command(ADVANCE).await;
            }
            for client in &mut clients {
                client.expect(ADVANCED).await;
            }
            if backend.ledger.booked().len() > before {
                break;
            }
        }
        backend.terminate().await;
        backend.again().await;
    }
    let mut sure: Vec<u64> = Vec::new();
    for client in &mut clients {
        client.command(STOP).await;
        let said = client.expect(BOOKED).await;
        let (unknown, ids) = said.split_once(' ').expect("a number, then ids");
        assert_eq!(unknown, "0", "no call fails, idempotent or not");
        sure.extend(ids.split(',').map(|id| id.parse::<u64>().expect("a number")));
    }
    // Nobody books any more.
    let ledgers = backends.each_ref().map(|backend| backend.ledger.booked());
    for id in &sure {
        let times = ledgers.iter().filter_map(|ledger| ledger.get(id)).sum::<u32>();
        assert_eq!(times, 1, "{id} was answered");
    }
    let done: usize = ledgers.iter().map(|ledger| ledger.len()).sum();
    assert_eq!(done, sure.len(), "nothing is done that nobody knows of");
}

async fn a_stopped_and_resumed_server_is_found_again(scheme: Scheme) {
    let ledger = Arc::new(LedgerFile::new());
    let backend = Backend::start(scheme, &ledger).await;
    let silence = paced(Duration::from_millis(100));
    let link = LinkConfig::default().keep_alive(Some(silence)).keep_alive_timeout(silence);
    let channel = patient().link(link).connect(&backend.address).await.expect("it listens");
    let (ledgers, probes) = (LedgerClient::new(channel.clone()), ProbeClient::new(channel.clone()));
    let held = probes.hold(1).start();
    marked(&probes, 1, Mark::Started, 1).await;
    backend.child.stop();
    let read = tokio::spawn(ledgers.read(7).timeout(DEADLINE).start());
    let status = held.await.expect_err("it does nothing any more");
    assert!(!status.is_retryable(), "it ran: {status}");
    backend.child.resume();
    assert_eq!(read.await.expect("no panic"), Ok(7));
    assert_eq!(ledgers.book(8).timeout(DEADLINE).await, Ok(8));
}

/// Hedging: half of the calls begin at a server that no longer does anything.
async fn a_stopped_servers_calls_are_answered_elsewhere(scheme: Scheme) {
    let mut backends = Vec::new();
    for _ in 0..2 {
        backends.push(Backend::start(scheme, &Arc::new(LedgerFile::new())).await);
    }
    let addresses = backends.iter().map(|backend| backend.address.clone());
    let hedging = HedgingPolicy::new().delay(paced(Duration::from_millis(20))).budget(1.0);
    let channel =
        patient().hedging(hedging).connect_balanced(StaticList::new(addresses).expect("addresses"));
    let client = LedgerClient::new(channel.expect("addresses"));
    let mut next = 0;
    // Both are connected.
    while backends.iter().any(|backend| backend.ledger.booked().is_empty()) {
        next += 1;
        assert_eq!(client.book(next).timeout(DEADLINE).await, Ok(next));
    }
    backends[0].child.stop();
    // No more than the allowed number of concurrent hedges.
    let reads = (0..8).map(|id| client.read(id).timeout(DEADLINE).start());
    for (id, read) in (0..).zip(join_all(reads).await) {
        assert_eq!(read, Ok(id));
    }
}

/// Kills, stops, ends and restarts in any order, under load.
async fn chaos(scheme: Scheme) {
    let ledger = Arc::new(LedgerFile::new());
    let mut backends =
        [Backend::start(scheme, &ledger).await, Backend::start(scheme, &ledger).await];
    let silence = paced(Duration::from_millis(500));
    let link = LinkConfig::default().keep_alive(Some(silence)).keep_alive_timeout(silence);
    let connect_timeout = paced(Duration::from_secs(2));
    let mut clients = Vec::new();
    for backend in &backends {
        let builder = patient().link(link.clone()).connect_timeout(connect_timeout);
        clients.push(LedgerClient::new(builder.connect_lazy(&backend.address).expect("good")));
    }
    let load = Load::start(&clients);
    let seed = test_kit::variable("MODEL_SEED").unwrap_or(u64::from(std::process::id()));
    let _print = test_kit::PrintSeed::new(seed);
    let (mut rng, began) = (Rng::new(seed), Instant::now());
    let mut rounds = 0;
    let mut early = None;
    while rounds < 8 || long().is_some_and(|long| began.elapsed() < long) {
        rounds += 1;
        load.tally.advance(rng.below(200)).await;
        let backend = &mut backends[rng.index(2)];
        match rng.below(4) {
            0 => {
                backend.kill().await;
                backend.again().await;
            }
            1 => {
                backend.shut_down().await;
                backend.again().await;
            }
            2 => {
                backend.child.stop();
                tokio::time::sleep(Duration::from_millis(rng.below(1500))).await;
                backend.child.resume();
            }
            _ => {
                backend.child.stop();
                backend.kill().await;
                tokio::time::sleep(Duration::from_millis(rng.below(300))).await;
                backend.again().await;
            }
        }
        if rounds == 6 {
            early = Some(resources::of_this_process());
        }
    }
    load.tally.advance(100).await;
    let (early, late) = (early.expect("there were six"), resources::of_this_process());
    load.check(&ledger).await;
    assert!(late.fds <= early.fds + 16, "{early:?} {late:?}");
    assert!(late.rss_bytes <= early.rss_bytes + (32 << 20), "{early:?} {late:?}");
}

/// `auto://` chooses anew for each connection.
#[test]
fn a_server_back_on_another_path_is_found() {
    tests::limit::run(async {
        let ledger = Arc::new(LedgerFile::new());
        let mut backend = Backend::start(Scheme::Auto, &ledger).await;
        let auto = backend.address.clone();
        let tcp = auto.replace("auto://", "tcp://");
        let channel = patient().connect(&auto).await.expect("it listens");
        let client = LedgerClient::new(channel.clone());
        for (id, address) in (0..).zip([&auto, &tcp, &auto, &tcp]) {
            if id > 0 {
                backend.kill().await;
                backend.address.clone_from(address);
                backend.again().await;
            }
            assert_eq!(client.read(id).timeout(DEADLINE).await, Ok(id));
            let path = channel.path().expect("connected");
            let is_shm = path.device.contains("shm");
            assert_eq!(is_shm, address.starts_with("auto"), "{path}");
            assert_eq!(path.target.to_string(), auto);
        }
    });
}

/// Errors name the requested address, not the one that `auto://` chose.
#[test]
fn errors_name_the_address_that_was_asked_for() {
    tests::limit::run(async {
        let ledger = Arc::new(LedgerFile::new());
        let mut backend = Backend::start(Scheme::Auto, &ledger).await;
        let channel = tests::device::channel().connect(&backend.address).await.expect("it listens");
        let client = LedgerClient::new(channel.clone());
        assert_eq!(client.read(1).await, Ok(1));
        backend.kill().await;
        channel.closed().await;
        for _ in 0..2 {
            let status = client.book(1).await.expect_err("nobody is there");
            assert!(status.is_retryable(), "{status}");
            let text = status.to_string();
            assert!(text.contains(&backend.address) && !text.contains("shm://"), "{text}");
            assert!(text.contains("the peer is gone") && text.contains("listening"), "{text}");
        }
    });
}
