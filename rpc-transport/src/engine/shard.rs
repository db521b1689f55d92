//! A shard: one CQ, the QPs on it, their links, and the lock around all of it.
//!
//! Owns every connection of one CQ from set-up until its QP is destroyed. Any thread that holds the
//! lock may poll and post; usually that is the [driver](crate::engine::driver). Never runs user
//! code under the lock: such work leaves as actions of the [`Protocol`].
//!
//! Invariants:
//! 1. The RECVs of a run of messages are reposted before anything is sent that may carry their credits
//!    (credit rule 2).
//! 2. A connection whose state changed is on the dirty list until it has been pumped, and the lock
//!    is never released while the list is non-empty. One exception: where pumping would only
//!    collect actions, they are collected directly.
//! 3. An entry is removed only when its QP is destroyed and nobody holds its handle.
//! 4. A panic under the lock ends every connection of the shard. A panic of user code, which runs
//!    after the lock is released, is logged and ends nothing.
//! 5. The registered deadline of a connection is never later than its real one, so a driver that
//!    sleeps until the earliest registered deadline misses none.

mod caller_polling;
mod lead;
mod leader;
mod returns;
mod state;
#[cfg(any(test, feature = "model"))]
mod stats;
#[cfg(test)]
pub(super) mod tests;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::task::Waker;

use parking_lot::{Mutex, MutexGuard};

pub use self::lead::Waited;
pub(crate) use self::returns::WakeList;
pub use self::state::State;
#[cfg(any(test, feature = "model"))]
pub use self::stats::ShardStats;
use crate::connect::error::CloseCause;
use crate::device::{Capabilities, CompletionQueue, CqRef, Device, ProviderError};
use crate::engine::connection::first_recvs;
use crate::engine::connection_key::ConnectionKey;
use crate::engine::deferred::Deferred;
use crate::engine::shared_recvs::SharedRecvs;
use crate::engine::upper::{Protocol, Revoke};
use crate::memory::region::ProtectionDomain;
use crate::protocol::config::LinkConfig;
use crate::protocol::credit::RecvPool;
use crate::protocol::frame::CloseReason;
use crate::protocol::link::LinkMetrics;
use crate::user_code::{HoldsShard, caught};

/// Empty polls in a row before the caller checks its call again. The lock is offered to other
/// threads in between, and one of them may have completed the call.
const POLLS_PER_LOOK: u32 = 8;

/// The state of a call, for a caller that polls the CQ itself.
#[derive(Debug)]
pub enum Progress<T> {
    /// The result.
    Done(T),
    /// Nothing yet; polling on may bring it.
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
pub struct Shard<P: Protocol> {
    state: Mutex<State<P>>,
    returns: Arc<WakeList>,
    device: Arc<dyn Device>,
    domain: ProtectionDomain,
    /// The receives of all its connections, if they share them.
    shared_recvs: Option<Arc<SharedRecvs>>,
}

impl<P: Protocol> Shard<P> {
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

    /// The same with a shared receive queue of so many receives, which are buffers of `buffer_bytes`; how
    /// many of them are kept for connections that begin.
    ///
    /// # Errors
    /// [`ProviderError`] from the creation of the queues.
    pub(super) fn sharing(
        device: Arc<dyn Device>,
        domain: ProtectionDomain,
        cq_entries: u32,
        [recvs, kept]: [u32; 2],
        buffer_bytes: u32,
    ) -> Result<Arc<Self>, ProviderError> {
        let mut cq = device.create_cq(cq_entries)?;
        cq.create_srq(&domain, recvs)?;
        let capabilities = device.attributes().capabilities;
        let may_lose = !capabilities.contains(Capabilities::KEEPS_CUT_OFF_RECVS);
        let sizes = [recvs, kept];
        let shared = SharedRecvs::new(domain.clone(), buffer_bytes, sizes, may_lose);
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
        Arc::new(Self { state, returns, device, domain, shared_recvs })
    }

    /// The receives of all its connections, if they share them.
    pub(super) fn shared_recvs(&self) -> Option<&Arc<SharedRecvs>> {
        self.shared_recvs.as_ref()
    }

    /// What is granted of the receives that its connections share, if they do.
    pub fn shared_recv_pool(&self) -> Option<RecvPool> {
        self.shared_recvs.as_ref().map(|shared| shared.pool())
    }

    /// The device of the CQ.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The CQ as it is now, for set-up: who shares receives holds some by then, so their queue stays.
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

    /// Runs `step` like [`Shard::with`]. Then, while `wanted` returns nothing, polls the CQ in
    /// place of the driver for a few hundred nanoseconds, so that a single outstanding call needs
    /// no task switch. Does not spin when spinning is disabled, nor when others wait for the lock.
    ///
    /// `is_awaited`: a task waits for the answer from now on, so this runtime runs, and where others
    /// wait too the doorbell may wait for their next poll. Whoever only starts something may let its
    /// runtime stand still afterwards, so that all of it leaves at once.
    ///
    /// `None` when the connection is gone; the inner `None` when `wanted` returned nothing.
    pub fn with_progress<R, T>(
        &self,
        key: ConnectionKey,
        is_awaited: bool,
        step: impl FnOnce(&mut P) -> R,
        mut wanted: impl FnMut(&mut P, &R) -> Progress<T>,
    ) -> Option<(R, Option<T>)> {
        self.visit(|state| {
            let result = state.with_now(key, is_awaited, step)?;
            let mut spent = 0;
            let mut budget = 0;
            loop {
                match wanted(&mut state.connection(key)?.protocol, &result) {
                    Progress::Done(value) => {
                        state.caller_polling.on_answered();
                        if spent > 0 {
                            state.on_lone_answer();
                        }
                        return Some((result, Some(value)));
                    }
                    Progress::Wait if state.may_poll_for_one() => {}
                    Progress::Wait | Progress::GiveUp => return Some((result, None)),
                }
                if spent == 0 {
                    budget = state.caller_polling.budget();
                }
                if spent >= budget {
                    if budget > 0 {
                        state.caller_polling.on_given_up();
                    }
                    return Some((result, None));
                }
                spent += poll_a_while(state);
            }
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
        let mut state = self.lock();
        state.connection(key)?.cause().cloned()
    }

    /// Credits, queue depths and slots of a connection's link, while it has one.
    pub fn link_metrics(&self, key: ConnectionKey) -> Option<LinkMetrics> {
        self.lock().connection(key)?.link_metrics()
    }

    /// Looks at connections that have a QP, those at `from` and behind it in the table, at most `most`
    /// places of it: so the lock is held for a short time, however many there are. Gives where to go
    /// on; `None` at the end. Connections that come and go meanwhile may be missed, and none is seen
    /// twice. `look` must not run user code.
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

    /// Whether the CQ has room for `count` more connections that take `entries` of it each, and their
    /// receives, where they share them.
    pub fn has_room_for(&self, count: u32, entries: u32, config: &LinkConfig) -> bool {
        let mut state = self.lock();
        let wanted = u64::from(entries) * (state.qp_count as u64 + u64::from(count));
        let has_entries = wanted <= u64::from(state.cq().capacity());
        let recvs = count.saturating_mul(first_recvs(config));
        state.refusal().is_none() && has_entries && state.has_recvs(recvs)
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
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn returns(&self) -> &Arc<WakeList> {
        &self.returns
    }

    pub(crate) fn lock(&self) -> Locked<'_, P> {
        let _holds = HoldsShard::begin();
        Locked { state: self.state.lock(), _holds }
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
pub(crate) struct Locked<'a, P: Protocol> {
    // Field order is drop order: the lock is released first.
    state: MutexGuard<'a, State<P>>,
    _holds: HoldsShard,
}

impl<P: Protocol> Locked<'_, P> {
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
        Leaving { waker, deferred: self.take_deferred() }
    }
}

impl<P: Protocol> Deref for Locked<'_, P> {
    type Target = State<P>;

    #[inline]
    fn deref(&self) -> &State<P> {
        &self.state
    }
}

impl<P: Protocol> DerefMut for Locked<'_, P> {
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

/// Polls until something is found, at most [`POLLS_PER_LOOK`] times; returns the number of polls.
#[inline]
fn poll_a_while<P: Protocol>(state: &mut Locked<'_, P>) -> u32 {
    for count in 1..=POLLS_PER_LOOK {
        if state.poll() > 0 {
            // The completion may have used up the event that a sleeping driver armed.
            state.caller_progress = true;
            return count;
        }
        state.bump();
        state.relax();
    }
    POLLS_PER_LOOK
}

impl<P: Protocol> fmt::Debug for Shard<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("device", &self.device.attributes().name).finish()
    }
}

/// Ends every connection when a panic leaves their states in doubt: the lock is not poisoned, and
/// completions that a poll had taken from the CQ are lost.
struct EndOnPanic<'a, P: Protocol>(&'a Shard<P>);

impl<P: Protocol> Drop for EndOnPanic<'_, P> {
    #[cold]
    fn drop(&mut self) {
        tracing::error!("a panic under the lock of a shard: its connections end");
        let mut state = self.0.lock();
        state.fail_all(&CloseCause::Panicked);
        self.0.finish(state);
    }
}
