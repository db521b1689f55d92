//! Panics: of user code that the driver runs, and of a protocol under the shard's lock.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::probe::Action;
use crate::world::{Pair, run};

/// A waker that panics took the driver down, and the actions behind it were dropped unrun: whoever
/// waited for one of those waited for ever.
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

/// The lock of a shard poisons nothing: a step that panicked left a connection on the dirty list or
/// not, and its peer and waiters in ignorance.
#[test]
fn a_panic_in_a_step_ends_the_connections_of_the_shard() {
    run("step", async {
        let pair = Pair::new("mem").await;
        let step = || pair.client.with(|_| panic!("on purpose"));
        catch_unwind(AssertUnwindSafe(step)).unwrap_err();
        let cause = pair.client.cause().await;
        assert_eq!(cause.to_string(), "the connection's state was lost to a panic");
        assert_eq!(pair.server.cause().await.to_string(), "the peer is gone");
        pair.end().await;
    });
}

/// Under the driver it is the driver that ends, and every connection with it.
#[test]
fn a_panic_of_a_protocol_under_the_driver_tells_everybody() {
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
