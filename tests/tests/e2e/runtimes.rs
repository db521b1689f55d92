//! Runtimes: every flavour, calls from other ones, blocking clients, and a runtime that shuts down.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use rpc_core::interceptor::{ClientInterceptor, Outbound};
use rpc_core::transport::WhenFull;
use rpc_core::{CallError, Code, PollMode, Status};
use tests::limit::{self, Watchdog};
use tests::probe::{Mark, ProbeBlockingClient, ProbeClient, ProbeError};
use tests::scheme::Scheme;
use tests::world::World;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::coop;

use crate::SERVER;

const SCHEMES: [Scheme; 4] = [Scheme::ShmName, Scheme::ShmPath, Scheme::Tcp, Scheme::Auto];

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// A server process, and the runtime that watches it.
fn server(scheme: Scheme, options: &[&str]) -> (Runtime, World) {
    let runtime = multi_thread();
    let world = limit::block_on(&runtime, World::start_with(SERVER, scheme, options));
    (runtime, world)
}

async fn connect(address: &str) -> ProbeClient {
    let builder = tests::device::channel().poll_mode(PollMode::Event);
    ProbeClient::new(builder.connect(address).await.expect("the server is up"))
}

/// Calls of each kind.
async fn calls(address: &str) {
    let client = connect(address).await;
    for a in 0..50 {
        assert_eq!(client.add(a, 1).await, Ok(a + 1));
    }
    let sums = (0..200).map(|a| client.add_slowly(a, 2, 2));
    let sums = futures::future::join_all(sums).await;
    assert!((0..).zip(sums).all(|(a, sum)| sum == Ok(a + 2)));
    assert_eq!(client.echo(&[7; 100_000]).await, Ok(vec![7; 100_000]));
    let late = client.hold(1).timeout(std::time::Duration::from_millis(50)).await;
    assert_eq!(late.expect_err("held").code(), Code::DeadlineExceeded);
}

#[test]
fn a_client_on_one_thread() {
    for scheme in SCHEMES {
        limit::run_single(async {
            let world = World::start(SERVER, scheme).await;
            calls(&world.address).await;
        });
    }
}

#[test]
fn a_server_on_one_thread() {
    for scheme in SCHEMES {
        limit::run(async {
            let world = World::start_with(SERVER, scheme, &["--workers", "0"]).await;
            calls(&world.address).await;
        });
    }
}

#[test]
fn client_and_server_on_the_same_single_thread() {
    limit::run_single(async {
        let world = World::start(SERVER, Scheme::Mem).await;
        calls(&world.address).await;
    });
}

#[test]
fn calls_work_from_another_runtime() {
    let _watchdog = Watchdog::within(limit::LIMIT);
    for scheme in SCHEMES {
        let (home, world) = server(scheme, &[]);
        let client = limit::block_on(&home, connect(&world.address));
        // Without I/O and time: the call needs neither here.
        let elsewhere = Builder::new_current_thread().build().expect("a runtime");
        for a in 0..50 {
            assert_eq!(elsewhere.block_on(async { client.add(a, 1).await }), Ok(a + 1));
        }
        let threads: Vec<_> = (0..4_u64)
            .map(|thread| {
                let client = client.clone();
                std::thread::spawn(move || {
                    let own = Builder::new_current_thread().build().expect("a runtime");
                    (0..100).all(|a| own.block_on(client.add(a, thread).start()) == Ok(a + thread))
                })
            })
            .collect();
        for thread in threads {
            assert!(thread.join().expect("no panic"));
        }
        let _inside = home.enter();
        drop(world);
    }
}

/// Polls by hand, without any runtime.
#[test]
fn calls_work_without_any_runtime_at_the_caller() {
    let _watchdog = Watchdog::within(limit::LIMIT);
    let (home, world) = server(Scheme::Tcp, &[]);
    let client = limit::block_on(&home, connect(&world.address));
    for a in 0..50 {
        assert_eq!(park_on(client.add(a, 1)), Ok(a + 1));
        assert_eq!(park_on(client.add_slowly(a, 1, 2).start()), Ok(a + 1));
    }
    let _inside = home.enter();
    drop(world);
}

fn park_on<F: Future + Unpin>(mut future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut cx = std::task::Context::from_waker(&waker);
    loop {
        match std::pin::Pin::new(&mut future).poll(&mut cx) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn calls_end_with_their_drivers_runtime() {
    let _watchdog = Watchdog::within(limit::LIMIT);
    for scheme in SCHEMES {
        let (home, world) = server(scheme, &[]);
        let short_lived = multi_thread();
        let client = limit::block_on(&short_lived, connect(&world.address));
        let witness = limit::block_on(&home, connect(&world.address));
        let calls: Vec<_> = (0..20).map(|_| client.hold(1).start()).collect();
        let started = witness.wait_for(1, Mark::Started, 20);
        assert_eq!(limit::block_on(&home, started), Ok(20));
        let waiting: Vec<_> = calls.into_iter().map(|call| home.spawn(call)).collect();
        drop(short_lived);
        limit::block_on(&home, async {
            for call in waiting {
                let status = call.await.expect("no panic").expect_err("nobody drives it");
                assert_eq!(status.code(), Code::Unavailable, "{status}");
                assert!(status.message().contains("runtime"), "{status}");
            }
            // The server has noticed. New calls make a connection in their own runtime.
            assert_eq!(client.add(1, 1).await, Ok(2));
            assert!(client.channel().close_cause().is_none());
            assert_eq!(witness.wait_for(1, Mark::Cancelled, 20).await, Ok(20));
            drop((client, witness, world));
        });
    }
}

#[test]
fn a_servers_runtime_end_ends_calls() {
    let _watchdog = Watchdog::within(limit::LIMIT);
    let (home, short_lived) = (multi_thread(), multi_thread());
    let world = limit::block_on(&short_lived, World::start(SERVER, Scheme::Mem));
    let client = limit::block_on(&home, connect(&world.address));
    let held = client.hold(1).start();
    limit::block_on(&home, client.wait_for(1, Mark::Started, 1)).expect("the server answers");
    drop(short_lived);
    let status = limit::block_on(&home, held).expect_err("the server is gone");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

#[test]
fn a_blocking_client_calls_without_a_runtime() {
    let _watchdog = Watchdog::within(limit::LIMIT);
    for scheme in SCHEMES {
        let (home, world) = server(scheme, &[]);
        let client = ProbeBlockingClient::connect(&world.address).expect("the server is up");
        assert_eq!(client.add(1, 2), Ok(3));
        assert_eq!(client.echo(&[7; 50_000]), Ok(vec![7; 50_000]));
        assert_eq!(client.divide(1, 0), Err(CallError::User(ProbeError::DivisionByZero)));
        let threads: Vec<_> = (0..4_u64)
            .map(|thread| {
                let client = client.clone();
                std::thread::spawn(move || (0..50).all(|a| client.add(a, thread) == Ok(a + thread)))
            })
            .collect();
        for thread in threads {
            assert!(thread.join().expect("no panic"));
        }
        let _inside = home.enter();
        drop(world);
    }
}

/// The text of a panic.
fn panic_text<R>(body: impl FnOnce() -> R) -> String {
    let panic = catch_unwind(AssertUnwindSafe(body)).err().expect("it panics");
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).expect("a text")
}

#[test]
fn a_blocking_client_inside_a_runtime_says_so() {
    let _watchdog = Watchdog::within(limit::LIMIT);
    let (home, world) = server(Scheme::Tcp, &[]);
    let client = ProbeBlockingClient::connect(&world.address).expect("the server is up");
    let check = |text: &str| {
        for word in ["blocking", "async runtime", "spawn_blocking"] {
            assert!(text.contains(word), "`{text}` lacks `{word}`");
        }
    };
    for runtime in [&home, &Builder::new_current_thread().enable_all().build().expect("one")] {
        check(&runtime.block_on(async { panic_text(|| client.add(1, 1)) }));
        let connect = || ProbeBlockingClient::connect(&world.address);
        check(&runtime.block_on(async { panic_text(connect) }));
    }
    // Where blocking is allowed, it works.
    let allowed = client.clone();
    let sum = limit::block_on(&home, async {
        tokio::task::spawn_blocking(move || allowed.add(1, 1)).await.expect("no panic")
    });
    assert_eq!(sum, Ok(2));
    assert_eq!(client.add(2, 2), Ok(4));
    let _inside = home.enter();
    drop(world);
}

/// Without unwinding only the first panic is ever seen, so the first one has to be the helpful one.
#[test]
fn a_blocking_client_inside_a_runtime_panics_once() {
    thread_local! {
        static PANICS: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let _watchdog = Watchdog::start("a blocking client in a runtime");
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.with_borrow_mut(|panics| panics.push(info.to_string()));
        before(info);
    }));
    let single = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let connect = || ProbeBlockingClient::connect("shm://nobody");
    single.block_on(async { panic_text(connect) });
    single.block_on(async {
        tokio::spawn(async move { panic_text(connect) }).await.expect("caught")
    });
    let seen = PANICS.take();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen.iter().all(|text| text.contains("a blocking RPC client was used")), "{seen:?}");
    // Here blocking is allowed.
    let home = multi_thread();
    assert!(
        limit::block_on(&home, async {
            tokio::spawn(async move { tokio::task::block_in_place(connect) })
                .await
                .expect("no panic")
        })
        .is_err()
    );
    let _inside = home.enter();
    assert!(connect().is_err());
}

#[test]
fn a_killed_servers_blocking_client_fails() {
    let _watchdog = Watchdog::within(limit::LIMIT);
    let (home, mut world) = server(Scheme::ShmName, &[]);
    let client = ProbeBlockingClient::connect(&world.address).expect("the server is up");
    let caller = {
        let client = client.clone();
        std::thread::spawn(move || client.hold(1))
    };
    assert_eq!(client.wait_for(1, Mark::Started, 1), Ok(1));
    limit::block_on(&home, world.process().kill());
    let status = caller.join().expect("no panic").expect_err("the server is dead");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let _inside = home.enter();
    drop(world);
}

/// Number of calls that a task makes before another task of its thread gets a turn.
async fn calls_before_others<F: Future>(mut call: impl FnMut() -> F) -> usize {
    const MANY: usize = 10_000;
    let other = tokio::spawn(async {});
    for calls in 1..=MANY {
        call().await;
        if other.is_finished() {
            return calls;
        }
    }
    panic!("{MANY} calls, and no other task was polled");
}

/// Refuses all calls.
struct Refuse;

impl ClientInterceptor for Refuse {
    fn before(&self, _: &mut Outbound<'_>) -> Result<(), Status> {
        Err(Status::failed_precondition("not from here"))
    }
}

/// A loop of retries must not starve the task that would make it succeed.
#[test]
fn immediately_failing_calls_yield_their_thread() {
    limit::run_single(async {
        let world = World::start(SERVER, Scheme::Mem).await;
        let client = connect(&world.address).await;
        let refusing = tests::device::channel().interceptor(Refuse);
        let refusing = ProbeClient::new(refusing.connect(&world.address).await.expect("it is up"));
        let nobody = tests::device::channel().connect_lazy("mem://nobody").expect("an address");
        let nobody = ProbeClient::new(nobody);
        calls_before_others(|| client.add(1, 1).metadata("rpc-mine", "1")).await;
        calls_before_others(|| client.add(1, 1).deadline(std::time::Instant::now())).await;
        calls_before_others(|| refusing.add(1, 1)).await;
        calls_before_others(|| nobody.add(1, 1).wait_for_ready(false)).await;
        drop(world);
        client.channel().closed().await;
        calls_before_others(|| client.add(1, 1)).await;
    });
}

/// Polls once, when the task has used up its budget.
async fn poll_after_the_turn<F: Future>(mut call: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| {
        while let Poll::Ready(turn) = coop::poll_proceed(cx) {
            turn.made_progress();
        }
        Poll::Ready(call.as_mut().poll(cx))
    })
    .await
}

/// So tasks that get the thread in the meantime find a call in flight, and do not wait for their
/// own turn.
#[test]
fn a_task_without_budget_still_sends() {
    limit::run(async {
        let world = World::start(SERVER, Scheme::Mem).await;
        let (client, witness) = (connect(&world.address).await, connect(&world.address).await);
        let mut held = std::pin::pin!(client.hold(1));
        assert!(poll_after_the_turn(held.as_mut()).await.is_pending());
        assert_eq!(witness.wait_for(1, Mark::Started, 1).await, Ok(1));
    });
}

/// Number of polls of a task that waits for a call, until its thread polls its sockets.
#[test]
fn a_busy_caller_lets_sockets_be_polled() {
    const MOST_POLLS: u32 = 8;
    limit::run_single(async {
        let world = World::start(SERVER, Scheme::ShmName).await;
        let witness = connect(&world.address).await;
        let busy = tests::device::channel().poll_mode(PollMode::Busy).connect(&world.address);
        let client = ProbeClient::new(busy.await.expect("the server is up"));
        let polls = Arc::new(AtomicU32::new(0));
        let mut held = client.hold(1).start();
        let caller = tokio::spawn(poll_fn({
            let polls = Arc::clone(&polls);
            move |cx| {
                polls.fetch_add(1, Ordering::Relaxed);
                Pin::new(&mut held).poll(cx)
            }
        }));
        assert_eq!(witness.wait_for(1, Mark::Started, 1).await, Ok(1));
        let (near, far) = UnixStream::pair().expect("two sockets");
        for _ in 0..20 {
            assert_eq!(near.try_write(&[7]).ok(), Some(1));
            let before = polls.load(Ordering::Relaxed);
            far.readable().await.expect("a socket");
            assert_eq!(far.try_read(&mut [0]).ok(), Some(1));
            let meanwhile = polls.load(Ordering::Relaxed) - before;
            assert!(meanwhile <= MOST_POLLS, "{meanwhile}");
        }
        let before = polls.load(Ordering::Relaxed);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(polls.load(Ordering::Relaxed) - before >= 5, "it leads");
        caller.abort();
    });
}

/// A regression: it left when its task had used up its budget, and so before there was room.
#[test]
fn a_call_refused_for_room_leaves_later() {
    limit::run(async {
        let world = World::start(SERVER, Scheme::Mem).await;
        let witness = connect(&world.address).await;
        let narrow = tests::device::channel().max_calls(1).when_full(WhenFull::Refuse);
        let narrow = narrow.poll_mode(PollMode::Event).connect(&world.address).await;
        let client = ProbeClient::new(narrow.expect("the server is up"));
        let held = client.hold(1).start();
        assert_eq!(witness.wait_for(1, Mark::Started, 1).await, Ok(1));
        let mut next = std::pin::pin!(client.add(1, 1));
        assert!(poll_after_the_turn(next.as_mut()).await.is_pending());
        drop(held);
        while client.add(2, 2).await.is_err() {
            tokio::task::yield_now().await;
        }
        assert_eq!(next.await, Ok(2));
    });
}
