//! How connections end: in order, by a peer that vanishes, by a runtime that goes away.

use rpc_transport::config::LinkConfig;
use rpc_transport::error::CloseCause;

use crate::probe::Habit;
use crate::world::{Options, Pair, WIRES, parked, run, unspawned};

/// A Close that the peer's device does not accept, or that waits behind messages which the peer
/// takes none of, kept the connection and its driver for ever.
#[test]
fn an_orderly_close_ends_at_a_peer_that_does_nothing_any_more() {
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
            assert_eq!(client.shard.holdings().unflushed, 0);
        }
    });
}

/// What is left of a large message goes out before the Close, however long that takes.
#[test]
fn an_orderly_close_waits_for_a_peer_that_is_slow() {
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

/// The last connection of a shard that was shut down may leave when its driver sleeps: the driver
/// must hear of it, to end.
#[test]
fn a_driver_ends_when_the_last_handle_is_given_up() {
    run("last handle", async {
        let pair = Pair::new("mem").await;
        pair.server.shard.fail(pair.server.key, &CloseCause::Local);
        assert_eq!(pair.client.cause().await.to_string(), "the peer is gone");
        pair.client.gone().await;
        pair.client.shard.shutdown();
        parked(&pair.client.shard).await;
        assert_eq!(pair.client.shard.holdings().entries, 1);
        pair.client.shard.release(pair.client.key);
        let [ours, _theirs] = pair.drivers;
        ours.await.unwrap();
    });
}
