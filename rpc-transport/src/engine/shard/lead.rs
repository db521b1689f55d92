//! Callers that poll the CQ in place of the driver.
//!
//! Owns who leads. Of the callers that wait for a connection, one *leads*: each time it is polled it
//! polls the CQ, wakes those whose outcomes have arrived, and has itself polled again. So an answer
//! arrives on the thread that waits for it, wherever that is, and no wake-up between threads is paid.
//! The driver stands back meanwhile.
//!
//! Invariants:
//! 1. There is one leader at most. It needs no waker: it is polled again anyway.
//! 2. A lead that ends while others sleep goes to one of them, or back to the driver. Where nobody is
//!    known to sleep it goes to nobody, and whoever falls asleep then wakes the driver.
//! 3. A driver that stands back looks once in [`BACKSTOP`] whether a leader has polled meanwhile, and
//!    if not polls again itself: a leader may be forgotten, or its task be busy.
//! 4. Callers lead only where nothing but outcomes of calls is awaited from the peer, and where
//!    waiting means spinning; a driver that sleeps until the CQ's event is left alone.

#[cfg(test)]
mod tests;

use std::task::Waker;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::leader::Leader;
use super::state::{DriverState, State};
use super::{EndOnPanic, Locked, Shard};
use crate::engine::clock;
use crate::engine::connection_key::ConnectionKey;
use crate::engine::spin::{self, Wait};
use crate::engine::upper::{Protocol, Sleeper};
use crate::user_code::caught;

/// Longest time that nobody polls because a leader has vanished.
const BACKSTOP: Duration = Duration::from_millis(1);
/// Time between two polls of the rarely polled sources.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Most empty polls of one turn of a leader.
const POLLS_PER_TURN: u32 = 32;
/// Most callers that a leader wakes in one turn; the driver wakes the others.
const WAKES_PER_TURN: usize = 64;

/// What a caller is to do that waits.
#[derive(Debug)]
pub enum Waited<T> {
    /// Nothing more: here is what it waits for.
    Done(T),
    /// To have itself polled again, as it leads.
    Leads,
    /// The same, after others of its runtime have run and I/O was looked at: nothing has come.
    GivesWay,
    /// To register its waker, after which it must look once more.
    Sleeps,
}

/// How a turn ended.
enum Turn<T> {
    Done(T),
    /// Something has come, or it is the first turn: go on.
    On,
    /// Nothing has come yet.
    Idle,
    /// The same, and other threads may want the core.
    Yield,
    /// Waiting longer is not worth the core.
    GiveUp,
}

type Wakers = SmallVec<[Waker; WAKES_PER_TURN]>;

impl<P: Protocol> Shard<P> {
    /// A turn of a caller that waits for what `look` gives. The caller that leads polls the CQ.
    /// `caller` tells the callers of a connection apart. `None` when the connection is gone.
    pub fn wait<T>(
        &self,
        key: ConnectionKey,
        caller: u64,
        mut look: impl FnMut(&mut P) -> Option<T>,
    ) -> Option<Waited<T>> {
        let on_panic = EndOnPanic(self);
        let leader = Leader { key, caller };
        let mut state = self.lock();
        let looked = match state.connection(key) {
            None => None,
            Some(connection) => match look(&mut connection.protocol) {
                Some(value) => Some(Waited::Done(value)),
                None if state.may_lead(leader) => {
                    std::mem::forget(on_panic);
                    return self.lead(state, leader, look);
                }
                None => Some(Waited::Sleeps),
            },
        };
        // One that was to lead next may have its outcome already: the others sleep on.
        let is_next = state.lead.next == Some(leader) && !matches!(looked, Some(Waited::Sleeps));
        let ends = state.lead.leader == Some(leader) || is_next;
        let next = if ends { state.pass_on() } else { None };
        drop(state);
        std::mem::forget(on_panic);
        wake(next);
        looked
    }

    fn lead<'a, T>(
        &'a self,
        mut state: Locked<'a, P>,
        leader: Leader,
        mut look: impl FnMut(&mut P) -> Option<T>,
    ) -> Option<Waited<T>> {
        let mut has_yielded = false;
        loop {
            match self.lead_once(state, leader, &mut look)? {
                Turn::Done(value) => return Some(Waited::Done(value)),
                Turn::On => return Some(Waited::Leads),
                Turn::Idle => return Some(Waited::GivesWay),
                // Who ran may have answered: looking costs less than a turn of the runtime.
                Turn::Yield if !has_yielded && self.yield_core() => has_yielded = true,
                Turn::Yield => return Some(Waited::GivesWay),
                Turn::GiveUp => return Some(Waited::Sleeps),
            }
            state = self.lock();
            if !state.may_lead(leader) {
                return Some(Waited::GivesWay);
            }
        }
    }

    fn lead_once<T>(
        &self,
        state: Locked<'_, P>,
        leader: Leader,
        look: &mut impl FnMut(&mut P) -> Option<T>,
    ) -> Option<Turn<T>> {
        let on_panic = EndOnPanic(self);
        // Dropped first when something panics: a parameter would be dropped last.
        let mut state = state;
        let turn = state.turn(leader, look);
        let next = match turn {
            Some(Turn::On | Turn::Idle | Turn::Yield) => None,
            Some(Turn::GiveUp) => state.give_up(),
            Some(Turn::Done(_)) | None => state.pass_on(),
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
        let took = spin::yield_core();
        let mut state = self.lock();
        // The driver beside callers that lead has their measure, too: its parks would be theirs.
        let leads = state.is_for_callers_alone();
        state.on_yielded(took, leads) && state.shares_core()
    }

    /// Has a caller that was told to sleep register its waker, by `register`. The driver is woken if nobody else
    /// polls from then on. `None` when the connection is gone. The step must not run user code.
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
            driver = state.on_asleep();
        }
        drop(state);
        std::mem::forget(on_panic);
        wake(driver);
        registered
    }

    /// A caller waits no more, whatever has come.
    pub fn stop_waiting(&self, key: ConnectionKey, caller: u64) {
        let mut state = self.lock();
        let leads = |leader: Leader| leader == Leader { key, caller };
        // Without a leader this may be the caller that was chosen to be the next one.
        let next = if state.lead.leader.is_none_or(leads) { state.pass_on() } else { None };
        drop(state);
        wake(next);
    }
}

/// Wakes callers, with no lock held.
fn wake(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        caught(|| waker.wake());
    }
}

impl<P: Protocol> Locked<'_, P> {
    /// Polls, and looks again. `None` when the connection is gone.
    fn turn<T>(
        &mut self,
        leader: Leader,
        look: &mut impl FnMut(&mut P) -> Option<T>,
    ) -> Option<Turn<T>> {
        let is_new = self.lead.leader.replace(leader).is_none();
        self.lead.next = None;
        self.lead.has_polled = true;
        let now = clock::now();
        self.set_now(now);
        self.run_timers();
        let looked_at = *self.lead.looked_at.get_or_insert(now);
        if now.saturating_duration_since(looked_at) >= LOOK_EVERY {
            self.lead.looked_at = Some(now);
            self.look_around();
        }
        // Before its first turn other callers may still have something to send.
        let polls = self.polls_at_most(if is_new { 1 } else { POLLS_PER_TURN });
        let mut found = 0;
        for _ in 0..polls {
            found = self.poll();
            if found > 0 {
                break;
            }
            self.bump();
            self.relax();
        }
        // On some devices polling leaves doorbells to be rung.
        self.cq.flush();
        if found > 0 {
            // The driver may have parked between two polls; then this has used up its event.
            self.caller_progress = true;
            self.on_progress();
        }
        if let Some(value) = look(&mut self.connection(leader.key)?.protocol) {
            return Some(Turn::Done(value));
        }
        if found > 0 || is_new {
            return Some(Turn::On);
        }
        // Spinning takes real time, whatever the clock says.
        Some(match self.on_idle(Instant::now()) {
            Wait::Spin => Turn::Idle,
            Wait::Yield => Turn::Yield,
            Wait::Park => Turn::GiveUp,
        })
    }
}

impl<P: Protocol> State<P> {
    fn may_lead(&self, caller: Leader) -> bool {
        let is_free = self.lead.leader.is_none_or(|leader| leader == caller);
        is_free
            && self.may_spin
            && matches!(self.driver, DriverState::Running | DriverState::StoodBack { .. })
            && self.is_for_callers_alone()
    }

    /// Whether the caller of a call that is alone should poll for its answer before it waits.
    #[inline]
    pub(super) fn may_poll_for_one(&self) -> bool {
        self.may_spin && self.actions.is_empty() && !self.shares_core()
    }

    /// Whether nothing but outcomes of calls is awaited here: of the calls of one connection.
    pub(super) fn is_for_callers_alone(&self) -> bool {
        let mut connections = self.connections.iter();
        let only = connections.next().filter(|_| self.connections.len() == 1);
        only.is_some_and(|(_, connection)| connection.protocol.is_for_callers_alone())
    }

    /// A caller has polled for its own answer, and it has come: the driver need not spin beside such
    /// callers.
    #[inline]
    pub(super) fn on_lone_answer(&mut self) {
        self.lead.has_polled |= self.lead.leader.is_none();
    }

    /// Whether a leader has polled since the driver last asked.
    pub(crate) fn has_polled(&self) -> bool {
        self.lead.has_polled
    }

    /// Whether a leader has polled since the last call, so that the driver may stand back. If none
    /// has, nobody leads any more.
    pub(crate) fn is_led(&mut self) -> bool {
        if std::mem::take(&mut self.lead.has_polled) {
            let has_work = !self.actions.is_empty() || !self.unfinished.is_empty();
            return !has_work && !self.closing && self.is_for_callers_alone();
        }
        self.lead.leader = None;
        self.lead.next = None;
        false
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

    /// Ends the lead. Returns whom to wake: a caller that leads from now on, or the driver.
    fn pass_on(&mut self) -> Option<Waker> {
        // What was left to its next poll.
        self.cq.flush();
        let leader = self.lead.leader.take();
        let was_led = self.lead.next.take().is_some() || leader.is_some();
        let is_left_to_callers = match self.driver {
            DriverState::StoodBack { .. } => true,
            // It stands back, too, when it finds that a caller has polled. Polling beside whoever leads next, it
            // would want the core of that one or of the peer.
            DriverState::Running => was_led,
            DriverState::Parked { .. } | DriverState::Gone => false,
        };
        if !is_left_to_callers {
            self.lead.has_polled = false;
            return None;
        }
        let key = leader.map(|leader| leader.key).or_else(|| self.first_key());
        let connection = key.and_then(|key| Some((key, self.connection(key)?)));
        let Some((key, connection)) = connection else { return self.give_up() };
        match connection.protocol.take_sleeper() {
            Sleeper::Found(caller, waker) => {
                self.lead.next = Some(Leader { key, caller });
                Some(waker)
            }
            Sleeper::Nobody => None,
            Sleeper::Unknown => self.give_up(),
        }
    }

    fn first_key(&self) -> Option<ConnectionKey> {
        let (index, connection) = self.connections.iter().next()?;
        let index = u32::try_from(index).ok()?;
        Some(ConnectionKey { index, generation: connection.generation })
    }

    /// Ends the lead. Returns the waker of the driver, which is to poll or to sleep.
    fn give_up(&mut self) -> Option<Waker> {
        self.lead.leader = None;
        self.lead.next = None;
        self.lead.has_polled = false;
        self.take_driver_waker()
    }

    /// A caller sleeps from now on. The lead may have ended since it was told to, when it was not known to sleep:
    /// then the driver polls. Returns its waker if it stands back.
    #[inline]
    fn on_asleep(&mut self) -> Option<Waker> {
        let is_led = self.lead.leader.is_some() || self.lead.next.is_some();
        match self.driver {
            DriverState::Running | DriverState::StoodBack { .. } if !is_led => self.give_up(),
            _ => None,
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
