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
//! 4. The registered deadline of a connection is never later than its real one, so a driver that
//!    sleeps until the earliest registered one misses none.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use slab::Slab;

use crate::connection::Connection;
use crate::error::CloseCause;
use crate::frame::{CloseCode, CloseReason};
use crate::link::LinkMetrics;
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
        let mut state = self.state.lock();
        let result = state.with(key, step);
        self.finish(state);
        result
    }

    /// Runs `step` on a connection's protocol, and sends nothing: for what gives the protocol no
    /// reason to. `None` when the connection is gone from the shard.
    pub fn look<R>(&self, key: ConnectionKey, step: impl FnOnce(&mut P) -> R) -> Option<R> {
        Some(step(&mut self.state.lock().connection(key)?.protocol))
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
        let mut state = self.state.lock();
        let result = state.with(key, step)?;
        state.pump_dirty();
        let mut found = None;
        let mut polls = if state.may_spin { LONE_CALL_POLLS } else { 0 };
        while let Some(connection) = state.connection(key) {
            match wanted(&mut connection.protocol, &result) {
                Progress::Done(value) => {
                    found = Some(value);
                    break;
                }
                Progress::Wait if polls > 0 && !state.has_effects() => {}
                Progress::Wait | Progress::GiveUp => break,
            }
            polls -= 1;
            state.poll();
            state.caller_progress = true;
            MutexGuard::bump(&mut state);
            std::hint::spin_loop();
        }
        self.finish(state);
        Some((result, found))
    }

    /// Like [`Shard::with`], but hands the step the connection, so that it can revoke messages.
    pub fn with_revoke<R>(
        &self,
        key: ConnectionKey,
        step: impl FnOnce(&mut P, Revoke<'_>) -> R,
    ) -> Option<R> {
        let mut state = self.state.lock();
        let result = state.with_revoke(key, step);
        self.finish(state);
        result
    }

    /// Closes a connection in order: what is queued already is sent first, then the reason.
    pub fn close(&self, key: ConnectionKey, reason: CloseReason) {
        let mut state = self.state.lock();
        state.close(key, reason);
        self.finish(state);
    }

    /// Ends a connection at once with `cause`.
    pub fn fail(&self, key: ConnectionKey, cause: &CloseCause) {
        let mut state = self.state.lock();
        state.fail(key, cause);
        self.finish(state);
    }

    /// Gives up the handle of a connection: it is closed, and forgotten once its QP is gone.
    pub fn release(&self, key: ConnectionKey) {
        let mut state = self.state.lock();
        state.release(key);
        self.finish(state);
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

    /// Whether the CQ has room for another connection that takes `entries` of it.
    pub fn has_room(&self, entries: u32) -> bool {
        let mut state = self.state.lock();
        let used = u64::from(entries) * state.qp_count as u64;
        !state.is_driver_gone() && used + u64::from(entries) <= u64::from(state.cq().capacity())
    }

    /// Whether every connection is idle in its protocol's eyes, or gone.
    pub fn is_quiet(&self) -> bool {
        let state = self.state.lock();
        state.connections.iter().all(|(_, entry)| !entry.has_qp() || entry.protocol.is_idle())
    }

    /// Runs `step` on every connection's protocol. The step must not run user code.
    pub fn for_each(&self, mut step: impl FnMut(&mut P)) {
        let mut state = self.state.lock();
        for index in state.indices() {
            step(&mut state.connections[index as usize].protocol);
            state.mark_dirty(index);
        }
        self.finish(state);
    }

    /// Closes every connection in order.
    pub fn close_all(&self, reason: &CloseReason) {
        let mut state = self.state.lock();
        for index in state.indices() {
            state.connections[index as usize].close(reason.clone());
            state.mark_dirty(index);
        }
        self.finish(state);
    }

    /// Ends every connection at once, and the driver after them.
    pub fn shutdown_now(&self) {
        let mut state = self.state.lock();
        state.fail_all(&CloseCause::Local);
        self.finish(state);
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

impl<P: Protocol> fmt::Debug for Shard<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("device", &self.device.attributes().name).finish()
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
    deadlines: BinaryHeap<Reverse<(Instant, u32)>>,
    effects: Vec<(ConnectionKey, P::Effect)>,
    // Touched since the driver last parked: may owe acks.
    warm: Vec<u32>,
    now: Instant,
    driver: DriverState,
    closing: bool,
    qp_count: usize,
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
            deadlines: BinaryHeap::new(),
            effects: Vec::new(),
            warm: Vec::new(),
            now: Instant::now(),
            driver: DriverState::Running,
            closing: false,
            qp_count: 0,
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

    /// Pumps; returns the driver's waker if it must look (invariants 2 and 4).
    pub(crate) fn settle(&mut self) -> Option<Waker> {
        self.pump_dirty();
        let DriverState::Parked { until, .. } = &self.driver else { return None };
        let earliest = self.deadlines.peek().map(|Reverse((at, _))| *at);
        let sooner = earliest.is_some_and(|at| until.is_none_or(|until| at < until));
        // Whoever polls takes events that the sleeping driver armed for: it must arm again.
        if !sooner && self.effects.is_empty() && !self.caller_progress {
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
        if connection.pump(&mut *self.cq, self.now) {
            self.qp_count -= 1;
        }
        while let Some(effect) = connection.protocol.poll_effect() {
            self.effects.push((key, effect));
        }
        if let Some(at) = connection.deadline_to_register() {
            self.deadlines.push(Reverse((at, index)));
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
        self.connections.remove(index as usize);
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
            Err(error) => {
                self.fail_all(&CloseCause::Device(error.to_string().into()));
                self.pump_dirty();
                0
            }
        }
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
            self.connections[index as usize].fail(&mut *self.cq, cause);
            self.mark_dirty(index);
        }
    }

    fn indices(&self) -> Vec<u32> {
        self.connections.iter().map(|(index, _)| narrow(index)).collect()
    }

    /// Runs the timers that are due.
    pub(crate) fn run_timers(&mut self) {
        while let Some(Reverse((at, index))) = self.deadlines.peek().copied() {
            if at > self.now {
                break;
            }
            self.deadlines.pop();
            // The entry may be of an earlier holder of the slot; looking too early is harmless.
            if let Some(connection) = self.connections.get_mut(index as usize) {
                connection.on_timeout(&mut *self.cq, self.now);
                self.mark_dirty(index);
            }
        }
        self.pump_dirty();
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
        self.deadlines.peek().map(|Reverse((at, _))| *at)
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
        self.fail_all(&CloseCause::DriverGone);
        for (_, connection) in &mut self.connections {
            connection.abandon(&mut *self.cq);
        }
        self.qp_count = 0;
        self.pump_dirty();
        self.cq.flush();
    }

    pub(crate) fn is_driver_gone(&self) -> bool {
        matches!(self.driver, DriverState::Gone)
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.closing && self.connections.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.connections.is_empty()
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
