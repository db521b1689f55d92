//! How connections end: in order, by a peer that vanishes, by a runtime that shuts down.

use rpc_transport::connect::schemes;
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::protocol::config::LinkConfig;

use crate::probe::Habit;
use crate::world::{
    Options, Pair, WIRES, assert_home, fresh_address, join, parked, run, shard, unspawned,
};

/// A regression: a Close that the peer's device does not accept, or that waits behind messages
/// which the peer never takes, kept the connection and its driver for ever.
#[test]
fn orderly_close_ends_despite_an_inactive_peer() {
    run("close", async {
        for messages in [0, 200] {
            let options = Options::default();
            let (client, _server, [ours, _theirs], _listener) = unspawned("mem", &options).await;
            let driver = tokio::spawn(ours);
            for _ in 0..messages {
                client.send(b"nobody takes it");
            }
            client.leave().await;
            assert_eq!(client.events().closed[0].to_string(), "the connection was closed");
            client.shard.shutdown();
            driver.await.unwrap();
            assert_eq!(client.shard.stats().unflushed, 0);
        }
    });
}

/// The rest of a large message is sent before the Close, however long that takes.
#[test]
fn orderly_close_waits_for_a_slow_peer() {
    run("slow", async {
        for wire in WIRES {
            let config = LinkConfig::default().data_credits(2).keep_alive(None);
            let habits = [Habit::Keep, Habit::Count];
            let pair = Pair::with(wire, &Options { habits, ..Options::alike(config) }).await;
            pair.client.send(&vec![7; 30 << 20]);
            pair.client.shard.release(pair.client.key);
            let cause = pair.server.cause().await;
            assert_eq!(cause.to_string(), "the peer closed the connection: Normal");
            assert_eq!(pair.server.events().received, 1);
            pair.end().await;
        }
    });
}

/// The last connection of a shard that was shut down may leave while its driver sleeps: the driver
/// must wake for it, to end.
#[test]
fn driver_ends_with_the_last_handle() {
    run("last handle", async {
        let pair = Pair::new("mem").await;
        pair.server.shard.fail(pair.server.key, &CloseCause::Local);
        assert_eq!(pair.client.cause().await.to_string(), "the peer is gone");
        pair.client.gone().await;
        pair.client.shard.shutdown();
        parked(&pair.client.shard).await;
        assert_eq!(pair.client.shard.stats().entries, 1);
        pair.client.shard.release(pair.client.key);
        let [ours, _theirs] = pair.drivers;
        ours.await.unwrap();
    });
}

/// The runtime of one end shuts down: its connections end, and waiting tasks are notified.
#[test]
fn a_driver_that_is_dropped_tells_everybody() {
    run("dropped", async {
        for wire in WIRES {
            let Pair { client, server, drivers: [ours, theirs], .. } = Pair::new(wire).await;
            let pools = client.pools();
            let waiting = client.cause();
            ours.abort();
            let text = "the runtime that drove the connection has shut down";
            assert_eq!(waiting.await.to_string(), text);
            client.gone().await;
            assert_home(&pools);
            assert_eq!(server.cause().await.to_string(), "the peer is gone");
            server.gone().await;
            client.shard.release(client.key);
            for shard in [&client.shard, &server.shard] {
                shard.shutdown();
                assert_eq!(shard.stats().entries, 0);
            }
            theirs.await.unwrap();
        }
    });
}

/// Half of a message is not delivered.
#[test]
fn peer_vanishing_mid_message_ends_the_connection() {
    run("middle", async {
        for wire in WIRES {
            let habits = [Habit::Keep, Habit::Count];
            let pair = Pair::with(wire, &Options { habits, ..Options::default() }).await;
            pair.client.send(&vec![7; 40 << 20]);
            let (shard, key) = (&pair.server.shard, pair.server.key);
            while shard.link_metrics(key).unwrap().assembly_bytes == 0 {
                tokio::task::yield_now().await;
            }
            pair.client.shard.fail(pair.client.key, &CloseCause::Local);
            assert_eq!(pair.server.cause().await.to_string(), "the peer is gone");
            assert_eq!(pair.server.events().received, 0);
            pair.end().await;
        }
    });
}

/// Two connections of two shards: the end of one does not affect the other.
#[test]
fn failing_connection_leaves_a_busy_one_alone() {
    run("beside", async {
        for wire in WIRES {
            let mut listener = schemes::listen(&fresh_address(wire)).await.unwrap();
            let resolved = schemes::resolve(&listener.local_address()).await.unwrap();
            let options = Options::default();
            let shards = [0, 1]
                .map(|_| shard(resolved.outgoing.device(), &options.configs[0], 40, options.mode));
            let [(client, ours), (server, theirs)] = shards;
            let drivers = [ours, theirs].map(tokio::spawn);
            let (busy, _) = join(&client, &server, &mut *listener, &options).await;
            for round in 0..30_u8 {
                let (near, far) = join(&client, &server, &mut *listener, &options).await;
                near.send(&[round; 3000]);
                assert_eq!(*near.next().await, [round; 3000]);
                busy.send(&[round; 5000]);
                let (one, other) = if round % 2 == 0 { (&near, &far) } else { (&far, &near) };
                one.shard.fail(one.key, &CloseCause::Local);
                assert_eq!(other.cause().await.to_string(), "the peer is gone");
                near.leave().await;
                far.gone().await;
                assert_eq!(*busy.next().await, [round; 5000]);
                assert_eq!((client.connection_count(), server.connection_count()), (1, 1));
            }
            assert!(busy.events().closed.is_empty());
            client.shutdown_now();
            server.shutdown_now();
            busy.gone().await;
            client.release(busy.key);
            for driver in drivers {
                driver.await.unwrap();
            }
        }
    });
}

/// A regression: WRs posted before user code runs must have left by then, but their doorbell waited
/// for the next round, and the peer slept as long as the user code ran.
#[test]
fn posted_sends_do_not_wait_for_user_code() {
    run("user code", async {
        for wire in WIRES {
            // A runtime of its own, since a blocked thread may be the one that watches descriptors.
            let blocked = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            let mut listener = schemes::listen(&fresh_address(wire)).await.unwrap();
            let resolved = schemes::resolve(&listener.local_address()).await.unwrap();
            let (device, options) = (resolved.outgoing.device(), Options::default());
            let (client, ours) = shard(device, &options.configs[0], 1, options.mode);
            let (server, theirs) = {
                let _inside = blocked.enter();
                shard(device, &options.configs[1], 1, options.mode)
            };
            let (ours, theirs) = (tokio::spawn(ours), blocked.spawn(theirs));
            let (near, far) = join(&client, &server, &mut *listener, &options).await;
            parked(&client).await;
            let (go_on, goes_on) = std::sync::mpsc::channel();
            far.with(|probe| probe.blocks_next = Some(Box::new(move || goes_on.recv().unwrap())));
            near.send(b"echo this, then block");
            assert_eq!(*near.next().await, *b"echo this, then block");
            go_on.send(()).unwrap();
            near.leave().await;
            far.gone().await;
            client.shutdown();
            server.shutdown();
            ours.await.unwrap();
            theirs.await.unwrap();
            blocked.shutdown_background();
        }
    });
}
