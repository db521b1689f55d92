//! A QP as an object of the device, and its state transitions.
//!
//! Owns the QP's creation, transitions and destruction. Never posts, and does not know what is
//! posted, but keeps memory that was posted and never polled until the QP is destroyed.
//!
//! Invariants:
//! 1. RC, nothing signaled by default, one SGE per WR, `rnr_retry` 0 (contract rule 9) and a
//!    `retry_count` of at most 6: on Soft-RoCE 7 means forever, and a dead peer must be detected.
//! 2. Memory that the device might still touch is released after the QP is destroyed, never before.
//! 3. The SQ has one slot more than requested, for the drain WR. When a QP goes to ERR after an
//!    unsignaled WR, this WR is posted after the last one; its completion means that all before it
//!    are done (like `ib_drain_qp` in the kernel).
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::any::Any;
use std::fmt;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::device::{DeviceAttributes, NO_SRQ, ProviderError, QpCapacity, QpHandle, QpState};

use super::completion_channel::CqGuard;
use super::context::{Context, QpTarget};
use super::ffi::{self, Plain, ibv_access_flags, ibv_qp_attr_mask, ibv_qp_state};
use super::id_link::IdLink;
use super::inherited::is_inherited;
use super::limits;
use super::mailbox::Mailbox;
use super::memory::{PdGuard, VerbsDomain};
use super::options::QpTimers;
use super::reaper;
use super::srq::Srq;
use crate::memory::region::ProtectionDomain;
use crate::user_code::logged;

/// Attributes of a state transition, as the connection manager gives them.
pub(super) struct Transition {
    attributes: ffi::ibv_qp_attr,
    mask: i32,
}

impl Transition {
    /// A copy of this transition.
    pub(super) fn duplicate(&self) -> Self {
        Self { attributes: self.attributes.duplicate(), mask: self.mask }
    }

    /// Asks the connection manager for the attributes that move an id's QP to `state`.
    ///
    /// # Safety
    /// `id` is a live id, used by this thread alone.
    pub(super) unsafe fn ask(id: *mut ffi::rdma_cm_id, state: u32) -> io::Result<Self> {
        let mut attributes = ffi::ibv_qp_attr::zeroed();
        attributes.qp_state = state;
        let mut mask = 0;
        // SAFETY: the caller's promise; writes to the two given pointers.
        ffi::cm_result(|| unsafe {
            ffi::rdma_init_qp_attr(id, &raw mut attributes, &raw mut mask)
        })?;
        Ok(Self { attributes, mask })
    }

    /// To INIT, with the access rights that the peer's READs and WRITEs need.
    ///
    /// # Safety
    /// As for [`Transition::ask`].
    pub(super) unsafe fn to_init(id: *mut ffi::rdma_cm_id, allows_reads: bool) -> io::Result<Self> {
        // SAFETY: the caller's promise.
        let mut this = unsafe { Self::ask(id, ibv_qp_state::IBV_QPS_INIT) }?;
        let mut access = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        if allows_reads {
            access |= ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        }
        this.attributes.qp_access_flags = access;
        Ok(this)
    }

    /// To RTR; `reads` is how many READs the peer may have in flight.
    ///
    /// # Safety
    /// As for [`Transition::ask`].
    pub(super) unsafe fn to_rtr(
        id: *mut ffi::rdma_cm_id,
        reads: Option<u8>,
        link_layer: u8,
    ) -> io::Result<Self> {
        // SAFETY: the caller's promise.
        let mut this = unsafe { Self::ask(id, ibv_qp_state::IBV_QPS_RTR) }?;
        if link_layer == ffi::number::LINK_LAYER_INFINIBAND {
            this.mask &= !ffi::number::KERNEL_ONLY_ATTR_MASK;
        }
        if let Some(reads) = reads {
            this.attributes.max_dest_rd_atomic = reads;
        }
        this.attributes.min_rnr_timer = MIN_RNR_TIMER;
        Ok(this)
    }

    /// To RTS; `reads` is how many READs this side may have in flight.
    ///
    /// # Safety
    /// As for [`Transition::ask`].
    pub(super) unsafe fn to_rts(
        id: *mut ffi::rdma_cm_id,
        reads: Option<u8>,
        timers: QpTimers,
    ) -> io::Result<Self> {
        // SAFETY: the caller's promise.
        let mut this = unsafe { Self::ask(id, ibv_qp_state::IBV_QPS_RTS) }?;
        if let Some(reads) = reads {
            this.attributes.max_rd_atomic = reads;
        }
        // Overrides the values that the peer requests in its REQ or REP (invariant 1).
        this.attributes.timeout = timers.ack_timeout;
        this.attributes.retry_cnt = timers.retry_count;
        this.attributes.rnr_retry = 0;
        Ok(this)
    }
}

impl fmt::Debug for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transition(to {}, mask {:#x})", self.attributes.qp_state, self.mask)
    }
}

/// How many READs a QP may have in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadDepths {
    /// By this side.
    pub(super) own: u8,
    /// By the peer.
    pub(super) peer: u8,
}

impl ReadDepths {
    /// The smaller value of each field.
    pub(super) fn min(self, other: Self) -> Self {
        Self { own: self.own.min(other.own), peer: self.peer.min(other.peer) }
    }
}

/// Parameters of the transition to RTS.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadyTerms {
    /// The agreed depths on the passive side, which decides them. `None` on the active side: the
    /// connection manager knows the peer's answer.
    pub(super) read_depths: Option<ReadDepths>,
    /// Whether peers may READ at all.
    pub(super) allows_reads: bool,
    /// ACK timeout and retry count.
    pub(super) timers: QpTimers,
}

/// Shortest time that a peer waits before it retries after RNR: code 12 is 0.64 ms (0 would be 655
/// ms).
const MIN_RNR_TIMER: u8 = 12;

/// The objects that a QP is created on.
#[derive(Debug, Clone)]
pub(super) struct Parents {
    pub(super) cq: Arc<CqGuard>,
    pub(super) pd: Arc<PdGuard>,
    /// For a QP that uses it.
    pub(super) srq: Option<Arc<Srq>>,
}

impl Parents {
    fn is(&self, other: &Self) -> bool {
        let srq = |parents: &Self| parents.srq.as_ref().map(Arc::as_ptr);
        Arc::ptr_eq(&self.cq, &other.cq)
            && Arc::ptr_eq(&self.pd, &other.pd)
            && srq(self) == srq(other)
    }
}

/// A CQ as set-up sees it.
#[derive(Debug)]
pub(super) struct SetupQueues {
    pub(super) cq: Arc<CqGuard>,
    pub(super) srq: Option<Arc<Srq>>,
}

impl SetupQueues {
    /// The objects for a QP on this CQ, on an id of `device`.
    pub(super) fn parents(
        &self,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
        device: &Arc<Context>,
    ) -> Result<Parents, ProviderError> {
        let pd = VerbsDomain::of(pd)?;
        if !Arc::ptr_eq(device, self.cq.context()) {
            return Err(ProviderError::WrongDevice("completion queue"));
        }
        if !Arc::ptr_eq(device, pd.context()) {
            return Err(ProviderError::WrongDevice("protection domain"));
        }
        let srq = self.srq.clone().filter(|_| capacity.uses_srq);
        match &srq {
            None if capacity.uses_srq => return Err(ProviderError::Srq(NO_SRQ)),
            // Some devices check the memory of a RECV against the QP's domain, others the SRQ's.
            Some(srq) if !Arc::ptr_eq(srq.pd(), pd) => {
                return Err(ProviderError::Srq("it belongs to another protection domain"));
            }
            _ => {}
        }
        Ok(Parents { cq: Arc::clone(&self.cq), pd: Arc::clone(pd), srq })
    }
}

/// A QP of the device.
pub(super) struct QpGuard {
    raw: NonNull<ffi::ibv_qp>,
    number: u32,
    link: IdLink,
    /// Memory of WRs whose completions were never polled (invariant 2).
    leftovers: Mutex<Vec<Box<dyn Any + Send>>>,
    destroyed: Arc<AtomicBool>,
    is_last: Arc<AtomicBool>,
    parents: Parents,
}

// SAFETY: libibverbs is thread-safe; the pointer is only passed to it.
unsafe impl Send for QpGuard {}
// SAFETY: as above.
unsafe impl Sync for QpGuard {}

impl QpGuard {
    /// Creates a QP and moves it to INIT. Returns it with the inline bytes granted, which may be
    /// fewer than requested.
    fn create(
        parents: &Parents,
        capacity: QpCapacity,
        init: &Transition,
        link: IdLink,
    ) -> io::Result<(Self, u32)> {
        let (raw, inline) = create_with_inline(parents, capacity)?;
        // SAFETY: a live QP; the number is set at creation.
        let number = unsafe { raw.as_ref().qp_num };
        let qp = Self {
            raw,
            number,
            link,
            leftovers: Mutex::default(),
            destroyed: Arc::default(),
            is_last: Arc::default(),
            parents: parents.clone(),
        };
        qp.modify(init)?;
        Ok((qp, inline))
    }

    /// The QP.
    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_qp {
        self.raw.as_ptr()
    }

    /// Its QP number, which the peer needs.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// The id that connects it.
    pub(super) fn link(&self) -> &IdLink {
        &self.link
    }

    /// The mailbox of its CQ's owner.
    pub(super) fn mailbox(&self) -> &Mailbox {
        self.parents.cq.mailbox()
    }

    /// A flag that becomes true when the device has destroyed the QP.
    pub(super) fn destroyed(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.destroyed)
    }

    /// Whether it uses an SRQ.
    pub(super) fn uses_srq(&self) -> bool {
        self.parents.srq.is_some()
    }

    /// Whether the device has told that it takes no more RECVs of its SRQ.
    pub(super) fn is_last(&self) -> bool {
        self.is_last.load(Ordering::Acquire)
    }

    /// Keeps `memory` until the QP is destroyed.
    pub(super) fn keep(&self, memory: Box<dyn Any + Send>) {
        self.leftovers.lock().push(memory);
    }

    /// Carries out a transition.
    pub(super) fn modify(&self, transition: &Transition) -> io::Result<()> {
        let mut attributes = transition.attributes.duplicate();
        // SAFETY: a live QP, and attributes whose layout `ffi` asserts.
        let returned =
            unsafe { ffi::ibv_modify_qp(self.as_ptr(), &raw mut attributes, transition.mask) };
        ffi::verbs_result(returned)
    }

    /// Moves the QP to ERR.
    pub(super) fn modify_to_error(&self) -> io::Result<()> {
        let mut attributes = ffi::ibv_qp_attr::zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed();
        self.modify(&Transition { attributes, mask })
    }

    /// The state as the device reports it.
    pub(super) fn query_state(&self) -> io::Result<QpState> {
        let mut attributes = ffi::ibv_qp_attr::zeroed();
        let mut init = ffi::ibv_qp_init_attr::zeroed();
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed();
        // SAFETY: a live QP; fills the two structs.
        let returned =
            unsafe { ffi::ibv_query_qp(self.as_ptr(), &raw mut attributes, mask, &raw mut init) };
        ffi::verbs_result(returned)?;
        Ok(match attributes.qp_state {
            ibv_qp_state::IBV_QPS_RESET => QpState::Reset,
            ibv_qp_state::IBV_QPS_INIT => QpState::Init,
            ibv_qp_state::IBV_QPS_RTR => QpState::ReadyToReceive,
            ibv_qp_state::IBV_QPS_RTS => QpState::ReadyToSend,
            // SQD is never requested; in SQE and unknown states the QP takes no more sends.
            _ => QpState::Error,
        })
    }
}

impl Drop for QpGuard {
    fn drop(&mut self) {
        if is_inherited() {
            return;
        }
        self.parents.cq.context().unregister_qp(self.raw);
        let dead = RawQp {
            raw: self.raw,
            leftovers: std::mem::take(&mut self.leftovers.lock()),
            destroyed: self.destroyed(),
            _link: self.link.clone(),
            parents: self.parents.clone(),
        };
        reaper::dispose(move || dead.destroy());
    }
}

/// A QP in INIT that no CQ's owner knows yet: its asynchronous events have no recipient.
#[derive(Debug)]
pub(super) struct PreparedQp {
    guard: QpGuard,
    /// The capacity that it was created with.
    capacity: QpCapacity,
    inline: u32,
}

impl PreparedQp {
    /// Creates the QP, which waits for the device.
    pub(super) fn create(
        parents: &Parents,
        capacity: QpCapacity,
        init: &Transition,
        link: IdLink,
    ) -> Result<Self, ProviderError> {
        let created = QpGuard::create(parents, capacity, init, link);
        let (guard, inline) =
            created.map_err(|error| limits::refused("create queue pair", &error))?;
        Ok(Self { guard, capacity, inline })
    }

    /// Whether it is the QP that these arguments would create.
    pub(super) fn is_of(&self, parents: &Parents, capacity: QpCapacity) -> bool {
        self.guard.parents.is(parents) && self.capacity == capacity
    }

    /// The QP under its handle, and the inline bytes granted. From now on the CQ's owner receives
    /// its events.
    pub(super) fn adopt(self, handle: QpHandle) -> (QpGuard, u32) {
        let Self { guard, inline, .. } = self;
        let mailbox = Arc::clone(guard.parents.cq.mailbox());
        let is_last = Arc::clone(&guard.is_last);
        let target = QpTarget { mailbox, handle, id: guard.link.key(), is_last };
        guard.parents.cq.context().register_qp(guard.raw, target);
        (guard, inline)
    }
}

/// The capacity that a QP gets on a device with these limits.
pub(super) fn granted(
    capacity: QpCapacity,
    attributes: &DeviceAttributes,
) -> Result<QpCapacity, ProviderError> {
    if capacity.uses_srq && capacity.max_recv_wr > 0 {
        return Err(ProviderError::Srq("a queue pair that uses it has no RECVs of its own"));
    }
    for (what, asked) in [
        ("send queue entries", capacity.max_send_wr),
        ("receive queue entries", capacity.max_recv_wr),
    ] {
        if asked > attributes.max_qp_wr {
            let (asked, limit) = (u64::from(asked), u64::from(attributes.max_qp_wr));
            return Err(ProviderError::Limit { what, asked, limit });
        }
    }
    let inline = capacity.max_inline_bytes.min(attributes.max_inline_bytes);
    Ok(QpCapacity { max_inline_bytes: inline, ..capacity })
}

impl fmt::Debug for QpGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QpGuard({}, number {:#x})", self.parents.cq.context().name(), self.number)
    }
}

struct RawQp {
    raw: NonNull<ffi::ibv_qp>,
    leftovers: Vec<Box<dyn Any + Send>>,
    destroyed: Arc<AtomicBool>,
    /// Dropped after the QP is destroyed.
    _link: IdLink,
    parents: Parents,
}

// SAFETY: as for `QpGuard`.
unsafe impl Send for RawQp {}

impl RawQp {
    fn destroy(mut self) {
        // SAFETY: the guard was the only owner.
        let returned = unsafe { ffi::ibv_destroy_qp(self.raw.as_ptr()) };
        if let Err(error) = ffi::verbs_result(returned) {
            let (device, wrs) = (self.parents.cq.context().name().to_owned(), self.leftovers.len());
            let text = "queue pair leaked, with what was posted on it";
            logged(move || tracing::error!(device, %error, wrs, "{text}"));
            // Invariant 2: the device may still use it.
            std::mem::forget(std::mem::take(&mut self.leftovers));
            return;
        }
        self.destroyed.store(true, Ordering::Release);
    }
}

/// Creates the QP with as many inline bytes as the device grants, at most those asked for.
fn create_with_inline(
    parents: &Parents,
    capacity: QpCapacity,
) -> io::Result<(NonNull<ffi::ibv_qp>, u32)> {
    let Parents { cq, pd, srq } = parents;
    with_less_inline(capacity.max_inline_bytes, |inline| {
        let mut attributes = ffi::ibv_qp_init_attr::zeroed();
        attributes.send_cq = cq.as_ptr();
        attributes.recv_cq = cq.as_ptr();
        attributes.srq = srq.as_ref().map_or(ptr::null_mut(), |srq| srq.as_ptr());
        attributes.qp_type = ffi::ibv_qp_type::IBV_QPT_RC;
        attributes.sq_sig_all = 0;
        attributes.cap = ffi::ibv_qp_cap {
            max_send_wr: capacity.max_send_wr + 1,
            // Not looked at with an SRQ.
            max_recv_wr: capacity.max_recv_wr.max(1),
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: inline,
        };
        // SAFETY: live PD and CQ of one context, and a filled-in struct.
        let raw = ffi::created(|| unsafe { ffi::ibv_create_qp(pd.as_ptr(), &raw mut attributes) })?;
        // More may be granted than requested: only the requested bytes are promised (S32).
        Ok((raw, inline.min(attributes.cap.max_inline_data)))
    })
}

/// Calls `create` with fewer and fewer inline bytes, and finally 0, until it succeeds: with larger
/// queues a device may grant less than it did in the trial of a small QP. Any error is retried,
/// since devices disagree on it (EINVAL on most, ENOSPC on hns).
fn with_less_inline<T>(
    mut inline: u32,
    mut create: impl FnMut(u32) -> io::Result<T>,
) -> io::Result<T> {
    loop {
        match create(inline) {
            Err(_) if inline > 0 => inline = if inline < MIN_INLINE_BYTES { 0 } else { inline / 2 },
            result => return result,
        }
    }
}

/// Fewer inline bytes than this are not worth another attempt.
const MIN_INLINE_BYTES: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    /// If either side offers none, there are none.
    #[test]
    fn s24_smaller_read_depth_of_both_sides_holds() {
        let depths = |own, peer| ReadDepths { own, peer };
        for (wanted, offered, agreed) in [
            (depths(4, 4), depths(0, 0), depths(0, 0)),
            (depths(0, 0), depths(4, 4), depths(0, 0)),
            (depths(4, 4), depths(2, 16), depths(2, 4)),
        ] {
            assert_eq!(wanted.min(offered), agreed);
        }
    }

    #[test]
    fn any_error_retries_with_less_inline() {
        for errno in [12, 22, 28] {
            let mut asked = Vec::new();
            let granted = with_less_inline(220, |inline| {
                asked.push(inline);
                if inline > 96 { Err(io::Error::from_raw_os_error(errno)) } else { Ok(inline) }
            });
            assert_eq!((granted.unwrap(), asked), (55, vec![220, 110, 55]));
        }
        let mut asked = Vec::new();
        let refused = with_less_inline::<()>(220, |inline| {
            asked.push(inline);
            Err(io::Error::from_raw_os_error(12))
        });
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(12));
        assert_eq!(asked, [220, 110, 55, 27, 0]);
    }
}
