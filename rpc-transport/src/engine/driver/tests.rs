//! Turns of a driver, one by one, where its peer needs the core.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::task::{Wake, Waker};
use std::time::Duration;

use super::*;
use crate::engine::poll::yield_core::PEER;
use crate::engine::shard::Waited;
use crate::engine::shard::tests::{Simple, pair, send, send_and_wait, tcp_pair};

/// Does nothing. Each action counts as one that woke a task.
struct Nothing;

impl Executor<Simple> for Nothing {
    fn execute(&mut self, _: ConnectionKey, _: Option<Waker>) -> bool {
        true
    }

    fn discard(&mut self, _: Option<Waker>) {}

    fn apply(&mut self, _: &mut State<Simple>) {}

    fn has_results(&self) -> bool {
        false
    }
}

/// A client with its driver, which shares its core with the server, and the server.
struct World {
    client: Arc<Shard<Simple>>,
    key: ConnectionKey,
    server: Arc<Shard<Simple>>,
    accepted: ConnectionKey,
    driver: Driver<Simple, Nothing>,
    /// How often the client had polled in vain at each yield of its core.
    yields: Rc<RefCell<Vec<u32>>>,
    woken: Arc<Woken>,
}

/// Whether the driver was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl World {
    async fn new(name: &str) -> Self {
        Self::of(pair(name).await)
    }

    fn of(pair: [(Arc<Shard<Simple>>, ConnectionKey); 2]) -> Self {
        let [(client, key), (server, accepted)] = pair;
        let driver = Driver::new(Arc::clone(&client), Nothing, PollMode::Adaptive).unwrap();
        client.lock().share_core();
        let world = Self {
            client,
            key,
            server,
            accepted,
            driver,
            yields: Rc::default(),
            woken: Arc::default(),
        };
        world.on_yields(|| ());
        world
    }

    /// What the server does whenever the client yields its core. No time passes.
    fn on_yields(&self, does: impl Fn() + 'static) {
        let (client, yields) = (Arc::clone(&self.client), Rc::clone(&self.yields));
        PEER.set(Some(Box::new(move || {
            yields.borrow_mut().push(client.lock().empty_polls());
            client.lock().on_woken(Instant::now());
            does();
        })));
    }

    fn turn(&mut self) {
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut cx = Context::from_waker(&waker);
        self.woken.0.store(false, Ordering::Relaxed);
        assert!(Pin::new(&mut self.driver).poll(&mut cx).is_pending());
    }

    /// Returns once something has woken the driver since its last turn.
    async fn was_woken(&self) {
        while !self.woken.0.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    }

    fn send(&self) {
        send(&self.server, self.accepted);
    }

    fn received(&self) -> usize {
        self.client.look(self.key, |protocol| protocol.received).unwrap()
    }
}

#[tokio::test]
async fn shared_core_is_yielded_once_per_turn() {
    let mut world = World::new("driver-yields").await;
    let before = world.client.lock().empty_polls();
    world.turn();
    assert_eq!(*world.yields.borrow(), [before]);
}

#[tokio::test]
async fn a_driver_that_has_yielded_looks_once_more() {
    let mut world = World::new("driver-again").await;
    let (server, accepted, yields) =
        (Arc::clone(&world.server), world.accepted, Rc::clone(&world.yields));
    world.on_yields(move || {
        if yields.borrow().len() == 1 {
            send(&server, accepted);
        }
    });
    world.turn();
    assert_eq!(world.received(), 1);
}

#[tokio::test]
async fn posted_sends_leave_before_a_yield() {
    let mut world = World::of(tcp_pair().await);
    // The second one waits for the first to be accepted, or for the next poll.
    send_and_wait(&world.client, world.key);
    send_and_wait(&world.client, world.key);
    let (server, accepted) = (Arc::clone(&world.server), world.accepted);
    let heard = Rc::new(Cell::new(0));
    let hears = Rc::clone(&heard);
    let limit = Instant::now() + Duration::from_secs(20);
    world.on_yields(move || {
        while hears.get() < 2 && Instant::now() < limit {
            server.lock().poll();
            hears.set(server.look(accepted, |protocol| protocol.received).unwrap());
        }
    });
    world.turn();
    assert_eq!(heard.get(), 2);
}

#[tokio::test]
async fn woken_driver_polls_before_it_yields() {
    let mut world = World::new("driver-woken").await;
    while world.driver.parked_at.is_none() {
        world.turn();
        tokio::task::yield_now().await;
    }
    world.client.lock().share_core();
    world.yields.borrow_mut().clear();
    world.send();
    // What wakes it is in the completion channel then, and not only in the ring.
    world.was_woken().await;
    let mut cx = Context::from_waker(Waker::noop());
    world.driver.on_woken(&mut cx);
    assert!(matches!(world.driver.round(&cx), Round::Progress));
    assert_eq!((world.yields.borrow().len(), world.received()), (0, 1));
}

#[tokio::test]
async fn work_of_this_end_keeps_no_message_waiting() {
    let mut world = World::new("driver-work").await;
    world.send();
    world.client.with(world.key, |protocol| protocol.actions.push(None)).unwrap();
    world.turn();
    assert_eq!(world.received(), 1);
}

#[tokio::test]
async fn fruitless_busy_driver_lets_other_tasks_run() {
    let [(client, _), _server] = pair("driver-looks").await;
    tokio::spawn(Driver::new(Arc::clone(&client), Nothing, PollMode::Busy).unwrap());
    let ran = Arc::new(AtomicU32::new(0));
    let runs = Arc::clone(&ran);
    tokio::spawn(std::future::poll_fn(move |cx| {
        runs.fetch_add(1, Ordering::Relaxed);
        cx.waker().wake_by_ref();
        Poll::<()>::Pending
    }));
    let seen = || (client.lock().empty_polls(), ran.load(Ordering::Relaxed));
    // The main future runs where I/O is polled, too.
    tokio::task::yield_now().await;
    let (polls, runs) = seen();
    tokio::task::yield_now().await;
    let (polls, runs) = (seen().0 - polls, seen().1 - runs);
    assert_eq!(polls, TURNS_PER_LOOK * POLLS_PER_SPIN);
    assert!(runs >= TURNS_PER_LOOK, "a ready task ran {runs} times");
}

#[tokio::test]
async fn finding_work_resets_the_fruitless_turns() {
    let [(client, key), (server, accepted)] = pair("driver-anew").await;
    let mut driver = Driver::new(Arc::clone(&client), Nothing, PollMode::Busy).unwrap();
    let mut turn = || {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut driver).poll(&mut cx).is_pending());
        driver.turns_in_vain
    };
    assert_eq!([turn(), turn()], [1, 2]);
    send(&server, accepted);
    assert_eq!(turn(), 1);
    assert_eq!(client.look(key, |protocol| protocol.received), Some(1));
}

/// It looks again by itself when nobody has led for a while.
#[tokio::test(start_paused = true)]
async fn driver_stands_back_while_callers_lead() {
    let [(client, key), (server, accepted)] = pair("driver-led").await;
    let mut driver = Driver::new(Arc::clone(&client), Nothing, PollMode::Adaptive).unwrap();
    let wait = |caller, message| client.wait(key, caller, |protocol| protocol.received >= message);
    let mut turn = || {
        let before = client.lock().empty_polls();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut driver).poll(&mut cx).is_pending());
        client.lock().empty_polls() - before
    };
    for call in 1..=3 {
        assert!(matches!(wait(1, call), Some(Waited::Leads)));
        send(&server, accepted);
        assert!(matches!(wait(1, call), Some(Waited::Done)));
        assert_eq!(turn(), 0, "after {call} calls");
    }
    tokio::time::advance(Duration::from_millis(2)).await;
    assert!(turn() > 0);
}
