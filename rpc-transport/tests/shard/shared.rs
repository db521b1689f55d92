//! Connections whose receives are those of one queue.

use std::time::Duration;

use rpc_transport::connect::error::CloseCause;
use rpc_transport::connect::schemes;
use rpc_transport::device::fault::{FaultPlan, IRDMA, MLX5, PROFILES};
use rpc_transport::device::{Listener, QueueLimits};
use rpc_transport::engine::establish::{completions_per_connection, server_completions};
use rpc_transport::engine::locked_need::server_bytes;
use rpc_transport::engine::spin::PollMode;
use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::protocol::config::{Isolation, LinkConfig};
use rpc_transport::protocol::credit::Grant;
use tokio::task::JoinHandle;
use tokio::time::{Instant, pause};

use crate::falling::Ends;
use crate::locked::squeeze;
use crate::parts::{send, shared};
use crate::probe::{Habit, Probe};
use crate::raw::Raw;
use crate::windows::windows;
use crate::world::{
    ByHand, End, Options, ProbeDriver, ProbeShard, WIRES, fresh_address, join, pattern, resolve,
    run, run_on_one_thread, shard, unspawned,
};

/// What a connection is to cost at most that is idle, bytes of locked memory.
const LITTLE: u64 = 32 << 10;

/// Receives of a connection that begins: 2 data credits, 2 acks, a Close, one whose repost waits.
const FIRST: u32 = 6;

pub(crate) fn sharing() -> LinkConfig {
    let config = LinkConfig::default().first_data_credits(2).keep_alive(None);
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

    pub(crate) fn granted(&self) -> u32 {
        self.server.shared_recv_pool().expect("they are shared").granted()
    }

    /// Waits until so many receives are granted: what was granted is free when its queue pair has left.
    pub(crate) async fn until_granted(&self, wanted: u32) {
        while self.granted() != wanted {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Ends when all its connections have left.
    pub(crate) async fn end(self) {
        if self.server.shared_recv_pool().is_some() {
            self.until_granted(0).await;
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

#[test]
fn windows_grow_by_receives_of_all_and_fall_back() {
    run_on_one_thread("windows_grow_by_receives_of_all", async {
        for wire in WIRES {
            let config = LinkConfig::default().first_data_credits(2).shared_receive_queue(true);
            // Room for the largest window.
            let config = config.data_credits(8);
            let options = Options::alike(config);
            let (client, server, drivers, _listener): (_, _, [ProbeDriver; 2], _) =
                unspawned(wire, &options).await;
            let mut pair =
                Ends { ends: [client, server], drivers: drivers.map(ByHand::new), sent: 0 };
            pause();
            for _ in 0..3 {
                assert_eq!(pair.windows(), [(2, 2); 2], "{wire}");
                for end in &pair.ends {
                    assert_eq!(end.shard.shared_recv_pool().unwrap().granted(), FIRST, "{wire}");
                }
                while pair.windows() != [(8, 8); 2] {
                    pair.echo(1, 100);
                }
                for end in &pair.ends {
                    let pool = end.shard.shared_recv_pool().unwrap();
                    assert_eq!((pool.granted(), pool.surplus()), (FIRST + 6, 0), "{wire}");
                }
                pair.pass(8, 0).await;
                pair.echo(20, 1);
            }
            for end in &pair.ends {
                assert!(end.events().closed.is_empty(), "{wire}: {:?}", end.events().closed);
            }
            tokio::time::resume();
        }
    });
}

#[test]
fn a_window_stays_as_it_is_where_others_have_the_receives_and_grows_when_they_are_gone() {
    run("a_window_stays_as_it_is", async {
        for wire in WIRES {
            // 32 receives.
            let mut star = Star::new(wire, 2, sharing(), None).await;
            let first = star.connect().await;
            while windows(&first.1).0 < 16 {
                burst(&first.0, 100).await;
            }
            assert_eq!(star.granted(), 16 + 4);
            let second = star.connect().await;
            // 6 are left, of which 2 make its window one of 4, and 4 one of 8.
            while windows(&second.1).0 < 8 {
                burst(&second.0, 100).await;
            }
            for _ in 0..5 {
                burst(&second.0, 100).await;
                burst(&first.0, 100).await;
            }
            assert_eq!((windows(&first.1).0, windows(&second.1).0), (16, 8), "{wire}");
            assert_eq!(star.granted(), 32, "{wire}");
            part(first).await;
            star.until_granted(8 + 4).await;
            while windows(&second.1).0 < 16 {
                burst(&second.0, 100).await;
            }
            part(second).await;
            star.end().await;
        }
    });
}

/// One that has a lot to receive keeps nobody out for whom there is room.
#[test]
fn windows_do_not_grow_by_receives_that_are_kept_for_connections_that_begin() {
    run("kept", async {
        // 80 receives, and the largest window with what belongs to it is one of 68.
        let mut star = Star::new("shm", 5, sharing(), None).await;
        let mut pairs = vec![star.connect().await];
        while windows(&pairs[0].1).0 < 32 {
            burst(&pairs[0].0, 100).await;
        }
        for _ in 0..20 {
            burst(&pairs[0].0, 100).await;
        }
        assert_eq!(windows(&pairs[0].1).0, 32);
        for _ in 1..5 {
            pairs.push(star.connect().await);
            burst(&pairs.last().unwrap().0, 100).await;
        }
        for pair in pairs {
            part(pair).await;
        }
        star.end().await;
    });
}

#[test]
fn windows_of_eight_may_all_grow_once() {
    run("all grow once", async {
        let config = LinkConfig::default().data_credits(16).shared_receive_queue(true);
        let mut star = Star::new("mem", 4, config.keep_alive(None), None).await;
        let mut pairs = Vec::new();
        for _ in 0..4 {
            pairs.push(star.connect().await);
        }
        // A window that is refused asks again now and then, and others have what it asks for.
        for pair in &pairs {
            for _ in 0..20 {
                burst(&pair.0, 100).await;
            }
        }
        assert_eq!(pairs.iter().map(|pair| windows(&pair.1).0).collect::<Vec<_>>(), [16; 4]);
        for pair in pairs {
            part(pair).await;
        }
        star.end().await;
    });
}

#[test]
fn a_connection_for_which_there_are_no_receives_is_refused_until_another_ends() {
    run("no receives", async {
        let mut star = Star::new("mem", 1, sharing(), None).await;
        let first = star.connect().await;
        while windows(&first.1).0 < 8 {
            burst(&first.0, 100).await;
        }
        for text in star.refused().await {
            assert!(text.contains("has 16 receives, of which other connections have 12"), "{text}");
        }
        burst(&first.0, 100).await;
        part(first).await;
        star.until_granted(0).await;
        let second = star.connect().await;
        burst(&second.0, 100).await;
        part(second).await;
        star.end().await;
    });
}

/// Whatever is on its way when a connection ends, and whoever ends it.
#[test]
fn an_end_gives_back_exactly_what_the_connection_had() {
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
                let own = u32::from(windows(&stays.1).0) + 4;
                star.until_granted(own).await;
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
    let others = star.granted() - FIRST;
    let result = done();
    raw.send(Grant::default(), b"cut off");
    star.server.fail(end.key, &CloseCause::Local);
    star.server.release(end.key);
    tokio::select! {
        () = end.gone() => {}
        () = raw.listen() => {}
    }
    star.until_granted(others).await;
    result
}

/// One receive too few is one message that some other connection has credit for and that finds none.
#[test]
fn receives_that_a_device_loses_as_connections_fail_are_missing_to_nobody() {
    run_on_one_thread("lost receives", async {
        let plan = FaultPlan::new(1).lose_cut_off_receives(true);
        // 64 receives, of which a connection is granted 20 at most.
        let config = sharing().data_credits(16);
        let mut star = Star::new("mem", 4, config.clone(), Some(plan)).await;
        let entries = server_completions(&config, &**star.server.device());
        let has_room = |star: &Star| star.server.has_room_for(1, entries, &config);
        for round in 1..=3 {
            let stays = star.connect().await;
            // Twelve would be all that the two have.
            for lost in 1..=20 {
                cut_off(&mut star).await;
                assert_eq!(star.server.shared_recv_pool().unwrap().lost(), lost);
                stays.1.with(|probe| probe.send(b"to the client"));
                burst(&stays.0, 10).await;
            }
            // Windows grow by what is left of the 40 that are not kept for those that begin.
            let others = [star.connect().await, star.connect().await];
            for pair in [&stays, &others[0], &others[1], &stays] {
                for _ in 0..20 {
                    burst(&pair.0, 100).await;
                }
            }
            assert_eq!(windows(&stays.1).0, 16, "{round}");
            assert!(has_room(&star), "for the fourth, whatever windows have grown by");
            for pair in others {
                part(pair).await;
            }
            // These have ended in order.
            star.until_granted(20).await;
            assert_eq!(star.server.shared_recv_pool().unwrap().lost(), 20);
            // Until a connection finds none, which is to be known before it is accepted.
            for _ in 0..64 {
                if has_room(&star) {
                    cut_off(&mut star).await;
                }
            }
            let pool = star.server.shared_recv_pool().unwrap();
            assert!(!has_room(&star) && pool.room() < FIRST, "{pool:?}");
            assert_eq!(pool.granted() + pool.lost() + pool.room(), 64);
            burst(&stays.0, 100).await;
            // With the last connection goes the queue.
            part(stays).await;
            star.until_granted(0).await;
            assert!(has_room(&star));
            let pool = star.server.shared_recv_pool().unwrap();
            assert_eq!((pool.surplus(), pool.lost()), (0, 0));
        }
        star.end().await;
    });
}

/// On an idle server, too, nothing of which wakes by itself.
#[test]
fn a_share_that_is_free_without_a_sound_is_given_back() {
    run_on_one_thread("without a sound", async {
        let plan = FaultPlan::new(1).leave_late(500);
        let mut star = Star::new("mem", 2, sharing(), Some(plan)).await;
        part(star.connect().await).await;
        // Until then it is not: the driver sleeps first.
        assert_eq!(star.granted(), FIRST);
        pause();
        star.end().await;
    });
}

/// For want of memory to lock, say. The shard ended then, with all its connections to come.
#[test]
fn where_the_queue_cannot_be_made_anew_the_one_there_is_serves_until_it_can() {
    // A queue that takes more than a connection, so that its end leaves too little for another.
    const CONNECTIONS: u32 = 16;
    run_on_one_thread("cannot be made anew", async {
        let limit = MemoryBudget::new(64 << 20);
        let plan = FaultPlan::new(1).lose_cut_off_receives(true).lock_limit(&limit);
        let config = thrifty().data_credits(2);
        let mut star = Star::new("mem", CONNECTIONS, config.clone(), Some(plan)).await;
        let entries = server_completions(&config, &**star.server.device());
        let has_room = |star: &Star| star.server.has_room_for(1, entries, &config);
        let (mut ended, mut all) = (0, squeeze(&limit, 1 << 20));
        while has_room(&star) {
            drop(all);
            all = cut_off_when(&mut star, || squeeze(&limit, 0)).await;
            ended += 1;
            assert_eq!(star.server.shared_recv_pool().unwrap().lost(), ended);
            if ended % 40 == 1 {
                drop(all);
                // One that ends in order loses none.
                let pair = star.connect().await;
                all = squeeze(&limit, 0);
                burst(&pair.0, 20).await;
                part(pair).await;
                star.until_granted(0).await;
                assert_eq!(star.server.shared_recv_pool().unwrap().lost(), ended);
            }
        }
        assert_eq!(star.server.shared_recv_pool().unwrap().room(), FIRST - 1);
        drop(all);
        assert!(has_room(&star), "who looks for room makes it");
        assert_eq!(star.server.shared_recv_pool().unwrap().lost(), 0);
        let pair = star.connect().await;
        burst(&pair.0, 100).await;
        part(pair).await;
        star.end().await;
    });
}

/// How many messages a peer sends that was granted two.
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
    star.until_granted(0).await;
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
fn a_peer_that_takes_the_receives_of_others_is_ended_and_they_come_back() {
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

/// One that has been told which rule it broke, and goes on: its queue pair is not left up for as long as
/// a close may take.
#[test]
fn a_peer_that_goes_on_after_it_broke_a_rule_takes_no_more_than_its_share() {
    run_on_one_thread("goes on", async {
        let mut star = Star::new("mem", 2, sharing(), None).await;
        let config = star.options.configs[1].clone();
        let probe = Probe::new(Habit::Count);
        let (mut raw, end) = Raw::connect(&star.server, &mut *star.listener, &config, probe).await;
        pause();
        raw.send(Grant { data: 9, ack: 0 }, b"what nobody spent");
        end.cause().await;
        let (closing, mut sent) = (Instant::now(), 0);
        // It takes nothing in, so the Close that tells it is not accepted.
        while end.events().released == 0 {
            raw.send(Grant::default(), b"and more");
            sent += 1;
            assert!(sent <= 2 * FIRST, "{sent} messages, and its queue pair is still there");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(closing.elapsed() < Duration::from_secs(1), "in time that is told by the test");
        star.end().await;
    });
}

/// Also on a NIC without shared receive queues: there they cost more, and the sum says so.
#[test]
fn an_idle_connection_with_shared_receives_locks_32_kib_at_most() {
    run("shared_idle", async {
        for profile in PROFILES.into_iter().filter(|profile| profile.has_rc) {
            let connections = (profile.max_cqe / completions_per_connection(&thrifty())).min(64);
            let limits = QueueLimits { max_cqe: profile.max_cqe, max_srq_wr: profile.max_srq_wr };
            let need = server_bytes(&thrifty(), connections, 1, limits);
            // So that a queue or a buffer more is seen here, which the sum would follow.
            let each = if profile.max_srq_wr > 0 { 25_600 } else { LITTLE };
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
            let pool = star.server.shared_recv_pool();
            let wanted = (profile.max_srq_wr > 0).then_some(FIRST * connections);
            assert_eq!(pool.map(|pool| pool.granted()), wanted, "{}", profile.driver);
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
fn connections_have_their_own_receives_where_they_cannot_share_or_are_not_to() {
    run("own", async {
        let isolated = sharing().isolation(Isolation::PerConnection);
        let plan = |profile| Some(FaultPlan::new(1).profile(profile));
        for (config, faults) in [
            (sharing(), plan(&IRDMA)),
            (isolated, plan(&MLX5)),
            (sharing().shared_receive_queue(false), None),
        ] {
            let mut star = Star::new("mem", 2, config, faults).await;
            assert!(star.server.shared_recv_pool().is_none());
            let pair = star.connect().await;
            burst(&pair.0, 100).await;
            part(pair).await;
            star.server.shutdown();
        }
    });
}
