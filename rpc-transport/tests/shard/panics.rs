//! Panics: of user code that the driver runs, and of an upper layer under the shard's lock.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::probe::Action;
use crate::world::{Pair, run};

/// A regression: a waker that panicked took the driver down, and later actions were dropped without
/// running, so that their tasks waited for ever.
#[test]
fn a_panicking_effect_costs_only_itself() {
    run("action", async {
        let pair = Pair::new("mem").await;
        let (ran, has_run) = std::sync::mpsc::channel();
        pair.client.with(|probe| {
            probe.actions.push_back(Action::Run(Box::new(|| panic!("on purpose"))));
            probe.actions.push_back(Action::Run(Box::new(move || ran.send(()).unwrap())));
        });
        has_run.recv().unwrap();
        pair.client.send(b"still there");
        assert_eq!(*pair.client.next().await, *b"still there");
        pair.end().await;
    });
}

/// The lock of a shard poisons nothing. A regression: a step that panicked left the dirty list in
/// an unknown state, and neither peer nor waiters were notified.
#[test]
fn panic_in_a_step_ends_the_shards_connections() {
    run("step", async {
        let pair = Pair::new("mem").await;
        let step = || pair.client.with(|_| panic!("on purpose"));
        catch_unwind(AssertUnwindSafe(step)).unwrap_err();
        let cause = pair.client.cause().await;
        assert_eq!(cause.to_string(), "a panic destroyed the state of the connection");
        assert_eq!(pair.server.cause().await.to_string(), "the peer is gone");
        pair.end().await;
    });
}

/// Under the driver the panic ends the driver, and every connection with it.
#[test]
fn panic_under_the_driver_notifies_every_caller() {
    run("driver", async {
        let pair = Pair::new("mem").await;
        pair.client.with(|probe| probe.bomb = Some(13));
        pair.client.send(&[0; 12]);
        pair.client.next().await;
        pair.client.send(&[0; 13]);
        let cause = pair.client.cause().await;
        assert_eq!(cause.to_string(), "the runtime that drove the connection has shut down");
        assert_eq!(pair.server.cause().await.to_string(), "the peer is gone");
        let [ours, theirs] = pair.drivers;
        assert!(ours.await.unwrap_err().is_panic());
        pair.server.gone().await;
        pair.server.shard.shutdown();
        theirs.await.unwrap();
    });
}
