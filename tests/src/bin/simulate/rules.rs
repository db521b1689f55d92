//! The rules that every world keeps, and what is reported of one that does not.

use std::fmt;
use std::str::FromStr;

/// A rule of the product. The order is the order in which they are reported: what explains most
/// comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// A server reads the arguments that the rules of evolution make of what was written.
    Argument,
    /// A caller reads the result that the rules of evolution make of what was written.
    Value,
    /// No end fails to read what the other has written.
    Decoded,
    /// Items arrive once, in order, without gaps.
    Items,
    /// What is not idempotent runs at most once.
    Once,
    /// A call that ended well has run.
    Ran,
    /// A `no_cancel` call that was sent runs, though its caller has gone.
    NoCancel,
    /// A handler has the deadline and the metadata of its call.
    Context,
    /// Every call ends.
    Ends,
    /// A call ends by its deadline.
    Deadline,
    /// A minute after the last fault no call fails.
    Calm,
    /// A minute after the last fault, a good client connects to each server.
    Connects,
    /// A minute after the last fault, the first priority has the calls.
    FirstPriority,
    /// A minute after the last fault, each server has its share of the calls with keys.
    SharedByKey,
    /// A minute after the last fault, each server has its share of the calls.
    Shared,
    /// A minute after the last fault, servers refuse few calls for their number.
    Room,
    /// When all calls have ended, nothing is counted as in flight.
    Counters,
    /// The simulator found something to check.
    Checked,
    /// The world came to its end.
    Survives,
}

/// A rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) rule: Rule,
    /// How often.
    pub(crate) count: u64,
    /// The call of the first time, or 0.
    pub(crate) call: u32,
    pub(crate) at_us: u64,
    /// What happened the first time.
    pub(crate) text: String,
}

const RULES: [(Rule, &str, &str); 19] = [
    (Rule::Argument, "argument", "a server read other arguments than were written"),
    (Rule::Value, "value", "a caller got a wrong result"),
    (Rule::Decoded, "decoded", "an end could not read what the other had written"),
    (Rule::Items, "items", "items of a stream are missing, or in another order"),
    (Rule::Once, "once", "a call that is not idempotent ran more than once"),
    (Rule::Ran, "ran", "a call ended well and never ran"),
    (Rule::NoCancel, "no-cancel", "a no_cancel call that was dropped after it was sent never ran"),
    (Rule::Context, "context", "a handler had another deadline or other metadata than its call"),
    (Rule::Ends, "ends", "a call never ended"),
    (Rule::Deadline, "deadline", "a call ended later than its deadline"),
    (Rule::Calm, "calm", "a call failed more than a minute after the last fault"),
    (Rule::Connects, "connects", "a good client could not connect in time"),
    (Rule::FirstPriority, "first-priority", "the first priority did not get its calls back"),
    (Rule::SharedByKey, "shared-by-key", "a server did not get its calls with keys back"),
    (Rule::Shared, "shared", "a server did not get its share of the calls back"),
    (Rule::Room, "room", "servers that have room refuse calls"),
    (Rule::Counters, "counters", "something is counted as in flight when nothing is"),
    (Rule::Checked, "checked", "nothing was checked"),
    (Rule::Survives, "survives", "the world did not come to its end"),
];

impl Rule {
    fn row(self) -> (Rule, &'static str, &'static str) {
        RULES[self as usize]
    }

    /// What it means that it is broken.
    pub(crate) fn meaning(self) -> &'static str {
        self.row().2
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().1)
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = RULES.iter().find(|(_, name, _)| *name == text);
        found.map(|(rule, ..)| *rule).ok_or_else(|| format!("no rule is called {text}"))
    }
}
