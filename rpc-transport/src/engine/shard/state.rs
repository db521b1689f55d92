//! The state under the shard's lock: the CQ, its connections, and their queues and deadlines.
//!
//! Owns the operations of a visit, and its end: pump dirty connections, register deadlines, collect
//! actions. Never locks, and wakes nobody itself; the invariants are those of [`shard`](super).

mod outside;
mod polling;
mod pumping;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use slab::Slab;

use super::WakeList;
use super::orphan::NoQueue;
use crate::device::connection_error::CloseCause;
use crate::device::{Completion, CompletionQueue, QpHandle, RecvWr, Ring};
use crate::engine::clock;
use crate::engine::connection::{Connection, OwnSilence};
use crate::engine::connection_key::ConnectionKey;
use crate::engine::deferred::Deferred;
use crate::engine::poll::lead::Lead;
use crate::engine::poll::pacer::Checks;
use crate::engine::poll::spin::{PollMode, Wait, WaitPolicy};
use crate::engine::pump_queue::PumpQueue;
use crate::engine::shared_recvs::SharedRecvs;
use crate::engine::upper::{Revoke, UpperLayer};
use crate::protocol::frame::{CloseCode, CloseReason};
use crate::user_code::logged;

const NO_CONNECTION: u32 = u32::MAX;
/// Completions taken from the CQ in one go.
const POLL_BATCH: usize = 64;
/// A driver that runs this much later than it was due did not get to run: its process was stopped,
/// or its runtime was blocked.
const NOT_RUN: Duration = Duration::from_secs(1);

/// The state of the shard's driver.
#[derive(Debug)]
pub(super) enum DriverState {
    /// No driver yet, or one that runs and will poll again before it parks.
    Running,
    /// Sleeping: wake it for actions, and for deadlines earlier than `until`.
    Parked { waker: Waker, until: Option<Instant> },
    /// Sleeping while callers poll: wake it for actions, but not for what a caller has polled.
    StoodBack { waker: Waker, until: Instant },
    /// Its runtime has shut down.
    Gone,
}

/// The state under the shard's lock.
pub struct State<P: UpperLayer> {
    pub(super) cq: Box<dyn CompletionQueue>,
    pub(super) connections: Slab<Connection<P>>,
    returns: Arc<WakeList>,
    /// The receives of all connections, if they share them.
    shared_recvs: Option<Arc<SharedRecvs>>,
    generation: u32,
    by_qp: Vec<u32>,
    completions: Vec<Completion>,
    /// RECVs to be posted again when the run of completions at hand is handled; empty otherwise.
    reposts: Vec<RecvWr>,
    quiet_polls: u32,
    // Events must be polled soon, though completions keep coming.
    events_due: bool,
    dirty: Vec<u32>,
    pub(super) pump_queue: PumpQueue,
    // The connection that may have a RECV to repost.
    spare: u32,
    // The `registered_deadline` of each connection that has one.
    pub(super) deadlines: BTreeSet<(Instant, u32)>,
    pub(super) actions: VecDeque<(ConnectionKey, P::Action)>,
    deferred: Vec<Deferred>,
    // Connections used since the driver last parked: they may owe acks.
    warm: Vec<u32>,
    now: Instant,
    /// When the parked driver was due to wake (`Some(None)`: no deadline), until `now` is next set.
    asleep_until: Option<Option<Instant>>,
    pub(super) driver: DriverState,
    /// The driver runs what is the user's: handlers, destructors.
    driver_acts: Arc<AtomicBool>,
    pub(super) closing: bool,
    /// The CQ has died.
    dead: bool,
    pub(super) qp_count: usize,
    pub(super) unflushed: u64,
    pub(super) may_spin: bool,
    pub(super) caller_progress: bool,
    pub(super) lead: Lead,
    /// Of callers that lead.
    pub(super) checks: Checks,
    pub(super) spin: WaitPolicy,
    /// Since when nothing has arrived, as far as somebody waits.
    idle_since: Option<Instant>,
    /// The same before the last step of a handshake.
    handshake_since: Option<Instant>,
    /// When the driver parked that was woken and has not waited since.
    parked_at: Option<Instant>,
    /// A spinning thread executes the CPU's spin-loop hint between polls.
    uses_spin_hint: bool,
}

impl<P: UpperLayer> State<P> {
    pub(super) fn new(
        cq: Box<dyn CompletionQueue>,
        returns: Arc<WakeList>,
        shared_recvs: Option<Arc<SharedRecvs>>,
    ) -> Self {
        let uses_spin_hint = cq.uses_spin_hint();
        Self {
            cq,
            connections: Slab::new(),
            returns,
            shared_recvs,
            generation: 0,
            by_qp: Vec::new(),
            completions: Vec::new(),
            reposts: Vec::new(),
            quiet_polls: 0,
            events_due: false,
            dirty: Vec::new(),
            pump_queue: PumpQueue::default(),
            spare: NO_CONNECTION,
            deadlines: BTreeSet::new(),
            actions: VecDeque::new(),
            deferred: Vec::new(),
            warm: Vec::new(),
            now: clock::now(),
            asleep_until: None,
            driver: DriverState::Running,
            driver_acts: Arc::default(),
            closing: false,
            dead: false,
            qp_count: 0,
            unflushed: 0,
            may_spin: false,
            caller_progress: false,
            lead: Lead::default(),
            checks: Checks::default(),
            spin: WaitPolicy::new(PollMode::Event),
            idle_since: None,
            handshake_since: None,
            parked_at: None,
            uses_spin_hint,
        }
    }

    /// The state of a shard without a CQ, which has ended.
    pub(super) fn orphan() -> Self {
        let state = Self::new(Box::new(NoQueue::default()), Arc::default(), None);
        Self { closing: true, dead: true, ..state }
    }

    /// Adds a connection whose QP has been created on this shard's CQ.
    pub(crate) fn insert(&mut self, qp: QpHandle, connection: Connection<P>) -> ConnectionKey {
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let index = narrow(self.connections.insert(connection));
        self.connections[index as usize].generation = generation;
        let at = qp.index as usize;
        if self.by_qp.len() <= at {
            self.by_qp.resize(at + 1, NO_CONNECTION);
        }
        self.by_qp[at] = index;
        self.qp_count += 1;
        ConnectionKey { index, generation }
    }

    /// What the driver says while it runs what is the user's, outside the lock.
    pub(crate) fn driver_acts(&self) -> &Arc<AtomicBool> {
        &self.driver_acts
    }

    pub(crate) fn cq(&mut self) -> &mut dyn CompletionQueue {
        &mut *self.cq
    }

    pub(crate) fn connection(&mut self, key: ConnectionKey) -> Option<&mut Connection<P>> {
        let connection = self.connections.get_mut(key.index as usize)?;
        (connection.generation == key.generation).then_some(connection)
    }

    /// The CQ and one connection, for set-up steps that need both.
    pub(crate) fn cq_and_connection(
        &mut self,
        key: ConnectionKey,
    ) -> Option<(&mut dyn CompletionQueue, &mut Connection<P>)> {
        let connection = self.connections.get_mut(key.index as usize)?;
        (connection.generation == key.generation).then_some((&mut *self.cq, connection))
    }

    /// Runs `step` on a connection's protocol and marks it for sending.
    pub fn with<R>(&mut self, key: ConnectionKey, step: impl FnOnce(&mut P) -> R) -> Option<R> {
        let connection = self.connections.get_mut(key.index as usize)?;
        if connection.generation != key.generation {
            return None;
        }
        let result = step(&mut connection.protocol);
        if !std::mem::replace(&mut connection.dirty, true) {
            self.dirty.push(key.index);
        }
        Some(result)
    }

    /// [`State::with`], and sends what is to be sent right away, with doorbells by `ring`.
    #[inline]
    pub(super) fn with_now<R>(
        &mut self,
        key: ConnectionKey,
        is_awaited: bool,
        step: impl FnOnce(&mut P) -> R,
    ) -> Option<R> {
        debug_assert!(self.dirty.is_empty(), "invariant 2");
        let result = step(&mut self.connection(key)?.protocol);
        let may_ring_soon = is_awaited && self.is_polled_soon();
        self.pump(key.index, if may_ring_soon { Ring::Soon } else { Ring::Now });
        Some(result)
    }

    /// Runs `step`, and pumps the connection only if its protocol then has something to send.
    #[inline]
    pub(super) fn read<R>(
        &mut self,
        key: ConnectionKey,
        step: impl FnOnce(&mut P) -> R,
    ) -> Option<R> {
        let protocol = &mut self.connection(key)?.protocol;
        let result = step(protocol);
        if protocol.may_transmit() {
            self.mark_ready(key.index);
        }
        Some(result)
    }

    pub(super) fn with_revoke<R>(
        &mut self,
        key: ConnectionKey,
        step: impl FnOnce(&mut P, Revoke<'_>) -> R,
    ) -> Option<R> {
        let connection = self.connection(key)?;
        let result = connection.with_revoke(step);
        self.mark_dirty(key.index);
        Some(result)
    }

    pub(super) fn close(&mut self, key: ConnectionKey, reason: CloseReason) {
        if let Some(connection) = self.connection(key) {
            connection.close(reason);
            self.mark_dirty(key.index);
        }
    }

    pub(super) fn fail(&mut self, key: ConnectionKey, cause: &CloseCause) {
        if let Some((cq, connection)) = self.cq_and_connection(key) {
            connection.fail(cq, cause);
            self.mark_dirty(key.index);
        }
    }

    pub(super) fn release(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.connection(key) {
            connection.holders = connection.holders.saturating_sub(1);
            connection.close(CloseReason::new(CloseCode::Normal, ""));
            self.mark_dirty(key.index);
        }
    }

    pub(super) fn hold(&mut self, key: ConnectionKey) -> bool {
        let connection = self.connection(key);
        connection.is_some_and(|connection| {
            connection.holders += 1;
            true
        })
    }

    pub(super) fn let_go(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.connection(key) {
            connection.holders = connection.holders.saturating_sub(1);
            self.mark_dirty(key.index);
        }
    }

    /// Whether the end of a visit has nothing to do: nothing to be sent, nobody to be woken,
    /// nothing to be run outside the lock.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.dirty.is_empty()
            && self.deferred.is_empty()
            && !self.caller_progress
            && matches!(self.driver, DriverState::Running)
            && !self.returns.has_any()
    }

    /// Pumps the dirty connections; returns the driver's waker if it must poll (invariants 2 and
    /// 5).
    #[inline(never)]
    pub(crate) fn finish_visit(&mut self) -> Option<Waker> {
        if self.returns.has_any() {
            self.mark_returned();
        }
        self.transmit_dirty();
        if let DriverState::Running | DriverState::Gone = self.driver {
            return None;
        }
        self.wake_for_visit()
    }

    /// The waker of a driver that sleeps, if it must poll after this visit.
    #[inline(never)]
    fn wake_for_visit(&mut self) -> Option<Waker> {
        let (until, polled) = match &self.driver {
            DriverState::Parked { until, .. } => (*until, self.caller_progress),
            DriverState::StoodBack { until, .. } => (Some(*until), !self.is_for_callers_alone()),
            DriverState::Running | DriverState::Gone => return None,
        };
        // A caller that polled may have used up the event that the sleeping driver armed, so the
        // driver must arm again.
        let has_work = !self.actions.is_empty() || self.is_unfinished();
        let is_sooner = |at| until.is_none_or(|until| at < until);
        let must_look = has_work || polled || self.next_deadline().is_some_and(is_sooner);
        if !must_look && !self.is_finished() {
            return None;
        }
        self.take_driver_waker()
    }

    #[cold]
    fn mark_returned(&mut self) {
        for key in self.returns.take() {
            self.mark_dirty_key(key);
        }
    }

    pub(super) fn take_driver_waker(&mut self) -> Option<Waker> {
        if let DriverState::Running | DriverState::Gone = self.driver {
            return None;
        }
        match std::mem::replace(&mut self.driver, DriverState::Running) {
            DriverState::Parked { waker, .. } | DriverState::StoodBack { waker, .. } => Some(waker),
            DriverState::Running | DriverState::Gone => None,
        }
    }

    /// Whether somebody polls before anything else of this shard runs, as far as the runtime runs.
    pub(super) fn is_polled_soon(&self) -> bool {
        match self.driver {
            DriverState::Running => !self.driver_acts.load(Ordering::Relaxed),
            DriverState::StoodBack { .. } => self.lead.is_held(),
            DriverState::Parked { .. } | DriverState::Gone => false,
        }
    }

    /// Whether the next poll would send something even if nothing has arrived.
    pub(crate) fn is_unfinished(&self) -> bool {
        !self.pump_queue.is_empty()
    }

    pub(crate) fn fail_all(&mut self, cause: &CloseCause) {
        for index in self.indices() {
            let (connection, cq) = (&mut self.connections[index as usize], &mut *self.cq);
            // A protocol that panicked before may panic again; the others must still be notified.
            let notified = catch_unwind(AssertUnwindSafe(|| connection.fail(cq, cause)));
            if notified.is_err() {
                logged(|| tracing::error!("a session panicked when its connection ended"));
            }
            self.mark_dirty(index);
        }
    }

    pub(super) fn indices(&self) -> Vec<u32> {
        self.connections.iter().map(|(index, _)| narrow(index)).collect()
    }

    /// Runs the timers that are due. Before a peer's keep-alive is checked, everything that has
    /// arrived is handled: this process may have been stopped for a while.
    pub(crate) fn run_timers(&mut self) {
        let mut taken_in = false;
        while let Some(&(at, index)) = self.deadlines.first() {
            if at > self.now {
                break;
            }
            let judged = self
                .connections
                .get(index as usize)
                .is_some_and(|connection| connection.is_keep_alive_judged(self.now));
            if judged && !std::mem::replace(&mut taken_in, true) {
                self.consume();
                continue;
            }
            self.deadlines.pop_first();
            let Some(connection) = self.connections.get_mut(index as usize) else { continue };
            connection.take_registered_deadline();
            connection.on_timeout(&mut *self.cq, self.now);
            self.mark_dirty(index);
        }
        self.transmit_dirty();
    }

    /// Sends the acks that are owed below the threshold. Called before the driver sleeps (credit
    /// rule 6).
    pub(crate) fn send_idle_acks(&mut self) {
        while let Some(index) = self.warm.pop() {
            if let Some(connection) = self.connections.get_mut(index as usize) {
                connection.warm = false;
                connection.send_idle_ack(&mut *self.cq);
            }
        }
        self.transmit_dirty();
    }

    /// Whether a caller's polls found something since the last call. The driver counts that as
    /// progress.
    pub(crate) fn take_caller_progress(&mut self) -> bool {
        std::mem::take(&mut self.caller_progress)
    }

    /// Sets how a driver or caller that polls waits.
    pub(crate) fn set_mode(&mut self, mode: PollMode) {
        self.may_spin = mode != PollMode::Event;
        self.spin = WaitPolicy::new(mode);
    }

    /// Something has arrived, or was done.
    #[inline]
    pub(crate) fn on_progress(&mut self) {
        if self.idle_since.take().is_some() {
            self.spin.on_progress();
        }
    }

    /// Nothing has arrived. The peer computes for longer before its next step of a handshake than
    /// a thread polls, so such a step does not begin the wait anew.
    pub(crate) fn on_idle(&mut self, now: Instant) -> Wait {
        self.parked_at = None;
        let since = match (self.idle_since, self.handshake_since.take()) {
            (Some(since), _) => since,
            (None, Some(since)) if self.spin.is_over(now, since) => return Wait::Park,
            (None, since) => *self.idle_since.insert(since.unwrap_or(now)),
        };
        self.spin.on_idle(now, since)
    }

    /// The driver was woken, which had parked then.
    pub(crate) fn on_woken(&mut self, parked_at: Instant) {
        self.spin.on_woken(parked_at.elapsed());
        self.idle_since = None;
        self.parked_at = Some(parked_at);
    }

    #[inline]
    pub(crate) fn set_now(&mut self, now: Instant) {
        let due = self.asleep_until.take().map_or(self.now, |until| until.unwrap_or(now));
        let lasted = now.saturating_duration_since(due.max(self.now));
        self.now = now;
        if lasted >= NOT_RUN {
            self.on_own_silence(OwnSilence { ended: now, lasted });
        }
    }

    /// Notes the silence on every connection: peers may have given this end up meanwhile, so a
    /// connection lost soon after is put down to it.
    #[cold]
    fn on_own_silence(&mut self, silence: OwnSilence) {
        for (_, connection) in &mut self.connections {
            connection.own_silence = Some(silence);
        }
    }

    /// Has the next polls look at what most polls skip: quiet connections, and events that end
    /// connections.
    #[cold]
    pub(crate) fn look_around(&mut self) {
        self.events_due = true;
        self.cq.attend();
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    #[inline]
    pub(crate) fn take_actions(&mut self, into: &mut VecDeque<(ConnectionKey, P::Action)>) {
        if into.is_empty() {
            std::mem::swap(into, &mut self.actions);
        } else {
            into.append(&mut self.actions);
        }
    }

    /// Takes the work to be run after the lock is released.
    #[inline]
    pub(crate) fn take_deferred(&mut self) -> Vec<Deferred> {
        std::mem::take(&mut self.deferred)
    }

    pub(crate) fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Marks the driver as sleeping; false if it must look at returned chunks first.
    pub(crate) fn park(&mut self, waker: Waker) -> bool {
        let may_sleep = self.returns.sleep(&waker);
        if may_sleep {
            let until = self.next_deadline();
            self.asleep_until = Some(until);
            self.driver = DriverState::Parked { waker, until };
        }
        may_sleep
    }

    pub(crate) fn unpark(&mut self) {
        self.driver = DriverState::Running;
    }

    /// The driver's runtime has shut down: nothing will be polled any more.
    pub(crate) fn driver_gone(&mut self) {
        self.driver = DriverState::Gone;
        self.end_all(&CloseCause::DriverGone);
    }

    fn end_all(&mut self, cause: &CloseCause) {
        self.fail_all(cause);
        for (_, connection) in &mut self.connections {
            connection.abandon(&mut *self.cq);
        }
        self.qp_count = 0;
        self.transmit_dirty();
    }

    /// Why no connection can be added any more, if so. The shutdown is checked before the driver's
    /// end that it causes, so the answer does not depend on whether the driver has ended yet.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        if self.closing {
            Some("it is being shut down")
        } else if self.dead {
            Some("it has failed")
        } else if matches!(self.driver, DriverState::Gone) {
            Some("the runtime that drove it has shut down")
        } else {
            None
        }
    }

    /// Whether there is nothing left to drive.
    pub(crate) fn is_finished(&self) -> bool {
        self.dead || self.closing && self.connections.is_empty()
    }
}

impl<P: UpperLayer> fmt::Debug for State<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("connections", &self.connections.len()).finish()
    }
}

/// Slab indices are below the number of QPs of a CQ, far below 2^32.
#[allow(clippy::cast_possible_truncation)]
pub(super) fn narrow(index: usize) -> u32 {
    index as u32
}
