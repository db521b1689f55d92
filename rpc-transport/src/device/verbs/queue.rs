//! The completion queue of a verbs device, which also owns its QPs.
//!
//! Owns the path of every post to the device and of every completion back. Never waits: operations
//! that could (destroying, disconnecting) run on other threads. Moving a QP to ERR is the
//! exception: only then is memory that the peer could write out of its reach.
//!
//! Invariants:
//! 1. WRs are held back for one QP at a time; polling, arming, flushing, an inline post without
//!    `more`, or posting to another QP rings the doorbell first (contract rule 17).
//! 2. Entries of the device's CQ stay reserved for live QPs, and for destroyed ones as long as
//!    their completions may still be in it; so it never overflows (contract rule 13).
//! 3. A completion of a QP or WR that no longer exists is dropped (S34).
#![allow(unsafe_code, reason = "reads completions that libibverbs has written")]

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::device::connection_error::VendorError;
use crate::device::{
    Capabilities, Completion, CompletionQueue, CqRef, DeviceAttributes, Opcode, PostError,
    PostErrorKind, ProviderError, QpCapacity, QpEvent, QpHandle, QpState, RecvWr, Ring, SendWr,
    Status, post_inline_listed,
};
use crate::memory::region::ProtectionDomain;

use super::batch::{Batch, Bytes, Refused, post_inline};
use super::completion_channel::CqGuard;
use super::context::Context;
use super::ffi::{self, ibv_wc_opcode};
use super::id_link::IdLink;
use super::inherited::is_inherited;
use super::qp_table::QpTable;
use super::queue_pair::{PreparedQp, QpGuard, SetupQueues, Transition, granted};
use super::quirks::Quirks;
use super::recv_post::RecvPost;
use super::srq::Srq;
use super::status;
use super::work_queues::{Outcome, WorkQueues};
use super::wr_key::{Queue, WrKey};
use crate::user_code::logged;

mod retired;
mod shared;

/// Most completions taken from the device in one call.
const POLL_BATCH: usize = 32;

/// A QP of this CQ.
struct Entry {
    guard: Arc<QpGuard>,
    queues: WorkQueues,
    /// Entries of the CQ that are reserved for it.
    reserved: u32,
    /// `vendor_err` of the completion that told of the failure; 0 if none did.
    vendor_error: u32,
    /// How far it has come to an end, if it uses the SRQ.
    drain: shared::Drain,
}

/// A CQ of a verbs device.
pub(super) struct VerbsCompletionQueue {
    qps: QpTable<Entry>,
    batch: Batch,
    /// Completions that wait to be polled: those that a device completion was translated to, if it
    /// did not go to the caller directly, and those that the provider makes itself.
    ready: VecDeque<Completion>,
    reserved: u32,
    retired: Vec<retired::Retired>,
    srq: Option<Arc<Srq>>,
    srqs_made: u32,
    /// QPs that use the SRQ, by their numbers.
    numbers: HashMap<u32, QpHandle>,
    /// Completions taken from the device, modulo 2^64; seeing it empty counts as all that it holds.
    taken: u64,
    attributes: DeviceAttributes,
    quirks: Quirks,
    /// The device refuses SENDs in ERR, and so the drain WR.
    refuses_late_sends: bool,
    // Declared after the table, so that QPs are dropped first.
    cq: Arc<CqGuard>,
}

impl VerbsCompletionQueue {
    /// An empty CQ.
    pub(super) fn new(cq: Arc<CqGuard>, attributes: &DeviceAttributes, quirks: Quirks) -> Self {
        Self {
            qps: QpTable::new(),
            batch: Batch::default(),
            ready: VecDeque::new(),
            reserved: 0,
            retired: Vec::new(),
            srq: None,
            srqs_made: 0,
            numbers: HashMap::new(),
            taken: 0,
            attributes: attributes.clone(),
            quirks,
            refuses_late_sends: !attributes.capabilities.contains(Capabilities::FLUSHES_LATE_SENDS),
            cq,
        }
    }

    /// Finds the CQ behind a trait object.
    pub(super) fn of(cq: &mut dyn CompletionQueue) -> Result<&mut Self, ProviderError> {
        (cq as &mut dyn Any).downcast_mut().ok_or(ProviderError::WrongDevice("completion queue"))
    }

    fn setup_queues(&self) -> SetupQueues {
        SetupQueues { cq: Arc::clone(&self.cq), srq: self.srq.clone() }
    }

    /// Takes in a QP in INIT: the one that was prepared, or one that is created here and now. The
    /// id behind `link` will connect it.
    pub(super) fn create_qp(
        &mut self,
        prepared: Option<PreparedQp>,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
        init: &Transition,
        link: IdLink,
        device: &Arc<Context>,
    ) -> Result<(QpHandle, Arc<QpGuard>), ProviderError> {
        let parents = self.setup_queues().parents(pd, capacity, device)?;
        let asked = granted(capacity, &self.attributes)?;
        let (handle, reserved) = self.reserve(capacity)?;
        let prepared = match prepared.filter(|prepared| prepared.is_of(&parents, asked)) {
            Some(prepared) => prepared,
            None => PreparedQp::create(&parents, asked, init, link)?,
        };
        let (guard, inline) = prepared.adopt(handle);
        let guard = Arc::new(guard);
        let (limit, capabilities) =
            (self.attributes.max_message_bytes, self.attributes.capabilities);
        let quirks = self.quirks;
        let queues = WorkQueues::new(handle, asked, inline, limit, capabilities, quirks);
        let (guard_here, drain) = (Arc::clone(&guard), shared::Drain::default());
        let entry = Entry { guard: guard_here, queues, reserved, vendor_error: 0, drain };
        self.qps.insert(handle, entry);
        self.reserved += reserved;
        if guard.uses_srq() {
            self.numbers.insert(guard.number(), handle);
        }
        Ok((handle, guard))
    }

    /// The handle of a new QP, and the number of entries to reserve for it (invariant 2).
    fn reserve(&self, capacity: QpCapacity) -> Result<(QpHandle, u32), ProviderError> {
        // At least 2 entries per QP: the device's CQ is half as large again, which leaves room for
        // one drain WR for every two entries.
        let wanted = (capacity.max_send_wr + capacity.max_recv_wr).max(2);
        self.check_room(wanted)?;
        let vacant = self.qps.vacant();
        vacant.map(|handle| (handle, wanted)).ok_or(self.full(wanted))
    }

    fn check_room(&self, wanted: u32) -> Result<(), ProviderError> {
        if wanted > self.capacity() - self.reserved { Err(self.full(wanted)) } else { Ok(()) }
    }

    fn full(&self, wanted: u32) -> ProviderError {
        let (capacity, used) = (self.capacity(), self.reserved);
        ProviderError::CompletionQueueFull { capacity, used, wanted }
    }

    /// The QP has reached RTS.
    pub(super) fn establish(&mut self, handle: QpHandle) -> Result<(), ProviderError> {
        let entry = self.qps.get_mut(handle).ok_or(ProviderError::UnknownQp)?;
        entry.queues.establish(&mut self.ready);
        if !self.ready.is_empty() {
            self.cq.mailbox().ring();
        }
        Ok(())
    }

    /// Posts the WRs that are held back, which rings the doorbell.
    #[inline]
    fn ring(&mut self) {
        if !self.batch.is_empty() {
            self.post_batch();
        }
    }

    fn post_batch(&mut self) {
        let Some(index) = self.batch.qp() else { return };
        // The QP exists: destroying one posts its WRs first.
        let Some((_, entry)) = self.qps.at(index) else { return };
        if let Err(refused) = self.batch.post(&entry.guard) {
            self.refused(index, &refused);
        }
    }

    /// The device refused WRs whose post has already been reported as successful: the QP fails, and
    /// their completions say so (rule 8).
    #[cold]
    fn refused(&mut self, index: u32, refused: &Refused) {
        let Refused { count, error } = refused;
        let (text, count_refused) = (error.to_string(), *count);
        logged(move || {
            tracing::error!(
                error = text,
                count = count_refused,
                "the device refused work requests; the queue pair is lost"
            );
        });
        let Some((handle, entry)) = self.qps.at(index) else { return };
        entry.queues.strand(*count);
        let number = error.raw_os_error().unwrap_or(0).unsigned_abs();
        self.cq.mailbox().put(QpEvent::Fatal(handle, number));
        self.fail(index);
    }

    /// Moves a QP to ERR, and makes sure that everything posted completes.
    fn fail(&mut self, index: u32) {
        // WRs still held back would be posted after the drain WR.
        debug_assert_ne!(self.batch.qp(), Some(index));
        let Some((_, entry)) = self.qps.at(index) else { return };
        if entry.queues.state() != QpState::Error {
            if let Err(error) = entry.guard.modify_to_error() {
                // The device is gone; an asynchronous event reports that.
                logged(move || tracing::debug!(%error, "queue pair not moved to the error state"));
            }
            entry.guard.link().disconnect();
            let drain_wr = entry.queues.enter_error().filter(|_| !self.refuses_late_sends);
            if let Some(key) = drain_wr
                && let Err(Refused { error, .. }) = post_drain_wr(index, key, &entry.guard)
            {
                // From now on none is posted. Silent WRs end with their QP.
                self.refuses_late_sends = true;
                let device = self.cq.context().name().to_owned();
                let text = "the device accepts no work requests in the error state";
                logged(move || tracing::info!(device, %error, "{text}"));
            }
        }
        entry.queues.deliver_early(&mut self.ready);
        entry.queues.deliver_stranded(&mut self.ready);
        if !self.ready.is_empty() {
            self.cq.mailbox().ring();
        }
    }

    /// Takes completions from the device until `completions` has length `end` or there are none.
    fn poll_device(
        &mut self,
        completions: &mut Vec<Completion>,
        end: usize,
    ) -> Result<(), ProviderError> {
        let mut wcs = [const { MaybeUninit::uninit() }; POLL_BATCH];
        while completions.len() < end {
            let room = (end - completions.len()).min(POLL_BATCH);
            let count = self.cq.poll(&mut wcs[..room]).map_err(|error| {
                self.cq.mailbox().kill(format!("polling the completion queue failed ({error})"));
                ProviderError::CompletionQueueDead("polling the completion queue failed".to_owned())
            })?;
            for wc in &wcs[..count] {
                // SAFETY: the device has written the first `count` completions.
                let wc = unsafe { wc.assume_init_ref() };
                // Completions that already wait go first; `count` does not exceed the room left.
                if self.ready.is_empty()
                    && let Some(completion) = self.complete_one(wc)
                {
                    completions.push(completion);
                } else {
                    self.on_completion(wc);
                }
            }
            self.deliver(completions, end);
            self.taken = self.taken.wrapping_add(count as u64);
            if count < room {
                self.taken = self.taken.wrapping_add(self.cq.entries().into());
                self.release_retired();
                break;
            }
        }
        Ok(())
    }

    /// Fast path of a successful completion (see [`WorkQueues::complete_one`]).
    #[inline]
    fn complete_one(&mut self, wc: &ffi::ibv_wc) -> Option<Completion> {
        if wc.status != 0 {
            return None;
        }
        let key = WrKey::decode(wc.wr_id)?;
        if key.queue == Queue::Shared {
            return None;
        }
        self.qps.of_key(key)?.queues.complete_one(key, success(wc))
    }

    /// Only `wr_id`, `status`, `qp_num` and `vendor_err` are valid in a failed completion (S39).
    fn on_completion(&mut self, wc: &ffi::ibv_wc) {
        let Some(key) = WrKey::decode(wc.wr_id) else { return };
        let outcome = match wc.status {
            0 => success(wc),
            number => Outcome {
                status: status::from_number(number),
                byte_len: 0,
                imm: None,
                is_write: false,
            },
        };
        let (known, handle) = if key.queue == Queue::Shared {
            let handle = self.complete_shared(key, wc.qp_num, outcome);
            (handle.is_some(), handle)
        } else {
            let Some(entry) = self.qps.of_key(key) else { return };
            let known = entry.queues.complete(key, outcome, &mut self.ready);
            (known, self.qps.at(key.qp).map(|(handle, _)| handle))
        };
        if !known {
            logged(move || {
                tracing::debug!(?key, "completion of a work request that was not posted")
            });
        }
        let Some(handle) = handle else { return };
        let Some(entry) = self.qps.get_mut(handle) else { return };
        if wc.status != 0 && entry.queues.state() != QpState::Error {
            entry.vendor_error = wc.vendor_err;
            let (qp, vendor_error) = (entry.guard.number(), VendorError(wc.vendor_err));
            let status = outcome.status;
            logged(move || tracing::debug!(qp, "a work request failed: {status:?}{vendor_error}"));
            self.fail(handle.index);
        }
    }

    /// Moves waiting completions to the caller's list, up to `end` in all.
    #[inline]
    fn deliver(&mut self, completions: &mut Vec<Completion>, end: usize) {
        if !self.ready.is_empty() {
            self.deliver_some(completions, end);
        }
    }

    #[cold]
    fn deliver_some(&mut self, completions: &mut Vec<Completion>, end: usize) {
        let count = end.saturating_sub(completions.len()).min(self.ready.len());
        completions.extend(self.ready.drain(..count));
    }
}

fn success(wc: &ffi::ibv_wc) -> Outcome {
    Outcome {
        status: Status::Success,
        byte_len: wc.byte_len,
        imm: ffi::immediate(wc),
        is_write: wc.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
    }
}

/// Posts directly: whatever was held back for the QP has been posted by now.
fn post_drain_wr(index: u32, key: u64, qp: &QpGuard) -> Result<(), Refused> {
    let mut batch = Batch::default();
    batch.push(index, key, Opcode::Send, true, Bytes::None);
    batch.post(qp)
}

impl CompletionQueue for VerbsCompletionQueue {
    fn capacity(&self) -> u32 {
        self.cq.capacity()
    }

    fn poll(
        &mut self,
        completions: &mut Vec<Completion>,
        max: usize,
    ) -> Result<usize, ProviderError> {
        let start = completions.len();
        self.cq.mailbox().check_alive()?;
        self.ring();
        let end = start.saturating_add(max);
        self.deliver(completions, end);
        self.poll_device(completions, end)?;
        Ok(completions.len() - start)
    }

    /// Returns `false`: the PAUSE instruction would delay the next poll by about a hundred cycles,
    /// and much more on an emulated CPU (see docs/performance.md).
    fn uses_spin_hint(&self) -> bool {
        false
    }

    fn arm(&mut self) -> Result<(), ProviderError> {
        self.cq.mailbox().check_alive()?;
        self.ring();
        self.cq.arm().map_err(|error| ProviderError::CompletionQueueDead(error.to_string()))
    }

    fn for_setup(&self) -> CqRef {
        CqRef::new(Arc::new(self.setup_queues()))
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.cq.event_fd()
    }

    fn clear_events(&mut self) -> Result<(), ProviderError> {
        let cleared = self.cq.clear_events();
        cleared.map_err(|error| ProviderError::CompletionQueueDead(error.to_string()))?;
        self.cq.mailbox().check_alive()
    }

    fn poll_event(&mut self) -> Option<QpEvent> {
        loop {
            let event = self.cq.mailbox().take()?;
            let (QpEvent::Disconnected(handle) | QpEvent::Fatal(handle, _)) = event;
            if self.qps.get_mut(handle).is_none() {
                continue;
            }
            if matches!(event, QpEvent::Disconnected(_)) {
                // A QP stays in RTS when its peer is gone, and SENDs would go through all their
                // retries.
                self.ring();
                self.fail(handle.index);
            }
            return Some(event);
        }
    }

    fn post_send(&mut self, qp: QpHandle, wrs: &mut [SendWr<'_>]) -> Result<(), PostError> {
        if self.batch.qp().is_some_and(|held| held != qp.index) {
            self.ring();
        }
        for (posted, wr) in wrs.iter_mut().enumerate() {
            if self.batch.is_full() {
                self.ring();
            }
            let Some(entry) = self.qps.get_mut(qp) else {
                return Err(PostError { posted, kind: PostErrorKind::UnknownQp });
            };
            if self.refuses_late_sends && entry.queues.state() == QpState::Error {
                let kind = PostErrorKind::InvalidState(QpState::Error);
                return Err(PostError { posted, kind });
            }
            let result = entry.queues.post_send(wr, &mut self.batch);
            result.map_err(|kind| PostError { posted, kind })?;
        }
        Ok(())
    }

    fn post_send_inline(
        &mut self,
        qp: QpHandle,
        wr_id: u64,
        signaled: bool,
        bytes: &[u8],
        ring: Ring,
    ) -> Result<(), PostError> {
        // Nothing that would have to be posted first is held back.
        if ring != Ring::WithNext
            && self.batch.is_empty()
            && let Some(entry) = self.qps.get_mut(qp)
            && let Some(key) = entry.queues.hold_small(wr_id, signaled, bytes.len())
        {
            if let Err(refused) = post_inline(&entry.guard, key, signaled, bytes) {
                self.refused(qp.index, &refused);
            }
            return Ok(());
        }
        post_inline_listed(self, qp, wr_id, signaled, bytes, ring)
    }

    fn post_recv(&mut self, qp: QpHandle, wr: RecvWr) -> Result<(), (PostError, RecvWr)> {
        let refuse = |kind, wr| Err((PostError { posted: 0, kind }, wr));
        let Some(entry) = self.qps.get_mut(qp) else {
            return refuse(PostErrorKind::UnknownQp, wr);
        };
        if let Err(kind) = entry.queues.check_recv() {
            return refuse(kind, wr);
        }
        if entry.queues.state() == QpState::Error {
            entry.queues.hold_late_recv(wr, &mut self.ready);
            self.cq.mailbox().ring();
            return Ok(());
        }
        let mut recv = RecvPost::of(&wr);
        let key = entry.queues.hold_recv(wr);
        // SAFETY: a live QP; one WR with one span of memory that `hold_recv` keeps.
        let posted =
            recv.post(key, |wr, bad| unsafe { ffi::ibv_post_recv(entry.guard.as_ptr(), wr, bad) });
        let Err(kind) = posted else { return Ok(()) };
        match entry.queues.unhold_recv(key) {
            Some(wr) => refuse(kind, wr),
            // Cannot happen: it was held above.
            None => Ok(()),
        }
    }

    fn create_srq(&mut self, pd: &ProtectionDomain, max_recv_wr: u32) -> Result<(), ProviderError> {
        self.new_srq(pd, max_recv_wr)
    }

    fn post_srq_recv(&mut self, wr: RecvWr) -> Result<(), (PostError, RecvWr)> {
        self.post_shared(wr).map_err(|(kind, wr)| (PostError { posted: 0, kind }, wr))
    }

    fn flush(&mut self) {
        self.ring();
    }

    fn state(&self, qp: QpHandle) -> Option<QpState> {
        let entry = self.qps.get(qp)?;
        let known = entry.queues.state();
        if known != QpState::ReadyToSend {
            return Some(known);
        }
        // The device may have moved it to ERR while nothing was posted that would report it.
        match entry.guard.query_state() {
            // No QP comes back to RESET: siw does not report its state.
            Ok(QpState::Reset) => Some(known),
            Ok(state) => Some(state),
            Err(_) => Some(QpState::Error),
        }
    }

    fn vendor_error(&self, qp: QpHandle) -> u32 {
        self.qps.get(qp).map_or(0, |entry| entry.vendor_error)
    }

    fn max_inline_bytes(&self, qp: QpHandle) -> u32 {
        self.qps.get(qp).map_or(0, |entry| entry.queues.max_inline_bytes())
    }

    fn modify_to_error(&mut self, qp: QpHandle) -> Result<(), ProviderError> {
        self.ring();
        self.qps.get_mut(qp).ok_or(ProviderError::UnknownQp)?;
        self.fail(qp.index);
        Ok(())
    }

    fn destroy_qp(&mut self, qp: QpHandle) -> Result<(), ProviderError> {
        self.ring();
        let mut entry = self.qps.take(qp).ok_or(ProviderError::UnknownQp)?;
        if entry.guard.uses_srq() {
            self.numbers.remove(&entry.guard.number());
        }
        entry.guard.link().disconnect();
        if entry.queues.is_empty() {
            // Every completion has been polled.
            self.reserved -= entry.reserved;
        } else {
            let destroyed = entry.guard.destroyed();
            let reserved = entry.reserved;
            self.retired.push(retired::Retired { destroyed, was_destroyed: false, reserved });
        }
        for memory in entry.queues.take_all() {
            entry.guard.keep(memory);
        }
        self.ready.retain(|completion| completion.qp != qp);
        Ok(())
    }

    fn has_drained(&mut self, qp: QpHandle) -> bool {
        self.has_drained_srq(qp)
    }
}

impl Drop for VerbsCompletionQueue {
    fn drop(&mut self) {
        if is_inherited() {
            return;
        }
        for handle in self.qps.handles() {
            // It is there.
            let _ = self.destroy_qp(handle);
        }
    }
}

impl fmt::Debug for VerbsCompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let qps = self.qps.handles().len();
        f.debug_struct("VerbsCompletionQueue")
            .field("cq", &self.cq)
            .field("qps", &qps)
            .field("reserved", &self.reserved)
            .finish_non_exhaustive()
    }
}
