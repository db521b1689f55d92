//! The parts that a provider supplies to be tested, and a connected pair of queue pairs to test it
//! with.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rpc_transport::address::Address;
use rpc_transport::device::{
    Capabilities, Completion, CompletionKind, CompletionQueue, Connector, Device, Incoming,
    Listener, Outgoing, PostError, QpCapacity, QpEvent, QpHandle, QpState, RecvWr, RemoteSlice,
    Ring, SendOp, SendWr, Source, Status,
};
use rpc_transport::memory::region::{Access, Buffer, BufferPool, MemoryRegion, ProtectionDomain};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
pub(crate) use test_kit::Watchdog;

/// The longest wait for a single event; a longer one counts as a hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A provider under test.
pub(crate) trait Fixture {
    /// A listener at a fresh address; called inside a runtime.
    fn listen(&self) -> Box<dyn Listener>;

    /// A connector that reaches it.
    fn connector(&self) -> Arc<dyn Connector>;

    /// Whether an event is delivered only for completions added after arming (where spurious
    /// events, which are legal, do not happen).
    fn has_precise_events(&self) -> bool {
        false
    }

    /// Whether a CQ that is not armed gives no event. Spurious events are legal; but a device that
    /// gives them for every completion wakes its owner as often as an armed one.
    fn is_silent_unarmed(&self) -> bool {
        self.has_precise_events()
    }

    /// Whether a SEND completes although the peer's owner does not poll: the device receives it
    /// without the owner.
    fn completes_alone(&self) -> bool {
        false
    }

    /// Waits until the device has forgotten destroyed and dropped objects, if that happens in the
    /// background.
    fn settle(&self) {}

    /// Whether the device lets lkey and rkey differ.
    fn keys_differ(&self) -> bool {
        true
    }

    /// Whether bytes of a RECV that no message has filled are overwritten.
    fn poisons_receives(&self) -> bool {
        false
    }

    /// Whether completions of one queue may overtake those of the other on purpose.
    fn reorders_queues(&self) -> bool {
        false
    }
}

/// Parameters of a pair.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) sends: u32,
    pub(crate) recvs: u32,
    /// RECVs posted on each side before connecting.
    pub(crate) posted: u32,
    pub(crate) buffer_bytes: u32,
    pub(crate) inline: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { sends: 16, recvs: 16, posted: 8, buffer_bytes: 4096, inline: 128 }
    }
}

/// One side of a pair.
pub(crate) struct End {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: Box<dyn CompletionQueue>,
    pub(crate) qp: QpHandle,
    pub(crate) send_pool: BufferPool,
    pub(crate) recv_pool: BufferPool,
    /// Completions that were polled and not examined yet.
    pub(crate) got: VecDeque<Completion>,
    pub(crate) events: Vec<QpEvent>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

pub(crate) use Side::{Client, Server};

/// Two connected queue pairs, each on a CQ of its own.
pub(crate) struct Pair {
    pub(crate) client: End,
    pub(crate) server: End,
    /// Held because a provider may need its set-up as long as the connection lives.
    _runtime: tokio::runtime::Runtime,
    _listener: Box<dyn Listener>,
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

impl End {
    /// Device objects without a QP yet.
    pub(crate) fn objects(device: &Arc<dyn Device>, options: &Options) -> Objects {
        Self::objects_in(device.allocate_pd().unwrap(), device, options)
    }

    fn objects_in(pd: ProtectionDomain, device: &Arc<dyn Device>, options: &Options) -> Objects {
        let cq = device.create_cq(options.sends + options.recvs).unwrap();
        let count = options.sends.max(options.recvs) + 8;
        let send_pool = BufferPool::allocate(&pd, options.buffer_bytes, count).unwrap();
        let recv_pool = BufferPool::allocate(&pd, options.buffer_bytes, count).unwrap();
        Objects { device: Arc::clone(device), pd, cq, send_pool, recv_pool }
    }

    pub(crate) fn capacity(options: &Options) -> QpCapacity {
        QpCapacity {
            max_send_wr: options.sends,
            max_recv_wr: options.recvs,
            max_inline_bytes: options.inline,
            uses_srq: false,
        }
    }

    pub(crate) fn has(&self, capability: Capabilities) -> bool {
        self.device.attributes().capabilities.contains(capability)
    }

    /// Posts, and rings. Every second lone inline SEND takes the path for such SENDs, which must
    /// make no difference to any rule.
    pub(crate) fn post(&mut self, wrs: &mut [SendWr<'_>]) -> Result<(), PostError> {
        self.copy_what_is_not_granted(wrs);
        let result = match wrs {
            [SendWr { wr_id, op: SendOp::Send, signaled, source: source @ Source::Inline(_) }]
                if *wr_id % 2 == 0 =>
            {
                let Source::Inline(bytes) = *source else { unreachable!() };
                let ring = if *wr_id % 4 == 0 { Ring::WithNext } else { Ring::Now };
                let result = self.cq.post_send_inline(self.qp, *wr_id, *signaled, bytes, ring);
                if result.is_ok() {
                    *source = Source::Empty;
                }
                result
            }
            wrs => self.cq.post_send(self.qp, wrs),
        };
        self.cq.flush();
        result
    }

    /// Devices grant fewer inline bytes than these tests request, or none. Inline bytes within the
    /// requested limit then go from a buffer.
    pub(crate) fn copy_what_is_not_granted(&self, wrs: &mut [SendWr<'_>]) {
        let granted = self.cq.max_inline_bytes(self.qp) as usize;
        let asked = Options::default().inline as usize;
        if granted >= asked {
            return;
        }
        for wr in wrs {
            let bytes = match &wr.source {
                Source::Inline(bytes) => bytes.to_vec(),
                Source::InlineGather(a, b) => [*a, *b].concat(),
                _ => continue,
            };
            if (granted + 1..=asked).contains(&bytes.len()) && self.send_pool.free_count() > 0 {
                wr.source = self.filled(&bytes);
            }
        }
    }

    /// Posts one signaled SEND of inline bytes.
    pub(crate) fn send(&mut self, wr_id: u64, bytes: &[u8]) {
        self.post(&mut [send(wr_id, true, Source::Inline(bytes))]).unwrap();
    }

    /// A send buffer that begins with `bytes`.
    pub(crate) fn filled(&self, bytes: &[u8]) -> Source<'static> {
        let mut buffer = self.send_pool.take().expect("a free send buffer");
        buffer[..bytes.len()].copy_from_slice(bytes);
        Source::Buffer { buffer, start: 0, len: u32::try_from(bytes.len()).unwrap() }
    }

    pub(crate) fn post_recv(&mut self, wr_id: u64) {
        let buffer = self.recv_pool.take().expect("a free RECV buffer");
        self.cq.post_recv(self.qp, RecvWr { wr_id, buffer }).unwrap();
    }

    pub(crate) fn state(&self) -> QpState {
        self.cq.state(self.qp).expect("the QP exists")
    }

    /// Polls once; returns whether anything came.
    pub(crate) fn pump(&mut self) -> bool {
        let mut completions = Vec::new();
        self.cq.poll(&mut completions, 16).unwrap();
        let before = self.events.len();
        self.events.extend(std::iter::from_fn(|| self.cq.poll_event()));
        let any = !completions.is_empty() || self.events.len() > before;
        self.got.extend(completions);
        any
    }

    /// Whether the event fd becomes readable within `wait`.
    pub(crate) fn is_woken(&self, wait: Duration) -> bool {
        readable(&[self.cq.event_fd()], wait)
    }

    /// Whether a WR that the end of the connection has overtaken may have this status. If the
    /// target reports no errors, the WR may also have been cut off while it was sent (siw).
    pub(crate) fn is_cut_off(&self, status: Status) -> bool {
        let untold = !self.has(Capabilities::REMOTE_ERRORS);
        status == Status::FlushError || untold && status == Status::LocalQpOperation
    }

    pub(crate) fn is_disconnected(&self) -> bool {
        self.events.contains(&QpEvent::Disconnected(self.qp))
    }
}

/// Device objects of one side.
pub(crate) struct Objects {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: Box<dyn CompletionQueue>,
    pub(crate) send_pool: BufferPool,
    pub(crate) recv_pool: BufferPool,
}

impl Objects {
    pub(crate) fn into_end(mut self, qp: QpHandle, options: &Options) -> End {
        for wr_id in 0..u64::from(options.posted) {
            let buffer = self.recv_pool.take().unwrap();
            self.cq.post_recv(qp, RecvWr { wr_id, buffer }).unwrap();
        }
        let Self { device, pd, cq, send_pool, recv_pool } = self;
        let (got, events) = (VecDeque::new(), Vec::new());
        End { device, pd, cq, qp, send_pool, recv_pool, got, events }
    }
}

/// Waits until one of the fds is readable.
pub(crate) fn readable(fds: &[BorrowedFd<'_>], wait: Duration) -> bool {
    let mut fds: Vec<_> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let wait = Timespec { tv_sec: i64::try_from(wait.as_secs()).unwrap(), tv_nsec: 0 };
    loop {
        match poll(&mut fds, Some(&wait)) {
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("poll(2): {error}"),
        }
    }
}

impl Pair {
    pub(crate) fn new(fixture: &dyn Fixture) -> Self {
        Self::with(fixture, Options::default())
    }

    pub(crate) fn with(fixture: &dyn Fixture, options: Options) -> Self {
        Self::in_domain(fixture, options, None)
    }

    /// The server's QP is in this domain, if one is given.
    pub(crate) fn in_domain(
        fixture: &dyn Fixture,
        options: Options,
        pd: Option<ProtectionDomain>,
    ) -> Self {
        let runtime = runtime();
        let (client, server, listener) = runtime.block_on(async {
            let mut listener = fixture.listen();
            let address = listener.local_address();
            let client = connect(fixture, &address, &options);
            let server = accept_in(&mut listener, &options, pd);
            let (client, server) = tokio::join!(client, server);
            (client, server, listener)
        });
        Self { client, server, _runtime: runtime, _listener: listener }
    }

    pub(crate) fn end(&mut self, side: Side) -> &mut End {
        match side {
            Client => &mut self.client,
            Server => &mut self.server,
        }
    }

    /// Polls both sides once; returns whether anything came.
    pub(crate) fn pump(&mut self) -> bool {
        let client = self.client.pump();
        self.server.pump() || client
    }

    /// Polls both sides, sleeping on their event fds in between, until `until` holds.
    pub(crate) fn wait(&mut self, what: &str, until: impl Fn(&Self) -> bool) {
        loop {
            self.pump();
            if until(self) {
                return;
            }
            self.client.cq.arm().unwrap();
            self.server.cq.arm().unwrap();
            // Polling something spends the arming (contract rule 3).
            if self.pump() {
                continue;
            }
            let fds = [self.client.cq.event_fd(), self.server.cq.event_fd()];
            assert!(readable(&fds, PATIENCE), "waited in vain for {what}");
            self.client.cq.clear_events().unwrap();
            self.server.cq.clear_events().unwrap();
        }
    }

    /// Polls both sides until `until` holds, and never arms.
    pub(crate) fn spin(&mut self, until: impl Fn(&Self) -> bool) {
        while !until(self) {
            self.pump();
        }
    }

    /// The next completion of one side.
    pub(crate) fn next(&mut self, side: Side) -> Completion {
        self.wait("a completion", |pair| match side {
            Client => !pair.client.got.is_empty(),
            Server => !pair.server.got.is_empty(),
        });
        self.end(side).got.pop_front().unwrap()
    }

    /// The next completion of one queue of one side; completions of the other queue stay.
    pub(crate) fn next_of(&mut self, side: Side, recv: bool) -> Completion {
        let wanted =
            move |completion: &Completion| matches!(completion.kind, CompletionKind::Send) != recv;
        self.wait("a completion", |pair| match side {
            Client => pair.client.got.iter().any(wanted),
            Server => pair.server.got.iter().any(wanted),
        });
        let got = &mut self.end(side).got;
        let at = got.iter().position(wanted).unwrap();
        got.remove(at).unwrap()
    }

    /// The next RECV completion, which must have succeeded.
    pub(crate) fn next_recv(&mut self, side: Side) -> Completion {
        let completion = self.next_of(side, true);
        assert_eq!(completion.status, Status::Success, "{completion:?}");
        completion
    }

    /// The next completion of the SQ, which must have succeeded.
    pub(crate) fn next_sent(&mut self, side: Side) -> Completion {
        let completion = self.next_of(side, false);
        assert_eq!(completion.status, Status::Success, "{completion:?}");
        completion
    }

    /// The server refuses the client's `wr_id`: the client receives a status that is `right`. On a
    /// device that reports no such errors, the client sees the WR done or flushed, and the
    /// connection ends.
    pub(crate) fn wait_refused(
        &mut self,
        wr_id: u64,
        right: impl Fn(Status) -> bool,
    ) -> Completion {
        let refused = self.next_of(Client, false);
        assert_eq!(refused.wr_id, wr_id, "{refused:?}");
        if self.client.has(Capabilities::REMOTE_ERRORS) {
            assert!(right(refused.status), "{refused:?}");
        } else {
            let done = refused.status == Status::Success;
            assert!(done || self.client.is_cut_off(refused.status), "{refused:?}");
            self.wait("the end of the connection", |pair| pair.client.is_disconnected());
            self.client.cq.modify_to_error(self.client.qp).unwrap();
        }
        refused
    }

    /// The next of the client's WRs after one that the server refuses.
    pub(crate) fn next_behind_refused(&mut self, wr_id: u64) {
        let flushed = self.next_of(Client, false);
        assert_eq!(flushed.wr_id, wr_id, "{flushed:?}");
        let told = self.client.has(Capabilities::REMOTE_ERRORS);
        // Without error reports, a WR that was already on its way counts as done.
        let on_its_way = !told && flushed.status == Status::Success;
        assert!(self.client.is_cut_off(flushed.status) || on_its_way, "{flushed:?}");
    }

    /// Waits until the side's QP is in ERR.
    pub(crate) fn wait_error(&mut self, side: Side) {
        self.wait("the QP to fail", |pair| {
            let end = if side == Client { &pair.client } else { &pair.server };
            end.state() == QpState::Error
        });
    }

    /// A region of the server that the client may access, filled with `fill`.
    pub(crate) fn server_region(&self, len: usize, access: Access, fill: u8) -> MemoryRegion {
        region(&self.server.pd, len, access, fill)
    }
}

/// Connects as the engine does: the QP is prepared.
pub(crate) async fn connect(fixture: &dyn Fixture, address: &Address, options: &Options) -> End {
    let mut outgoing = resolve(fixture, address).await;
    let mut objects = End::objects(outgoing.device(), options);
    let capacity = End::capacity(options);
    let cq = objects.cq.for_setup();
    outgoing.prepare_qp(&cq, &objects.pd, capacity).await.unwrap();
    let qp = outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
    let mut end = objects.into_end(qp, options);
    let established = outgoing.connect(b"").await.unwrap();
    established.attach.run(&mut *end.cq).unwrap();
    end
}

/// Accepts without preparing the QP.
pub(crate) async fn accept(listener: &mut Box<dyn Listener>, options: &Options) -> End {
    accept_in(listener, options, None).await
}

async fn accept_in(
    listener: &mut Box<dyn Listener>,
    options: &Options,
    pd: Option<ProtectionDomain>,
) -> End {
    let mut incoming: Box<dyn Incoming> = listener.incoming().await.unwrap();
    let pd = pd.unwrap_or_else(|| incoming.device().allocate_pd().unwrap());
    let mut objects = End::objects_in(pd, incoming.device(), options);
    let capacity = End::capacity(options);
    let qp = incoming.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
    let mut end = objects.into_end(qp, options);
    let established = incoming.accept(b"").await.unwrap();
    established.attach.run(&mut *end.cq).unwrap();
    end
}

pub(crate) async fn resolve(fixture: &dyn Fixture, address: &Address) -> Box<dyn Outgoing> {
    fixture.connector().resolve(address).await.unwrap()
}

/// A region filled with one byte.
pub(crate) fn region(pd: &ProtectionDomain, len: usize, access: Access, fill: u8) -> MemoryRegion {
    let region = pd.allocate(len, access).unwrap();
    // SAFETY: the region is new; nobody else knows it.
    unsafe { region.copy_in(0, &vec![fill; len]) };
    region
}

pub(crate) fn contents(region: &MemoryRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.copy_out(0, &mut bytes);
    bytes
}

pub(crate) fn remote(region: &MemoryRegion, offset: u64) -> RemoteSlice {
    RemoteSlice { address: region.remote_address(offset), rkey: region.rkey() }
}

pub(crate) fn whole(region: &MemoryRegion) -> Source<'static> {
    Source::Region { region: region.clone(), start: 0, len: region.len() as u64 }
}

pub(crate) fn send<'a>(wr_id: u64, signaled: bool, source: Source<'a>) -> SendWr<'a> {
    SendWr { wr_id, op: SendOp::Send, signaled, source }
}

pub(crate) fn write(wr_id: u64, to: RemoteSlice, source: Source<'_>) -> SendWr<'_> {
    SendWr { wr_id, op: SendOp::Write(to), signaled: true, source }
}

/// A READ into a new buffer, which comes back in the completion.
pub(crate) fn read(
    wr_id: u64,
    from: RemoteSlice,
    pd: &ProtectionDomain,
    len: usize,
) -> SendWr<'static> {
    let len = u32::try_from(len).unwrap();
    let into = BufferPool::allocate(pd, len, 1).unwrap().take().unwrap();
    let op = SendOp::Read { from, into, len };
    SendWr { wr_id, op, signaled: true, source: Source::Empty }
}

/// The bytes that a READ has fetched.
pub(crate) fn brought(completion: &Completion, len: usize) -> &[u8] {
    &completion.buffer.as_ref().expect("a READ brings its buffer back")[..len]
}

/// The bytes that a RECV completion carries.
pub(crate) fn payload(completion: &Completion) -> &[u8] {
    let buffer: &Buffer = completion.buffer.as_ref().expect("a RECV brings its buffer back");
    &buffer[..completion.byte_len as usize]
}

/// Bytes that differ by position and by message.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (seed.wrapping_mul(31) ^ at ^ (at >> 8)) as u8).collect()
}
