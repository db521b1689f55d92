//! Which caller polls the CQ in place of the driver: the transitions of the lead.
//!
//! Owns who leads. Of the callers that wait on a connection, one *leads*: each time its task is
//! polled it polls the CQ, wakes the callers whose outcomes have arrived, and has its task polled
//! again. So an answer arrives on the thread that waits for it, and no thread has to be woken for
//! it. The driver stands back meanwhile. Never polls or wakes: the [shard](crate::engine::shard)
//! does that, and runs the effects of this machine.
//!
//! States and events; `c` is the caller of the event, "-" changes nothing. `polled` is a flag
//! beside the state: a caller has polled since the driver last asked.
//!
//! | event | `Free` | `Offered(o)` | `Held(h)` |
//! |---|---|---|---|
//! | `Polls(c)`, if `admits(c)` | `Held(c)`, polled | `Held(c)`, polled | c = h: -, polled |
//! | `PollsOnce`: the only call, in the visit that sends it | -, polled | -, polled | - |
//! | `Leaves(c)`: it has its outcome | - | c = o: `Free`, find a sleeper | c = h: likewise |
//! | `Leaves(c)`, the driver sleeps | - | c = o: `Free`, not polled | c = h: likewise |
//! | `GivesUp(c)`: too long | - | c = o: `Free`, not polled, wake the driver | c = h: likewise |
//! | `Found(c)`: a sleeper, which is woken to lead | `Offered(c)` | - | - |
//! | `FoundNone`: no sleeper is found | `Free`, not polled, wake the driver | - | - |
//! | `FallsAsleep`: a waker is registered | `Free`, not polled, wake the driver | - | - |
//! | `DriverAsks`, polled | not polled, stand back | likewise | likewise |
//! | `DriverAsks`, not polled | - | `Free` | `Free` |
//!
//! Invariants:
//! 1. There is one leader at most. It needs no waker, as its task is polled again anyway.
//! 2. A lead that ends while others sleep is offered to one of them, or the driver is woken. If no
//!    caller is known to sleep it stays free, and the next caller that falls asleep wakes the
//!    driver.
//! 3. A leader may be forgotten, or its task be busy: a driver that asks twice, with no poll in
//!    between, polls itself.

use crate::engine::connection_key::ConnectionKey;

/// A caller of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Caller {
    pub(in crate::engine) key: ConnectionKey,
    /// Among those of its connection.
    pub(in crate::engine) id: u64,
}

/// The lead of a shard.
#[derive(Debug, Default)]
pub(in crate::engine) struct Lead {
    state: LeadState,
    has_polled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum LeadState {
    /// No caller leads.
    #[default]
    Free,
    /// This caller was woken to lead and has not polled yet.
    Offered(Caller),
    /// This caller leads.
    Held(Caller),
}

/// What happens to a lead. See the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Event {
    Polls(Caller),
    PollsOnce,
    Leaves { caller: Caller, driver_sleeps: bool },
    GivesUp(Caller),
    Found(Caller),
    FoundNone,
    FallsAsleep,
    DriverAsks,
}

/// What the shard must do after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Effect {
    Nothing,
    /// Find a caller that sleeps: [`Event::Found`] or [`Event::FoundNone`] follows, and neither if
    /// none sleeps.
    FindSleeper,
    /// Wake the driver if it stands back.
    WakeDriver,
    /// The driver may stand back.
    StandBack,
}

impl Lead {
    /// Whether this caller may poll: nobody else leads.
    pub(in crate::engine) fn admits(&self, caller: Caller) -> bool {
        !matches!(self.state, LeadState::Held(leader) if leader != caller)
    }

    /// Whether some caller leads.
    pub(in crate::engine) fn is_held(&self) -> bool {
        matches!(self.state, LeadState::Held(_))
    }

    /// Whether this caller leads, or was woken to.
    pub(in crate::engine) fn is_of(&self, caller: Caller) -> bool {
        match self.state {
            LeadState::Offered(it) | LeadState::Held(it) => it == caller,
            LeadState::Free => false,
        }
    }

    /// Whether a caller has polled since the driver last asked.
    pub(in crate::engine) fn has_polled(&self) -> bool {
        self.has_polled
    }

    /// Takes the transition of the table.
    #[inline]
    pub(in crate::engine) fn on(&mut self, event: Event) -> Effect {
        match event {
            Event::Polls(caller) => {
                self.state = LeadState::Held(caller);
                self.has_polled = true;
            }
            Event::PollsOnce => self.has_polled |= !self.is_held(),
            Event::Leaves { caller, driver_sleeps } if self.is_of(caller) => {
                self.state = LeadState::Free;
                if !driver_sleeps {
                    return Effect::FindSleeper;
                }
                self.has_polled = false;
            }
            Event::GivesUp(caller) if self.is_of(caller) => return self.leave_to_driver(),
            Event::Found(caller) if self.state == LeadState::Free => {
                self.state = LeadState::Offered(caller);
            }
            Event::FoundNone | Event::FallsAsleep if self.state == LeadState::Free => {
                return self.leave_to_driver();
            }
            Event::DriverAsks if std::mem::take(&mut self.has_polled) => return Effect::StandBack,
            Event::DriverAsks => self.state = LeadState::Free,
            Event::Leaves { .. }
            | Event::GivesUp(_)
            | Event::Found(_)
            | Event::FoundNone
            | Event::FallsAsleep => {}
        }
        Effect::Nothing
    }

    fn leave_to_driver(&mut self) -> Effect {
        (self.state, self.has_polled) = (LeadState::Free, false);
        Effect::WakeDriver
    }
}

#[cfg(test)]
mod tests {
    use super::LeadState::{Free, Held, Offered};
    use super::*;

    const KEY: ConnectionKey = ConnectionKey { index: 0, generation: 1 };
    const ONE: Caller = Caller { key: KEY, id: 1 };
    const TWO: Caller = Caller { key: KEY, id: 2 };

    /// A row of the table: an event, and what becomes of each state. The flag is given where the
    /// event sets it.
    type Row = (Event, [(LeadState, Option<bool>, Effect); 3]);

    /// The states before: [`Free`], offered to [`ONE`], held by [`ONE`].
    const BEFORE: [LeadState; 3] = [Free, Offered(ONE), Held(ONE)];

    fn leaves(caller: Caller, driver_sleeps: bool) -> Event {
        Event::Leaves { caller, driver_sleeps }
    }

    fn check(has_polled: bool, rows: &[Row]) {
        for (event, after) in rows {
            for (state, (then, polled, effect)) in BEFORE.into_iter().zip(after) {
                let mut lead = Lead { state, has_polled };
                assert_eq!(lead.on(*event), *effect, "{event:?} in {state:?}");
                assert_eq!(lead.state, *then, "{event:?} in {state:?}");
                let polled = polled.unwrap_or(has_polled);
                assert_eq!(lead.has_polled, polled, "{event:?} in {state:?}");
            }
        }
    }

    #[test]
    fn every_transition_is_that_of_the_table() {
        use Effect::{FindSleeper, Nothing, StandBack, WakeDriver};
        let [free, offered, held] = BEFORE.map(|state| (state, None, Nothing));
        let to_driver = (Free, Some(false), WakeDriver);
        let passes_on = (Free, None, FindSleeper);
        let sleeps_too = (Free, Some(false), Nothing);
        let leads = |caller| (Held(caller), Some(true), Nothing);
        for has_polled in [false, true] {
            check(
                has_polled,
                &[
                    (Event::Polls(ONE), [leads(ONE); 3]),
                    (
                        Event::PollsOnce,
                        [(Free, Some(true), Nothing), (Offered(ONE), Some(true), Nothing), held],
                    ),
                    (leaves(ONE, false), [free, passes_on, passes_on]),
                    (leaves(TWO, false), [free, offered, held]),
                    (leaves(ONE, true), [free, sleeps_too, sleeps_too]),
                    (leaves(TWO, true), [free, offered, held]),
                    (Event::GivesUp(ONE), [free, to_driver, to_driver]),
                    (Event::GivesUp(TWO), [free, offered, held]),
                    (Event::Found(TWO), [(Offered(TWO), None, Nothing), offered, held]),
                    (Event::FoundNone, [to_driver, offered, held]),
                    (Event::FallsAsleep, [to_driver, offered, held]),
                ],
            );
        }
        let stands_back = |state| (state, Some(false), StandBack);
        check(true, &[(Event::DriverAsks, BEFORE.map(stands_back))]);
        check(false, &[(Event::DriverAsks, [free; 3])]);
    }

    #[test]
    fn nobody_polls_beside_a_leader() {
        let admits = |state| {
            let lead = Lead { state, has_polled: false };
            [ONE, TWO].map(|caller| lead.admits(caller))
        };
        assert_eq!(BEFORE.map(admits), [[true, true], [true, true], [true, false]]);
    }
}
