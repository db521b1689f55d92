//! Panics: of user code that the driver runs, and of a protocol under the shard's lock.

use crate::probe::Effect;
use crate::world::{Pair, run};

/// A waker that panics took the driver down, and the effects behind it were dropped unrun: whoever
/// waited for one of those waited for ever.
#[test]
fn a_panicking_effect_costs_only_itself() {
    run("effect", async {
        let pair = Pair::new("mem").await;
        let (ran, has_run) = std::sync::mpsc::channel();
        pair.client.with(|probe| {
            probe.effects.push_back(Effect::Run(Box::new(|| panic!("on purpose"))));
            probe.effects.push_back(Effect::Run(Box::new(move || ran.send(()).unwrap())));
        });
        has_run.recv().unwrap();
        pair.client.send(b"still there");
        assert_eq!(*pair.client.next().await, *b"still there");
        pair.end().await;
    });
}
