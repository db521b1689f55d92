//! Time is tokio's: a test may pause it. And a driver without work yields its thread to other tasks
//! between any two of its polls.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rpc_transport::connect::schemes;
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::engine::clock;
use rpc_transport::engine::spin::PollMode;
use rpc_transport::protocol::config::LinkConfig;
use tokio::task::{LocalSet, yield_now};
use tokio::time::{Instant, advance, pause, sleep, timeout};

use crate::world::{
    ByHand, Options, Pair, ProbeDriver, WIRES, fresh_address, join, pattern, run_on_one_thread,
    shard, unspawned,
};

const HOUR: Duration = Duration::from_secs(3600);
const MODES: [PollMode; 2] = [PollMode::Adaptive, PollMode::Event];

/// A driver that counts its polls.
struct Counted {
    driver: Pin<Box<ProbeDriver>>,
    polls: Arc<AtomicU32>,
}

impl Counted {
    fn spawn(driver: ProbeDriver) -> Arc<AtomicU32> {
        let polls = Arc::<AtomicU32>::default();
        tokio::spawn(Self { driver: Box::pin(driver), polls: Arc::clone(&polls) });
        polls
    }
}

impl Future for Counted {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.driver.as_mut().poll(cx)
    }
}

/// A regression: after the first keep-alive in virtual time, it hung and spun.
#[test]
fn idle_pair_lives_an_hour_of_virtual_time() {
    for wire in WIRES {
        run_on_one_thread("idle hour", async {
            let options = Options::alike(LinkConfig::default());
            let (client, server, drivers, _listener) = unspawned(wire, &options).await;
            pause();
            let polls = drivers.map(Counted::spawn);
            sleep(HOUR).await;
            for end in [&client, &server] {
                assert!(end.events().closed.is_empty(), "{wire}: {:?}", end.events().closed);
            }
            // Some 240 pings, each of which wakes an end a few times.
            for polls in &polls {
                let polls = polls.load(Ordering::Relaxed);
                assert!(polls < 240 * 40, "{wire}: {polls} polls");
            }
        });
    }
}

#[test]
fn deadline_takes_exactly_its_virtual_time() {
    for mode in MODES {
        run_on_one_thread("deadline", async move {
            let pair = Pair::with("mem", &Options { mode, ..Options::default() }).await;
            pause();
            let began = Instant::now();
            pair.client.with(|probe| probe.deadlines.push(clock::now() + HOUR));
            pair.client.until(|end| (end.events().timeouts >= 1).then_some(())).await;
            let late = began.elapsed() - HOUR;
            assert!(late < Duration::from_millis(5), "{late:?}");
            pair.end().await;
        });
    }
}

/// A paused clock jumps to the next timer when every task sleeps: a message between two tasks has
/// to wake the receiver before that.
#[test]
fn paused_clock_stands_while_messages_are_pending() {
    for wire in WIRES {
        for mode in MODES {
            run_on_one_thread("echo", async move {
                let pair = Pair::with(wire, &Options { mode, ..Options::default() }).await;
                pause();
                let began = Instant::now();
                let echo = async move {
                    for len in (0..200).map(|count| 1 + count * 37) {
                        pair.client.send(&pattern(1, len));
                        let echo = timeout(HOUR, pair.client.next()).await;
                        assert_eq!(echo.expect("the clock jumped").len(), len);
                        // Now and then every task sleeps in between.
                        sleep(Duration::from_secs(u64::from(len % 10 == 0))).await;
                    }
                    pair
                };
                let pair = tokio::spawn(echo).await.unwrap();
                let seconds = (0..200).filter(|count| (1 + count * 37) % 10 == 0).count();
                assert_eq!(began.elapsed().as_secs(), seconds as u64, "{wire}, {mode:?}");
                pair.end().await;
            });
        }
    }
}

/// Polls of two busy drivers while `others` has `TURNS` turns of its own.
async fn polls_beside<F: Future<Output = ()>>(others: impl FnOnce() -> F) -> u32 {
    let options = Options { mode: PollMode::Busy, ..Options::default() };
    let (_client, _server, drivers, _listener) = unspawned("mem", &options).await;
    let polls = drivers.map(Counted::spawn);
    yield_now().await;
    let count = || polls.iter().map(|polls| polls.load(Ordering::Relaxed)).sum::<u32>();
    let before = count();
    others().await;
    count() - before
}

const TURNS: u32 = 500;

async fn take_turns() {
    for _ in 0..TURNS {
        yield_now().await;
    }
}

/// Two busy drivers share a thread with the main future, with tasks, and with a `LocalSet`: none
/// gets many polls for one of another.
#[test]
fn busy_drivers_yield_the_thread_between_polls() {
    run_on_one_thread("turns", async {
        let main = polls_beside(take_turns).await;
        let task = polls_beside(|| async { tokio::spawn(take_turns()).await.unwrap() }).await;
        let local = polls_beside(|| async {
            let set = LocalSet::new();
            let task = set.spawn_local(take_turns());
            set.await;
            task.await.unwrap();
        })
        .await;
        for (what, polls) in [("main future", main), ("task", task), ("LocalSet", local)] {
            assert!(polls < 8 * TURNS, "{what}: {polls} polls of the drivers for {TURNS} turns");
        }
    });
}

/// A connection that a process finds lost after it was stopped is attributed to its own silence.
#[test]
fn stalled_end_reports_itself_with_the_lost_peer() {
    for wire in WIRES {
        run_on_one_thread("own silence", async {
            let options = Options::alike(LinkConfig::default());
            let (client, server, [ours, theirs], _listener) = unspawned(wire, &options).await;
            let mut ours = ByHand::new(ours);
            ours.until_parked(&client.shard);
            pause();
            // Stopped; the peer gives up and leaves in the meantime.
            advance(Duration::from_secs(40)).await;
            drop(theirs);
            drop(server);
            while client.events().closed.is_empty() {
                let _ = ours.poll();
            }
            let cause = client.events().closed[0].clone();
            assert!(matches!(cause, CloseCause::OwnSilence(_)), "{wire}: {cause}");
            assert!(cause.to_string().contains("did not run for 25"), "{wire}: {cause}");
        });
    }
}

/// Fifty microseconds of a handler's CPU time.
fn work() {
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_micros(50) {
        std::hint::spin_loop();
    }
}

/// A regression: a connection that was quiet for long is polled by time. It was polled once in 256
/// polls, each of which gave the busy connections 64 messages to process.
#[test]
fn busy_connection_does_not_delay_a_quiet_one() {
    run_on_one_thread("cold", async {
        let options = Options { mode: PollMode::Busy, ..Options::default() };
        let mut listener = schemes::listen(&fresh_address("mem")).await.unwrap();
        let resolved = schemes::resolve(&listener.local_address()).await.unwrap();
        let device = Arc::clone(resolved.outgoing.device());
        drop(resolved);
        let (near, near_driver) = shard(&device, &options.configs[0], 2, options.mode);
        let (far, far_driver) = shard(&device, &options.configs[1], 2, options.mode);
        let (hot, served) = join(&near, &far, &mut *listener, &options).await;
        let (cold, waiting) = join(&near, &far, &mut *listener, &options).await;
        served.with(|probe| probe.works = Some(work));
        let [mut ours, mut theirs] = [near_driver, far_driver].map(ByHand::new);
        // Quiet for so long that not every poll visits it.
        for _ in 0..2000 {
            let _ = (ours.poll(), theirs.poll());
        }
        let mut in_flight = 0;
        let mut keep_busy = |ours: &mut ByHand| {
            let done = hot.events().received;
            while in_flight < done + 48 {
                hot.send(b"work");
                in_flight += 1;
            }
            let _ = ours.poll();
        };
        while served.events().received < 100 {
            keep_busy(&mut ours);
            let _ = theirs.poll();
        }
        cold.send(b"at last");
        let before = served.events().received;
        while waiting.events().received == 0 {
            keep_busy(&mut ours);
            let _ = theirs.poll();
        }
        let passed = served.events().received - before;
        assert!(passed < 160, "{passed} messages of the busy connection went first");
    });
}
