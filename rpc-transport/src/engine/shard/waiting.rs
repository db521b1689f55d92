//! The turns of callers that wait: the caller that leads polls the CQ, the others sleep.
//!
//! Owns what a turn does, and runs the effects of the [`lead`](crate::engine::poll::lead), whose
//! module has the table of states and events.
//!
//! Invariants:
//! 1. A driver that stands back looks once in [`BACKSTOP`] whether a leader has polled meanwhile.
//! 2. Callers lead only where nothing but outcomes of calls is awaited from the peer, and where
//!    waiting means spinning. A driver that sleeps until the CQ's event is left alone.
//! 3. The first turn lets others go first, as they may still have something to send. Only the
//!    caller of the only call polls for its answer in the visit that sends it.

#[cfg(test)]
mod tests;

use std::task::Waker;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::state::{DriverState, State, narrow};
use super::{EndOnPanic, Locked, Shard};
use crate::engine::clock;
use crate::engine::connection_key::ConnectionKey;
use crate::engine::poll::lead::{Caller, Effect, Event};
use crate::engine::poll::spin::Wait;
use crate::engine::poll::yield_core::yield_core;
use crate::engine::upper::{Revoke, Sleeper, UpperLayer};
use crate::user_code::caught;

/// Longest time that nobody polls because a leader has vanished.
const BACKSTOP: Duration = Duration::from_millis(1);
/// Most empty polls of a leader's first turn.
const POLLS_OF_FIRST_TURN: u32 = 1;
/// Most empty polls of each further turn.
const POLLS_PER_TURN: u32 = 32;
/// Most empty polls for the answer of the only call: more than a round trip takes over shared
/// memory.
const POLLS_FOR_ONE: u32 = 64;
/// Most callers that a leader wakes in one turn; the driver wakes the others.
const WAKES_PER_TURN: usize = 64;

/// What a caller that waits must do.
#[derive(Debug)]
pub enum Waited {
    /// Nothing more: what it waits for has come.
    Done,
    /// Have its task polled again, as it leads.
    Leads,
    /// Have its task polled again after other tasks have run and I/O was polled
    /// ([`give_way`](crate::engine::poll::give_way)): nothing has come.
    GivesWay,
    /// Register its waker by [`Shard::fall_asleep`], and look once more.
    Sleeps,
}

/// How a turn of the leader ended.
enum Turn {
    Done,
    /// Something has come, or it is the first turn.
    GoesOn,
    /// Nothing has come.
    Waits(Wait),
}

type Wakers = SmallVec<[Waker; WAKES_PER_TURN]>;

impl<P: UpperLayer> Shard<P> {
    /// A turn of a caller that waits until `look` returns true. The caller that leads polls the CQ.
    /// `caller` is unique among the callers of the connection. `None` when the connection is gone.
    /// `look` keeps what has come, as the shard would only move it.
    pub fn wait(
        &self,
        key: ConnectionKey,
        caller: u64,
        mut look: impl FnMut(&mut P) -> bool,
    ) -> Option<Waited> {
        let on_panic = EndOnPanic(self);
        let caller = Caller { key, id: caller };
        let mut state = self.lock();
        let looked = state.connection(key).map(|connection| look(&mut connection.protocol));
        let (waited, next) = match looked {
            Some(false) if state.may_lead(caller) => {
                std::mem::forget(on_panic);
                return self.lead(state, caller, look);
            }
            Some(false) => (Some(Waited::Sleeps), state.on_lead(Event::GivesUp(caller))),
            Some(true) => (Some(Waited::Done), state.leave_lead(caller)),
            None => (None, state.leave_lead(caller)),
        };
        let _log = state.unlock();
        std::mem::forget(on_panic);
        wake(next);
        waited
    }

    fn lead<'a>(
        &'a self,
        mut state: Locked<'a, P>,
        caller: Caller,
        mut look: impl FnMut(&mut P) -> bool,
    ) -> Option<Waited> {
        let mut has_yielded = false;
        loop {
            match self.lead_once(state, caller, &mut look)? {
                Turn::Done => return Some(Waited::Done),
                Turn::GoesOn => return Some(Waited::Leads),
                Turn::Waits(Wait::Park) => return Some(Waited::Sleeps),
                // The thread that ran may have answered. Polling costs less than a turn of the
                // runtime.
                Turn::Waits(Wait::Yield) if !has_yielded && self.yield_core() => has_yielded = true,
                Turn::Waits(_) => return Some(Waited::GivesWay),
            }
            state = self.lock();
            if !state.may_lead(caller) {
                return Some(Waited::GivesWay);
            }
        }
    }

    fn lead_once(
        &self,
        state: Locked<'_, P>,
        caller: Caller,
        look: &mut impl FnMut(&mut P) -> bool,
    ) -> Option<Turn> {
        let on_panic = EndOnPanic(self);
        // Dropped first when something panics: a parameter would be dropped last.
        let mut state = state;
        let turn = state.turn(caller, look);
        let next = match turn {
            Some(Turn::GoesOn | Turn::Waits(Wait::Spin | Wait::Yield)) => None,
            Some(Turn::Waits(Wait::Park)) => state.on_lead(Event::GivesUp(caller)),
            Some(Turn::Done) | None => state.leave_lead(caller),
        };
        let wakers = state.take_wakers();
        let leaving = state.leave();
        std::mem::forget(on_panic);
        leaving.run();
        wake(wakers.into_iter().chain(next));
        turn
    }

    /// Lets other threads have the core. Returns whether one took it that is likely to be the peer.
    pub(crate) fn yield_core(&self) -> bool {
        let took = yield_core();
        let mut state = self.lock();
        state.on_yielded(Instant::now(), took) && state.shares_core()
    }

    /// Has a caller that must sleep register its waker, by `register`. Wakes the driver if nobody
    /// else polls from then on. `None` when the connection is gone. The step must not run user
    /// code.
    pub fn fall_asleep<R>(
        &self,
        key: ConnectionKey,
        register: impl FnOnce(&mut P) -> R,
    ) -> Option<R> {
        let on_panic = EndOnPanic(self);
        let mut state = self.lock();
        let (mut registered, mut driver) = (None, None);
        // An unused step is dropped after the lock is released, as it owns a waker.
        if let Some(connection) = state.connection(key) {
            registered = Some(register(&mut connection.protocol));
            driver = state.on_lead(Event::FallsAsleep);
        }
        let _log = state.unlock();
        std::mem::forget(on_panic);
        wake(driver);
        registered
    }

    /// A caller waits no more, whatever has come: runs `step` as [`Shard::with_revoke`] does.
    pub fn stop_waiting<R>(
        &self,
        key: ConnectionKey,
        caller: u64,
        step: impl FnOnce(&mut P, Revoke<'_>) -> R,
    ) -> Option<R> {
        let on_panic = EndOnPanic(self);
        let mut state = self.lock();
        let result = state.with_revoke(key, step);
        let next = state.leave_lead(Caller { key, id: caller });
        let leaving = state.leave();
        std::mem::forget(on_panic);
        wake(next);
        leaving.run();
        result
    }
}

/// Wakes callers, with no lock held.
fn wake(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        caught(|| waker.wake());
    }
}

impl<P: UpperLayer> Locked<'_, P> {
    /// Polls, and looks again. `None` when the connection is gone.
    fn turn(&mut self, caller: Caller, look: &mut impl FnMut(&mut P) -> bool) -> Option<Turn> {
        let is_first = !self.lead.is_held();
        self.lead.on(Event::Polls(caller));
        let now = clock::now();
        self.set_now(now);
        self.run_timers();
        if self.checks.is_due(now) {
            self.look_around();
        }
        let polls = if is_first { POLLS_OF_FIRST_TURN } else { POLLS_PER_TURN };
        let mut found = 0;
        for _ in 0..self.polls_at_most(polls) {
            found = self.poll_in_turn();
            if found > 0 {
                break;
            }
        }
        // On some devices polling leaves doorbells to be rung.
        self.cq.flush();
        if look(&mut self.connection(caller.key)?.protocol) {
            return Some(Turn::Done);
        }
        if found > 0 || is_first {
            return Some(Turn::GoesOn);
        }
        // Spinning takes real time, whatever the clock says.
        Some(Turn::Waits(self.on_idle(Instant::now())))
    }

    /// The turn of the caller of the only call, in the visit that sends it: it needs no lead, as
    /// the lock is held. It goes on until `look` returns true.
    pub(super) fn poll_for_one(
        &mut self,
        key: ConnectionKey,
        mut look: impl FnMut(&mut P) -> bool,
    ) {
        if !self.may_poll_for_one() {
            return;
        }
        let mut is_done = false;
        for _ in 0..POLLS_FOR_ONE {
            if self.poll_in_turn() > 0 {
                let Some(connection) = self.connection(key) else { return };
                is_done = look(&mut connection.protocol);
            }
            if is_done {
                self.lead.on(Event::PollsOnce);
                break;
            }
        }
        self.spin.on_polled_for_one(is_done);
    }

    /// Polls once for a caller. Returns what was found.
    #[inline]
    fn poll_in_turn(&mut self) -> usize {
        let found = self.poll();
        if found > 0 {
            // The driver may have parked between two polls; then this has used up its event.
            self.caller_progress = true;
            self.on_progress();
        } else {
            // Callers that wait for the lock go first.
            self.bump();
            self.relax();
        }
        found
    }
}

impl<P: UpperLayer> State<P> {
    fn may_lead(&self, caller: Caller) -> bool {
        self.may_spin
            && self.lead.admits(caller)
            && matches!(self.driver, DriverState::Running | DriverState::StoodBack { .. })
            && self.is_for_callers_alone()
    }

    /// Whether the caller of the only call polls for its answer before it waits.
    #[inline]
    fn may_poll_for_one(&mut self) -> bool {
        self.may_spin && self.actions.is_empty() && self.spin.polls_for_one()
    }

    /// Whether nothing but outcomes of calls is awaited here: of the calls of one connection.
    pub(super) fn is_for_callers_alone(&self) -> bool {
        let mut connections = self.connections.iter();
        let only = connections.next().filter(|_| self.connections.len() == 1);
        only.is_some_and(|(_, connection)| connection.protocol.is_for_callers_alone())
    }

    /// Whether a caller has polled since the driver last asked.
    pub(crate) fn has_polled(&self) -> bool {
        self.lead.has_polled()
    }

    /// Whether the driver may stand back, as a caller has polled since the last call.
    pub(crate) fn is_led(&mut self) -> bool {
        let has_work = !self.actions.is_empty() || self.is_unfinished();
        self.lead.on(Event::DriverAsks) == Effect::StandBack
            && !has_work
            && !self.closing
            && self.is_for_callers_alone()
    }

    /// Marks the driver as standing back. Returns when it must look again.
    pub(crate) fn stand_back(&mut self, waker: Waker) -> Instant {
        // What was left to the driver's next poll.
        self.cq.flush();
        let backstop = clock::now() + BACKSTOP;
        let until = self.next_deadline().map_or(backstop, |at| at.min(backstop));
        self.driver = DriverState::StoodBack { waker, until };
        until
    }

    /// A caller needs no more polls. Returns whom to wake.
    fn leave_lead(&mut self, caller: Caller) -> Option<Waker> {
        if !self.lead.is_of(caller) {
            return None;
        }
        // What was left to its next poll.
        self.cq.flush();
        let driver_sleeps = matches!(self.driver, DriverState::Parked { .. } | DriverState::Gone);
        self.on_lead(Event::Leaves { caller, driver_sleeps })
    }

    /// Takes a transition of the lead. Returns whom to wake.
    #[inline]
    fn on_lead(&mut self, event: Event) -> Option<Waker> {
        match self.lead.on(event) {
            Effect::FindSleeper => self.offer_lead(),
            Effect::WakeDriver if matches!(self.driver, DriverState::StoodBack { .. }) => {
                self.take_driver_waker()
            }
            Effect::Nothing | Effect::StandBack | Effect::WakeDriver => None,
        }
    }

    /// Offers the lead to a caller that sleeps. Returns whom to wake.
    fn offer_lead(&mut self) -> Option<Waker> {
        // Callers lead only where there is one connection.
        let found = self.connections.iter_mut().next().map(|(index, connection)| {
            let key = ConnectionKey { index: narrow(index), generation: connection.generation };
            (key, connection.protocol.take_sleeper())
        });
        match found {
            Some((key, Sleeper::Found(id, waker))) => {
                self.lead.on(Event::Found(Caller { key, id }));
                Some(waker)
            }
            Some((_, Sleeper::Nobody)) => None,
            Some((_, Sleeper::Unknown)) | None => self.on_lead(Event::FoundNone),
        }
    }

    /// Takes the wakers of callers out of the actions that are next.
    fn take_wakers(&mut self) -> Wakers {
        let mut wakers = Wakers::new();
        while wakers.len() < WAKES_PER_TURN
            && let Some((key, action)) = self.actions.pop_front()
        {
            match P::into_waker(action) {
                Ok(waker) => wakers.push(waker),
                Err(action) => {
                    self.actions.push_front((key, action));
                    break;
                }
            }
        }
        wakers
    }
}
