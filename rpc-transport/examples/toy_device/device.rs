//! The device: domains and regions, queues, and the engine that carries out work requests.
//!
//! Everything happens inside [`CompletionQueue::post_send`]: the engine finds the target, copies
//! the bytes and queues the completions of both sides before it returns. So nothing is ever in
//! flight, and most rules of the contract hold automatically.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use rpc_transport::device::{
    Capabilities, Completion, CompletionKind, CompletionQueue, Device, DeviceAttributes, PostError,
    PostErrorKind, ProviderError, QpCapacity, QpEvent, QpHandle, QpState, RecvWr, RemoteSlice,
    SendOp, SendWr, Source, Status,
};
use rpc_transport::memory::copy;
use rpc_transport::memory::owned::{OwnedMemory, OwnedParts};
use rpc_transport::memory::region::{
    Access, DomainOps, MemoryRegion, ProtectionDomain, RegionParts,
};
use rustix::event::{EventfdFlags, eventfd};

const MAX_INLINE_BYTES: u32 = 256;
const MAX_MESSAGE_BYTES: u64 = 1 << 30;
const MAX_QP_WR: u32 = 1 << 14;
const MAX_CQE: u32 = 1 << 20;

/// Refuses a request beyond a limit.
pub(crate) fn check(what: &'static str, asked: u64, limit: u64) -> Result<(), ProviderError> {
    if asked > limit { Err(ProviderError::Limit { what, asked, limit }) } else { Ok(()) }
}

/// The one device, with all of its state.
pub(crate) static DEVICE: LazyLock<Arc<dyn Device>> = LazyLock::new(|| Arc::new(Toy::new()));
static FABRIC: LazyLock<Mutex<Fabric>> = LazyLock::new(Mutex::default);
/// Regions that peers may write, by rkey. Locked after [`FABRIC`]: a completion that is dropped
/// while `FABRIC` is locked may hold the last handle of a region.
static REGIONS: LazyLock<Mutex<HashMap<u32, Span>>> = LazyLock::new(Mutex::default);

#[derive(Debug)]
struct Toy(DeviceAttributes);

impl Toy {
    fn new() -> Self {
        Self(DeviceAttributes {
            name: "toy".to_owned(),
            scheme: "toy",
            max_inline_bytes: MAX_INLINE_BYTES,
            max_message_bytes: MAX_MESSAGE_BYTES,
            max_qp_wr: MAX_QP_WR,
            max_cqe: MAX_CQE,
            max_srq_wr: 0,
            capabilities: Capabilities::FLUSHES_LATE_RECEIVES
                .with(Capabilities::FLUSHES_LATE_SENDS)
                .with(Capabilities::REMOTE_ERRORS)
                .with(Capabilities::EMPTY_SEND)
                .with(Capabilities::REGISTER_REMOTE),
        })
    }
}

impl Device for Toy {
    fn attributes(&self) -> &DeviceAttributes {
        &self.0
    }

    fn allocate_pd(&self) -> Result<ProtectionDomain, ProviderError> {
        Ok(ProtectionDomain::new(Arc::new(Domain(FABRIC.lock().next_number().into()))))
    }

    fn create_cq(&self, min_entries: u32) -> Result<Box<dyn CompletionQueue>, ProviderError> {
        check("completion queue entries", min_entries.into(), MAX_CQE.into())?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(eventfd(0, flags).map_err(|error| ProviderError::Resources {
            what: "creating an eventfd",
            message: error.to_string(),
        })?);
        let mut fabric = FABRIC.lock();
        let number = fabric.next_number();
        let queue =
            Queue { capacity: min_entries, bell: Some(Arc::clone(&bell)), ..Queue::default() };
        fabric.queues.insert(number, queue);
        Ok(Box::new(ToyQueue { number, capacity: min_entries, bell }))
    }
}

// ---- memory ----

/// A protection domain, by its number.
#[derive(Debug)]
struct Domain(u64);

/// Address and length of a region, for the engine.
#[derive(Debug, Clone, Copy)]
struct Span {
    base: usize,
    len: usize,
    domain: u64,
    access: Access,
}

/// Takes the key away when the last handle of a region is dropped.
struct Registration(u32);

impl Drop for Registration {
    fn drop(&mut self) {
        REGIONS.lock().remove(&self.0);
    }
}

impl DomainOps for Domain {
    fn allocate(&self, len_bytes: usize, access: Access) -> Result<MemoryRegion, ProviderError> {
        self.register(vec![0; len_bytes].into(), access)
    }

    fn register(&self, memory: OwnedMemory, access: Access) -> Result<MemoryRegion, ProviderError> {
        let OwnedParts { base, len, owner, .. } = memory.into_parts(access.remote_write)?;
        // Even for the peer, odd for this process, so that neither is mistaken for the other.
        let rkey = FABRIC.lock().next_number() * 2;
        let span = Span { base: base.as_ptr() as usize, len, domain: self.0, access };
        REGIONS.lock().insert(rkey, span);
        let parts = RegionParts {
            base,
            len,
            lkey: rkey + 1,
            rkey,
            access,
            remote_base: span.base as u64,
            domain: self.0,
        };
        // SAFETY: `owner` keeps the memory, which nobody else has; without its key in `REGIONS` the
        // engine no longer touches it.
        Ok(unsafe { MemoryRegion::from_parts(parts, Box::new(Registration(rkey)), owner) })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Writes into the memory that a peer names, if the peer may.
fn write(to: RemoteSlice, domain: u64, bytes: &[u8]) -> Result<(), Status> {
    let regions = REGIONS.lock();
    let region = regions.get(&to.rkey).ok_or(Status::RemoteAccess)?;
    let offset = usize::try_from(to.address.wrapping_sub(region.base as u64));
    let offset = offset.map_err(|_| Status::RemoteAccess)?;
    let fits = offset.checked_add(bytes.len()).is_some_and(|end| end <= region.len);
    if !fits || !region.access.remote_write || region.domain != domain {
        return Err(Status::RemoteAccess);
    }
    // SAFETY: inside a region (checked) that is registered as long as `regions` is locked. Nobody
    // has a reference to memory that peers may write, but others may be copying from it.
    unsafe { copy::to_shared(bytes.as_ptr(), (region.base + offset) as *mut u8, bytes.len()) };
    Ok(())
}

/// The bytes of a WR, if its memory belongs to the domain.
fn bytes_of(source: &Source<'_>, domain: u64) -> Result<Vec<u8>, Status> {
    let (owner, bytes) = match source {
        Source::Empty | Source::Window(_) => (domain, Vec::new()),
        Source::Inline(bytes) => (domain, bytes.to_vec()),
        Source::InlineGather(a, b) => (domain, [*a, *b].concat()),
        Source::Buffer { buffer, start, len } => {
            (buffer.domain(), buffer[*start as usize..][..*len as usize].to_vec())
        }
        Source::Region { region, start, len } => {
            let mut bytes = vec![0; usize::try_from(*len).map_err(|_| Status::LocalLength)?];
            region.copy_out(usize::try_from(*start).map_err(|_| Status::LocalLength)?, &mut bytes);
            (region.domain(), bytes)
        }
    };
    if owner == domain { Ok(bytes) } else { Err(Status::LocalProtection) }
}

// ---- queues ----

#[derive(Debug, Default)]
pub(crate) struct Fabric {
    last: u32,
    queues: HashMap<u32, Queue>,
    qps: HashMap<QpHandle, Qp>,
}

/// The part of a CQ that both sides know; its owner holds a [`ToyQueue`].
#[derive(Debug, Default)]
struct Queue {
    capacity: u32,
    /// Completions, with the number of slots that polling each frees.
    completions: VecDeque<(u32, Completion)>,
    events: VecDeque<QpEvent>,
    armed: bool,
    bell: Option<Arc<OwnedFd>>,
}

#[derive(Debug)]
struct Qp {
    queue: u32,
    domain: u64,
    capacity: QpCapacity,
    state: QpState,
    peer: Option<QpHandle>,
    recvs: VecDeque<RecvWr>,
    /// Slots taken on the RQ and on the SQ; the number of these held by WRs that will not complete.
    recv_slots: u32,
    send_slots: u32,
    silent: u32,
    /// Arrivals before set-up has ended.
    early: Option<VecDeque<(u32, Completion)>>,
}

impl Queue {
    fn wake(&mut self) {
        if std::mem::take(&mut self.armed)
            && let Some(bell) = &self.bell
        {
            // A full counter means that the fd is readable.
            let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
        }
    }
}

impl Fabric {
    pub(crate) fn next_number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// Both sides have agreed: messages of either arrive from now on.
    pub(crate) fn join(&mut self, a: QpHandle, b: QpHandle) -> bool {
        let waits = |qp: &QpHandle| self.qps.get(qp).is_some_and(|qp| qp.state == QpState::Init);
        if ![a, b].iter().all(waits) {
            return false;
        }
        for (qp, peer) in [(a, b), (b, a)] {
            let qp = self.qps.get_mut(&qp).expect("looked up");
            (qp.state, qp.peer) = (QpState::ReadyToReceive, Some(peer));
        }
        true
    }

    fn attach(&mut self, handle: QpHandle) -> Result<(), ProviderError> {
        let qp = self.qps.get_mut(&handle).ok_or(ProviderError::UnknownQp)?;
        if qp.state == QpState::ReadyToReceive {
            qp.state = QpState::ReadyToSend;
        }
        let early = qp.early.take().unwrap_or_default();
        if !early.is_empty() {
            let queue = self.queues.get_mut(&qp.queue).expect("outlives its QPs");
            queue.completions.extend(early);
            queue.wake();
        }
        Ok(())
    }

    fn complete(&mut self, slots: u32, completion: Completion) {
        let Some(qp) = self.qps.get_mut(&completion.qp) else { return };
        if let Some(early) = &mut qp.early {
            return early.push_back((slots, completion));
        }
        let queue = self.queues.get_mut(&qp.queue).expect("outlives its QPs");
        queue.completions.push_back((slots, completion));
        queue.wake();
    }

    fn complete_recv(&mut self, qp: QpHandle, wr: RecvWr, status: Status, byte_len: u32) {
        let (kind, buffer) = (CompletionKind::Recv, Some(wr.buffer));
        let wr_id = wr.wr_id;
        self.complete(1, Completion { qp, wr_id, kind, status, byte_len, imm: None, buffer });
    }

    /// Moves to ERR: flushes RECVs, notifies the peer.
    fn fail(&mut self, handle: QpHandle) {
        let Some(qp) = self.qps.get_mut(&handle) else { return };
        if std::mem::replace(&mut qp.state, QpState::Error) == QpState::Error {
            return;
        }
        let (recvs, peer) = (std::mem::take(&mut qp.recvs), qp.peer);
        let _ = self.attach(handle);
        for wr in recvs {
            self.complete_recv(handle, wr, Status::FlushError, 0);
        }
        if let Some(handle) = peer
            && let Some(peer) = self.qps.get(&handle)
        {
            let queue = self.queues.get_mut(&peer.queue).expect("outlives its QPs");
            queue.events.push_back(QpEvent::Disconnected(handle));
            queue.wake();
        }
    }

    fn destroy(&mut self, handle: QpHandle) {
        self.fail(handle);
        if let Some(qp) = self.qps.remove(&handle) {
            let queue = self.queues.get_mut(&qp.queue).expect("outlives its QPs");
            queue.completions.retain(|(_, completion)| completion.qp != handle);
        }
    }

    // ---- the engine ----

    /// Carries a WR out, and completes it.
    fn execute(&mut self, handle: QpHandle, wr: &SendWr<'_>, source: &mut Source<'_>) {
        let qp = &self.qps[&handle];
        let result = match (qp.state, bytes_of(source, qp.domain)) {
            (QpState::Error, _) => Err(Status::FlushError),
            (_, Err(status)) => Err(status),
            (_, Ok(bytes)) => self.carry(qp.peer, &wr.op, &bytes),
        };
        let qp = self.qps.get_mut(&handle).expect("looked up");
        if result.is_ok() && !wr.signaled {
            qp.silent += 1;
            return;
        }
        let slots = 1 + std::mem::take(&mut qp.silent);
        let buffer = match std::mem::take(source) {
            Source::Buffer { buffer, .. } => Some(buffer),
            other => {
                *source = other;
                None
            }
        };
        let (wr_id, kind) = (wr.wr_id, CompletionKind::Send);
        let status = result.err().unwrap_or(Status::Success);
        let completion =
            Completion { qp: handle, wr_id, kind, status, byte_len: 0, imm: None, buffer };
        self.complete(slots, completion);
        if result.is_err() {
            self.fail(handle);
        }
    }

    /// The operation's effect at the target.
    fn carry(&mut self, target: Option<QpHandle>, op: &SendOp, bytes: &[u8]) -> Result<(), Status> {
        let handle = target.ok_or(Status::RetryExceeded)?;
        let target = self.qps.get_mut(&handle).filter(|qp| qp.state != QpState::Error);
        let target = target.ok_or(Status::RetryExceeded)?;
        if let SendOp::Write(to) = *op {
            let written = write(to, target.domain, bytes);
            return written.inspect_err(|_| self.fail(handle));
        }
        let mut wr = target.recvs.pop_front().ok_or(Status::RnrRetryExceeded)?;
        let (ours, theirs) = if wr.buffer.domain() != target.domain {
            (Status::RemoteOperation, Status::LocalProtection)
        } else if wr.buffer.len() < bytes.len() {
            (Status::RemoteInvalidRequest, Status::LocalLength)
        } else {
            wr.buffer[..bytes.len()].copy_from_slice(bytes);
            let len = u32::try_from(bytes.len()).expect("at most max_message_bytes");
            self.complete_recv(handle, wr, Status::Success, len);
            return Ok(());
        };
        self.complete_recv(handle, wr, theirs, 0);
        self.fail(handle);
        Err(ours)
    }
}

/// A CQ, as its owner sees it.
#[derive(Debug)]
pub(crate) struct ToyQueue {
    number: u32,
    capacity: u32,
    bell: Arc<OwnedFd>,
}

impl ToyQueue {
    /// Finds the toy behind a CQ.
    fn of(cq: &mut dyn CompletionQueue) -> Result<&mut Self, ProviderError> {
        let cq: &mut dyn Any = cq;
        cq.downcast_mut().ok_or(ProviderError::WrongDevice("completion queue"))
    }

    pub(crate) fn create_qp(
        cq: &mut dyn CompletionQueue,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<QpHandle, ProviderError> {
        let QpCapacity { max_send_wr, max_recv_wr, max_inline_bytes, uses_srq } = capacity;
        if uses_srq {
            return Err(ProviderError::Srq("this device has none"));
        }
        check("work requests", max_send_wr.max(max_recv_wr).into(), MAX_QP_WR.into())?;
        let max_inline_bytes = max_inline_bytes.min(MAX_INLINE_BYTES);
        let queue = Self::of(cq)?.number;
        let domain = pd.ops().as_any().downcast_ref::<Domain>();
        let domain = domain.ok_or(ProviderError::WrongDevice("protection domain"))?.0;
        let mut fabric = FABRIC.lock();
        let mine = || fabric.qps.iter().filter(|(_, qp)| qp.queue == queue);
        let entries = |capacity: &QpCapacity| capacity.max_send_wr + capacity.max_recv_wr;
        let used = mine().map(|(_, qp)| entries(&qp.capacity)).sum::<u32>();
        let (wanted, capacity_of_cq) = (entries(&capacity), fabric.queues[&queue].capacity);
        if used + wanted > capacity_of_cq {
            let capacity = capacity_of_cq;
            return Err(ProviderError::CompletionQueueFull { capacity, used, wanted });
        }
        let is_free = |index: &u32| mine().all(|(handle, _)| handle.index != *index);
        let index = (0..).find(is_free).expect("fewer QPs than numbers");
        let handle = QpHandle { index, generation: fabric.next_number() };
        let qp = Qp {
            queue,
            domain,
            capacity: QpCapacity { max_inline_bytes, ..capacity },
            state: QpState::Init,
            peer: None,
            recvs: VecDeque::new(),
            recv_slots: 0,
            send_slots: 0,
            silent: 0,
            early: Some(VecDeque::new()),
        };
        fabric.qps.insert(handle, qp);
        Ok(handle)
    }

    /// The last step of set-up.
    pub(crate) fn attach(cq: &mut dyn CompletionQueue, qp: QpHandle) -> Result<(), ProviderError> {
        Self::of(cq)?.with(qp, |fabric| fabric.attach(qp))?
    }

    /// The fabric, if the QP is one of this CQ.
    fn with<R>(
        &self,
        qp: QpHandle,
        step: impl FnOnce(&mut Fabric) -> R,
    ) -> Result<R, ProviderError> {
        let mut fabric = FABRIC.lock();
        let is_mine = fabric.qps.get(&qp).is_some_and(|qp| qp.queue == self.number);
        if is_mine { Ok(step(&mut fabric)) } else { Err(ProviderError::UnknownQp) }
    }

    fn post_one(&self, handle: QpHandle, wr: &mut SendWr<'_>) -> Result<(), PostErrorKind> {
        // Dropped when the fabric is unlocked again: the memory may be user memory.
        let mut source = Source::Empty;
        let post = |fabric: &mut Fabric| {
            let qp = fabric.qps.get_mut(&handle).expect("looked up");
            if !matches!(qp.state, QpState::ReadyToSend | QpState::Error) {
                return Err(PostErrorKind::InvalidState(qp.state));
            }
            wr.check(qp.capacity.max_inline_bytes, MAX_MESSAGE_BYTES)?;
            if !matches!(wr.op, SendOp::Send | SendOp::Write(_)) {
                return Err(PostErrorKind::Unsupported);
            }
            if qp.send_slots == qp.capacity.max_send_wr {
                return Err(PostErrorKind::QueueFull(qp.send_slots));
            }
            qp.send_slots += 1;
            source = std::mem::take(&mut wr.source);
            fabric.execute(handle, wr, &mut source);
            Ok(())
        };
        self.with(handle, post).map_err(|_| PostErrorKind::UnknownQp)?
    }
}

impl CompletionQueue for ToyQueue {
    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn poll(
        &mut self,
        completions: &mut Vec<Completion>,
        max: usize,
    ) -> Result<usize, ProviderError> {
        let mut fabric = FABRIC.lock();
        let Fabric { queues, qps, .. } = &mut *fabric;
        let queue = queues.get_mut(&self.number).expect("lives as long as its owner");
        let count = queue.completions.len().min(max);
        for (slots, completion) in queue.completions.drain(..count) {
            if let Some(qp) = qps.get_mut(&completion.qp) {
                match completion.kind {
                    CompletionKind::Send => qp.send_slots -= slots,
                    _ => qp.recv_slots -= slots,
                }
            }
            completions.push(completion);
        }
        Ok(count)
    }

    fn arm(&mut self) -> Result<(), ProviderError> {
        FABRIC.lock().queues.get_mut(&self.number).expect("as in poll").armed = true;
        Ok(())
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn clear_events(&mut self) -> Result<(), ProviderError> {
        // An empty counter means that the fd is unreadable.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        Ok(())
    }

    fn poll_event(&mut self) -> Option<QpEvent> {
        FABRIC.lock().queues.get_mut(&self.number)?.events.pop_front()
    }

    fn post_send(&mut self, qp: QpHandle, wrs: &mut [SendWr<'_>]) -> Result<(), PostError> {
        for (posted, wr) in wrs.iter_mut().enumerate() {
            self.post_one(qp, wr).map_err(|kind| PostError { posted, kind })?;
        }
        Ok(())
    }

    fn post_recv(&mut self, handle: QpHandle, wr: RecvWr) -> Result<(), (PostError, RecvWr)> {
        let mut wr = Some(wr);
        let posted = self.with(handle, |fabric| {
            let qp = fabric.qps.get_mut(&handle).expect("looked up");
            if qp.recv_slots == qp.capacity.max_recv_wr {
                return Err(PostErrorKind::QueueFull(qp.recv_slots));
            }
            qp.recv_slots += 1;
            match qp.state {
                QpState::Error => {
                    let wr = wr.take().expect("taken once");
                    fabric.complete_recv(handle, wr, Status::FlushError, 0);
                }
                _ => qp.recvs.extend(wr.take()),
            }
            Ok(())
        });
        let refused = posted.map_err(|_| PostErrorKind::UnknownQp).and_then(|posted| posted);
        refused.map_err(|kind| (PostError { posted: 0, kind }, wr.take().expect("not posted")))
    }

    fn flush(&mut self) {}

    fn state(&self, qp: QpHandle) -> Option<QpState> {
        self.with(qp, |fabric| fabric.qps[&qp].state).ok()
    }

    fn max_inline_bytes(&self, qp: QpHandle) -> u32 {
        self.with(qp, |fabric| fabric.qps[&qp].capacity.max_inline_bytes).unwrap_or(0)
    }

    fn modify_to_error(&mut self, qp: QpHandle) -> Result<(), ProviderError> {
        self.with(qp, |fabric| fabric.fail(qp))
    }

    fn destroy_qp(&mut self, qp: QpHandle) -> Result<(), ProviderError> {
        self.with(qp, |fabric| fabric.destroy(qp))
    }
}

impl Drop for ToyQueue {
    fn drop(&mut self) {
        let mut fabric = FABRIC.lock();
        let mine = |(handle, qp): (&QpHandle, &Qp)| (qp.queue == self.number).then_some(*handle);
        for qp in fabric.qps.iter().filter_map(mine).collect::<Vec<_>>() {
            fabric.destroy(qp);
        }
        fabric.queues.remove(&self.number);
    }
}

/// Connects two QPs that have been created; false if one of them is gone.
pub(crate) fn join(a: QpHandle, b: QpHandle) -> bool {
    FABRIC.lock().join(a, b)
}
