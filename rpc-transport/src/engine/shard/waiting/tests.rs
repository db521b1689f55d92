//! Who polls, and who is woken, while callers wait. No driver runs here: the tests stand in for it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use super::{Turn, Waited};
use crate::device::connection_error::CloseCause;
use crate::engine::connection_key::ConnectionKey;
use crate::engine::poll::lead::Caller;
use crate::engine::poll::spin::PollMode;
use crate::engine::poll::yield_core::{PEER, TOOK};
use crate::engine::shard::tests::{Simple, Wakes, pair, park, send};
use crate::engine::shard::{Progress, Shard};

/// A client whose callers wait for messages, and the server that sends them.
struct World {
    client: Arc<Shard<Simple>>,
    key: ConnectionKey,
    server: Arc<Shard<Simple>>,
    accepted: ConnectionKey,
}

impl World {
    async fn new(name: &str) -> Self {
        let [(client, key), (server, accepted)] = pair(name).await;
        client.lock().set_mode(PollMode::Busy);
        client.with(key, |protocol| protocol.is_waiting = true).unwrap();
        Self { client, key, server, accepted }
    }

    /// A turn of a caller that waits for the message with this number.
    fn wait(&self, caller: u64, message: usize) -> &'static str {
        let look = |protocol: &mut Simple| protocol.received >= message;
        match self.client.wait(self.key, caller, look) {
            Some(Waited::Done) => "done",
            Some(Waited::Leads | Waited::GivesWay) => "leads",
            Some(Waited::Sleeps) => "sleeps",
            None => "gone",
        }
    }

    /// Registers a caller that sleeps.
    fn sleeper(&self) -> Arc<Wakes> {
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        self.client.with(self.key, |protocol| protocol.waiters.push(waker)).unwrap();
        wakes
    }

    /// A caller whose turn ended in "sleep" registers its waker.
    fn falls_asleep(&self) -> Arc<Wakes> {
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        self.client.fall_asleep(self.key, |protocol| protocol.waiters.push(waker)).unwrap();
        wakes
    }

    /// Has the driver stand back, as it does when a caller has polled.
    fn driver(&self) -> Arc<Wakes> {
        let wakes = Arc::new(Wakes::default());
        let mut state = self.client.lock();
        assert!(state.is_led());
        state.stand_back(Waker::from(Arc::clone(&wakes)));
        wakes
    }

    fn answer(&self) {
        send(&self.server, self.accepted);
    }
}

#[tokio::test]
async fn one_caller_leads_and_the_others_sleep() {
    let world = World::new("lead-one").await;
    assert_eq!(world.wait(1, 1), "leads");
    assert_eq!(world.wait(2, 1), "sleeps");
    assert_eq!(world.wait(1, 1), "leads");
}

#[tokio::test]
async fn leader_wakes_callers_whose_answers_arrived() {
    let world = World::new("lead-wakes").await;
    assert_eq!(world.wait(1, 1), "leads");
    let (driver, sleeper) = (world.driver(), world.sleeper());
    world.answer();
    assert_eq!(world.wait(1, 1), "done");
    assert_eq!((sleeper.count(), driver.count()), (1, 1), "nobody else waits: the driver polls");
}

#[tokio::test]
async fn a_waker_that_panics_costs_the_leader_nothing() {
    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }

    let world = World::new("lead-panics").await;
    assert_eq!(world.wait(1, 2), "leads");
    world.driver();
    let bad = Waker::from(Arc::new(Panics));
    world.client.with(world.key, |protocol| protocol.waiters.push(bad)).unwrap();
    let sleeper = world.sleeper();
    world.answer();
    assert_eq!(world.wait(1, 2), "leads");
    assert_eq!(sleeper.count(), 1);
    world.answer();
    assert_eq!(world.wait(1, 2), "done");
}

/// A regression: the lock was still held when the connections' end was reported, which takes it.
#[tokio::test]
async fn a_panic_under_a_leader_ends_the_connections() {
    let world = World::new("lead-bomb").await;
    assert_eq!(world.wait(1, 2), "leads");
    world.client.with(world.key, |protocol| protocol.bomb = Some(1)).unwrap();
    world.answer();
    let wait = || world.wait(1, 2);
    assert!(catch_unwind(AssertUnwindSafe(wait)).is_err());
    assert!(matches!(world.client.close_cause(world.key), Some(CloseCause::Panicked)));
}

/// Its event was used up by the leader, and nobody armed again.
#[tokio::test]
async fn parked_driver_is_woken_by_leaders_findings() {
    let world = World::new("lead-parked").await;
    assert_eq!(world.wait(1, 2), "leads");
    world.answer();
    let driver = park(&world.client);
    // It got the lock between two polls of the leader, which goes on.
    let mut state = world.client.lock();
    let caller = Caller { key: world.key, id: 1 };
    let turn = state.turn(caller, &mut |protocol: &mut Simple| protocol.received >= 2);
    assert!(matches!(turn, Some(Turn::GoesOn)));
    state.leave().run();
    assert_eq!(driver.count(), 1);
}

#[tokio::test]
async fn ending_lead_leaves_work_to_running_driver() {
    let world = World::new("lead-running").await;
    assert_eq!(world.wait(1, 1), "leads");
    world.answer();
    assert_eq!(world.wait(1, 1), "done");
    assert!(!world.client.lock().is_led(), "it would stand back, and nobody polls");
}

/// Else it would poll beside the next leader, and want the core of that one or of the peer.
#[tokio::test]
async fn running_driver_stands_back_for_leaders() {
    let world = World::new("lead-in-turn").await;
    world.client.look(world.key, |protocol| protocol.is_waiting = false).unwrap();
    for call in 1..=3 {
        assert_eq!(world.wait(1, call), "leads");
        world.answer();
        assert_eq!(world.wait(1, call), "done");
        assert!(world.client.lock().is_led(), "after {call} calls it polls");
    }
    assert!(!world.client.lock().is_led(), "nobody has polled since");
}

#[tokio::test]
async fn lead_passes_to_sleeper_despite_running_driver() {
    let world = World::new("lead-running-next").await;
    assert_eq!(world.wait(1, 1), "leads");
    world.answer();
    world.server.lock().poll();
    world.client.lock().poll();
    // This one waits for a later message.
    let sleeper = world.sleeper();
    assert_eq!(world.wait(1, 1), "done");
    assert_eq!(sleeper.count(), 1);
    // The driver leaves the rest to that caller, until its lead expires.
    assert!(world.client.lock().is_led());
    assert!(!world.client.lock().is_led(), "it has not polled");
}

#[tokio::test]
async fn dropped_call_under_running_driver_wakes_nobody() {
    let world = World::new("lead-running-dropped").await;
    let sleeper = world.sleeper();
    world.client.stop_waiting(world.key, 1, |_, _| ());
    assert_eq!(sleeper.count(), 0);
}

/// The caller was sent to sleep while another one led, and registers its waker when that one is
/// done.
#[tokio::test]
async fn sleeping_caller_wakes_the_driver_without_a_poller() {
    let world = World::new("lead-asleep").await;
    world.client.look(world.key, |protocol| protocol.is_waiting = false).unwrap();
    assert_eq!(world.wait(1, 1), "leads");
    let driver = world.driver();
    assert_eq!(world.wait(2, 2), "sleeps");
    world.answer();
    assert_eq!(world.wait(1, 1), "done");
    assert_eq!(driver.count(), 0, "nobody is known to sleep");
    let sleeper = world.falls_asleep();
    assert_eq!((driver.count(), sleeper.count()), (1, 0));
}

#[tokio::test]
async fn running_driver_polls_for_sleepers_without_a_leader() {
    let world = World::new("lead-asleep-running").await;
    world.client.look(world.key, |protocol| protocol.is_waiting = false).unwrap();
    assert_eq!(world.wait(1, 1), "leads");
    assert_eq!(world.wait(2, 2), "sleeps");
    world.answer();
    assert_eq!(world.wait(1, 1), "done");
    world.falls_asleep();
    assert!(!world.client.lock().is_led());
}

#[tokio::test]
async fn sleeping_caller_under_a_leader_wakes_nobody() {
    let world = World::new("lead-asleep-beside").await;
    assert_eq!(world.wait(1, 1), "leads");
    let (driver, first) = (world.driver(), world.falls_asleep());
    assert_eq!((driver.count(), first.count()), (0, 0));
    world.client.stop_waiting(world.key, 1, |_, _| ());
    assert_eq!(first.count(), 1);
    let second = world.falls_asleep();
    assert_eq!((driver.count(), second.count()), (0, 0), "the first one polls soon");
}

#[tokio::test]
async fn ending_lead_passes_to_a_sleeper() {
    let world = World::new("lead-next").await;
    assert_eq!(world.wait(1, 1), "leads");
    let driver = world.driver();
    world.answer();
    world.server.lock().poll();
    world.client.lock().poll();
    // This one waits for a later message.
    let sleeper = world.sleeper();
    assert_eq!(world.wait(1, 1), "done");
    assert_eq!((sleeper.count(), driver.count()), (1, 0));
    assert_eq!(world.wait(2, 2), "leads");
}

#[tokio::test]
async fn ending_lead_without_waiters_wakes_nobody() {
    let world = World::new("lead-idle").await;
    assert_eq!(world.wait(1, 1), "leads");
    let driver = world.driver();
    world.answer();
    world.client.look(world.key, |protocol| protocol.is_waiting = false).unwrap();
    assert_eq!(world.wait(1, 1), "done");
    assert_eq!(driver.count(), 0);
}

#[tokio::test]
async fn dropped_leader_passes_the_lead_on() {
    let world = World::new("lead-dropped").await;
    assert_eq!(world.wait(1, 1), "leads");
    let (driver, sleepers) = (world.driver(), [world.sleeper(), world.sleeper()]);
    let next_is = |caller| {
        world.client.look(world.key, |protocol| protocol.next_caller = caller).unwrap();
    };
    next_is(2);
    world.client.stop_waiting(world.key, 1, |_, _| ());
    assert_eq!(sleepers.iter().map(|wakes| wakes.count()).sum::<usize>(), 1);
    // So is the one that was woken, before it could lead.
    next_is(3);
    world.client.stop_waiting(world.key, 2, |_, _| ());
    assert_eq!(sleepers.iter().map(|wakes| wakes.count()).sum::<usize>(), 2);
    assert_eq!(driver.count(), 0);
    world.client.stop_waiting(world.key, 3, |_, _| ());
    assert_eq!(driver.count(), 1);
}

#[tokio::test]
async fn dropped_follower_changes_nothing() {
    let world = World::new("lead-beside").await;
    assert_eq!(world.wait(1, 1), "leads");
    let (driver, sleeper) = (world.driver(), world.sleeper());
    world.client.stop_waiting(world.key, 2, |_, _| ());
    assert_eq!((sleeper.count(), driver.count()), (0, 0));
    assert_eq!(world.wait(1, 1), "leads");
}

#[tokio::test]
async fn stalled_leader_loses_the_lead_to_the_driver() {
    let world = World::new("lead-forgotten").await;
    assert_eq!(world.wait(1, 1), "leads");
    world.driver();
    assert!(!world.client.lock().is_led(), "nobody has polled since the driver stood back");
    assert_eq!(world.wait(2, 1), "leads");
}

#[tokio::test]
async fn driver_work_wakes_it_though_callers_poll() {
    let world = World::new("lead-work").await;
    assert_eq!(world.wait(1, 1), "leads");
    let driver = world.driver();
    world.client.fail(world.key, &CloseCause::Local);
    assert_eq!(driver.count(), 1);
}

#[tokio::test]
async fn a_stream_brings_the_driver_back() {
    let world = World::new("lead-stream").await;
    assert_eq!(world.wait(1, 1), "leads");
    let driver = world.driver();
    world.client.with(world.key, |protocol| protocol.has_streams = true).unwrap();
    assert_eq!(driver.count(), 1);
    assert_eq!(world.wait(1, 1), "sleeps");
}

#[tokio::test]
async fn long_waiting_leader_hands_over_to_the_driver() {
    let world = World::new("lead-long").await;
    world.client.lock().set_mode(PollMode::Adaptive);
    assert_eq!(world.wait(1, 1), "leads");
    let driver = world.driver();
    while world.wait(1, 1) == "leads" {}
    assert_eq!(driver.count(), 1);
}

#[tokio::test]
async fn no_lead_in_event_mode_or_during_sleep() {
    let world = World::new("lead-event").await;
    let driver = park(&world.client);
    assert_eq!(world.wait(1, 1), "sleeps");
    assert_eq!(driver.count(), 0);
    let world = World::new("lead-event-mode").await;
    world.client.lock().set_mode(PollMode::Event);
    assert_eq!(world.wait(1, 1), "sleeps");
}

/// Otherwise its first turn polls once, so that others may send first, and later ones more often.
#[tokio::test]
async fn leader_yields_a_shared_core_before_it_polls() {
    let world = World::new("lead-shares").await;
    world.client.lock().share_core();
    let polls = || {
        let before = world.client.lock().empty_polls();
        assert_eq!(world.wait(1, 1), "leads");
        let made = world.client.lock().empty_polls() - before;
        world.client.stop_waiting(world.key, 1, |_, _| ());
        made
    };
    assert_eq!(polls(), 0);
    world.client.lock().set_mode(PollMode::Adaptive);
    assert_eq!(polls(), 1);
}

#[tokio::test]
async fn leader_polls_again_after_a_yield() {
    let world = World::new("lead-again").await;
    world.client.lock().share_core();
    assert_eq!(world.wait(1, 1), "leads");
    let (server, accepted) = (Arc::clone(&world.server), world.accepted);
    PEER.set(Some(Box::new(move || send(&server, accepted))));
    assert_eq!(world.wait(1, 1), "done");
}

#[tokio::test]
async fn yield_to_another_waiter_is_not_slow() {
    let world = World::new("lead-slow").await;
    PEER.set(Some(Box::new(|| {})));
    let contends = |took: Duration| {
        TOOK.set(took);
        world.client.lock().set_mode(PollMode::Adaptive);
        world.client.yield_core();
        world.client.lock().is_contended()
    };
    assert_eq!(
        [40, 200, 2_000].map(|us| contends(Duration::from_micros(us))),
        [false, false, true]
    );
}

/// The rules measure real time, so a turn that was interrupted for 50 us sleeps: then another world
/// is tried.
#[tokio::test]
async fn second_turn_on_a_shared_core_yields() {
    TOOK.set(Duration::from_micros(40));
    for attempt in 0..100 {
        let world = World::new(&format!("lead-shared-{attempt}")).await;
        let yields = Rc::new(Cell::new(0));
        let counts = Rc::clone(&yields);
        PEER.set(Some(Box::new(move || counts.set(counts.get() + 1))));
        world.client.lock().set_mode(PollMode::Adaptive);
        world.client.lock().share_core();
        if [world.wait(1, 1), world.wait(1, 1)] == ["leads", "leads"] {
            assert_eq!((yields.get(), world.client.lock().is_contended()), (1, false));
            return;
        }
    }
    panic!("no second turn led");
}

/// It holds the core that the peer needs, and the lock, for as long as it polls.
#[tokio::test]
async fn lone_caller_does_not_poll_on_shared_core() {
    let world = World::new("lead-lone").await;
    let polls = || {
        let before = world.client.lock().empty_polls();
        let waited = world.client.with_progress(world.key, true, |_| (), |_, ()| Progress::Wait);
        assert_eq!(waited, Some(()));
        world.client.lock().empty_polls() - before
    };
    assert!(polls() > 0);
    world.client.lock().share_core();
    assert_eq!(polls(), 0);
}

/// The driver has found the answer of the caller that was to lead next, after that was woken: so it
/// never led, and those that sleep on waited until the driver looked again.
#[tokio::test]
async fn chosen_leader_with_an_answer_passes_on() {
    let world = World::new("lead-chosen-done").await;
    world.client.look(world.key, |protocol| protocol.is_waiting = false).unwrap();
    world.client.look(world.key, |protocol| protocol.next_caller = 2).unwrap();
    assert_eq!(world.wait(1, 1), "leads");
    world.answer();
    world.server.lock().poll();
    // Beside a driver that runs.
    world.client.lock().poll();
    let (third, second) = (world.sleeper(), world.sleeper());
    assert_eq!(world.wait(1, 1), "done");
    assert_eq!((second.count(), third.count()), (1, 0));
    // The driver goes on for a while: it has not asked yet whether somebody leads.
    let wakers =
        std::mem::take(&mut world.client.lock().connection(world.key).unwrap().protocol.waiters);
    world.answer();
    world.server.lock().poll();
    world.client.lock().poll();
    world.client.look(world.key, |protocol| protocol.waiters = wakers).unwrap();
    assert_eq!(world.wait(2, 2), "done");
    assert!(world.client.lock().is_led());
    assert_eq!(third.count(), 1, "the driver stands back, and nobody polls");
}
