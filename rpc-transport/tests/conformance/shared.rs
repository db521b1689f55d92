//! Rule 22: one receive queue for several queue pairs.

use std::collections::VecDeque;

use rpc_transport::device::{
    Capabilities, Completion, CompletionKind, CompletionQueue, PostErrorKind, ProviderError,
    QpCapacity, QpEvent, QpHandle, QpState, RecvWr, SendOp, SendWr, Source, Status,
};
use rpc_transport::memory::region::{Access, BufferPool};

use crate::fixture::*;

const ENTRIES: u32 = 16;

/// A server whose CQ has an SRQ, and a queue pair on it for each of several clients.
struct Star {
    server: Objects,
    qps: Vec<QpHandle>,
    got: VecDeque<Completion>,
    events: Vec<QpEvent>,
    clients: Vec<End>,
    runtime: tokio::runtime::Runtime,
    listener: Box<dyn rpc_transport::device::Listener>,
}

/// What the server's queue pairs are created with.
fn capacity() -> QpCapacity {
    QpCapacity { max_recv_wr: 0, uses_srq: true, ..End::capacity(&Options::default()) }
}

/// Whether the device that a connection leads to has SRQs.
async fn has_srqs(fixture: &dyn Fixture, listener: &dyn rpc_transport::device::Listener) -> bool {
    let outgoing = resolve(fixture, &listener.local_address()).await;
    outgoing.device().attributes().max_srq_wr > 0
}

impl Star {
    /// `None` on a device without SRQs, of which
    /// [`rule22_a_device_without_one_says_so`] takes care.
    fn new(fixture: &dyn Fixture, clients: usize, posted: u32) -> Option<Self> {
        let runtime = runtime();
        let (listener, has_srqs, mut server) = runtime.block_on(async {
            let listener = fixture.listen();
            let has_srqs = has_srqs(fixture, &*listener).await;
            // Room for the SRQ and all queue pairs.
            let sends = Options::default().sends * (clients as u32 + 1);
            let options = Options { sends, recvs: ENTRIES, ..Options::default() };
            let outgoing = resolve(fixture, &listener.local_address()).await;
            (listener, has_srqs, End::objects(outgoing.device(), &options))
        });
        if !has_srqs {
            return None;
        }
        server.cq.create_srq(&server.pd, ENTRIES).unwrap();
        let (qps, got) = (Vec::new(), VecDeque::new());
        let events = Vec::new();
        let mut star = Self { server, qps, got, events, clients: Vec::new(), runtime, listener };
        (0..u64::from(posted)).for_each(|wr_id| star.post(wr_id));
        (0..clients).for_each(|_| star.connect_another(fixture));
        Some(star)
    }

    /// Every second queue pair of the server is prepared.
    fn connect_another(&mut self, fixture: &dyn Fixture) {
        let Self { server, qps, clients, runtime, listener, .. } = self;
        let address = listener.local_address();
        let options = Options::default();
        let accepting = async {
            let mut incoming = listener.incoming().await.unwrap();
            if qps.len() % 2 == 1 {
                let cq = server.cq.for_setup();
                incoming.prepare_qp(&cq, &server.pd, capacity()).await.unwrap();
            }
            let qp = incoming.create_qp(&mut *server.cq, &server.pd, capacity()).unwrap();
            let established = incoming.accept(b"").await.unwrap();
            established.attach.run(&mut *server.cq).unwrap();
            qp
        };
        let (client, qp) = runtime
            .block_on(async { tokio::join!(connect(fixture, &address, &options), accepting) });
        qps.push(qp);
        clients.push(client);
    }

    fn post(&mut self, wr_id: u64) {
        let buffer = self.server.recv_pool.take().expect("a free RECV buffer");
        self.server.cq.post_srq_recv(RecvWr { wr_id, buffer }).unwrap();
    }

    fn pump(&mut self) -> bool {
        let mut completions = Vec::new();
        self.server.cq.poll(&mut completions, 16).unwrap();
        let before = self.events.len();
        self.events.extend(std::iter::from_fn(|| self.server.cq.poll_event()));
        let mut any = !completions.is_empty() || self.events.len() > before;
        self.got.extend(completions);
        for client in &mut self.clients {
            any |= client.pump();
        }
        any
    }

    /// Polls all sides, sleeping on their event fds in between, until `until` holds.
    fn wait(&mut self, what: &str, until: impl Fn(&Self) -> bool) {
        loop {
            self.pump();
            if until(self) {
                return;
            }
            self.server.cq.arm().unwrap();
            self.clients.iter_mut().for_each(|client| client.cq.arm().unwrap());
            if self.pump() {
                continue;
            }
            let mut fds = vec![self.server.cq.event_fd()];
            fds.extend(self.clients.iter().map(|client| client.cq.event_fd()));
            assert!(readable(&fds, PATIENCE), "waited in vain for {what}");
            self.server.cq.clear_events().unwrap();
            self.clients.iter_mut().for_each(|client| client.cq.clear_events().unwrap());
        }
    }

    fn next(&mut self) -> Completion {
        self.wait("a completion at the server", |star| !star.got.is_empty());
        self.got.pop_front().unwrap()
    }

    /// A client sends a message, and the server's next completion is its arrival.
    fn pass(&mut self, client: usize, wr_id: u64) {
        let bytes = pattern(wr_id, 40);
        self.clients[client].send(1, &bytes);
        let done = self.next();
        let seen = (done.qp, done.wr_id, done.kind, done.status);
        let expected = (self.qps[client], wr_id, CompletionKind::Recv, Status::Success);
        assert_eq!(seen, expected);
        assert_eq!(payload(&done), bytes);
        self.sent(client);
    }

    /// The next completion of a client's SQ.
    fn sent(&mut self, client: usize) -> Completion {
        let is_sent = |done: &Completion| done.kind == CompletionKind::Send;
        self.wait("a send completion", |star| star.clients[client].got.iter().any(is_sent));
        let got = &mut self.clients[client].got;
        let at = got.iter().position(is_sent).unwrap();
        got.remove(at).unwrap()
    }

    /// Ends the server's queue pair of a client.
    fn destroy(&mut self, client: usize) {
        self.server.cq.destroy_qp(self.qps[client]).unwrap();
    }

    /// Moves the server's queue pair of a client to ERR, polls until it has drained, and destroys
    /// it. Returns what came.
    fn drain(&mut self, client: usize) -> Vec<Completion> {
        let qp = self.qps[client];
        assert!(!self.server.cq.has_drained(qp), "it is up");
        self.server.cq.modify_to_error(qp).unwrap();
        let (mut came, mut after) = (Vec::new(), 0);
        while after < 20 {
            let (had_drained, before) = (self.server.cq.has_drained(qp), came.len());
            self.server.cq.poll(&mut came, 1).unwrap();
            let mut new = came[before..].iter();
            assert!(!had_drained || new.all(|done| done.qp != qp), "it had drained: {came:?}");
            assert!(!had_drained || self.server.cq.has_drained(qp), "it stays so");
            after += u32::from(had_drained);
            self.clients[client].pump();
        }
        self.destroy(client);
        came
    }

    /// All queue pairs are destroyed, another SRQ takes the place of theirs, and its buffers are
    /// home.
    fn end(mut self, fixture: &dyn Fixture) {
        for qp in std::mem::take(&mut self.qps) {
            if self.server.cq.state(qp).is_some() {
                self.server.cq.destroy_qp(qp).unwrap();
            }
        }
        self.server.cq.create_srq(&self.server.pd, 1).unwrap();
        self.got.clear();
        self.pump();
        assert!(self.got.is_empty(), "nothing comes of an SRQ that is gone: {:?}", self.got);
        fixture.settle();
        let pool = &self.server.recv_pool;
        assert_eq!(pool.free_count(), pool.count() as usize);
    }
}

pub(crate) fn rule22_recvs_go_in_order_to_whoever_receives(fixture: &dyn Fixture) {
    let Some(mut star) = Star::new(fixture, 3, 8) else { return };
    // Around the queue some times, always as full.
    for (wr_id, client) in [0, 1, 2, 2, 1, 0, 0, 0, 2, 1].into_iter().cycle().take(40).enumerate() {
        star.pass(client, wr_id as u64);
        star.post(wr_id as u64 + 8);
    }
    star.end(fixture);
}

/// They come while the server is not looking, and those of each client stay in order.
pub(crate) fn rule22_messages_of_many_clients_at_once(fixture: &dyn Fixture) {
    let Some(mut star) = Star::new(fixture, 3, 12) else { return };
    for number in 0..4 {
        for client in 0..3_u8 {
            star.clients[usize::from(client)].send(1, &[client, number]);
        }
    }
    let mut next = [0; 3];
    let mut taken = Vec::new();
    for _ in 0..12 {
        let done = star.next();
        let &[client, number] = payload(&done) else { panic!("{done:?}") };
        let client = usize::from(client);
        assert_eq!((done.qp, done.status), (star.qps[client], Status::Success));
        assert_eq!(number, next[client], "of client {client}");
        next[client] += 1;
        taken.push(done.wr_id);
    }
    taken.sort_unstable();
    assert_eq!(taken, (0..12).collect::<Vec<_>>());
    star.end(fixture);
}

pub(crate) fn rule22_an_empty_srq_costs_the_sender_alone(fixture: &dyn Fixture) {
    let Some(mut star) = Star::new(fixture, 2, 1) else { return };
    star.pass(0, 0);
    star.clients[0].send(2, b"there is none");
    let refused = star.sent(0);
    assert_eq!((refused.wr_id, refused.status), (2, Status::RnrRetryExceeded));
    assert_eq!(star.clients[0].state(), QpState::Error);
    star.post(1);
    star.post(2);
    star.pass(1, 1);
    // It takes part no longer.
    star.destroy(0);
    star.pass(1, 2);
    star.end(fixture);
}

pub(crate) fn rule22_a_queue_pair_that_fails_flushes_none_of_it(fixture: &dyn Fixture) {
    let Some(mut star) = Star::new(fixture, 2, 6) else { return };
    star.pass(0, 0);
    star.server.cq.modify_to_error(star.qps[0]).unwrap();
    assert_eq!(star.server.cq.state(star.qps[0]), Some(QpState::Error));
    (1..4).for_each(|wr_id| star.pass(1, wr_id));
    star.destroy(0);
    (4..6).for_each(|wr_id| star.pass(1, wr_id));
    assert!(star.got.is_empty());
    // Another one finds it as it is.
    star.post(6);
    star.connect_another(fixture);
    star.pass(2, 6);
    star.end(fixture);
}

/// However many of its messages were polled by then: what arrived and what is left are all.
pub(crate) fn rule22_what_a_drained_queue_pair_took_comes_back(fixture: &dyn Fixture) {
    const POSTED: u64 = 12;
    for polled in 0..4 {
        let Some(mut star) = Star::new(fixture, 2, POSTED as u32) else { return };
        let mut wrs: Vec<_> = (0..4).map(|at| send(at, at == 3, Source::Inline(b"x"))).collect();
        star.clients[0].post(&mut wrs).unwrap();
        let mut seen = Vec::new();
        while seen.len() < polled {
            if star.server.cq.poll(&mut seen, 1).unwrap() == 0 {
                star.clients[0].pump();
            }
        }
        let left_over = star.drain(0);
        // Each of the other's takes one, so the last one is the last of all.
        let mut taken: Vec<_> = seen.into_iter().chain(left_over).map(|done| done.wr_id).collect();
        while taken.len() < POSTED as usize {
            let left = POSTED as usize - taken.len();
            if star.clients[1].got.is_empty() && star.got.is_empty() {
                star.clients[1].send(left as u64, b"y");
            }
            let done = star.next();
            assert!(done.buffer.is_some(), "{done:?}");
            assert!(star.qps.contains(&done.qp), "{done:?}");
            taken.push(done.wr_id);
            star.pump();
            star.clients[1].got.clear();
        }
        taken.sort_unstable();
        assert_eq!(taken, (0..POSTED).collect::<Vec<_>>());
        star.end(fixture);
    }
}

/// Its last packets are never taken. The RECV that it was arriving in comes back, if it was taken.
pub(crate) fn rule22_a_message_that_is_cut_off_keeps_no_recv(fixture: &dyn Fixture) {
    const LEN: u32 = 1 << 20;
    let Some(mut star) = Star::new(fixture, 2, 0) else { return };
    let buffers = BufferPool::allocate(&star.server.pd, LEN, 2).unwrap();
    for wr_id in 0..2 {
        let buffer = buffers.take().unwrap();
        star.server.cq.post_srq_recv(RecvWr { wr_id, buffer }).unwrap();
    }
    let source = region(&star.clients[0].pd, LEN as usize, Access::LOCAL, 7);
    star.server.cq.arm().unwrap();
    star.clients[0].post(&mut [send(1, true, whole(&source))]).unwrap();
    assert!(readable(&[star.server.cq.event_fd()], PATIENCE));
    star.server.cq.clear_events().unwrap();
    let mut polled = Vec::new();
    star.server.cq.poll(&mut polled, 1).unwrap();
    polled.extend(star.drain(0));
    assert!(polled.iter().all(|done| done.qp == star.qps[0]), "{polled:?}");
    let capabilities = star.server.device.attributes().capabilities;
    if capabilities.contains(Capabilities::KEEPS_CUT_OFF_RECVS) {
        let left = (polled.len() as u64..2).collect::<Vec<_>>();
        left.into_iter().for_each(|wr_id| star.pass(1, wr_id));
        star.clients[1].send(2, b"there is none");
        assert_eq!(star.sent(1).status, Status::RnrRetryExceeded);
    }
    drop(polled);
    star.end(fixture);
    assert_eq!(buffers.free_count(), 2);
}

pub(crate) fn rule22_too_long_costs_one_recv_and_one_queue_pair(fixture: &dyn Fixture) {
    let Some(mut star) = Star::new(fixture, 2, 0) else { return };
    let small = BufferPool::allocate(&star.server.pd, 64, 1).unwrap();
    let buffer = small.take().unwrap();
    star.server.cq.post_srq_recv(RecvWr { wr_id: 70, buffer }).unwrap();
    star.post(71);
    let source = star.clients[0].filled(&[1; 65]);
    star.clients[0].post(&mut [send(1, true, source)]).unwrap();
    let refused = star.sent(0);
    let statuses = [Status::RemoteInvalidRequest, Status::RemoteOperation];
    assert!(statuses.contains(&refused.status), "{refused:?}");
    let short = star.next();
    assert_eq!((short.qp, short.wr_id), (star.qps[0], 70));
    let statuses = [Status::LocalLength, Status::LocalQpOperation];
    assert!(statuses.contains(&short.status), "{short:?}");
    drop(short);
    let qp = star.qps[0];
    star.wait("the QP to fail", |star| star.server.cq.state(qp) == Some(QpState::Error));
    star.pass(1, 71);
    assert_eq!(small.free_count(), 1);
    star.end(fixture);
}

pub(crate) fn rule22_write_with_imm_takes_one(fixture: &dyn Fixture) {
    let Some(mut star) = Star::new(fixture, 2, 3) else { return };
    if !star.clients[0].has(Capabilities::WRITE_WITH_IMM) {
        return;
    }
    let target = region(&star.server.pd, 64, Access::REMOTE_WRITE, 7);
    star.pass(1, 0);
    let op = SendOp::WriteWithImm(remote(&target, 0), 4711);
    let source = star.clients[0].filled(&[9; 64]);
    let source = match source {
        Source::Buffer { buffer, .. } => Source::Buffer { buffer, start: 0, len: 64 },
        other => other,
    };
    star.clients[0].post(&mut [SendWr { wr_id: 2, op, signaled: true, source }]).unwrap();
    let done = star.next();
    assert_eq!((done.qp, done.wr_id, done.kind), (star.qps[0], 1, CompletionKind::RecvWrite));
    assert_eq!((done.status, done.imm), (Status::Success, Some(4711)));
    assert_eq!(contents(&target), [9; 64]);
    drop(done);
    star.pass(1, 2);
    star.end(fixture);
}

pub(crate) fn rule22_it_is_bounded(fixture: &dyn Fixture) {
    let Some(mut star) = Star::new(fixture, 1, ENTRIES) else { return };
    let full = PostErrorKind::QueueFull(ENTRIES);
    let refused = |star: &mut Star| {
        let buffer = star.server.recv_pool.take().unwrap();
        let (error, wr) =
            star.server.cq.post_srq_recv(RecvWr { wr_id: 90, buffer }).expect_err("it is full");
        assert_eq!((error.posted, wr.wr_id), (0, 90));
        error.kind
    };
    assert_eq!(refused(&mut star), full);
    star.pass(0, 0);
    star.post(90);
    assert_eq!(refused(&mut star), full);
    // No RQ, so there is no room in it.
    let (qp, buffer) = (star.qps[0], star.server.recv_pool.take().unwrap());
    let (error, _) = star.server.cq.post_recv(qp, RecvWr { wr_id: 91, buffer }).unwrap_err();
    assert_eq!(error.kind, PostErrorKind::QueueFull(0));
    star.end(fixture);
}

/// The SRQ, and what uses it, is made once, in one domain, and has its place in the CQ.
pub(crate) fn rule22_what_does_not_fit_is_refused(fixture: &dyn Fixture) {
    let Some(mut star) = Star::new(fixture, 1, 2) else { return };
    let again = star.server.cq.create_srq(&star.server.pd, 1);
    assert!(matches!(again, Err(ProviderError::Srq(_))), "{again:?}");
    star.pass(0, 0);

    let (device, listener) = (star.server.device.clone(), &star.listener);
    let most = device.attributes().max_srq_wr;
    star.runtime.block_on(async {
        let address = listener.local_address();
        let create = async |cq: &mut dyn CompletionQueue, pd, capacity| {
            resolve(fixture, &address).await.create_qp(cq, pd, capacity)
        };
        let (pd, other) = (device.allocate_pd().unwrap(), device.allocate_pd().unwrap());
        let mut cq = device.create_cq(100).unwrap();
        let pool = BufferPool::allocate(&pd, 64, 1).unwrap();
        let (error, wr) =
            cq.post_srq_recv(RecvWr { wr_id: 1, buffer: pool.take().unwrap() }).unwrap_err();
        assert_eq!((error.kind, wr.wr_id), (PostErrorKind::NoSrq, 1));
        let none = create(&mut *cq, &pd, capacity()).await;
        assert!(matches!(none, Err(ProviderError::Srq(_))), "{none:?}");
        let over = cq.create_srq(&pd, most.saturating_add(1));
        assert!(matches!(over, Err(ProviderError::Limit { .. })), "{over:?}");
        let room = cq.capacity();
        let full = cq.create_srq(&pd, room + 1);
        assert!(matches!(full, Err(ProviderError::CompletionQueueFull { .. })), "{full:?}");
        cq.create_srq(&pd, room - 20).unwrap();
        let own = QpCapacity { max_recv_wr: 1, ..capacity() };
        let own = create(&mut *cq, &pd, own).await;
        assert!(matches!(own, Err(ProviderError::Srq(_))), "{own:?}");
        let foreign = create(&mut *cq, &other, capacity()).await;
        assert!(matches!(foreign, Err(ProviderError::Srq(_))), "{foreign:?}");
        let qp = create(&mut *cq, &pd, QpCapacity { max_send_wr: 20, ..capacity() }).await.unwrap();
        let full = create(&mut *cq, &pd, QpCapacity { max_send_wr: 2, ..capacity() }).await;
        assert!(matches!(full, Err(ProviderError::CompletionQueueFull { .. })), "{full:?}");
        // Its share is free again, and so is the SRQ's.
        cq.destroy_qp(qp).unwrap();
        cq.create_srq(&pd, room).unwrap();
    });
    star.end(fixture);
}

/// Without what was posted; where the device refuses, with it.
pub(crate) fn rule22_one_that_nobody_uses_is_made_anew_or_stays(fixture: &dyn Fixture) {
    let Some(mut star) = Star::new(fixture, 1, 3) else { return };
    star.pass(0, 0);
    star.drain(0);
    let room = star.server.cq.capacity();
    let most = star.server.device.attributes().max_srq_wr;
    for too_many in [room + 1, most.saturating_add(1)] {
        let refused = star.server.cq.create_srq(&star.server.pd, too_many);
        assert!(refused.is_err(), "{too_many}");
    }
    star.connect_another(fixture);
    star.pass(1, 1);
    let in_use = star.server.cq.create_srq(&star.server.pd, ENTRIES);
    assert!(matches!(in_use, Err(ProviderError::Srq(_))), "{in_use:?}");
    star.drain(1);
    // Of the whole CQ, so the other has no part in it any more.
    star.server.cq.create_srq(&star.server.pd, room).unwrap();
    star.server.cq.create_srq(&star.server.pd, ENTRIES).unwrap();
    fixture.settle();
    let pool = &star.server.recv_pool;
    assert_eq!(pool.free_count(), pool.count() as usize);
    star.post(7);
    star.connect_another(fixture);
    star.pass(2, 7);
    star.end(fixture);
}

/// Queue pairs with receive queues of their own, on the same CQ.
pub(crate) fn rule22_others_keep_their_own(fixture: &dyn Fixture) {
    let Some(mut star) = Star::new(fixture, 1, 4) else { return };
    let own_recvs = 4;
    let own = QpCapacity { max_send_wr: 4, max_recv_wr: own_recvs, ..capacity() };
    let own = QpCapacity { uses_srq: false, ..own };
    let Star { server, qps, clients, runtime, listener, .. } = &mut star;
    let address = listener.local_address();
    let pool = BufferPool::allocate(&server.pd, 4096, own_recvs).unwrap();
    let accepting = async {
        let mut incoming = listener.incoming().await.unwrap();
        let qp = incoming.create_qp(&mut *server.cq, &server.pd, own).unwrap();
        for wr_id in 100..102 {
            let buffer = pool.take().unwrap();
            server.cq.post_recv(qp, RecvWr { wr_id, buffer }).unwrap();
        }
        let established = incoming.accept(b"").await.unwrap();
        established.attach.run(&mut *server.cq).unwrap();
        qp
    };
    let options = Options::default();
    let (client, qp) =
        runtime.block_on(async { tokio::join!(connect(fixture, &address, &options), accepting) });
    qps.push(qp);
    clients.push(client);
    star.pass(1, 100);
    star.pass(0, 0);
    star.pass(0, 1);
    star.server.cq.modify_to_error(qp).unwrap();
    let flushed = star.next();
    assert_eq!((flushed.qp, flushed.wr_id, flushed.status), (qp, 101, Status::FlushError));
    drop(flushed);
    star.pass(0, 2);
    star.end(fixture);
}

/// It goes with its CQ, with what is posted and what was taken.
pub(crate) fn rule22_it_goes_with_its_completion_queue(fixture: &dyn Fixture) {
    let Some(mut star) = Star::new(fixture, 2, 8) else { return };
    for wr_id in 0..3 {
        star.clients[0].send(wr_id, b"one of them is polled");
    }
    let first = star.next();
    let Star { server, clients, got, .. } = star;
    let Objects { cq, recv_pool, .. } = server;
    drop(cq);
    assert_eq!(payload(&first), b"one of them is polled");
    drop((first, got, clients));
    fixture.settle();
    assert_eq!(recv_pool.free_count(), recv_pool.count() as usize);
}

pub(crate) fn rule22_a_device_without_one_says_so(fixture: &dyn Fixture) {
    let runtime = runtime();
    runtime.block_on(async {
        let listener = fixture.listen();
        if has_srqs(fixture, &*listener).await {
            return;
        }
        let mut outgoing = resolve(fixture, &listener.local_address()).await;
        let device = outgoing.device().clone();
        let (pd, mut cq) = (device.allocate_pd().unwrap(), device.create_cq(40).unwrap());
        let refused = cq.create_srq(&pd, 4).unwrap_err();
        assert!(matches!(refused, ProviderError::Unsupported(_)), "{refused:?}");
        assert!(refused.to_string().contains("shared receive queue"), "{refused}");
        let pool = BufferPool::allocate(&pd, 64, 1).unwrap();
        let (error, wr) =
            cq.post_srq_recv(RecvWr { wr_id: 1, buffer: pool.take().unwrap() }).unwrap_err();
        assert_eq!((error.kind, wr.wr_id), (PostErrorKind::NoSrq, 1));
        drop(wr);
        let refused = outgoing.prepare_qp(&cq.for_setup(), &pd, capacity()).await;
        assert!(matches!(refused, Ok(()) | Err(ProviderError::Srq(_))), "{refused:?}");
        let refused = outgoing.create_qp(&mut *cq, &pd, capacity());
        assert!(matches!(refused, Err(ProviderError::Srq(_))), "{refused:?}");
    });
}
