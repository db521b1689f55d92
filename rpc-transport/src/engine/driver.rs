//! The driver: the task that polls a shard's CQ and runs what follows.
//!
//! Owns the loop poll -> dispatch -> run actions -> wait. Never interprets a byte, and runs user
//! code only through the [`Executor`], outside the shard's lock.
//!
//! Invariants:
//! 1. It sleeps only after: arm, then a poll that found nothing, with the waker registered under
//!    the same lock. So nothing that arrives later can be missed, without any safety timer.
//! 2. While it sleeps, the one timer it holds is the shard's earliest deadline. While it stands
//!    back because callers poll, it looks again soon: see [`shard`](crate::engine::shard).
//! 3. When it is dropped (its runtime shuts down), every connection of the shard ends with
//!    [`CloseCause::DriverGone`](crate::device::connection_error::CloseCause::DriverGone).
//! 4. A panic of user code ends neither the driver nor the actions behind it.
//! 5. It yields to other tasks. On a single-threaded runtime all of them run before it is polled
//!    again, the main future and `LocalSet`s among them, and I/O is polled; in busy mode, while
//!    nothing comes, only tasks that are ready, but for one turn in `TURNS_PER_LOOK`. On a
//!    multi-threaded one other threads can steal it, so a task that blocks holds up only its own
//!    thread. How late timers and other tasks can be is bounded: see `pacer.rs`.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Sleep;

use crate::device::{ProviderError, open_files};
use crate::engine::clock;
use crate::engine::connection_key::ConnectionKey;
use crate::engine::deferred::Deferred;
use crate::engine::executor::Executor;
use crate::engine::poll::give_way;
use crate::engine::poll::pacer::Pacer;
use crate::engine::poll::spin::{PollMode, Wait};
use crate::engine::shard::{Shard, State};
use crate::engine::upper::UpperLayer;
use crate::memory::process::OfProcess;
use crate::user_code::caught;

/// Rounds with progress before the driver yields to other tasks of the worker.
const ROUNDS_PER_POLL: u32 = 16;
/// Empty polls of the CQ before returning to the scheduler while spinning.
const POLLS_PER_SPIN: u32 = 32;
/// Turns in vain of a busy driver for each in which a single-threaded runtime polls I/O: that takes
/// as long as a turn, and what arrives meanwhile waits.
const TURNS_PER_LOOK: u32 = 3;

/// Drives one shard until the shard is closed and empty, or its CQ has died. Spawn it on a tokio
/// runtime with I/O and time enabled.
#[must_use = "a driver does nothing until it is spawned"]
pub struct Driver<P: UpperLayer, E: Executor<P>> {
    shard: Arc<Shard<P>>,
    executor: E,
    /// A child must not drop it: it shares its parent's epoll, which would forget the descriptor.
    events: OfProcess<AsyncFd<OwnedFd>>,
    sleep: Option<Pin<Box<Sleep>>>,
    is_busy: bool,
    parked_at: Option<Instant>,
    stood_back: bool,
    pacer: Pacer,
    polls_per_spin: u32,
    /// Turns in a row of a busy driver that found nothing.
    turns_in_vain: u32,
    /// The core was yielded in this turn, and nothing has come since.
    has_yielded: bool,
    /// Something woke it, and it has not polled since.
    looks_first: bool,
    /// Actions to be run, including those left over when a round ended early.
    actions: VecDeque<(ConnectionKey, P::Action)>,
    /// User code runs, as the shard sees it: no doorbell may wait for the next poll.
    acts: Arc<AtomicBool>,
}

/// The outcome of one round.
enum Round {
    /// Work was done and no other task waits for this one.
    Progress,
    /// Work was done and a task was woken: let it run.
    Woke,
    /// Nothing.
    Idle,
    /// Nothing was done, as a caller leads. The driver must look again at this time.
    Led(Instant),
}

impl<P: UpperLayer, E: Executor<P>> Driver<P, E> {
    /// Prepares to drive `shard`. Must be called inside the runtime that will run it.
    ///
    /// # Errors
    /// When the CQ's event fd cannot be watched (no fd left).
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new(shard: Arc<Shard<P>>, executor: E, mode: PollMode) -> Result<Self, ProviderError> {
        let unwatched = |error: io::Error| ProviderError::Resources {
            what: "starting a driver",
            message: open_files::explain(&error),
        };
        let (fd, acts) = {
            let mut state = shard.lock();
            state.set_mode(mode);
            (state.cq().event_fd().try_clone_to_owned(), Arc::clone(state.driver_acts()))
        };
        let fd = fd.map_err(unwatched)?;
        // Deprecated for types whose fd changes or closes early; an `OwnedFd` does neither.
        #[allow(deprecated, reason = "its successor is an unsafe fn, which has no place here")]
        let events = AsyncFd::with_interest(fd, Interest::READABLE).map_err(unwatched)?;
        Ok(Self {
            shard,
            executor,
            events: OfProcess::new(events),
            sleep: None,
            is_busy: mode == PollMode::Busy,
            parked_at: None,
            stood_back: false,
            pacer: Pacer::default(),
            // In event mode the driver polls once, then parks.
            polls_per_spin: if mode == PollMode::Event { 1 } else { POLLS_PER_SPIN },
            turns_in_vain: 0,
            has_yielded: false,
            looks_first: false,
            actions: VecDeque::new(),
            acts,
        })
    }

    /// One round: applies handlers' results, polls, and runs the actions that follow.
    fn round(&mut self, cx: &Context<'_>) -> Round {
        let mut found = 0;
        let has_results = self.executor.has_results();
        let now = self.pacer.wants_clock().then(clock::now);
        let (deferred, _log) = {
            let mut state = self.shard.lock();
            if state.is_led() && !has_results && self.actions.is_empty() {
                return Round::Led(state.stand_back(cx.waker().clone()));
            }
            if let Some(now) = now {
                state.set_now(now);
                state.run_timers();
                if self.pacer.on_clock(now) {
                    state.look_around();
                }
            }
            if has_results {
                self.executor.apply(&mut state);
                found += 1;
            }
            let _ = state.finish_visit();
            found += usize::from(state.take_caller_progress());
            let polls = self.polls_per_round(has_results, &state);
            self.looks_first &= polls == 0;
            for _ in 0..polls {
                let count = state.poll();
                found += count;
                if count > 0 || state.has_actions() {
                    break;
                }
                // Callers that wait for the lock go first.
                state.bump();
                state.relax();
            }
            if found > 0 || state.has_actions() || !self.actions.is_empty() {
                state.on_progress();
            }
            if state.has_actions() {
                state.take_actions(&mut self.actions);
            }
            let deferred = state.take_deferred();
            if has_results || !deferred.is_empty() || !self.actions.is_empty() {
                // User code runs from here on and may take long: no doorbell waits for it, neither
                // those that polling has left on some devices nor those of callers. (The soft
                // device over tcp may hold back acknowledgements of small messages.)
                state.cq().flush();
                self.acts.store(true, Ordering::Relaxed);
            }
            (deferred, state.unlock())
        };
        Deferred::run_all(deferred);
        if has_results {
            caught(|| self.executor.applied());
        }
        self.pacer.on_round(found);
        let round = self.run_actions(found);
        self.acts.store(false, Ordering::Relaxed);
        round
    }

    fn polls_per_round(&self, has_results: bool, state: &State<P>) -> u32 {
        if !self.actions.is_empty() {
            // Actions of what has arrived run before more is polled.
            0
        } else if has_results {
            // Applied results are dropped outside the lock, so do not poll for long before that.
            1
        } else {
            // A driver that yields before it polls still takes what woke it, and what comes while
            // this end has work.
            let least = u32::from(self.looks_first || state.has_actions());
            state.polls_at_most(self.polls_per_spin).max(least)
        }
    }

    fn run_actions(&mut self, found: usize) -> Round {
        if self.actions.is_empty() {
            return if found > 0 { Round::Progress } else { Round::Idle };
        }
        let mut woke = false;
        while let Some((key, action)) = self.actions.pop_front() {
            woke |= caught(|| self.executor.execute(key, action)).unwrap_or_default();
            self.pacer.on_effect();
            if self.pacer.wants_clock() {
                break;
            }
        }
        if woke && !self.executor.has_results() { Round::Woke } else { Round::Progress }
    }

    /// Yields in busy mode while nothing comes: to tasks that are ready, and seldom to all
    /// (invariant 5).
    fn spin(&mut self, cx: &mut Context<'_>) {
        self.turns_in_vain = self.turns_in_vain.wrapping_add(1);
        if self.turns_in_vain.is_multiple_of(TURNS_PER_LOOK) {
            give_way(cx);
        } else {
            cx.waker().wake_by_ref();
        }
    }

    /// Waits after a round that found nothing. False: another round must run at once.
    fn wait(&mut self, cx: &mut Context<'_>) -> bool {
        if self.is_busy {
            self.spin(cx);
            return true;
        }
        let now = Instant::now();
        let wait = {
            let mut state = self.shard.lock();
            let wait = state.on_idle(now);
            if wait == Wait::Yield {
                // What callers have posted does not wait for the thread that runs meanwhile.
                state.cq().flush();
            }
            wait
        };
        match wait {
            // The thread that ran may have sent something: looking costs less than a turn of the
            // runtime.
            Wait::Yield if !self.has_yielded && self.shard.yield_core() => {
                self.has_yielded = true;
                false
            }
            Wait::Spin | Wait::Yield => {
                give_way(cx);
                true
            }
            Wait::Park => self.park(cx, now),
        }
    }

    /// Arms the CQ, polls once more, and sleeps (invariant 1). False: another round must run at
    /// once.
    fn park(&mut self, cx: &mut Context<'_>, machine_now: Instant) -> bool {
        let (deadline, deferred, _log) = {
            let mut state = self.shard.lock();
            if state.has_polled() {
                // A caller has taken over meanwhile: the next round stands back.
                return false;
            }
            state.set_now(clock::now());
            state.run_timers();
            state.send_idle_acks();
            let _ = state.finish_visit();
            if let Err(error) = state.cq().arm() {
                state.on_dead_cq(&error);
            }
            if state.poll_thoroughly() > 0
                || state.has_actions()
                || state.is_unfinished()
                || state.is_finished()
            {
                let _ = state.finish_visit();
                return false;
            }
            if !state.park(cx.waker().clone()) {
                return false;
            }
            let (deadline, deferred) = (state.next_deadline(), state.take_deferred());
            (deadline, deferred, state.unlock())
        };
        Deferred::run_all(deferred);
        self.parked_at = Some(machine_now);
        !self.poll_wakeups(cx, deadline)
    }

    /// Registers for the event fd and the timer. True when one of them is ready already.
    fn poll_wakeups(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) -> bool {
        if self.take_event(cx) {
            return true;
        }
        let Some(deadline) = deadline else {
            return false;
        };
        self.poll_timer(cx, deadline)
    }

    /// Registers for the timer. True when it has passed.
    fn poll_timer(&mut self, cx: &mut Context<'_>, deadline: Instant) -> bool {
        let deadline = tokio::time::Instant::from_std(deadline);
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if sleep.deadline() != deadline {
            sleep.as_mut().reset(deadline);
        }
        sleep.as_mut().poll(cx).is_ready()
    }

    /// Consumes the CQ's event, if there is one.
    fn take_event(&mut self, cx: &mut Context<'_>) -> bool {
        match self.events.poll_read_ready(cx) {
            Poll::Pending => false,
            Poll::Ready(Ok(mut guard)) => {
                // Order matters: make the fd unreadable, then clear the readiness. An event in
                // between sets the readiness again. An error here means that the CQ has died, which
                // the next poll reports.
                let _ = self.shard.lock().cq().clear_events();
                guard.clear_ready();
                true
            }
            // The runtime's I/O driver is shutting down; dropping the driver follows.
            Poll::Ready(Err(_)) => false,
        }
    }

    /// Leaves the parked state after a wake-up of any kind.
    fn on_woken(&mut self, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.stood_back) {
            self.shard.lock().unpark();
        }
        let Some(parked_at) = self.parked_at.take() else { return };
        self.take_event(cx);
        self.looks_first = true;
        let mut state = self.shard.lock();
        state.on_woken(parked_at);
        state.unpark();
        state.set_now(clock::now());
        state.run_timers();
    }
}

impl<P: UpperLayer, E: Executor<P> + Unpin> Future for Driver<P, E> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if !this.events.is_here() {
            return Poll::Ready(());
        }
        this.pacer.begin_turn();
        this.has_yielded = false;
        this.on_woken(cx);
        for _ in 0..ROUNDS_PER_POLL {
            let round = this.round(cx);
            if matches!(round, Round::Progress | Round::Woke) {
                this.turns_in_vain = 0;
            }
            match round {
                Round::Progress => {
                    this.has_yielded = false;
                    if this.pacer.is_turn_over() {
                        break;
                    }
                }
                Round::Woke => break,
                Round::Led(until) => {
                    this.stood_back = true;
                    if !this.poll_timer(cx, until) {
                        return Poll::Pending;
                    }
                    this.on_woken(cx);
                }
                Round::Idle => {
                    if this.is_finished() {
                        return Poll::Ready(());
                    }
                    if this.wait(cx) {
                        return Poll::Pending;
                    }
                }
            }
        }
        give_way(cx);
        Poll::Pending
    }
}

impl<P: UpperLayer, E: Executor<P>> Driver<P, E> {
    /// Whether the shard was shut down and no connection is left, or its CQ has died.
    fn is_finished(&self) -> bool {
        self.shard.lock().is_finished()
    }
}

impl<P: UpperLayer, E: Executor<P>> Drop for Driver<P, E> {
    fn drop(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        let (deferred, _log) = {
            let mut state = self.shard.lock();
            state.driver_gone();
            state.take_actions(&mut actions);
            let deferred = state.take_deferred();
            (deferred, state.unlock())
        };
        Deferred::run_all(deferred);
        for (_, action) in actions {
            caught(|| self.executor.discard(action));
        }
    }
}

impl<P: UpperLayer, E: Executor<P>> std::fmt::Debug for Driver<P, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("shard", &self.shard).finish_non_exhaustive()
    }
}
