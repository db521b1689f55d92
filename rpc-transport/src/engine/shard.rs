//! A shard: one CQ, the QPs on it, their links, and the lock around all of it.
//!
//! Owns every connection of one CQ from set-up until its QP is destroyed. Any thread that holds the
//! lock may poll and post; usually that is the [driver](crate::engine::driver). Never runs user
//! code under the lock: such work leaves as actions of the [`UpperLayer`].
//!
//! Invariants:
//! 1. The RECVs of a run of messages are reposted before anything is sent that may carry their
//!    credits (credit rule 2).
//! 2. A connection whose state changed is on the dirty list until it has been pumped, and the lock
//!    is never released while the list is non-empty. One exception: where pumping would only
//!    collect actions, they are collected directly.
//! 3. An entry is removed only when its QP is destroyed and nobody holds its handle.
//! 4. A panic under the lock ends every connection of the shard. A panic of user code, which runs
//!    after the lock is released, is logged and ends nothing.
//! 5. A child of `fork(2)` never sees the state, which its parent uses, and does not drop it: it
//!    finds a shard that has ended, with [`CloseCause::Forked`].
//! 6. The registered deadline of a connection is never later than its real one, so a driver that
//!    sleeps until the earliest registered deadline misses none.

mod orphan;
mod returns;
mod state;
#[cfg(any(test, feature = "model"))]
mod stats;
#[cfg(test)]
pub(super) mod tests;
mod waiting;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use parking_lot::{Mutex, MutexGuard};

pub(crate) use self::returns::WakeList;
pub use self::state::State;
#[cfg(any(test, feature = "model"))]
pub use self::stats::ShardStats;
pub use self::waiting::Waited;
use crate::device::connection_error::CloseCause;
use crate::device::{Capabilities, CompletionQueue, CqRef, Device, ProviderError};
use crate::engine::connection_key::ConnectionKey;
use crate::engine::deferred::Deferred;
use crate::engine::shared_recvs::SharedRecvs;
use crate::engine::upper::{Revoke, UpperLayer};
use crate::memory::process::OfProcess;
use crate::memory::region::ProtectionDomain;
use crate::protocol::credit::SharePool;
use crate::protocol::frame::CloseReason;
use crate::protocol::link::LinkMetrics;
use crate::user_code::{HoldsShard, KeptLog, caught};

/// The state of a call that was just sent.
#[derive(Debug)]
pub enum Progress {
    /// The result has come.
    Done,
    /// Nothing yet, and it is the only call: polling may bring its result.
    Wait,
    /// Nothing yet, and the caller should not poll for it now.
    GiveUp,
}

/// What the engine knows of a connection: [`Shard::survey`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Survey {
    /// Its link, once there is one, until the connection has ended.
    pub link: Option<LinkMetrics>,
    /// Frames of large messages that were copied into registered memory to be sent.
    pub staged: u64,
}

/// One CQ with its connections, shared by callers and the driver.
pub struct Shard<P: UpperLayer> {
    state: OfProcess<Mutex<State<P>>>,
    /// The state that a child of this process sees.
    orphan: OnceLock<Box<Mutex<State<P>>>>,
    returns: Arc<WakeList>,
    device: Arc<dyn Device>,
    domain: ProtectionDomain,
    /// The receives of all its connections, if they share them.
    shared_recvs: Option<Arc<SharedRecvs>>,
}

impl<P: UpperLayer> Shard<P> {
    /// Creates a shard and its CQ.
    ///
    /// # Errors
    /// [`ProviderError`] from the CQ's creation.
    pub fn new(
        device: Arc<dyn Device>,
        domain: ProtectionDomain,
        cq_entries: u32,
    ) -> Result<Arc<Self>, ProviderError> {
        let cq = device.create_cq(cq_entries)?;
        Ok(Self::on(cq, device, domain, None))
    }

    /// The same with a shared receive queue for so many connections, with so many receives of each,
    /// which are buffers of `buffer_bytes`.
    ///
    /// # Errors
    /// [`ProviderError`] from the creation of the queues.
    pub(super) fn sharing(
        device: Arc<dyn Device>,
        domain: ProtectionDomain,
        cq_entries: u32,
        shares: [u32; 2],
        buffer_bytes: u32,
    ) -> Result<Arc<Self>, ProviderError> {
        let mut cq = device.create_cq(cq_entries)?;
        let capabilities = device.attributes().capabilities;
        let may_lose = !capabilities.contains(Capabilities::KEEPS_CUT_OFF_RECVS);
        let shared = SharedRecvs::create(&mut *cq, &domain, shares, buffer_bytes, may_lose)?;
        Ok(Self::on(cq, device, domain, Some(shared)))
    }

    fn on(
        cq: Box<dyn CompletionQueue>,
        device: Arc<dyn Device>,
        domain: ProtectionDomain,
        shared_recvs: Option<Arc<SharedRecvs>>,
    ) -> Arc<Self> {
        let returns = Arc::<WakeList>::default();
        let state = Mutex::new(State::new(cq, Arc::clone(&returns), shared_recvs.clone()));
        let (state, orphan) = (OfProcess::new(state), OnceLock::new());
        Arc::new(Self { state, orphan, returns, device, domain, shared_recvs })
    }

    /// The receives of all its connections, if they share them.
    pub(super) fn shared_recvs(&self) -> Option<&Arc<SharedRecvs>> {
        self.shared_recvs.as_ref()
    }

    /// The shares of the receives that its connections have together, if they do.
    pub fn shares(&self) -> Option<SharePool> {
        self.shared_recvs.as_ref().map(|shared| shared.shares())
    }

    /// The device of the CQ.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The CQ as it is now, for set-up: who shares receives holds some by then, so their queue
    /// stays.
    pub(super) fn cq(&self) -> CqRef {
        self.lock().cq().for_setup()
    }

    /// The protection domain that the shard's buffers are registered in.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// The protection domain of a connection, for registering memory that its peer may write: the
    /// shard's, or a separate one ([`Isolation`](crate::protocol::config::Isolation)).
    pub fn domain_of(&self, key: ConnectionKey) -> Option<ProtectionDomain> {
        Some(self.lock().connection(key)?.domain().clone())
    }

    /// Runs `step` on a connection's protocol, then sends what it wants sent. `None` when the
    /// connection is gone from the shard. The step must not run user code.
    pub fn with<R>(&self, key: ConnectionKey, step: impl FnOnce(&mut P) -> R) -> Option<R> {
        self.visit(|state| state.with(key, step))
    }

    /// Like [`Shard::with`], for steps that make no actions and seldom give the protocol something
    /// to send: unless it says that it has, nothing is sent afterwards.
    #[inline]
    pub fn read<R>(&self, key: ConnectionKey, step: impl FnOnce(&mut P) -> R) -> Option<R> {
        self.visit(|state| state.read(key, step))
    }

    /// Runs `step` on a connection's protocol, for steps that give it nothing to send: nothing is
    /// sent afterwards. `None` when the connection is gone from the shard.
    pub fn look<R>(&self, key: ConnectionKey, step: impl FnOnce(&mut P) -> R) -> Option<R> {
        let on_panic = EndOnPanic(self);
        let mut state = self.lock();
        let mut result = None;
        // An unused step is dropped after the lock is released, as it may own user values.
        if let Some(connection) = state.connection(key) {
            result = Some(step(&mut connection.protocol));
        }
        drop(state);
        std::mem::forget(on_panic);
        result
    }

    /// Runs `step` like [`Shard::with`]. Then, if `wanted` returns [`Progress::Wait`], takes one
    /// turn in place of the driver, so that the only call needs no task switch, and looks again.
    /// Polls nothing when spinning is disabled.
    ///
    /// `is_awaited`: a task waits for the answer from now on, so this runtime runs, and where
    /// others wait too the doorbell may wait for their next poll. A caller that only starts
    /// something may let its runtime stand still afterwards, so that all of it leaves at once;
    /// `wanted` is not called then.
    ///
    /// `None` when the connection is gone. `wanted` keeps a result that has come, as the shard
    /// would only move it.
    pub fn with_progress<R>(
        &self,
        key: ConnectionKey,
        is_awaited: bool,
        step: impl FnOnce(&mut P) -> R,
        mut wanted: impl FnMut(&mut P, &R) -> Progress,
    ) -> Option<R> {
        self.visit(|state| {
            let result = state.with_now(key, is_awaited, step)?;
            if is_awaited
                && let Progress::Wait = wanted(&mut state.connection(key)?.protocol, &result)
            {
                let is_done =
                    |protocol: &mut P| matches!(wanted(protocol, &result), Progress::Done);
                state.poll_for_one(key, is_done);
            }
            Some(result)
        })
    }

    /// Like [`Shard::with`], and also hands the step a function that revokes submitted messages.
    pub fn with_revoke<R>(
        &self,
        key: ConnectionKey,
        step: impl FnOnce(&mut P, Revoke<'_>) -> R,
    ) -> Option<R> {
        self.visit(|state| state.with_revoke(key, step))
    }

    /// Closes a connection in order: sends what is already queued, then the reason.
    pub fn close(&self, key: ConnectionKey, reason: CloseReason) {
        self.visit(|state| state.close(key, reason));
    }

    /// Ends a connection at once with `cause`.
    pub fn fail(&self, key: ConnectionKey, cause: &CloseCause) {
        self.visit(|state| state.fail(key, cause));
    }

    /// Gives up the handle of a connection, which is closed, and removed once its QP is destroyed.
    pub fn release(&self, key: ConnectionKey) {
        self.visit(|state| state.release(key));
    }

    /// Keeps a connection in the shard after its end, so that what it has for those who use it can
    /// still be taken, until [`let_go`](Self::let_go). False: it is gone.
    #[must_use]
    pub fn hold(&self, key: ConnectionKey) -> bool {
        self.lock().hold(key)
    }

    /// Ends a [`hold`](Self::hold). The connection goes on as before.
    pub fn let_go(&self, key: ConnectionKey) {
        self.visit(|state| state.let_go(key));
    }

    /// Why a connection ended, once it has.
    pub fn close_cause(&self, key: ConnectionKey) -> Option<CloseCause> {
        if !self.state.is_here() {
            return Some(CloseCause::Forked);
        }
        let mut state = self.lock();
        state.connection(key)?.cause().cloned()
    }

    /// Credits, queue depths and slots of a connection's link, while it has one.
    pub fn link_metrics(&self, key: ConnectionKey) -> Option<LinkMetrics> {
        self.lock().connection(key)?.link_metrics()
    }

    /// Looks at connections that have a QP, those at `from` and behind it in the table, at most
    /// `most` places of it: so the lock is held for a short time, however many there are. Gives
    /// where to go on; `None` at the end. Connections that come and go meanwhile may be missed, and
    /// none is seen twice. `look` must not run user code.
    pub fn survey(
        &self,
        from: usize,
        most: usize,
        mut look: impl FnMut(&P, Survey),
    ) -> Option<usize> {
        let state = self.lock();
        let end = state.connections.capacity();
        let until = from.saturating_add(most).min(end);
        for index in from..until {
            let found = state.connections.get(index).filter(|connection| connection.has_qp());
            if let Some(connection) = found {
                let link = connection.link_metrics();
                look(&connection.protocol, Survey { link, staged: connection.staged_count() });
            }
        }
        (until < end).then_some(until)
    }

    /// QPs that were destroyed before all their work requests had been flushed.
    pub fn unflushed(&self) -> u64 {
        self.lock().unflushed
    }

    /// Entries of the CQ.
    pub fn cq_capacity(&self) -> u32 {
        self.lock().cq().capacity()
    }

    /// Connections whose QP exists.
    pub fn connection_count(&self) -> usize {
        self.lock().qp_count
    }

    /// Whether the shard takes no more connections: it was shut down, has failed, or has lost its
    /// driver.
    pub fn is_over(&self) -> bool {
        self.lock().refusal().is_some()
    }

    /// Whether the CQ has room for `count` more connections that take `entries` of it each, and
    /// their receives, where they share them.
    pub fn has_room_for(&self, count: u32, entries: u32) -> bool {
        let mut state = self.lock();
        let wanted = u64::from(entries) * (state.qp_count as u64 + u64::from(count));
        let has_entries = wanted <= u64::from(state.cq().capacity());
        state.refusal().is_none() && has_entries && state.has_shares(count)
    }

    /// For how many connections of `entries` completion queue entries each the CQ was made.
    pub fn places_of(&self, entries: u32) -> u32 {
        self.lock().cq().capacity() / entries.max(1)
    }

    /// Whether the protocol of every connection that has a QP is idle.
    pub fn is_quiet(&self) -> bool {
        let state = self.lock();
        state.connections.iter().all(|(_, entry)| !entry.has_qp() || entry.protocol.is_idle())
    }

    /// Whether on all connections nothing waits to leave, and `is_served` agrees for those above.
    #[must_use]
    pub fn is_at_rest(&self, is_served: impl Fn(&P) -> bool) -> bool {
        let state = self.lock();
        let mut entries = state.connections.iter().filter(|(_, entry)| entry.has_qp());
        entries.all(|(_, entry)| entry.is_link_idle() && is_served(&entry.protocol))
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

    /// Lets the driver end once the last connection is gone. Does not release the connections: do
    /// so separately.
    pub fn shutdown(&self) {
        let mut state = self.lock();
        state.closing = true;
        let waker = state.take_driver_waker();
        let _log = state.unlock();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn returns(&self) -> &Arc<WakeList> {
        &self.returns
    }

    pub(crate) fn lock(&self) -> Locked<'_, P> {
        let _holds = HoldsShard::begin();
        let state = self.state.get().unwrap_or_else(|| self.orphan());
        Locked { state: state.lock(), _holds }
    }

    /// The state in a child of the process that made the shard (invariant 5).
    #[cold]
    fn orphan(&self) -> &Mutex<State<P>> {
        self.orphan.get_or_init(|| Box::new(Mutex::new(State::orphan())))
    }

    /// One visit of a caller: runs `step` under the lock, sends what it changed, then unlocks.
    #[inline]
    fn visit<R>(&self, step: impl FnOnce(&mut Locked<'_, P>) -> R) -> R {
        let on_panic = EndOnPanic(self);
        let mut state = self.lock();
        let result = step(&mut state);
        if state.is_done() {
            drop(state);
            std::mem::forget(on_panic);
            return result;
        }
        let leaving = state.leave();
        // Only wakers and destructors of users run from here on. Their panics end no connection.
        std::mem::forget(on_panic);
        leaving.run();
        result
    }

    /// Ends a visit: sends everything, and wakes the driver if it must poll.
    pub(crate) fn finish(&self, state: Locked<'_, P>) {
        state.leave().run();
    }
}

/// The held lock of a shard. User code and user destructors must not run meanwhile: debug builds
/// panic if they do.
pub(crate) struct Locked<'a, P: UpperLayer> {
    // Field order is drop order: the lock is released first.
    state: MutexGuard<'a, State<P>>,
    _holds: HoldsShard,
}

impl<P: UpperLayer> Locked<'_, P> {
    /// Unlocks. Kept log lines are written when the result is dropped: after the wake-ups, as a
    /// subscriber may wait for them.
    #[inline]
    pub(crate) fn unlock(self) -> KeptLog {
        let Self { state, _holds } = self;
        drop(state);
        _holds.end()
    }

    /// Hands the lock to waiting threads, if there are any, and takes it again.
    #[inline]
    pub(crate) fn bump(&mut self) {
        MutexGuard::bump(&mut self.state);
    }

    /// Sends everything and unlocks.
    #[must_use = "somebody waits for it"]
    #[inline(never)]
    fn leave(mut self) -> Leaving {
        let waker = self.finish_visit();
        if self.caller_progress {
            // On some devices polling leaves doorbells to be rung.
            if self.is_polled_soon() {
                self.cq.flush_soon();
            } else {
                self.cq.flush();
            }
        }
        let deferred = self.take_deferred();
        Leaving { waker, deferred, _log: self.unlock() }
    }
}

impl<P: UpperLayer> Deref for Locked<'_, P> {
    type Target = State<P>;

    #[inline]
    fn deref(&self) -> &State<P> {
        &self.state
    }
}

impl<P: UpperLayer> DerefMut for Locked<'_, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State<P> {
        &mut self.state
    }
}

/// Work of a visit that is done after the lock is released.
struct Leaving {
    /// The driver's waker, if it must poll.
    waker: Option<Waker>,
    deferred: Vec<Deferred>,
    _log: KeptLog,
}

impl Leaving {
    #[inline]
    fn run(self) {
        if let Some(waker) = self.waker {
            caught(|| waker.wake());
        }
        Deferred::run_all(self.deferred);
    }
}

impl<P: UpperLayer> fmt::Debug for Shard<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("device", &self.device.attributes().name).finish()
    }
}

/// Ends every connection when a panic leaves their states in doubt: the lock is not poisoned, and
/// completions that a poll had taken from the CQ are lost.
struct EndOnPanic<'a, P: UpperLayer>(&'a Shard<P>);

impl<P: UpperLayer> Drop for EndOnPanic<'_, P> {
    #[cold]
    fn drop(&mut self) {
        tracing::error!("a panic under the lock of a shard: closing its connections");
        let mut state = self.0.lock();
        state.fail_all(&CloseCause::Panicked);
        self.0.finish(state);
    }
}
