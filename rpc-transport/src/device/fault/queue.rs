//! The completion queue with faults.
//!
//! Owns what is held back: WRs not yet started, completions not yet delivered. Its clock is the
//! number of polls, so time passes only while somebody polls.
//!
//! Invariants:
//! 1. Each queue of each QP keeps its order, of posts and of completions.
//! 2. Slots are freed when their completion is delivered, not when the inner device gave it
//!    (contract rules 4 and 12).
//! 3. As long as anything is held back, an armed CQ is readable, so that the owner polls again and
//!    the clock advances.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::device::{
    Capabilities, Completion, CompletionKind, CompletionQueue, CqRef, DeviceAttributes, PostError,
    PostErrorKind, ProviderError, QpCapacity, QpEvent, QpHandle, QpState, RecvWr, SendOp, SendWr,
    Source, Status, Traffic,
};
use crate::memory::region::ProtectionDomain;

use crate::device::locked;
use crate::memory::budget::Reservation;

use super::{FaultPlan, POISON, Random};
use crate::user_code::logged;

/// A send WR that has not been started.
#[derive(Debug)]
struct HeldWr {
    wr: SendWr<'static>,
    /// Copy of the bytes of an inline source.
    inline: Option<Vec<u8>>,
    due: u64,
}

/// A completion that has not been delivered.
#[derive(Debug)]
struct HeldCompletion {
    completion: Completion,
    due: u64,
}

/// State of one QP.
#[derive(Debug)]
struct Held {
    capacity: QpCapacity,
    posts: VecDeque<HeldWr>,
    /// Held completions of the SQ and of the RQ.
    queues: [VecDeque<HeldCompletion>; 2],
    /// Whether each outstanding send WR is signaled, in post order.
    sends: VecDeque<bool>,
    recvs: u32,
    /// The next failed send WR gets the status for a lost peer.
    lost: bool,
    /// At which poll a QP of the SRQ has drained at the earliest, once it is in ERR.
    drains_at: u64,
    _locked: Option<Reservation>,
}

/// State of the shared receive queue.
#[derive(Debug)]
struct HeldSrq {
    max_wr: u32,
    recvs: u32,
    /// Those that were cut off.
    lost: Vec<Completion>,
    _locked: Option<Reservation>,
}

/// A CQ of a faulty device.
pub(super) struct FaultyCompletionQueue {
    inner: Box<dyn CompletionQueue>,
    plan: FaultPlan,
    random: Random,
    max_message_bytes: u64,
    capabilities: Capabilities,
    max_inline_bytes: u32,
    max_srq_wr: u32,
    qps: BTreeMap<QpHandle, Held>,
    srq: Option<HeldSrq>,
    events: VecDeque<QpEvent>,
    polled: Vec<Completion>,
    armed: bool,
    clock: u64,
    epoll: OwnedFd,
    bell: OwnedFd,
    _locked: Option<Reservation>,
}

impl FaultyCompletionQueue {
    pub(super) fn new(
        inner: Box<dyn CompletionQueue>,
        plan: FaultPlan,
        random: Random,
        attributes: &DeviceAttributes,
        locked: Option<Reservation>,
    ) -> Result<Self, ProviderError> {
        let refused = |error: rustix::io::Errno| ProviderError::Resources {
            what: "watching a file descriptor",
            message: error.to_string(),
        };
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(refused)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(refused)?;
        for fd in [inner.event_fd(), bell.as_fd()] {
            epoll::add(&epoll, fd, EventData::new_u64(0), EventFlags::IN).map_err(refused)?;
        }
        Ok(Self {
            inner,
            plan,
            random,
            max_message_bytes: attributes.max_message_bytes,
            capabilities: attributes.capabilities,
            max_inline_bytes: attributes.max_inline_bytes,
            max_srq_wr: attributes.max_srq_wr,
            qps: BTreeMap::new(),
            srq: None,
            events: VecDeque::new(),
            polled: Vec::new(),
            armed: false,
            clock: 0,
            epoll,
            bell,
            _locked: locked,
        })
    }

    /// Finds the faulty CQ behind a trait object.
    pub(super) fn of(cq: &mut dyn CompletionQueue) -> Result<&mut Self, ProviderError> {
        (cq as &mut dyn Any).downcast_mut().ok_or(ProviderError::WrongDevice("completion queue"))
    }

    pub(super) fn inner(&mut self) -> &mut dyn CompletionQueue {
        &mut *self.inner
    }

    /// Creates a QP on the inner CQ and registers it.
    pub(super) fn adopt_new(
        &mut self,
        capacity: QpCapacity,
        create: impl FnOnce(&mut dyn CompletionQueue) -> Result<QpHandle, ProviderError>,
    ) -> Result<QpHandle, ProviderError> {
        let limit = self.plan.lock_limit.as_ref();
        let bytes = locked::queue_pair(capacity);
        let locked = limit.map(|limit| limit.lock("create queue pair", bytes)).transpose()?;
        let qp = create(&mut *self.inner)?;
        let held = Held {
            capacity,
            posts: VecDeque::new(),
            queues: Default::default(),
            sends: VecDeque::new(),
            recvs: 0,
            lost: false,
            drains_at: 0,
            _locked: locked,
        };
        self.qps.insert(qp, held);
        Ok(qp)
    }

    /// Makes the event fd readable, so that the owner polls again (invariant 3).
    fn ring(&self) {
        // The write fails only if the counter is full, and then the fd is readable already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn ring_if_needed(&self) {
        let is_holding = |held: &Held| {
            !held.posts.is_empty() || held.queues.iter().any(|queue| !queue.is_empty())
        };
        if self.armed && (!self.events.is_empty() || self.qps.values().any(is_holding)) {
            self.ring();
        }
    }

    /// Starts the held WRs of a QP that are due by `clock`.
    fn start(&mut self, qp: QpHandle, clock: u64) {
        let Some(held) = self.qps.get_mut(&qp) else { return };
        while held.posts.front().is_some_and(|post| post.due <= clock) {
            let Some(post) = held.posts.pop_front() else { return };
            let HeldWr { wr, inline, .. } = post;
            let source = match &inline {
                Some(bytes) => Source::Inline(bytes),
                None => wr.source,
            };
            let wr = SendWr { wr_id: wr.wr_id, op: wr.op, signaled: wr.signaled, source };
            // It was checked when it was posted, and has its slot. The inner device refuses it only
            // if the QP is gone, and then no report is needed.
            if let Err(error) = self.inner.post_send(qp, &mut [wr]) {
                logged(move || tracing::warn!(%error, "a held work request is refused"));
            }
        }
    }

    fn start_all(&mut self, clock: u64) {
        for qp in self.qps.keys().copied().collect::<Vec<_>>() {
            self.start(qp, clock);
        }
    }

    /// Takes completions and events of the inner CQ and holds them.
    fn collect(&mut self) -> Result<(), ProviderError> {
        let mut polled = std::mem::take(&mut self.polled);
        while self.inner.poll(&mut polled, 64)? > 0 {}
        for completion in polled.drain(..) {
            self.hold(completion);
        }
        self.polled = polled;
        while let Some(event) = self.inner.poll_event() {
            self.events.push_back(event);
        }
        Ok(())
    }

    fn hold(&mut self, mut completion: Completion) {
        let delay = self.random.up_to(self.plan.delay_polls);
        if completion.kind != CompletionKind::Send
            && self.plan.poison
            && let Some(buffer) = &mut completion.buffer
        {
            // What the message did not fill.
            let filled = match (completion.kind, completion.status) {
                (CompletionKind::Recv, Status::Success) => completion.byte_len as usize,
                _ => 0,
            };
            buffer[filled..].fill(POISON);
        }
        let Some(held) = self.qps.get_mut(&completion.qp) else { return };
        let is_recv = completion.kind != CompletionKind::Send;
        if !is_recv && completion.status != Status::Success && std::mem::take(&mut held.lost) {
            completion.status = Status::RetryExceeded;
        }
        let queue = &mut held.queues[usize::from(is_recv)];
        let earliest = queue.back().map_or(0, |last| last.due);
        queue.push_back(HeldCompletion { completion, due: earliest.max(self.clock + delay) });
    }

    /// Delivers one completion that is due, from a random queue if the plan allows it.
    fn deliver(&mut self) -> Option<Completion> {
        let due = |queue: &VecDeque<HeldCompletion>| {
            queue.front().is_some_and(|front| front.due <= self.clock)
        };
        let mut ready = Vec::new();
        for (qp, held) in &self.qps {
            for (queue, held) in held.queues.iter().enumerate() {
                if due(held) {
                    ready.push((*qp, queue));
                }
            }
        }
        let last = u32::try_from(ready.len().checked_sub(1)?).unwrap_or(0);
        let choice = if self.plan.interleave { self.random.up_to(last) } else { 0 };
        let (qp, queue) = *ready.get(usize::try_from(choice).unwrap_or(0))?;
        let held = self.qps.get_mut(&qp)?;
        let completion = held.queues[queue].pop_front()?.completion;
        held.free(&completion);
        if queue == 1
            && held.capacity.uses_srq
            && let Some(srq) = &mut self.srq
        {
            srq.recvs = srq.recvs.saturating_sub(1);
        }
        Some(completion)
    }

    /// Decides at random whether a QP that has just posted fails.
    fn strike(&mut self, qp: QpHandle) {
        let killed = self.random.strikes(self.plan.kill_one_in);
        let lost = self.random.strikes(self.plan.lose_peer_one_in);
        if !(killed || lost) || self.inner.state(qp) != Some(QpState::ReadyToSend) {
            return;
        }
        self.start(qp, u64::MAX);
        if lost {
            if let Some(held) = self.qps.get_mut(&qp) {
                held.lost = true;
            }
            self.events.push_back(QpEvent::Disconnected(qp));
        }
        let clock = self.clock;
        logged(move || tracing::debug!(?qp, killed, lost, clock, "a queue pair is struck"));
        // It exists: its state was just read.
        let _ = self.inner.modify_to_error(qp);
    }

    /// Posts one WR: checks it now, starts it now or later.
    fn post_one(&mut self, qp: QpHandle, wr: &mut SendWr<'_>) -> Result<(), PostErrorKind> {
        let state = self.inner.state(qp).ok_or(PostErrorKind::UnknownQp)?;
        if !matches!(state, QpState::ReadyToSend | QpState::Error) {
            return Err(PostErrorKind::InvalidState(state));
        }
        let takes_late = self.capabilities.contains(Capabilities::FLUSHES_LATE_SENDS);
        if state == QpState::Error && !takes_late {
            return Err(PostErrorKind::InvalidState(state));
        }
        let needed = match wr.op {
            SendOp::Send | SendOp::Write(_) => Capabilities::NONE,
            SendOp::SendWithImm(_) => Capabilities::IMMEDIATE,
            SendOp::WriteWithImm(..) => Capabilities::WRITE_WITH_IMM,
            SendOp::Read { .. } => Capabilities::READ,
            SendOp::Bind => Capabilities::WINDOWS,
        };
        if !self.capabilities.contains(needed) {
            return Err(PostErrorKind::Unsupported);
        }
        let max_inline_bytes = self.max_inline_bytes(qp);
        let held = self.qps.get_mut(&qp).ok_or(PostErrorKind::UnknownQp)?;
        let max = held.capacity.max_send_wr;
        if held.sends.len() >= max as usize {
            return Err(PostErrorKind::QueueFull(max));
        }
        wr.check(max_inline_bytes, self.max_message_bytes)?;
        held.sends.push_back(wr.signaled);
        let due = self.clock + self.random.up_to(self.plan.late_polls);
        held.posts.push_back(hold_wr(wr, due));
        if self.plan.late_polls == 0 {
            self.start(qp, u64::MAX);
        }
        self.strike(qp);
        Ok(())
    }
}

impl Held {
    /// Frees the slots of a delivered completion.
    fn free(&mut self, completion: &Completion) {
        if completion.kind != CompletionKind::Send {
            self.recvs = self.recvs.saturating_sub(1);
        } else if completion.status == Status::Success {
            while self.sends.pop_front() == Some(false) {}
        } else {
            self.sends.pop_front();
        }
    }
}

/// Takes a WR's memory, copying inline bytes, as a post does.
fn hold_wr(wr: &mut SendWr<'_>, due: u64) -> HeldWr {
    let (source, inline) = match std::mem::take(&mut wr.source) {
        Source::Inline(bytes) => (Source::Empty, Some(bytes.to_vec())),
        Source::InlineGather(a, b) => (Source::Empty, Some([a, b].concat())),
        Source::Buffer { buffer, start, len } => (Source::Buffer { buffer, start, len }, None),
        Source::Region { region, start, len } => (Source::Region { region, start, len }, None),
        Source::Window(window) => (Source::Window(window), None),
        Source::Empty => (Source::Empty, None),
    };
    let op = std::mem::take(&mut wr.op);
    let (wr_id, signaled) = (wr.wr_id, wr.signaled);
    HeldWr { wr: SendWr { wr_id, op, signaled, source }, inline, due }
}

impl CompletionQueue for FaultyCompletionQueue {
    fn capacity(&self) -> u32 {
        self.inner.capacity()
    }

    fn poll(
        &mut self,
        completions: &mut Vec<Completion>,
        max: usize,
    ) -> Result<usize, ProviderError> {
        self.clock += 1;
        self.start_all(self.clock);
        self.collect()?;
        let mut polled = 0;
        while polled < max {
            let Some(completion) = self.deliver() else { break };
            completions.push(completion);
            polled += 1;
        }
        if polled > 0 {
            self.armed = false;
        }
        self.ring_if_needed();
        Ok(polled)
    }

    fn arm(&mut self) -> Result<(), ProviderError> {
        self.start_all(u64::MAX);
        self.armed = true;
        self.inner.arm()?;
        self.ring_if_needed();
        Ok(())
    }

    fn for_setup(&self) -> CqRef {
        self.inner.for_setup()
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn clear_events(&mut self) -> Result<(), ProviderError> {
        self.armed = false;
        // Fails if it was not rung.
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
        self.inner.clear_events()
    }

    fn poll_event(&mut self) -> Option<QpEvent> {
        self.events.pop_front().or_else(|| self.inner.poll_event())
    }

    fn post_send(&mut self, qp: QpHandle, wrs: &mut [SendWr<'_>]) -> Result<(), PostError> {
        let mut result = Ok(());
        for (posted, wr) in wrs.iter_mut().enumerate() {
            if let Err(kind) = self.post_one(qp, wr) {
                result = Err(PostError { posted, kind });
                break;
            }
        }
        self.ring_if_needed();
        result
    }

    fn post_recv(&mut self, qp: QpHandle, mut wr: RecvWr) -> Result<(), (PostError, RecvWr)> {
        let refused = |kind| PostError { posted: 0, kind };
        let Some(held) = self.qps.get_mut(&qp) else {
            return Err((refused(PostErrorKind::UnknownQp), wr));
        };
        let max = held.capacity.max_recv_wr;
        if held.recvs >= max {
            return Err((refused(PostErrorKind::QueueFull(max)), wr));
        }
        if self.plan.poison {
            wr.buffer.fill(POISON);
        }
        self.inner.post_recv(qp, wr)?;
        held.recvs += 1;
        Ok(())
    }

    fn create_srq(&mut self, pd: &ProtectionDomain, max_wr: u32) -> Result<(), ProviderError> {
        if self.max_srq_wr == 0 {
            return Err(ProviderError::Unsupported("a shared receive queue"));
        }
        if max_wr > self.max_srq_wr {
            let (asked, limit) = (u64::from(max_wr), u64::from(self.max_srq_wr));
            return Err(ProviderError::Limit {
                what: "shared receive queue entries",
                asked,
                limit,
            });
        }
        let limit = self.plan.lock_limit.as_ref();
        let bytes = locked::shared_receive_queue(max_wr);
        let locked = limit.map(|limit| limit.lock("create shared receive queue", bytes));
        let locked = locked.transpose()?;
        self.inner.create_srq(pd, max_wr)?;
        self.srq = Some(HeldSrq { max_wr, recvs: 0, lost: Vec::new(), _locked: locked });
        Ok(())
    }

    fn post_srq_recv(&mut self, mut wr: RecvWr) -> Result<(), (PostError, RecvWr)> {
        let refused = |kind| PostError { posted: 0, kind };
        let Some(srq) = &mut self.srq else { return Err((refused(PostErrorKind::NoSrq), wr)) };
        if srq.recvs >= srq.max_wr {
            return Err((refused(PostErrorKind::QueueFull(srq.max_wr)), wr));
        }
        if self.plan.poison {
            wr.buffer.fill(POISON);
        }
        self.inner.post_srq_recv(wr)?;
        srq.recvs += 1;
        Ok(())
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn flush_soon(&mut self) {
        self.inner.flush_soon();
    }

    fn state(&self, qp: QpHandle) -> Option<QpState> {
        self.inner.state(qp)
    }

    fn attend(&mut self) {
        self.inner.attend();
    }

    fn release_buffers(&mut self, qp: QpHandle) {
        self.inner.release_buffers(qp);
    }

    fn release_pages(&mut self, qp: QpHandle) {
        self.inner.release_pages(qp);
    }

    fn traffic(&mut self, qp: QpHandle) -> Option<Traffic> {
        let traffic = self.inner.traffic(qp)?;
        let holds = self.qps.get(&qp).is_some_and(|held| !held.posts.is_empty());
        // The inner device chooses the unit, so an upper bound is all that is known.
        let held = if holds { u64::MAX / 2 } else { 0 };
        Some(Traffic { pending: traffic.pending.saturating_add(held), ..traffic })
    }

    fn vendor_error(&self, qp: QpHandle) -> u32 {
        self.inner.vendor_error(qp)
    }

    fn max_inline_bytes(&self, qp: QpHandle) -> u32 {
        self.inner.max_inline_bytes(qp).min(self.max_inline_bytes)
    }

    fn modify_to_error(&mut self, qp: QpHandle) -> Result<(), ProviderError> {
        // WRs posted earlier are flushed too, so the inner queue must have them.
        self.start(qp, u64::MAX);
        if self.plan.loses_recvs {
            self.collect()?;
            // The message that arrived last is cut off. Its RECV keeps its slot until the SRQ goes.
            let held = self.qps.get_mut(&qp).filter(|held| held.capacity.uses_srq);
            if let Some(cut_off) = held.and_then(|held| held.queues[1].pop_back())
                && let Some(srq) = &mut self.srq
            {
                srq.lost.push(cut_off.completion);
            }
        }
        self.inner.modify_to_error(qp)?;
        if let Some(held) = self.qps.get_mut(&qp).filter(|held| held.drains_at == 0) {
            held.drains_at = self.clock + u64::from(self.plan.drain_polls);
        }
        self.ring_if_needed();
        Ok(())
    }

    fn destroy_qp(&mut self, qp: QpHandle) -> Result<(), ProviderError> {
        self.inner.destroy_qp(qp)?;
        self.qps.remove(&qp);
        self.ring_if_needed();
        self.events.retain(|event| {
            !matches!(event, QpEvent::Disconnected(of) | QpEvent::Fatal(of, _) if *of == qp)
        });
        Ok(())
    }

    fn has_drained(&mut self, qp: QpHandle) -> bool {
        let has_all = |held: &Held| held.queues[1].is_empty() && held.drains_at <= self.clock;
        self.inner.has_drained(qp) && self.qps.get(&qp).is_none_or(has_all)
    }
}

impl fmt::Debug for FaultyCompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyCompletionQueue({:?}, {:?})", self.inner, self.plan)
    }
}
