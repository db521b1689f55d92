//! A shard: one CQ, the QPs on it, their links, and the lock around all of it.
//!
//! Owns every connection of one CQ from set-up to the destroyed QP. Whoever holds the lock may
//! poll and post; the [driver](crate::driver) is the default holder. Never runs user code under
//! the lock: what must run outside leaves as effects of the [`Protocol`].
//!
//! Invariants:
//! 1. A RECV is reposted before the frame that it carried is counted (credit rule 2).
//! 2. A connection whose state changed is on the dirty list until it has been pumped, and the lock
//!    is never released with the list non-empty.
//! 3. An entry is removed only when its QP is destroyed and nobody holds its handle.
//! 4. A panic under the lock ends every connection of the shard.
//! 5. The registered deadline of a connection is never later than its real one, so a driver that
//!    sleeps until the earliest registered one misses none.

use std::collections::BTreeSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use slab::Slab;

use crate::connection::Connection;
use crate::error::CloseCause;
use crate::frame::{CloseCode, CloseReason};
use crate::link::LinkMetrics;
#[cfg(any(test, feature = "model"))]
use crate::memory::BufferPool;
use crate::memory::ProtectionDomain;
use crate::protocol::{Protocol, Revoke};
use crate::provider::{
    Completion, CompletionKind, CompletionQueue, Device, ProviderError, QpEvent, QpHandle,
};

/// Completions taken from the CQ in one go.
const POLL_BATCH: usize = 64;
const NO_CONNECTION: u32 = u32::MAX;

/// Polls of a lone caller before it leaves waiting to the driver: more than a round trip takes.
const LONE_CALL_POLLS: u32 = 64;

/// What a caller that polls for itself finds.
#[derive(Debug)]
pub enum Progress<T> {
    /// What it was waiting for.
    Done(T),
    /// Nothing yet; polling on may bring it.
    Wait,
    /// Nothing yet, and this is no time to poll for it.
    GiveUp,
}

/// Names a connection of a [`Shard`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionKey {
    index: u32,
    generation: u32,
}

/// One CQ with its connections, shared by callers and the driver.
pub struct Shard<P: Protocol> {
    state: Mutex<State<P>>,
    device: Arc<dyn Device>,
    domain: ProtectionDomain,
}

impl<P: Protocol> Shard<P> {
    /// Creates a shard with a CQ of its own.
    ///
    /// # Errors
    /// [`ProviderError`] from the CQ's creation.
    pub fn new(
        device: Arc<dyn Device>,
        domain: ProtectionDomain,
        cq_entries: u32,
    ) -> Result<Arc<Self>, ProviderError> {
        let cq = device.create_cq(cq_entries)?;
        let state = Mutex::new(State::new(cq));
        Ok(Arc::new(Self { state, device, domain }))
    }

    /// The device of the CQ.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The protection domain that the shard's buffers are registered in.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Runs `step` on a connection's protocol, then sends what it wants sent. `None` when the
    /// connection is gone from the shard. The step must not run user code.
    pub fn with<R>(&self, key: ConnectionKey, step: impl FnOnce(&mut P) -> R) -> Option<R> {
        self.visit(|state| state.with(key, step))
    }

    /// Runs `step` on a connection's protocol, and sends nothing: for what gives the protocol no
    /// reason to. `None` when the connection is gone from the shard.
    pub fn look<R>(&self, key: ConnectionKey, step: impl FnOnce(&mut P) -> R) -> Option<R> {
        let on_panic = EndOnPanic(self);
        let mut state = self.state.lock();
        let result = state.connection(key).map(|connection| step(&mut connection.protocol));
        drop(state);
        std::mem::forget(on_panic);
        result
    }

    /// Runs `step` like [`Shard::with`], and then, while `wanted` gives nothing, polls the CQ in the
    /// driver's stead for a few hundred nanoseconds: a lone call needs no task switch. Does not
    /// spin where spinning was not asked for, nor when others wait for the lock.
    ///
    /// `None` when the connection is gone; the inner `None` when `wanted` gave nothing.
    pub fn with_progress<R, T>(
        &self,
        key: ConnectionKey,
        step: impl FnOnce(&mut P) -> R,
        mut wanted: impl FnMut(&mut P, &R) -> Progress<T>,
    ) -> Option<(R, Option<T>)> {
        self.visit(|state| {
            let result = state.with(key, step)?;
            state.pump_dirty();
            let mut polls = if state.may_spin { LONE_CALL_POLLS } else { 0 };
            loop {
                match wanted(&mut state.connection(key)?.protocol, &result) {
                    Progress::Done(value) => return Some((result, Some(value))),
                    Progress::Wait if polls > 0 && !state.has_effects() => {}
                    Progress::Wait | Progress::GiveUp => return Some((result, None)),
                }
                polls -= 1;
                // A poll that gives something uses up the arming of a driver that sleeps.
                let polled = state.poll();
                state.caller_progress |= polled > 0;
                MutexGuard::bump(state);
                std::hint::spin_loop();
            }
        })
    }

    /// Like [`Shard::with`], but hands the step the connection, so that it can revoke messages.
    pub fn with_revoke<R>(
        &self,
        key: ConnectionKey,
        step: impl FnOnce(&mut P, Revoke<'_>) -> R,
    ) -> Option<R> {
        self.visit(|state| state.with_revoke(key, step))
    }

    /// Closes a connection in order: what is queued already is sent first, then the reason.
    pub fn close(&self, key: ConnectionKey, reason: CloseReason) {
        self.visit(|state| state.close(key, reason));
    }

    /// Ends a connection at once with `cause`.
    pub fn fail(&self, key: ConnectionKey, cause: &CloseCause) {
        self.visit(|state| state.fail(key, cause));
    }

    /// Gives up the handle of a connection: it is closed, and forgotten once its QP is gone.
    pub fn release(&self, key: ConnectionKey) {
        self.visit(|state| state.release(key));
    }

    /// Why a connection ended, once it has.
    pub fn close_cause(&self, key: ConnectionKey) -> Option<CloseCause> {
        let mut state = self.state.lock();
        state.connection(key)?.cause().cloned()
    }

    /// Credits, queue depths and slots of a connection's link, while it has one.
    pub fn link_metrics(&self, key: ConnectionKey) -> Option<LinkMetrics> {
        self.state.lock().connection(key)?.link_metrics()
    }

    /// Connections whose QP exists.
    pub fn connection_count(&self) -> usize {
        self.state.lock().qp_count
    }

    /// Whether the shard takes no connections any more: shut down, or without a driver.
    pub fn is_over(&self) -> bool {
        self.state.lock().refusal().is_some()
    }

    /// Whether the CQ has room for another connection that takes `entries` of it.
    pub fn has_room(&self, entries: u32) -> bool {
        let mut state = self.state.lock();
        let used = u64::from(entries) * state.qp_count as u64;
        state.refusal().is_none() && used + u64::from(entries) <= u64::from(state.cq().capacity())
    }

    /// Whether every connection is idle in its protocol's eyes, or gone.
    pub fn is_quiet(&self) -> bool {
        let state = self.state.lock();
        state.connections.iter().all(|(_, entry)| !entry.has_qp() || entry.protocol.is_idle())
    }

    /// Runs `step` on every connection's protocol. The step must not run user code.
    pub fn for_each(&self, mut step: impl FnMut(&mut P)) {
        self.visit(|state| {
            for index in state.indices() {
                step(&mut state.connections[index as usize].protocol);
                state.mark_dirty(index);
            }
        });
    }

    /// Closes every connection in order.
    pub fn close_all(&self, reason: &CloseReason) {
        self.visit(|state| {
            for index in state.indices() {
                state.connections[index as usize].close(reason.clone());
                state.mark_dirty(index);
            }
        });
    }

    /// Ends every connection at once, and the driver after them.
    pub fn shutdown_now(&self) {
        self.visit(|state| state.fail_all(&CloseCause::Local));
        self.shutdown();
    }

    /// Lets the driver end once the last connection is gone. Connections must be released apart.
    pub fn shutdown(&self) {
        let mut state = self.state.lock();
        state.closing = true;
        let waker = state.take_driver_waker();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock()
    }

    /// One visit of a caller: what `step` changed is sent, also where it found nothing to do.
    #[inline]
    fn visit<R>(&self, step: impl FnOnce(&mut MutexGuard<'_, State<P>>) -> R) -> R {
        let on_panic = EndOnPanic(self);
        let mut state = self.state.lock();
        let result = step(&mut state);
        self.finish(state);
        std::mem::forget(on_panic);
        result
    }

    /// Ends a visit: everything is sent, and the driver woken if it must look.
    pub(crate) fn finish(&self, mut state: MutexGuard<'_, State<P>>) {
        let waker = state.settle();
        state.cq.flush();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Sizes of what a shard holds, for tests.
#[cfg(any(test, feature = "model"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holdings {
    /// Connections, those without a QP included.
    pub entries: usize,
    /// Connections with a QP.
    pub queue_pairs: usize,
    /// Deadlines that the driver waits for.
    pub deadlines: usize,
    /// Effects that the driver has not taken.
    pub effects: usize,
    /// Whether the driver sleeps.
    pub is_parked: bool,
    /// QPs that were destroyed before all their work requests had been flushed.
    pub unflushed: u64,
}

#[cfg(any(test, feature = "model"))]
impl<P: Protocol> Shard<P> {
    /// What the shard holds.
    pub fn holdings(&self) -> Holdings {
        let state = self.state.lock();
        Holdings {
            entries: state.connections.len(),
            queue_pairs: state.qp_count,
            deadlines: state.deadlines.len(),
            effects: state.effects.len(),
            is_parked: matches!(state.driver, DriverState::Parked { .. }),
            unflushed: state.unflushed,
        }
    }

    /// The receive and send buffers of a connection, while it has a QP.
    pub fn pools(&self, key: ConnectionKey) -> Vec<BufferPool> {
        self.state.lock().connection(key).map_or_else(Vec::new, |connection| connection.pools())
    }

    /// The receive and send buffers of all connections that have a QP.
    pub fn every_pool(&self) -> Vec<BufferPool> {
        let mut state = self.state.lock();
        state.connections.iter_mut().flat_map(|(_, connection)| connection.pools()).collect()
    }
}

impl<P: Protocol> fmt::Debug for Shard<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("device", &self.device.attributes().name).finish()
    }
}

/// Ends every connection when a panic leaves their states in doubt: the lock poisons nothing, and
/// what a poll had taken from the CQ is lost.
struct EndOnPanic<'a, P: Protocol>(&'a Shard<P>);

impl<P: Protocol> Drop for EndOnPanic<'_, P> {
    #[cold]
    fn drop(&mut self) {
        tracing::error!("a panic under the lock of a shard: its connections end");
        let mut state = self.0.state.lock();
        state.fail_all(&CloseCause::Panicked);
        self.0.finish(state);
    }
}

/// Whether somebody drives the shard.
#[derive(Debug)]
enum DriverState {
    /// No driver yet, or one that runs and looks again before it parks.
    Running,
    /// Sleeping: wake it for effects, and for deadlines earlier than `until`.
    Parked { waker: Waker, until: Option<Instant> },
    /// Its runtime has shut down.
    Gone,
}

/// What the shard's lock guards.
pub struct State<P: Protocol> {
    cq: Box<dyn CompletionQueue>,
    connections: Slab<Connection<P>>,
    generation: u32,
    by_qp: Vec<u32>,
    completions: Vec<Completion>,
    dirty: Vec<u32>,
    // One for each connection that has any: what its `registered_deadline` says.
    deadlines: BTreeSet<(Instant, u32)>,
    effects: Vec<(ConnectionKey, P::Effect)>,
    // Touched since the driver last parked: may owe acks.
    warm: Vec<u32>,
    now: Instant,
    driver: DriverState,
    closing: bool,
    /// The CQ has died.
    dead: bool,
    qp_count: usize,
    unflushed: u64,
    may_spin: bool,
    caller_progress: bool,
}

impl<P: Protocol> State<P> {
    fn new(cq: Box<dyn CompletionQueue>) -> Self {
        Self {
            cq,
            connections: Slab::new(),
            generation: 0,
            by_qp: Vec::new(),
            completions: Vec::with_capacity(POLL_BATCH),
            dirty: Vec::new(),
            deadlines: BTreeSet::new(),
            effects: Vec::new(),
            warm: Vec::new(),
            now: Instant::now(),
            driver: DriverState::Running,
            closing: false,
            dead: false,
            qp_count: 0,
            unflushed: 0,
            may_spin: false,
            caller_progress: false,
        }
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
        let connection = self.connection(key)?;
        let result = step(&mut connection.protocol);
        self.mark_dirty(key.index);
        Some(result)
    }

    fn with_revoke<R>(
        &mut self,
        key: ConnectionKey,
        step: impl FnOnce(&mut P, Revoke<'_>) -> R,
    ) -> Option<R> {
        let connection = self.connection(key)?;
        let result = connection.with_revoke(step);
        self.mark_dirty(key.index);
        Some(result)
    }

    fn close(&mut self, key: ConnectionKey, reason: CloseReason) {
        if let Some(connection) = self.connection(key) {
            connection.close(reason);
            self.mark_dirty(key.index);
        }
    }

    fn fail(&mut self, key: ConnectionKey, cause: &CloseCause) {
        if let Some((cq, connection)) = self.cq_and_connection(key) {
            connection.fail(cq, cause);
            self.mark_dirty(key.index);
        }
    }

    fn release(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.connection(key) {
            connection.held = false;
            connection.close(CloseReason::new(CloseCode::Normal, ""));
            self.mark_dirty(key.index);
        }
    }

    pub(crate) fn mark_dirty(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        if !connection.dirty {
            connection.dirty = true;
            self.dirty.push(index);
        }
    }

    pub(crate) fn mark_dirty_key(&mut self, key: ConnectionKey) {
        if self.connection(key).is_some() {
            self.mark_dirty(key.index);
        }
    }

    /// Pumps; returns the driver's waker if it must look (invariants 2 and 5).
    pub(crate) fn settle(&mut self) -> Option<Waker> {
        self.pump_dirty();
        let DriverState::Parked { until, .. } = &self.driver else { return None };
        let sooner = self.next_deadline().is_some_and(|at| until.is_none_or(|until| at < until));
        // Whoever polls takes events that the sleeping driver armed for: it must arm again.
        let must_look = sooner || !self.effects.is_empty() || self.caller_progress;
        if !must_look && !self.is_finished() {
            return None;
        }
        self.take_driver_waker()
    }

    fn take_driver_waker(&mut self) -> Option<Waker> {
        if !matches!(self.driver, DriverState::Parked { .. }) {
            return None;
        }
        match std::mem::replace(&mut self.driver, DriverState::Running) {
            DriverState::Parked { waker, .. } => Some(waker),
            DriverState::Running | DriverState::Gone => None,
        }
    }

    fn pump_dirty(&mut self) {
        while let Some(index) = self.dirty.pop() {
            self.pump(index);
        }
    }

    fn pump(&mut self, index: u32) {
        let Some(connection) = self.connections.get_mut(index as usize) else { return };
        connection.dirty = false;
        let key = ConnectionKey { index, generation: connection.generation };
        if let Some(drained) = connection.pump(&mut *self.cq, self.now) {
            self.qp_count -= 1;
            self.unflushed += u64::from(!drained);
            if let Some(at) = connection.take_registered_deadline() {
                self.deadlines.remove(&(at, index));
            }
        }
        while let Some(effect) = connection.protocol.poll_effect() {
            self.effects.push((key, effect));
        }
        if let Some((at, earlier)) = connection.deadline_to_register() {
            self.deadlines.insert((at, index));
            if let Some(earlier) = earlier {
                self.deadlines.remove(&(earlier, index));
            }
        }
        if connection.owes_idle_ack() && !connection.warm {
            connection.warm = true;
            self.warm.push(index);
        }
        if connection.is_removable() {
            self.remove(index);
        }
    }

    fn remove(&mut self, index: u32) {
        let mut gone = self.connections.remove(index as usize);
        if let Some(at) = gone.take_registered_deadline() {
            self.deadlines.remove(&(at, index));
        }
        self.warm.retain(|other| *other != index);
    }

    /// Polls the CQ once and handles what it has; returns the number of completions and events.
    #[inline]
    pub(crate) fn poll(&mut self) -> usize {
        match self.cq.poll(&mut self.completions, POLL_BATCH) {
            Ok(0) => match self.cq.poll_event() {
                None => 0,
                Some(event) => self.on_events(event),
            },
            Ok(_) => self.on_completions(),
            Err(error) => self.on_dead_cq(&error),
        }
    }

    /// No completion will come any more: waiting for a flush would be in vain.
    #[cold]
    pub(crate) fn on_dead_cq(&mut self, error: &ProviderError) -> usize {
        self.dead = true;
        self.end_all(&CloseCause::Device(error.to_string().into()));
        0
    }

    fn on_completions(&mut self) -> usize {
        let mut completions = std::mem::take(&mut self.completions);
        let count = completions.len();
        for completion in completions.drain(..) {
            self.on_completion(completion);
        }
        self.completions = completions;
        self.pump_dirty();
        count
    }

    /// Events wait until no completion is left: what arrived before a disconnect is delivered.
    #[cold]
    fn on_events(&mut self, first: QpEvent) -> usize {
        let mut count = 1;
        self.on_event(first);
        while let Some(event) = self.cq.poll_event() {
            count += 1;
            self.on_event(event);
        }
        self.pump_dirty();
        count
    }

    fn connection_of(&self, qp: QpHandle) -> Option<u32> {
        let index = *self.by_qp.get(qp.index as usize)?;
        self.connections.get(index as usize)?.is_on(qp).then_some(index)
    }

    fn on_completion(&mut self, completion: Completion) {
        // A CQ may still hold completions of a QP that has been destroyed.
        let Some(index) = self.connection_of(completion.qp) else { return };
        let connection = &mut self.connections[index as usize];
        match completion.kind {
            CompletionKind::Send => connection.on_send_completion(&mut *self.cq, &completion),
            CompletionKind::Recv | CompletionKind::RecvWrite => {
                connection.on_recv_completion(&mut *self.cq, self.now, completion);
            }
        }
        self.mark_dirty(index);
    }

    fn on_event(&mut self, event: QpEvent) {
        let (qp, cause) = match event {
            QpEvent::Disconnected(qp) => (qp, CloseCause::Disconnected),
            QpEvent::Fatal(qp, number) => {
                (qp, CloseCause::Device(format!("asynchronous event {number}").into()))
            }
        };
        let Some(index) = self.connection_of(qp) else { return };
        self.connections[index as usize].fail(&mut *self.cq, &cause);
        self.mark_dirty(index);
    }

    pub(crate) fn fail_all(&mut self, cause: &CloseCause) {
        for index in self.indices() {
            let (connection, cq) = (&mut self.connections[index as usize], &mut *self.cq);
            // A protocol whose step panicked may do so again; the others still have to be told.
            let told = catch_unwind(AssertUnwindSafe(|| connection.fail(cq, cause)));
            if told.is_err() {
                tracing::error!("a protocol panicked when it was told of its end");
            }
            self.mark_dirty(index);
        }
    }

    fn indices(&self) -> Vec<u32> {
        self.connections.iter().map(|(index, _)| narrow(index)).collect()
    }

    /// Runs the timers that are due. Before a peer's silence is judged, all is taken in that has
    /// arrived by now: this process may have been stopped for a while.
    pub(crate) fn run_timers(&mut self) {
        let mut taken_in = false;
        while let Some(&(at, index)) = self.deadlines.first() {
            if at > self.now {
                break;
            }
            let judged = self
                .connections
                .get(index as usize)
                .is_some_and(|connection| connection.is_silence_judged(self.now));
            if judged && !std::mem::replace(&mut taken_in, true) {
                self.take_in();
                continue;
            }
            self.deadlines.pop_first();
            let Some(connection) = self.connections.get_mut(index as usize) else { continue };
            connection.take_registered_deadline();
            connection.on_timeout(&mut *self.cq, self.now);
            self.mark_dirty(index);
        }
        self.pump_dirty();
    }

    /// Polls until nothing is left of what had arrived; what arrives meanwhile need not end.
    fn take_in(&mut self) {
        let mut left = self.cq.capacity() as usize;
        loop {
            let count = self.poll();
            if count == 0 || count >= left {
                return;
            }
            left -= count;
        }
    }

    /// Sends the acks that are owed below the threshold, before going to sleep (credit rule 6).
    pub(crate) fn send_idle_acks(&mut self) {
        while let Some(index) = self.warm.pop() {
            if let Some(connection) = self.connections.get_mut(index as usize) {
                connection.warm = false;
                connection.send_idle_ack(&mut *self.cq);
            }
        }
        self.pump_dirty();
    }

    /// Whether callers polled since the last time: the driver then counts it as its own progress.
    pub(crate) fn take_caller_progress(&mut self) -> bool {
        std::mem::take(&mut self.caller_progress)
    }

    /// Whether callers may poll in the driver's stead.
    pub(crate) fn allow_spinning(&mut self, allowed: bool) {
        self.may_spin = allowed;
    }

    pub(crate) fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    pub(crate) fn take_effects(&mut self, into: &mut Vec<(ConnectionKey, P::Effect)>) {
        into.append(&mut self.effects);
    }

    pub(crate) fn has_effects(&self) -> bool {
        !self.effects.is_empty()
    }

    pub(crate) fn park(&mut self, waker: Waker) {
        let until = self.next_deadline();
        self.driver = DriverState::Parked { waker, until };
    }

    pub(crate) fn unpark(&mut self) {
        self.driver = DriverState::Running;
    }

    /// The driver's runtime has gone: nothing will be polled any more.
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
        self.pump_dirty();
        self.cq.flush();
    }

    /// Why no connection can be added any more.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        if matches!(self.driver, DriverState::Gone) {
            Some("the runtime that drove it has shut down")
        } else if self.dead {
            Some("it has failed")
        } else if self.closing {
            Some("it is being shut down")
        } else {
            None
        }
    }

    /// Whether there is nothing left to drive.
    pub(crate) fn is_finished(&self) -> bool {
        self.dead || self.closing && self.connections.is_empty()
    }
}

impl<P: Protocol> fmt::Debug for State<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("connections", &self.connections.len()).finish()
    }
}

/// Slab indices are below the number of QPs of a CQ, far below 2^32.
#[allow(clippy::cast_possible_truncation)]
fn narrow(index: usize) -> u32 {
    index as u32
}

#[cfg(test)]
mod tests;
