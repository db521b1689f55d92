//! Connections whose receives are those of one queue.

use std::time::Duration;

use rpc_transport::connect::schemes;
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::device::fault::{FaultPlan, IRDMA, MLX5, PROFILES};
use rpc_transport::device::{Listener, QueueLimits};
use rpc_transport::engine::establish::{completions_per_connection, server_completions};
use rpc_transport::engine::locked_need::server_bytes;
use rpc_transport::engine::spin::PollMode;
use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::protocol::config::{Isolation, LinkConfig};
use rpc_transport::protocol::credit::Grant;
use tokio::task::JoinHandle;
use tokio::time::{Instant, pause, resume};

use crate::locked::squeeze;
use crate::parts::{send, shared};
use crate::probe::{Habit, Probe};
use crate::raw::Raw;
use crate::windows::windows;
use crate::world::{
    End, Options, ProbeShard, WIRES, fresh_address, join, pattern, resolve, run, run_on_one_thread,
    shard,
};

/// What a connection is to cost at most that is idle, bytes of locked memory.
const LITTLE: u64 = 32 << 10;

/// Receives of a share: 2 data credits, 2 acks, a Close, one whose repost waits.
const SHARE: u32 = 6;

pub(crate) fn sharing() -> LinkConfig {
    let config = LinkConfig::default().data_credits(2).keep_alive(None);
    config.shared_receive_queue(true)
}

/// The same, where memory is what counts.
fn thrifty() -> LinkConfig {
    sharing().receive_buffer_bytes(2 << 10).send_queue_slots(9)
}

/// A server whose connections share their receives, and clients.
pub(crate) struct Star {
    pub(crate) server: ProbeShard,
    pub(crate) listener: Box<dyn Listener>,
    pub(crate) options: Options,
    drivers: Vec<JoinHandle<()>>,
}

impl Star {
    /// With receives for so many connections.
    pub(crate) async fn new(
        wire: &str,
        connections: u32,
        config: LinkConfig,
        faults: Option<FaultPlan>,
    ) -> Self {
        let faults = faults.map(|plan| [FaultPlan::new(1), plan]);
        let options = Options {
            configs: [LinkConfig::default().keep_alive(None), config.clone()],
            habits: [Habit::Keep, Habit::Echo],
            faults: faults.clone(),
            ..Options::default()
        };
        let mut listener = schemes::listen(&fresh_address(wire)).await.unwrap();
        if let Some([_, plan]) = faults {
            listener = rpc_transport::device::fault::listener(listener, plan);
        }
        let outgoing = resolve(&listener.local_address(), &options, 1).await;
        let (server, driver) = shard(outgoing.device(), &config, connections, PollMode::Event);
        Self { server, listener, options, drivers: vec![tokio::spawn(driver)] }
    }

    /// One more connection, whose client has a shard to itself.
    pub(crate) async fn connect(&mut self) -> (End, End) {
        let outgoing = resolve(&self.listener.local_address(), &self.options, 0).await;
        let config = &self.options.configs[0];
        let (client, driver) = shard(outgoing.device(), config, 1, PollMode::Event);
        self.drivers.push(tokio::spawn(driver));
        join(&client, &self.server, &mut *self.listener, &self.options).await
    }

    /// One more that does not come up: why not, as the server and the client say.
    pub(crate) async fn refused(&mut self) -> [String; 2] {
        let address = self.listener.local_address();
        let outgoing = resolve(&address, &self.options, 0).await;
        let [of_client, of_server] = &self.options.configs;
        let (client, driver) = shard(outgoing.device(), of_client, 1, PollMode::Event);
        let driver = tokio::spawn(driver);
        let accept = async {
            let incoming = self.listener.incoming().await.unwrap();
            self.server.accept(incoming, of_server, Probe::new(Habit::Echo)).await
        };
        let probe = Probe::new(Habit::Keep);
        let connect = client.connect(outgoing, &address, of_client, Duration::from_secs(9), probe);
        let (connected, accepted) = tokio::join!(connect, accept);
        client.shutdown_now();
        driver.await.unwrap();
        [accepted.unwrap_err().to_string(), connected.unwrap_err().to_string()]
    }

    /// Connections that have a share, and shares that are spent.
    pub(crate) fn shares(&self) -> (u32, u32) {
        let shares = self.server.shares().expect("they are shared");
        (shares.used(), shares.spent())
    }

    /// Whether one more connection may begin.
    pub(crate) fn has_room(&self) -> bool {
        let entries = server_completions(&self.options.configs[1], &**self.server.device());
        self.server.has_room_for(1, entries)
    }

    /// Waits until so many connections have a share: it is free when their queue pairs have
    /// drained.
    pub(crate) async fn until_used(&self, wanted: u32) {
        while self.shares().0 != wanted {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Ends when all its connections have left.
    pub(crate) async fn end(self) {
        if self.server.shares().is_some() {
            self.until_used(0).await;
        }
        self.server.shutdown();
        self.drivers.into_iter().next().unwrap().await.unwrap();
        let stats = self.server.stats();
        assert_eq!((stats.entries, stats.queue_pairs, stats.unflushed), (0, 0, 0));
    }
}

/// Both leave in order.
pub(crate) async fn part((client, server): (End, End)) {
    client.leave().await;
    client.shard.shutdown();
    server.shard.release(server.key);
    server.gone().await;
}

/// Echoes of so many messages at once.
pub(crate) async fn burst(client: &End, count: u64) {
    let before = client.events().received;
    client.with(|probe| (0..count).for_each(|_| probe.send(b"many at once")));
    let closed = client.until(|end| {
        let events = end.events();
        let is_over = events.received >= before + count || !events.closed.is_empty();
        is_over.then_some(events.closed)
    });
    assert!(closed.await.is_empty(), "the connection has ended: {:?}", client.events().closed);
}

/// Its share is all that a connection has: others need theirs.
#[test]
fn windows_of_shared_receives_do_not_grow() {
    run("do not grow", async {
        for wire in WIRES {
            let config = LinkConfig::default().shared_receive_queue(true).keep_alive(None);
            let mut star = Star::new(wire, 2, config, None).await;
            let pairs = [star.connect().await, star.connect().await];
            for _ in 0..5 {
                for (client, server) in &pairs {
                    burst(client, 100).await;
                    assert_eq!((windows(server).0, windows(client).1), (8, 8), "{wire}");
                }
            }
            // In the other direction there are receives of a client's own.
            assert!(windows(&pairs[0].0).0 > 8, "{wire}");
            for pair in pairs {
                part(pair).await;
            }
            star.end().await;
        }
    });
}

#[test]
fn a_connection_without_a_share_is_refused() {
    run("no share", async {
        let mut star = Star::new("mem", 1, sharing(), None).await;
        let first = star.connect().await;
        assert!(!star.has_room());
        for text in star.refused().await {
            let of_all = "the shared receive queue is that of 1 connections";
            assert!(text.contains(of_all), "{text}");
        }
        burst(&first.0, 100).await;
        part(first).await;
        star.until_used(0).await;
        assert!(star.has_room());
        let second = star.connect().await;
        burst(&second.0, 100).await;
        part(second).await;
        star.end().await;
    });
}

/// Whatever is on its way when a connection ends, and whichever side ends it.
#[test]
fn an_end_returns_the_share_exactly() {
    run("exactly", async {
        for wire in WIRES {
            let mut star = Star::new(wire, 2, sharing(), None).await;
            let stays = star.connect().await;
            for round in 0..40_u64 {
                let (client, server) = star.connect().await;
                burst(&client, 10 + round).await;
                // Some of these are still unread when it ends.
                client.with(|probe| (0..round * 3).for_each(|_| probe.send(b"too late")));
                if round % 2 == 0 {
                    server.shard.release(server.key);
                }
                client.leave().await;
                client.shard.shutdown();
                server.shard.release(server.key);
                server.gone().await;
                star.until_used(1).await;
                burst(&stays.0, 20).await;
            }
            part(stays).await;
            star.end().await;
        }
    });
}

/// A connection fails while a message of its arrives, on a device that loses the receive then.
async fn cut_off(star: &mut Star) {
    cut_off_when(star, || ()).await;
}

/// The same, after something was done while the connection was up.
async fn cut_off_when<R>(star: &mut Star, done: impl FnOnce() -> R) -> R {
    let config = star.options.configs[1].clone();
    let probe = Probe::new(Habit::Count);
    let (mut raw, end) = Raw::connect(&star.server, &mut *star.listener, &config, probe).await;
    let (others, spent) = star.shares();
    let result = done();
    raw.send(Grant::default(), b"cut off");
    star.server.fail(end.key, &CloseCause::Local);
    star.server.release(end.key);
    tokio::select! {
        () = end.gone() => {}
        () = raw.listen() => {}
    }
    star.until_used(others - 1).await;
    assert_eq!(star.shares().1, spent + 1);
    result
}

/// One receive too few is one message that some other connection has credit for and that finds
/// none.
#[test]
fn a_share_that_lost_a_receive_is_nobodys() {
    run_on_one_thread("lost receives", async {
        let plan = FaultPlan::new(1).lose_cut_off_receives(true);
        let mut star = Star::new("mem", 4, sharing(), Some(plan)).await;
        for _ in 0..3 {
            let stays = star.connect().await;
            // One that ends in order loses none.
            part(star.connect().await).await;
            star.until_used(1).await;
            assert_eq!(star.shares(), (1, 0));
            for spent in 1..=3 {
                assert!(star.has_room());
                cut_off(&mut star).await;
                assert_eq!(star.shares(), (1, spent));
                stays.1.with(|probe| probe.send(b"to the client"));
                burst(&stays.0, 100).await;
            }
            assert!(!star.has_room(), "which is to be known before a connection is accepted");
            // With the last connection goes the queue.
            part(stays).await;
            star.until_used(0).await;
            assert!(star.has_room());
            assert_eq!(star.shares(), (0, 0));
        }
        star.end().await;
    });
}

/// On an idle server, too, nothing of which wakes by itself.
#[test]
fn a_silently_freed_share_is_given_back() {
    run_on_one_thread("without a sound", async {
        let plan = FaultPlan::new(1).drain_late(100);
        let mut star = Star::new("mem", 1, sharing(), Some(plan)).await;
        let (client, server) = star.connect().await;
        client.leave().await;
        client.shard.shutdown();
        server.shard.release(server.key);
        server.cause().await;
        assert!(star.shares() == (1, 0) && !star.has_room(), "it has not drained");
        pause();
        star.until_used(0).await;
        resume();
        assert!(star.has_room());
        star.end().await;
    });
}

/// For want of memory to lock, say.
#[test]
fn a_queue_not_made_anew_serves_on() {
    run_on_one_thread("cannot be made anew", async {
        let limit = MemoryBudget::new(64 << 20);
        let plan = FaultPlan::new(1).lose_cut_off_receives(true).lock_limit(&limit);
        // A queue that takes more than a connection, so that its end leaves too little for another.
        let mut star = Star::new("mem", 16, thrifty(), Some(plan)).await;
        let mut all = squeeze(&limit, 1 << 20);
        for spent in 1..=16 {
            drop(all);
            all = cut_off_when(&mut star, || squeeze(&limit, 0)).await;
            assert_eq!(star.has_room(), spent < 16, "in those that are not spent");
            assert_eq!(star.shares(), (0, spent));
        }
        drop(all);
        assert!(star.has_room(), "there is memory again");
        assert_eq!(star.shares(), (0, 0));
        let pair = star.connect().await;
        burst(&pair.0, 100).await;
        part(pair).await;
        star.end().await;
    });
}

/// A peer that has two credits sends so many messages. Returns why it was ended.
async fn flooded(by: usize) -> String {
    let mut star = Star::new("mem", 4, sharing(), None).await;
    let honest = star.connect().await;
    let config = star.options.configs[1].clone();
    let probe = Probe::new(Habit::Count);
    let (mut raw, end) = Raw::connect(&star.server, &mut *star.listener, &config, probe).await;
    for _ in 0..by {
        raw.send(Grant::default(), b"more than I may");
    }
    let cause = end.cause().await.to_string();
    tokio::select! {
        () = end.gone() => {}
        () = raw.listen() => {}
    }
    if by < 20 {
        // There were receives enough, and there are again.
        burst(&honest.0, 100).await;
        part(honest).await;
    } else {
        honest.0.leave().await;
        honest.0.shard.shutdown();
        honest.1.shard.release(honest.1.key);
        honest.1.gone().await;
    }
    star.until_used(0).await;
    // It was all posted again: a new connection may use what it is granted.
    let after = star.connect().await;
    for _ in 0..20 {
        burst(&after.0, 100).await;
    }
    part(after).await;
    star.end().await;
    cause
}

#[test]
fn taking_receives_of_others_ends_the_peer() {
    run("takes the receives of others", async {
        let text = "the peer broke the protocol: peer sent data beyond our window of 2 unreturned \
                    messages";
        // Six may be within the rules, where they come one by one.
        assert_eq!(flooded(7).await, text);
        assert_eq!(flooded(9).await, text);
        // All that there are, so that others may be lost by it, and nothing but connections is.
        assert_eq!(flooded(500).await, text);
    });
}

/// One that has been told which rule it broke, and goes on: its queue pair is not left up for as
/// long as a close may take.
#[test]
fn a_broken_peer_takes_only_its_share() {
    run_on_one_thread("goes on", async {
        let mut star = Star::new("mem", 2, sharing(), None).await;
        let config = star.options.configs[1].clone();
        let probe = Probe::new(Habit::Count);
        let (mut raw, end) = Raw::connect(&star.server, &mut *star.listener, &config, probe).await;
        pause();
        raw.send(Grant { data: 9, ack: 0 }, b"what nobody spent");
        end.cause().await;
        let (closing, mut sent) = (Instant::now(), 0);
        // The peer takes nothing in, so it does not accept the Close.
        while end.events().released == 0 {
            raw.send(Grant::default(), b"and more");
            sent += 1;
            assert!(sent <= 2 * SHARE, "{sent} messages, and its queue pair is still there");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(closing.elapsed() < Duration::from_secs(1), "within the limit of this test");
        star.end().await;
    });
}

/// Also on a NIC without shared receive queues: there they cost more, and the sum says so.
#[test]
fn idle_shared_connection_locks_32_kib_at_most() {
    run("shared_idle", async {
        for profile in PROFILES.into_iter().filter(|profile| profile.has_rc) {
            let connections = (profile.max_cqe / completions_per_connection(&thrifty())).min(64);
            let limits = QueueLimits { max_cqe: profile.max_cqe, max_srq_wr: profile.max_srq_wr };
            let need = server_bytes(&thrifty(), connections, 1, limits);
            // So that a queue or a buffer more is seen here, which the sum would follow.
            let each = if profile.max_srq_wr > 0 { 22_784 } else { 26_624 };
            assert!(each <= LITTLE);
            let expected = each * u64::from(connections);
            assert!(need == expected || connections < 64, "{}: {need}", profile.driver);
            let limit = MemoryBudget::new(need);
            let plan = FaultPlan::new(1).profile(profile).lock_limit(&limit);
            let mut star = Star::new("mem", connections, thrifty(), Some(plan)).await;
            let mut pairs = Vec::new();
            for _ in 0..connections {
                pairs.push(star.connect().await);
            }
            assert_eq!(limit.used_bytes(), need, "{}", profile.driver);
            let shares = star.server.shares();
            let wanted = (profile.max_srq_wr > 0).then_some(connections);
            assert_eq!(shares.map(|shares| shares.used()), wanted, "{}", profile.driver);
            for pair in &pairs {
                burst(&pair.0, 1).await;
            }
            assert_eq!(limit.used_bytes(), need, "{}", profile.driver);
            // More is used where there is more, and nothing has to be.
            for pair in &pairs {
                burst(&pair.0, 50).await;
            }
            let (client, server) = &pairs[0];
            send(client, b"large", [shared(pattern(1, 1 << 20))]);
            server.received(52).await;
            for pair in pairs {
                part(pair).await;
            }
            star.end().await;
            assert!(limit.used_bytes() < need);
        }
    });
}

#[test]
fn unshared_connections_have_their_own_receives() {
    run("own", async {
        let isolated = sharing().isolation(Isolation::PerConnection);
        let plan = |profile| Some(FaultPlan::new(1).profile(profile));
        for (config, faults) in [
            (sharing(), plan(&IRDMA)),
            (isolated, plan(&MLX5)),
            (sharing().shared_receive_queue(false), None),
        ] {
            let mut star = Star::new("mem", 2, config, faults).await;
            assert!(star.server.shares().is_none());
            let pair = star.connect().await;
            burst(&pair.0, 100).await;
            part(pair).await;
            star.server.shutdown();
        }
    });
}
