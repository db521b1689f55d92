//! Set-up that goes wrong, and devices that fail: nothing is left behind.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rpc_transport::connect::schemes;
use rpc_transport::device::Listener;
use rpc_transport::engine::establish::completions_per_connection;
use rpc_transport::engine::spin::PollMode;
use rpc_transport::protocol::config::{Isolation, LinkConfig};
use rpc_transport::protocol::frame::{CloseCode, CloseReason};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::faulty::{Faults, faulty};
use crate::parts::{owned, send};
use crate::probe::{Habit, Probe};
use crate::world::{End, Options, ProbeShard, WIRES, fresh_address, join, run, shard, unspawned};

const FAR: Duration = Duration::from_secs(3600);

/// A shard for two connections, with its driver running.
fn driven(device: &Arc<dyn rpc_transport::device::Device>) -> (ProbeShard, JoinHandle<()>) {
    driven_for(device, 2)
}

/// A shard for `connections` connections, with its driver running.
fn driven_for(
    device: &Arc<dyn rpc_transport::device::Device>,
    connections: u32,
) -> (ProbeShard, JoinHandle<()>) {
    let (shard, driver) = shard(device, &LinkConfig::default(), connections, PollMode::Event);
    (shard, tokio::spawn(driver))
}

/// A client on a device that fails on demand, connected to an ordinary server.
async fn on_faulty_device() -> (End, JoinHandle<()>, Arc<Faults>, End, Box<dyn Listener>) {
    let faults = Arc::<Faults>::default();
    let (near, driver, far, listener) = on_device(&faults).await;
    (near, driver, faults, far, listener)
}

/// A client on such a device, connected to an ordinary server.
async fn on_device(faults: &Arc<Faults>) -> (End, JoinHandle<()>, End, Box<dyn Listener>) {
    let mut listener = schemes::listen(&fresh_address("mem")).await.unwrap();
    let address = listener.local_address();
    let outgoing = schemes::resolve(&address).await.unwrap().outgoing;
    let (server, _) = driven(outgoing.device());
    let outgoing = faulty(outgoing, faults);
    let (client, driver) = driven(outgoing.device());
    let config = LinkConfig::default();
    let (near, far) = (Probe::new(Habit::Keep), Probe::new(Habit::Echo));
    let records = (near.record(), far.record());
    let accept = async {
        let incoming = listener.incoming().await.unwrap();
        server.accept(incoming, &config, far).await.unwrap()
    };
    let connect = client.connect(outgoing, &address, &config, FAR, near);
    let (near, far) = tokio::join!(connect, accept);
    let near = End { shard: client, key: near.unwrap().key, record: records.0 };
    let far = End { shard: server, key: far.key, record: records.1 };
    (near, driver, far, listener)
}

/// A regression: a NIC takes milliseconds to create a queue pair, and the connections of its shard
/// waited for that.
#[test]
fn shard_serves_during_queue_pair_creation() {
    run("slow commands", async {
        // The first connection's queue pair needs no time.
        let commands = Some(Semaphore::new(1));
        let faults = Arc::new(Faults { slow_commands: commands, ..Faults::default() });
        let (end, _driver, server, mut listener) = on_device(&faults).await;
        let address = listener.local_address();
        let outgoing = faulty(schemes::resolve(&address).await.unwrap().outgoing, &faults);
        let (shard, config) = (Arc::clone(&end.shard), LinkConfig::default());
        let second = Probe::new(Habit::Keep);
        let record = second.record();
        let connecting = async {
            let connected = shard.connect(outgoing, &address, &config, FAR, second).await.unwrap();
            End { shard: Arc::clone(&shard), key: connected.key, record }
        };
        let accepting = async {
            let incoming = listener.incoming().await.unwrap();
            server.shard.accept(incoming, &config, Probe::new(Habit::Echo)).await.unwrap()
        };
        let serving = async {
            while faults.prepared.load(Ordering::SeqCst) < 2 {
                tokio::task::yield_now().await;
            }
            for _ in 0..100 {
                end.send(b"meanwhile");
                end.next().await;
            }
            faults.slow_commands.as_ref().unwrap().add_permits(1);
        };
        let (other, _, ()) = tokio::join!(connecting, accepting, serving);
        other.send(b"the second one works");
        other.next().await;
    });
}

/// A regression: the driver of a dead CQ polled again without a pause, for as long as anybody held
/// a connection.
#[test]
fn the_driver_of_a_dead_cq_ends() {
    run("dead CQ", async {
        let (client, driver, faults, server, _listener) = on_faulty_device().await;
        client.send(b"before");
        client.next().await;
        let pools = client.pools();
        Faults::set(&faults.dead);
        client.send(b"after");
        let cause = client.cause().await;
        let text = "the device failed: completion queue is dead: it was pulled out";
        assert_eq!(cause.to_string(), text);
        client.gone().await;
        driver.await.unwrap();
        crate::world::assert_home(&pools);
        assert!(!client.shard.has_room_for(1, 1), "nobody drives it any more");
        client.shard.release(client.key);
        assert_eq!(client.shard.stats().entries, 0);
        server.cause().await;
    });
}

/// A regression: without any RECV posted nothing would ever complete on the new queue pair, and
/// nobody checked it again.
#[test]
fn queue_pair_without_recvs_is_not_forgotten() {
    run("no RECV", async {
        let faults = Arc::<Faults>::default();
        Faults::set(&faults.no_recvs);
        let listener = schemes::listen(&fresh_address("mem")).await.unwrap();
        let address = listener.local_address();
        let outgoing = faulty(schemes::resolve(&address).await.unwrap().outgoing, &faults);
        let (client, driver) = driven(outgoing.device());
        let probe = Probe::new(Habit::Keep);
        let record = probe.record();
        let config = LinkConfig::default();
        let refused = client.connect(outgoing, &address, &config, FAR, probe).await;
        let text = "post the receives: the device failed: queue is full (0 work requests) \
                    (after 0 posted)";
        assert_eq!(refused.unwrap_err().to_string(), text);
        assert_eq!((record.events().closed.len(), record.events().released), (1, 1));
        client.shutdown();
        driver.await.unwrap();
        assert_eq!(client.stats().entries, 0);
    });
}

/// A CQ takes no more connections than it has room for, and both sides learn why.
#[test]
fn a_full_cq_refuses_with_its_name() {
    run("full", async {
        for wire in WIRES {
            let mut listener = schemes::listen(&fresh_address(wire)).await.unwrap();
            let address = listener.local_address();
            let outgoing = schemes::resolve(&address).await.unwrap().outgoing;
            let device = Arc::clone(outgoing.device());
            let (small, _) = driven_for(&device, 1);
            let (large, _driver) = shard(&device, &LinkConfig::default(), 9, PollMode::Event);
            let options = Options::default();
            let (_first, _) = join(&large, &small, &mut *listener, &options).await;
            let config = LinkConfig::default();
            let needed = completions_per_connection(&config);
            let has_room = |shard: &ProbeShard| shard.has_room_for(1, needed);
            assert!(!has_room(&small) && has_room(&large));
            let probe = || Probe::new(Habit::Keep);
            let connect = large.connect(outgoing, &address, &config, FAR, probe());
            let accept = async {
                let incoming = listener.incoming().await.unwrap();
                small.accept(incoming, &config, probe()).await
            };
            let (connected, accepted) = tokio::join!(connect, accept);
            let room = format!(
                "a completion queue of {needed} entries, {needed} in use, has no room for a queue \
                 pair with {needed} entries"
            );
            assert_eq!(accepted.unwrap_err().to_string(), room);
            let refused = connected.unwrap_err().to_string();
            assert!(
                refused.contains(&format!("completion queue of {needed} entries")),
                "{refused}"
            );
            // In the other direction: connecting from a full one.
            let outgoing = schemes::resolve(&address).await.unwrap().outgoing;
            let refused = small.connect(outgoing, &address, &config, FAR, probe()).await;
            assert_eq!(refused.unwrap_err().to_string(), room);
            assert_eq!(small.stats().entries, 1);
        }
    });
}

/// A regression: set-up that outlived its driver reported that there was no such queue pair.
#[test]
fn set_up_without_a_driver_says_so() {
    run("no driver", async {
        let mut listener = schemes::listen(&fresh_address("mem")).await.unwrap();
        let address = listener.local_address();
        let outgoing = schemes::resolve(&address).await.unwrap().outgoing;
        let (client, driver) = driven(outgoing.device());
        let (server, _) = driven(outgoing.device());
        let config = LinkConfig::default();
        let probe = || Probe::new(Habit::Keep);
        let connect = client.connect(outgoing, &address, &config, FAR, probe());
        let accept = async {
            let incoming = listener.incoming().await.unwrap();
            driver.abort();
            assert!(driver.await.unwrap_err().is_cancelled());
            server.accept(incoming, &config, probe()).await
        };
        let (connected, _) = tokio::join!(connect, accept);
        let text = "setting the connection up: the runtime that drove the connection has shut down";
        assert_eq!(connected.unwrap_err().to_string(), text);
        assert_eq!(client.stats().entries, 0);
        let outgoing = schemes::resolve(&address).await.unwrap().outgoing;
        let refused = client.connect(outgoing, &address, &config, FAR, probe()).await;
        let text = "completion queue is dead: the runtime that drove it has shut down";
        assert_eq!(refused.unwrap_err().to_string(), text);
    });
}

/// A regression: a connection that was accepted after the shutdown had nobody to end it. And the
/// caller's error changed once the driver had ended.
#[test]
fn shut_down_shard_takes_no_connection() {
    run("shut down", async {
        let listener = schemes::listen(&fresh_address("mem")).await.unwrap();
        let address = listener.local_address();
        let outgoing = || async { schemes::resolve(&address).await.unwrap().outgoing };
        let (client, driver) = {
            let device = Arc::clone(outgoing().await.device());
            shard(&device, &LinkConfig::default(), 1, PollMode::Event)
        };
        client.shutdown();
        let refused = async || {
            let (outgoing, probe) = (outgoing().await, Probe::new(Habit::Keep));
            client.connect(outgoing, &address, &LinkConfig::default(), FAR, probe).await
        };
        let text = "completion queue is dead: it is being shut down";
        assert_eq!(refused().await.unwrap_err().to_string(), text, "before the driver has ended");
        driver.await;
        assert!(client.is_over());
        assert_eq!(refused().await.unwrap_err().to_string(), text, "after the driver has ended");
    });
}

/// Connections with isolated memory share it with no other connection.
#[test]
fn connections_share_a_domain_unless_they_are_isolated() {
    run("isolation", async {
        for wire in WIRES {
            for isolation in [Isolation::Shared, Isolation::PerConnection] {
                let mut listener = schemes::listen(&fresh_address(wire)).await.unwrap();
                let outgoing = schemes::resolve(&listener.local_address()).await.unwrap().outgoing;
                let config = LinkConfig::default().isolation(isolation);
                let two = |device| {
                    let (shard, driver) = shard(device, &config, 2, PollMode::Event);
                    (shard, tokio::spawn(driver))
                };
                let (client, _) = two(outgoing.device());
                let (server, _) = two(outgoing.device());
                drop(outgoing);
                let options = Options::alike(config.clone());
                let mut domains = Vec::new();
                for _ in 0..2 {
                    let (near, far) = join(&client, &server, &mut *listener, &options).await;
                    near.send(b"isolated");
                    assert_eq!(&*near.next().await, b"isolated");
                    domains.push([near, far].map(|end| end.pools()[0].domain()));
                }
                for (first, second) in domains[0].iter().zip(domains[1]) {
                    assert_eq!(*first == second, isolation == Isolation::Shared, "{wire}");
                }
            }
        }
    });
}

/// A regression: a WR was counted before it was posted. One that the device refused was awaited,
/// and the queue pair was destroyed five seconds later as if its flush were missing.
#[test]
fn refused_send_is_not_awaited() {
    run("refused send", async {
        let (client, driver, faults, server, _listener) = on_faulty_device().await;
        let (gone, is_gone) = std::sync::mpsc::channel();
        Faults::set(&faults.no_sends);
        send(&client, b"head", [0, 1].map(|_| owned(60_000, gone.clone())));
        let text = "the device failed: queue is full (0 work requests) (after 0 posted)";
        assert_eq!(client.cause().await.to_string(), text);
        client.leave().await;
        assert_eq!(client.shard.stats().unflushed, 0, "nothing was posted");
        for _ in 0..2 {
            is_gone.recv().unwrap();
        }
        client.shard.shutdown();
        driver.await.unwrap();
        server.cause().await;
    });
}

/// A regression: a message that the link no longer accepts was dropped under the lock.
#[test]
fn refused_message_is_dropped_outside_the_lock() {
    run("refused message", async {
        for wire in WIRES {
            // Nobody completes the Close in the meantime.
            let (client, server, drivers, _listener) = unspawned(wire, &Options::default()).await;
            let (gone, is_gone) = std::sync::mpsc::channel();
            client.shard.close(client.key, CloseReason::new(CloseCode::Normal, ""));
            send(&client, b"head", [owned(60_000, gone)]);
            is_gone.recv().unwrap();
            assert_eq!(client.events().refused, ["the link is closed"], "{wire}");
            let drivers = drivers.map(tokio::spawn);
            for end in [&client, &server] {
                end.leave().await;
                end.shard.shutdown();
            }
            for driver in drivers {
                driver.await.unwrap();
            }
        }
    });
}
