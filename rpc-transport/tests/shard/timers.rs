//! Deadlines and keep-alive: the one timer of a sleeping driver.

use std::time::Duration;

use rpc_transport::engine::clock;
use rpc_transport::protocol::config::LinkConfig;

use tokio::time::{advance, pause};

use crate::world::{ByHand, Options, Pair, parked, run_on_one_thread, unspawned};

const MILL: Duration = Duration::from_millis(1);
const FAR: Duration = Duration::from_secs(3600);

/// A sleeping driver holds a timer for the earliest deadline that it knew of. An earlier one must
/// wake it, since nothing else will.
#[test]
fn earlier_deadline_wakes_the_driver() {
    run_on_one_thread("deadline", async {
        pause();
        let pair = Pair::new("mem").await;
        for (passed, before) in (1..).zip([None, Some(FAR), Some(FAR / 2)]) {
            if let Some(before) = before {
                pair.client.with(|probe| probe.deadlines.push(clock::now() + before));
            }
            parked(&pair.client.shard).await;
            pair.client.with(|probe| probe.deadlines.push(clock::now() + 5 * MILL));
            pair.client.until(|end| (end.events().timeouts >= passed).then_some(())).await;
        }
        pair.end().await;
    });
}

/// A regression: a far deadline was pushed to the heap again each time that a near one had passed.
#[test]
fn deadlines_do_not_pile_up() {
    run_on_one_thread("pile", async {
        pause();
        let pair = Pair::new("mem").await;
        pair.client.with(|probe| probe.deadlines.push(clock::now() + FAR));
        for passed in 1..=100 {
            pair.client.with(|probe| probe.deadlines.push(clock::now() + MILL / 2));
            pair.client.until(|end| (end.events().timeouts >= passed).then_some(())).await;
            assert_eq!(pair.client.shard.stats().deadlines, 1);
        }
        // Ever earlier deadlines replace each other too.
        for sooner in 1..100 {
            pair.client.with(|probe| probe.deadlines.push(clock::now() + FAR - sooner * MILL));
            assert_eq!(pair.client.shard.stats().deadlines, 1);
        }
        pair.end().await;
    });
}

/// The Pong lies in the queue when a stopped process continues: it is received before the peer's
/// silence is judged.
#[test]
fn local_pause_is_not_the_peers_death() {
    run_on_one_thread("pause", async {
        let silent = LinkConfig::default().keep_alive(None);
        let asking = LinkConfig::default().keep_alive(Some(20 * MILL));
        let asking = asking.keep_alive_timeout(100 * MILL);
        let options = Options { configs: [asking, silent], ..Options::default() };
        for wire in crate::world::WIRES {
            let (client, server, drivers, _listener) = unspawned(wire, &options).await;
            let [mut ours, mut theirs] = drivers.map(ByHand::new);
            pause();
            ours.until_parked(&client.shard);
            let pings = || client.shard.link_metrics(client.key).unwrap().counters.posted.data;
            while pings() == 0 {
                advance(5 * MILL).await;
                ours.until_parked(&client.shard);
            }
            let taken = || server.shard.link_metrics(server.key).unwrap().counters.posted.data;
            while taken() == 0 {
                theirs.until_parked(&server.shard);
            }
            // Stopped for longer than the peer may be silent.
            advance(200 * MILL).await;
            ours.until_parked(&client.shard);
            assert!(client.events().closed.is_empty(), "{wire}: {:?}", client.events().closed);
            tokio::time::resume();
        }
    });
}

/// A Pong brings the next Ping nearer than the remaining patience for the previous one.
#[test]
fn pings_continue_if_patience_exceeds_the_interval() {
    run_on_one_thread("pings", async {
        pause();
        let silent = LinkConfig::default().keep_alive(None);
        let asking = LinkConfig::default().keep_alive(Some(5 * MILL)).keep_alive_timeout(FAR);
        let options = Options { configs: [asking, silent], ..Options::default() };
        let pair = Pair::with("mem", &options).await;
        let client = &pair.client;
        while client.shard.link_metrics(client.key).unwrap().counters.posted.data < 5 {
            tokio::time::sleep(MILL).await;
        }
        pair.end().await;
    });
}

/// A peer that is present but inactive is detected, at the end that asks.
#[test]
fn unanswering_peer_is_declared_dead() {
    run_on_one_thread("silent peer", async {
        pause();
        let silent = LinkConfig::default().keep_alive(None);
        let asking = LinkConfig::default().keep_alive(Some(5 * MILL)).keep_alive_timeout(5 * MILL);
        let options = Options { configs: [asking, silent], ..Options::default() };
        let (client, _server, [ours, _theirs], _listener) = unspawned("mem", &options).await;
        let driver = tokio::spawn(ours);
        let cause = client.cause().await;
        assert_eq!(cause.to_string(), "the peer did not answer a ping within 5ms");
        client.leave().await;
        client.shard.shutdown();
        driver.await.unwrap();
    });
}
