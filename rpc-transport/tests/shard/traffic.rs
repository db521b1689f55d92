//! Messages of all sizes, both ways, after which every buffer is returned.

use rpc_transport::engine::spin::PollMode;
use rpc_transport::protocol::config::LinkConfig;

use crate::probe::Habit;
use crate::random::{PrintSeed, Random, variable};
use crate::world::{Options, Pair, WIRES, assert_home, pattern, run};

/// A length from 0 to 1 MiB, most of them small.
fn length(random: &mut Random) -> usize {
    let limit = random.pick(&[65, 65, 1025, 1025, 9000, 9000, 70_000, (1 << 20) + 1]);
    random.below(limit) as usize
}

/// Thousands of messages in both directions, a few in flight at a time.
async fn echo_all(wire: &str, mode: PollMode, count: u64) {
    let seed = variable("MODEL_SEED").unwrap_or(7);
    let _print = PrintSeed::new(seed);
    let mut random = Random::new(seed);
    let pair = Pair::with(wire, &Options { mode, ..Options::default() }).await;
    let (mut sent, mut done) = (0, 0);
    let mut waiting = std::collections::HashMap::new();
    while done < count {
        while sent < count && sent - done < 24 {
            let len = length(&mut random);
            // The first bytes name the message: lanes overtake each other.
            let mut bytes = pattern(sent, len);
            bytes.splice(0..0, sent.to_le_bytes());
            pair.client.send(&bytes);
            waiting.insert(sent, len);
            sent += 1;
        }
        let message = pair.client.next().await;
        let number = u64::from_le_bytes(message[..8].try_into().unwrap());
        let len = waiting.remove(&number).expect("each message comes back once");
        assert_eq!(message[8..], pattern(number, len)[..], "message {number} of {len} bytes");
        done += 1;
    }
    pair.end().await;
}

#[test]
fn messages_of_all_sizes_come_back_over_mem() {
    run("mem", echo_all("mem", PollMode::Adaptive, 4000));
}

#[test]
fn messages_of_all_sizes_come_back_over_shm() {
    run("shm", echo_all("shm", PollMode::Adaptive, 4000));
}

#[test]
fn messages_of_all_sizes_come_back_over_tcp() {
    run("tcp", echo_all("tcp", PollMode::Adaptive, 2000));
}

#[test]
fn messages_of_all_sizes_return_in_event_mode() {
    run("event", async {
        for wire in WIRES {
            echo_all(wire, PollMode::Event, 600).await;
        }
    });
}

#[test]
fn messages_of_all_sizes_return_in_busy_mode() {
    run("busy", async {
        for wire in WIRES {
            echo_all(wire, PollMode::Busy, 300).await;
        }
    });
}

/// A message without bytes is delivered.
#[test]
fn an_empty_message_arrives() {
    run("empty", async {
        for wire in WIRES {
            let pair = Pair::new(wire).await;
            pair.client.send(b"");
            assert_eq!(pair.client.next().await.len(), 0);
            pair.end().await;
        }
    });
}

/// Every hand-off of the sleeping driver, thousands of times: a lost wake-up hangs.
#[test]
fn thousands_of_ping_pongs_lose_no_wakeup() {
    run("ping-pong", async {
        for wire in WIRES {
            let pair = Pair::new(wire).await;
            for round in 0..3000_u64 {
                pair.client.send(&round.to_le_bytes());
                assert_eq!(*pair.client.next().await, round.to_le_bytes());
            }
            pair.end().await;
        }
    });
}

/// One way only: acks, and idle acks when both ends sleep, are the only source of credits.
#[test]
fn one_way_stream_never_runs_out_of_credits() {
    run("one way", async {
        for wire in WIRES {
            for window in [1, 2, 3, 8] {
                let config = LinkConfig::default().data_credits(window).keep_alive(None);
                let habits = [Habit::Keep, Habit::Count];
                let options = Options { habits, ..Options::alike(config) };
                let pair = Pair::with(wire, &options).await;
                for burst in 1..=200_u64 {
                    for _ in 0..5 {
                        pair.client.send(b"one way");
                    }
                    pair.server.received(burst * 5).await;
                }
                pair.end().await;
            }
        }
    });
}

/// Lent buffers come out of the spare ones only: with all of them held for ever, messages are
/// copied and the window stays posted.
#[test]
fn lent_buffers_never_starve_the_ring() {
    run("lent", async {
        for wire in WIRES {
            let options = Options { habits: [Habit::Keep, Habit::Keep], ..Options::default() };
            let pair = Pair::with(wire, &options).await;
            let mut held = Vec::new();
            for number in 0..300 {
                pair.client.send(&pattern(number, 4000));
                held.push(pair.server.next().await);
            }
            let lent = held.iter().filter(|message| message.is_lent()).count();
            assert!(lent > 0 && lent < held.len(), "{lent} of {} are lent", held.len());
            for (number, message) in (0..).zip(&held) {
                assert_eq!(**message, pattern(number, 4000)[..], "nobody wrote into it");
            }
            // Held buffers survive their connection.
            let pools = pair.server.pools();
            pair.client.shard.release(pair.client.key);
            pair.client.gone().await;
            pair.server.cause().await;
            pair.server.gone().await;
            let free = pools[0].free_count();
            assert_eq!(free + lent, pools[0].count() as usize);
            assert_eq!(*held[0], pattern(0, 4000)[..]);
            drop(held);
            assert_home(&pools);
            pair.server.shard.release(pair.server.key);
        }
    });
}

/// Messages queued before an orderly close are delivered, whatever their size.
#[test]
fn an_orderly_close_sends_what_is_queued() {
    run("close", async {
        for wire in WIRES {
            let options = Options { habits: [Habit::Keep, Habit::Count], ..Options::default() };
            let pair = Pair::with(wire, &options).await;
            pair.client.with(|probe| {
                for number in 0..500 {
                    probe.send(&pattern(number, if number % 50 == 7 { 100_000 } else { 40 }));
                }
            });
            pair.client.shard.release(pair.client.key);
            let cause = pair.server.cause().await;
            assert_eq!(cause.to_string(), "the peer closed the connection: Normal");
            assert_eq!(pair.server.events().received, 500);
            pair.end().await;
        }
    });
}
