//! The device contract: the interface that every RDMA device implements.
//!
//! Owns the contract between the engine above (link, driver) and a device below: real verbs
//! (`verbs`, behind the feature of that name) or the software device ([`crate::device::soft`]). An
//! implementation of it is called a *provider*. The same engine runs on all of them, so a test on
//! the software device tests the engine that runs on a NIC. Never knows messages, credits or calls.
//!
//! Objects: [`Device`] -> [`ProtectionDomain`] ->
//! [`MemoryRegion`](crate::memory::region::MemoryRegion); [`CompletionQueue`], which also owns its
//! QPs (named by [`QpHandle`]); and for set-up [`Connector`] -> [`Outgoing`] and [`Listener`] ->
//! [`Incoming`]. A QP sends and receives on one CQ, and posting goes through that CQ's owner:
//! exclusive access (`&mut`) replaces a lock per queue.
//!
//! # The contract
//!
//! Each rule has a test in the conformance suite (`tests/conformance`), which every provider
//! passes. Where a device differs, a bit of [`Capabilities`] says so.
//!
//! 1.  *Order.* WRs of one QP's SQ start, take effect at the target and complete in post order.
//!     RECVs are consumed in post order, one per SEND (or WRITE_WITH_IMM).
//! 2.  *Visibility.* The bytes of a WRITE are visible at the target before the completion of any
//!     SEND posted later on the same QP.
//! 3.  *Arming.* [`CompletionQueue::arm`] is one-shot: the next completion **added afterwards**
//!     makes [`CompletionQueue::event_fd`] readable. Completions already queued raise no event, so:
//!     arm, poll again, only then sleep. Polling a completion ends the arming: arm again before
//!     sleeping. Spurious events are legal.
//! 4.  *Unsignaled.* An unsignaled WR that succeeds gives no completion and keeps its SQ slot until
//!     the completion of a later signaled WR of the same QP has been polled.
//! 5.  *No order between queues.* SQ and RQ completions of one QP are mutually unordered: a reply
//!     may be polled before the completion of the request that caused it.
//! 6.  *Acceptance.* A successful send completion means that the target's engine has accepted the
//!     message, not that the application has seen it. Errors that the target finds (bad rkey,
//!     bounds, no RECV, RECV too small) come back as the requester's error completion. Where they
//!     cannot ([`Capabilities::REMOTE_ERRORS`]), a success means only that the bytes are on their
//!     way, and the requester sees such an error as the end of the connection (rule 16).
//! 7.  *States.* RESET -> INIT -> RTR -> RTS. RECVs may be posted from INIT, SENDs from RTS on
//!     (earlier: [`PostErrorKind::InvalidState`]); any state may go to ERR.
//! 8.  *Flush.* In ERR every WR posted before completes, unsignaled ones too: the one that failed
//!     with its own status, the rest with [`Status::FlushError`]. A SEND posted in ERR is flushed
//!     as well, or refused with [`PostErrorKind::InvalidState`]
//!     ([`Capabilities::FLUSHES_LATE_SENDS`]); then unsignaled WRs that were done may end with
//!     their QP, without a completion. A RECV posted in ERR may never complete, so it must not be
//!     waited for ([`Capabilities::FLUSHES_LATE_RECEIVES`]).
//! 9.  *RNR.* A SEND that finds no posted RECV is fatal at once (rnr_retry 0): the requester sees
//!     [`Status::RnrRetryExceeded`]. So a bug in the credit scheme cannot go unnoticed.
//! 10. *Too long.* A SEND longer than its RECV buffer moves both QPs to ERR: the requester sees
//!     [`Status::RemoteInvalidRequest`] or [`Status::RemoteOperation`], the responder
//!     [`Status::LocalLength`] or [`Status::LocalQpOperation`].
//! 11. *Keys.* Local memory must belong to the QP's PD, remote memory to the target QP's PD; rkey,
//!     bounds and access are checked by the target's engine ([`Status::RemoteAccess`], both QPs in
//!     ERR, nothing written). lkey and rkey of one MR differ where the device allows the choice.
//! 12. *Bounded SQ and RQ.* A post beyond `max_send_wr`/`max_recv_wr` is refused with
//!     [`PostErrorKind::QueueFull`], posts nothing further of the list and returns the rest.
//! 13. *Bounded CQ.* A QP whose queues could overflow the CQ is refused at creation
//!     ([`ProviderError::CompletionQueueFull`]).
//! 14. *Ownership.* A buffer moves into a WR and cannot be accessed until its completion; a RECV's
//!     comes back inside the completion, a SEND's at the latest with the next signaled completion.
//!     A READ lands in such a buffer and nowhere else. Inline bytes are copied before `post_send`
//!     returns.
//! 15. *Busy.* A region stays registered while a WR names it; dropping the last handle of a region,
//!     PD or device in use defers the release: memory is never freed while a DMA may access it.
//! 16. *Disconnect.* When the peer's QP or process is gone, [`QpEvent::Disconnected`] is delivered
//!     by [`CompletionQueue::poll_event`] and the event fd becomes readable if armed. Completions
//!     that arrived before stay pollable.
//! 17. *Linked posts.* The WRs of one `post_send` call start in order with at most one doorbell; a
//!     device may hold doorbells back until [`CompletionQueue::flush`], `poll`, `arm`, or a
//!     [`CompletionQueue::post_send_inline`] with [`Ring::Now`]. With [`Ring::Soon`] it may hold
//!     one back as long as it has sent something of the same QP that the peer has not yet accepted.
//! 18. *Set-up.* Private data travels with the REQ (56 bytes), REP (196) and REJ (148); longer is
//!     refused locally, and the receiver sees it zero-padded to the maximum. RECVs posted between
//!     `create_qp` and `connect`/`accept` are in place before the peer can send; its messages are
//!     not delivered by `poll` before [`Established::attach`] has run. Steps that wait for the
//!     device happen in [`Outgoing::prepare_qp`], `connect` and `accept`, without the CQ. Of the
//!     calls that the CQ's owner makes, only `modify_to_error` and a `create_qp` that was not
//!     prepared wait.
//! 19. *Peer data never panics.* Whatever a peer does to the wire ends in an error completion, an
//!     event or a connect error.
//! 20. *Zero-length* SEND and WRITE are legal and complete (some clouds drop them, so the link
//!     sends none).
//! 21. *Traffic.* If [`CompletionQueue::traffic`] returns counts, they grow only when bytes have
//!     moved between the two ends, and a whole message has been counted by the time it completes.
//! 22. *Shared RECVs.* A CQ may have one shared receive queue (SRQ), where
//!     [`DeviceAttributes::max_srq_wr`] is not 0 ([`CompletionQueue::create_srq`]). Its QPs that
//!     are created with [`QpCapacity::uses_srq`], in its PD, have no RQ: a SEND to any of them
//!     takes the SRQ's first RECV, and the completion names the QP. Where there is none, the SEND
//!     meets rule 9, which costs that connection alone. A RECV keeps its slot until its completion
//!     has been polled (rule 12), and all slots are reserved in the CQ (rule 13). A QP in ERR
//!     flushes no RECV but the one that it was filling, which some devices lose
//!     ([`Capabilities::KEEPS_CUT_OFF_RECVS`]). It has *drained* ([`CompletionQueue::has_drained`])
//!     when it takes no more, and all that it took has been polled. What a QP took that is
//!     destroyed before may be lost until the SRQ goes.
//! 23. *Windows.* Where the device has memory windows ([`Capabilities::WINDOWS`]), the key of one
//!     ([`ProtectionDomain::window`](crate::memory::region::ProtectionDomain::window)) is useless
//!     until [`SendOp::Bind`] has taken effect, in its turn among the WRs of the SQ: a SEND behind
//!     it may name the key. From then on the key lets the peer of that QP write the region, and do
//!     nothing else; rule 11 holds for any other use, by any other QP, and after the last handle of
//!     the window or its QP has gone. The region is registered with `Access::WINDOWS` in the QP's
//!     PD, and a window is bound once; else the bind fails, and with it the QP.

mod attributes;
pub mod connection_error;
mod cq_ref;
pub mod fault;
pub mod handshake_failure;
pub mod locked;
#[cfg(any(feature = "verbs", all(test, rpc_loom)))]
mod mailbox;
pub mod memlock;
pub mod open_files;
mod setup;
pub mod soft;
#[cfg(feature = "verbs")]
pub mod verbs;
mod work_request;

use std::any::Any;
use std::fmt;
use std::os::fd::BorrowedFd;

pub use self::attributes::{Capabilities, DeviceAttributes, QueueLimits};
pub use self::cq_ref::CqRef;
pub(crate) use self::setup::canonical;
pub use self::setup::{
    Attach, Connector, Established, Exchange, Incoming, Listener, Outgoing, PeerIdentity,
    REJ_PRIVATE_DATA_BYTES, REP_PRIVATE_DATA_BYTES, REQ_PRIVATE_DATA_BYTES,
};
pub(crate) use self::work_request::Opcode;
pub use self::work_request::{RecvWr, RemoteSlice, Ring, SendOp, SendWr, Source};
pub use crate::error::ProviderError;
use crate::memory::region::{Buffer, ProtectionDomain};

/// An RDMA device, opened. Cheap to share.
pub trait Device: Send + Sync + fmt::Debug {
    /// The device's name, limits and abilities.
    fn attributes(&self) -> &DeviceAttributes;

    /// Allocates a protection domain: the scope inside which keys are valid.
    ///
    /// # Errors
    /// [`ProviderError::Resources`] when the device has none left.
    fn allocate_pd(&self) -> Result<ProtectionDomain, ProviderError>;

    /// Creates a CQ that holds at least `min_entries` completions.
    ///
    /// # Errors
    /// [`ProviderError::Resources`] when the size is beyond the device's limit or no fd is left.
    fn create_cq(&self, min_entries: u32) -> Result<Box<dyn CompletionQueue>, ProviderError>;
}

/// Names one QP of one [`CompletionQueue`]: slot index and generation, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpHandle {
    /// Slot index within the CQ; small and dense, so suitable as an index of a `Vec`.
    pub index: u32,
    /// Distinguishes successive QPs of the same slot.
    pub generation: u32,
}

/// Sizes of a QP's queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpCapacity {
    /// Most WRs outstanding on the SQ.
    pub max_send_wr: u32,
    /// Most RECVs outstanding on the RQ; 0 with `uses_srq`.
    pub max_recv_wr: u32,
    /// Inline bytes requested; the device may grant less ([`CompletionQueue::max_inline_bytes`]).
    pub max_inline_bytes: u32,
    /// RECVs come from the CQ's shared receive queue (rule 22), and the QP has none of its own.
    pub uses_srq: bool,
}

/// State of a QP (contract rule 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Just created.
    Reset,
    /// RECVs may be posted.
    Init,
    /// Receives; cannot send yet.
    ReadyToReceive,
    /// Receives and sends.
    ReadyToSend,
    /// Everything posted is flushed; the only way out is to destroy the QP.
    Error,
}

/// Outcome of a work request. Names and order follow `enum ibv_wc_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// Done.
    Success,
    /// A RECV buffer was too small, or a message too long.
    LocalLength,
    /// The QP cannot do this (Soft-RoCE also reports bad lkeys with this status).
    LocalQpOperation,
    /// Local memory failed its key, bounds, access or PD check.
    LocalProtection,
    /// Flushed: the QP is in ERR.
    FlushError,
    /// The responder's answer violates the protocol.
    BadResponse,
    /// A RECV's memory could not be written (access).
    LocalAccess,
    /// The responder refused the request, for example because its RECV was too small.
    RemoteInvalidRequest,
    /// rkey, bounds, access or PD check failed at the responder.
    RemoteAccess,
    /// The responder failed to complete the operation.
    RemoteOperation,
    /// The peer does not answer.
    RetryExceeded,
    /// The peer had no RECV posted (rule 9).
    RnrRetryExceeded,
    /// Any other status of the device, by its number.
    Other(u32),
}

/// Which kind of WR a completion belongs to. Valid for failed completions too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CompletionKind {
    /// A WR of the SQ.
    Send,
    /// A RECV that a SEND consumed.
    Recv,
    /// A RECV that a WRITE_WITH_IMM consumed: its buffer was not written.
    RecvWrite,
}

/// A work completion (WC).
#[derive(Debug)]
pub struct Completion {
    /// The QP.
    pub qp: QpHandle,
    /// The WR's id.
    pub wr_id: u64,
    /// Which kind of WR completed.
    pub kind: CompletionKind,
    /// Outcome.
    pub status: Status,
    /// Bytes received; valid for successful receives.
    pub byte_len: u32,
    /// Immediate data, if the message carried any.
    pub imm: Option<u32>,
    /// A RECV's buffer, or a READ's; for a signaled SEND of a [`Source::Buffer`], that buffer.
    pub buffer: Option<Buffer>,
}

/// Something that happened to a QP outside its queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QpEvent {
    /// The peer is gone: orderly disconnect, process death, or lost device.
    Disconnected(QpHandle),
    /// The device reports the QP broken (asynchronous event); the number is the device's.
    Fatal(QpHandle, u32),
}

/// How far the bytes of a QP have got ([`CompletionQueue::traffic`]). The device chooses the unit;
/// only differences have a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Traffic {
    /// Bytes that have arrived from the peer, including parts of incomplete messages. Never
    /// decreases.
    pub received: u64,
    /// Posted bytes that the peer's end of the wire (its device, or its host's kernel) has
    /// accepted. Never decreases.
    pub accepted: u64,
    /// Upper bound of posted bytes that are not accepted yet: once `accepted` has grown by this
    /// amount, the peer has all of them.
    pub pending: u64,
}

/// Why a post was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} (after {posted} posted)")]
pub struct PostError {
    /// How many WRs of the list were posted before the refused one.
    pub posted: usize,
    /// The reason.
    pub kind: PostErrorKind,
}

/// The reason of a [`PostError`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// No such QP on this CQ, or destroyed.
    #[error("no such queue pair on this completion queue")]
    UnknownQp,
    /// The QP's state does not allow this post (contract rule 7).
    #[error("queue pair is in state {0:?}, which does not accept this work request")]
    InvalidState(QpState),
    /// The SQ, RQ or SRQ, of this many entries, is full (contract rule 12). A QP that uses the SRQ
    /// has an RQ of none.
    #[error("queue is full ({0} work requests)")]
    QueueFull(u32),
    /// The CQ has no shared receive queue (contract rule 22).
    #[error("completion queue has no shared receive queue")]
    NoSrq,
    /// More inline bytes than the QP was granted.
    #[error("inline payload of {len} bytes exceeds the limit of {max} bytes")]
    InlineTooLong {
        /// Bytes requested.
        len: usize,
        /// Bytes granted.
        max: u32,
    },
    /// A message longer than the device can send.
    #[error("message of {len} bytes exceeds the device's limit of {max} bytes")]
    TooLong {
        /// Length.
        len: u64,
        /// Limit ([`DeviceAttributes::max_message_bytes`]).
        max: u64,
    },
    /// A span outside its buffer or region.
    #[error("span {start}+{len} lies outside the memory of {size} bytes")]
    OutOfBounds {
        /// First byte.
        start: u64,
        /// Length.
        len: u64,
        /// Size of the memory.
        size: u64,
    },
    /// The device does not have this operation ([`Capabilities`]).
    #[error("operation is not supported by this device")]
    Unsupported,
    /// The operating system or driver refused; the errno.
    #[error("device refused the post: {}", std::io::Error::from_raw_os_error(*.0))]
    Os(i32),
}

/// A completion queue and the QPs that complete on it. One owner at a time.
///
/// `Any` lets a provider find its own CQ behind the trait object.
pub trait CompletionQueue: Send + fmt::Debug + Any {
    /// Number of completions that fit.
    fn capacity(&self) -> u32;

    /// Appends up to `max` completions to `completions`; returns how many. Never blocks.
    ///
    /// # Errors
    /// [`ProviderError::CompletionQueueDead`] when no completion can come any more.
    fn poll(
        &mut self,
        completions: &mut Vec<Completion>,
        max: usize,
    ) -> Result<usize, ProviderError>;

    /// The part of this CQ that [`Outgoing::prepare_qp`] and [`Incoming::prepare_qp`] need.
    /// Default: nothing, for devices whose set-up never waits.
    fn for_setup(&self) -> CqRef {
        CqRef::default()
    }

    /// Whether a thread that polls in a loop should execute the CPU's spin-loop hint after an empty
    /// poll, which leaves more of the core to its other hardware thread. Asked once. Default: yes.
    fn uses_spin_hint(&self) -> bool {
        true
    }

    /// Asks for an event at the next completion (contract rule 3). Covers disconnects too.
    ///
    /// # Errors
    /// [`ProviderError::CompletionQueueDead`].
    fn arm(&mut self) -> Result<(), ProviderError>;

    /// Becomes readable when an armed CQ has an event. Non-blocking, usable with epoll, one per CQ.
    fn event_fd(&self) -> BorrowedFd<'_>;

    /// Consumes pending events, so that `event_fd` is unreadable until the next one. Call it after
    /// waking and before polling.
    ///
    /// # Errors
    /// [`ProviderError::CompletionQueueDead`].
    fn clear_events(&mut self) -> Result<(), ProviderError>;

    /// Makes the next poll visit every QP, including those that it normally visits less often. A
    /// caller that polls without pausing calls this about once per millisecond. Default: does
    /// nothing, for devices whose every poll covers all QPs.
    fn attend(&mut self) {}

    /// The next QP event, if any. Cheap when there is none.
    fn poll_event(&mut self) -> Option<QpEvent>;

    /// Posts a linked list of send WRs. Posted ones are left as [`Source::Empty`].
    ///
    /// # Errors
    /// [`PostError`]: WRs from `posted` on were not posted and keep their buffers.
    fn post_send(&mut self, qp: QpHandle, wrs: &mut [SendWr<'_>]) -> Result<(), PostError>;

    /// Posts one SEND of bytes that are copied before this returns. Same result as
    /// [`CompletionQueue::post_send`] with one WR of [`Source::Inline`], which is the most common
    /// post; devices may implement a fast path here. `ring` says when the QP's doorbell rings.
    ///
    /// # Errors
    /// [`PostError`]: it was not posted, and no doorbell was rung.
    fn post_send_inline(
        &mut self,
        qp: QpHandle,
        wr_id: u64,
        signaled: bool,
        bytes: &[u8],
        ring: Ring,
    ) -> Result<(), PostError> {
        post_inline_listed(self, qp, wr_id, signaled, bytes, ring)
    }

    /// Posts one RECV.
    ///
    /// # Errors
    /// [`PostError`] together with the WR.
    // The error returns the buffer; boxing it would cost an allocation when posting a RECV again.
    #[allow(clippy::result_large_err)]
    fn post_recv(&mut self, qp: QpHandle, wr: RecvWr) -> Result<(), (PostError, RecvWr)>;

    /// Posts a list of RECVs and takes the posted ones out of it. Default: one after the other.
    ///
    /// # Errors
    /// [`PostError`]: RECVs from `posted` on were not posted and stay in the list.
    fn post_recvs(&mut self, qp: QpHandle, wrs: &mut Vec<RecvWr>) -> Result<(), PostError> {
        let count = wrs.len();
        wrs.reverse();
        while let Some(wr) = wrs.pop() {
            if let Err((error, wr)) = self.post_recv(qp, wr) {
                wrs.push(wr);
                wrs.reverse();
                return Err(PostError { posted: count - wrs.len(), kind: error.kind });
            }
        }
        Ok(())
    }

    /// Creates this CQ's shared receive queue (rule 22): for RECVs of this domain, at most
    /// `max_recv_wr` outstanding. It waits for the device, as creating a CQ does. It goes with the
    /// CQ, or when another one takes its place, which needs that no QP uses it; then its buffers
    /// are released once the device can no longer touch them. Default: refuses, for devices that
    /// have none.
    ///
    /// # Errors
    /// [`ProviderError::Unsupported`], [`ProviderError::Limit`],
    /// [`ProviderError::CompletionQueueFull`], [`ProviderError::Resources`];
    /// [`ProviderError::Srq`]: a QP uses the one that there is. That one is as it was, whatever the
    /// error.
    fn create_srq(&mut self, pd: &ProtectionDomain, max_recv_wr: u32) -> Result<(), ProviderError> {
        let _ = (pd, max_recv_wr);
        Err(ProviderError::Unsupported("a shared receive queue"))
    }

    /// Posts one RECV to the shared receive queue.
    ///
    /// # Errors
    /// [`PostError`] together with the WR.
    // As for `post_recv`.
    #[allow(clippy::result_large_err)]
    fn post_srq_recv(&mut self, wr: RecvWr) -> Result<(), (PostError, RecvWr)> {
        Err((PostError { posted: 0, kind: PostErrorKind::NoSrq }, wr))
    }

    /// Rings the doorbells that earlier posts have left pending.
    fn flush(&mut self);

    /// Like [`CompletionQueue::flush`], for [`Ring::Soon`]: the caller polls or flushes soon.
    /// Default: flushes, for devices whose doorbells cost no system call.
    fn flush_soon(&mut self) {
        self.flush();
    }

    /// The QP's state; `None` once destroyed.
    fn state(&self, qp: QpHandle) -> Option<QpState>;

    /// How far the bytes of a QP have got (rule 21). May cost a system call, so it is called only
    /// to decide whether a silent peer is still alive. `None` once destroyed, and for devices that
    /// cannot tell; their completions are then the only evidence. Default: `None`.
    fn traffic(&mut self, qp: QpHandle) -> Option<Traffic> {
        let _ = qp;
        None
    }

    /// What was sent last was longer than what follows: memory that it left behind, and that holds
    /// nothing, may be freed. Default: does nothing.
    fn release_buffers(&mut self, qp: QpHandle) {
        let _ = qp;
    }

    /// The QP has been quiet: pages behind its posted RECVs that hold nothing may go back to the
    /// operating system until they are written. Called seldom, as it may cost system calls.
    /// Default: does nothing, for devices whose memory is pinned.
    fn release_pages(&mut self, qp: QpHandle) {
        let _ = qp;
    }

    /// The vendor's number (`vendor_err`) for the first failure of this QP, 0 if there is none: on
    /// a NIC often the only clue to its cause. Default: 0.
    fn vendor_error(&self, qp: QpHandle) -> u32 {
        let _ = qp;
        0
    }

    /// Inline bytes that the QP was granted; 0 once destroyed.
    fn max_inline_bytes(&self, qp: QpHandle) -> u32;

    /// Moves the QP to ERR (and disconnects it), so that all posted WRs flush (rule 8).
    ///
    /// # Errors
    /// [`ProviderError::UnknownQp`].
    fn modify_to_error(&mut self, qp: QpHandle) -> Result<(), ProviderError>;

    /// Destroys the QP. Buffers of WRs whose completions were not polled are released once the
    /// device can no longer touch them.
    ///
    /// # Errors
    /// [`ProviderError::UnknownQp`].
    fn destroy_qp(&mut self, qp: QpHandle) -> Result<(), ProviderError>;

    /// Whether a QP in ERR that uses the shared receive queue has drained (rule 22): it takes no
    /// more RECVs of it, and all that it took has been polled. That comes in the end if the owner
    /// goes on polling, but nothing has to wake it. Default: yes, for devices without such a queue.
    fn has_drained(&mut self, qp: QpHandle) -> bool {
        let _ = qp;
        true
    }
}

/// Why there is nothing to be done with a shared receive queue.
pub(crate) const NO_SRQ: &str = "the completion queue has none";
pub(crate) const SRQ_IN_USE: &str = "queue pairs use it";

/// Default implementation of [`CompletionQueue::post_send_inline`]: a list of one WR. Never
/// inlined, since it is the slow path of providers with a fast one.
#[inline(never)]
pub(crate) fn post_inline_listed<Q: CompletionQueue + ?Sized>(
    cq: &mut Q,
    qp: QpHandle,
    wr_id: u64,
    signaled: bool,
    bytes: &[u8],
    ring: Ring,
) -> Result<(), PostError> {
    let source = Source::Inline(bytes);
    cq.post_send(qp, &mut [SendWr { wr_id, op: SendOp::Send, signaled, source }])?;
    match ring {
        Ring::Now => cq.flush(),
        Ring::Soon => cq.flush_soon(),
        Ring::WithNext => {}
    }
    Ok(())
}
