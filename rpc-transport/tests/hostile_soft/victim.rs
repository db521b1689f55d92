//! The side under attack: a server whose one CQ serves a hostile and an honest connection.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rpc_transport::device::{
    Completion, CompletionKind, Connector, Established, Listener, QpCapacity, QpHandle, QpState,
    RecvWr, SendWr, Source, Status,
};
use rpc_transport::memory::region::{Access, MemoryRegion};

use crate::fixture::*;

/// RECVs posted per connection.
pub(crate) const POSTED: u64 = 8;

/// A server with an honest connection, waiting for a hostile one.
pub(crate) struct Victim {
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) listener: Box<dyn Listener>,
    pub(crate) server: Objects,
    pub(crate) honest: End,
    pub(crate) honest_qp: QpHandle,
    pub(crate) completions: Vec<Completion>,
    /// Free RECV buffers while the SRQ for hostile connections is full, once there is one.
    free_when_full: Option<usize>,
}

const OPTIONS: Options =
    Options { sends: 16, recvs: 16, posted: POSTED as u32, buffer_bytes: 4096, inline: 128 };

impl Victim {
    pub(crate) fn new(
        listen: impl AsyncFnOnce() -> Box<dyn Listener>,
        connector: Arc<dyn Connector>,
    ) -> Self {
        let runtime = runtime();
        let (listener, server, honest, honest_qp) = runtime.block_on(async {
            let mut listener = listen().await;
            let address = listener.local_address();
            let connecting = async {
                let mut outgoing = connector.resolve(&address).await.unwrap();
                let mut objects = End::objects(outgoing.device(), &OPTIONS);
                let capacity = End::capacity(&OPTIONS);
                let qp = outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
                let mut end = objects.into_end(qp, &OPTIONS);
                outgoing.connect(b"").await.unwrap().attach.run(&mut *end.cq).unwrap();
                end
            };
            let accepting = accept_on(&mut listener, None, false);
            let (honest, (server, qp)) = tokio::join!(connecting, accepting);
            (listener, server, honest, qp)
        });
        let completions = Vec::new();
        Self { runtime, listener, server, honest, honest_qp, completions, free_when_full: None }
    }

    /// Accepts the next connection, on the same CQ.
    pub(crate) fn accept(&mut self) -> QpHandle {
        self.accept_with(false)
    }

    /// The same, of one whose RECVs are those of an SRQ, which is full.
    pub(crate) fn accept_shared(&mut self) -> QpHandle {
        if self.free_when_full.is_none() {
            self.server.cq.create_srq(&self.server.pd, POSTED as u32).unwrap();
            assert_eq!(self.refill(), POSTED);
            self.free_when_full = Some(self.server.recv_pool.free_count());
        }
        self.accept_with(true)
    }

    /// Posts to the SRQ until it is full, and says how many there were to be posted.
    fn refill(&mut self) -> u64 {
        let Objects { cq, recv_pool, .. } = &mut self.server;
        let mut post = |wr_id| {
            let buffer = recv_pool.take().expect("a free RECV buffer");
            cq.post_srq_recv(RecvWr { wr_id, buffer }).is_ok()
        };
        (0..).take_while(|wr_id| post(*wr_id)).count() as u64
    }

    /// Of the SRQ's RECVs, all but those that came with completions are there. Fills it again.
    pub(crate) fn assert_all_recvs_there(&mut self, qp: QpHandle) {
        let is_recv = |done: &&Completion| done.qp == qp && done.kind != CompletionKind::Send;
        let came = self.completions.iter().filter(is_recv).count() as u64;
        self.completions.clear();
        assert_eq!(self.refill(), came);
        assert_eq!(Some(self.server.recv_pool.free_count()), self.free_when_full);
    }

    fn accept_with(&mut self, shares: bool) -> QpHandle {
        let Self { runtime, listener, server, .. } = self;
        let taken = replace_objects(server);
        let (objects, qp) = runtime.block_on(accept_on(listener, Some(taken), shares));
        *server = objects;
        qp
    }

    /// A region of the server.
    pub(crate) fn region(&self, access: Access) -> MemoryRegion {
        region(&self.server.pd, 4096, access, 7)
    }

    /// Polls once; completions are kept.
    pub(crate) fn poll(&mut self) {
        self.server.cq.poll(&mut self.completions, 16).unwrap();
        while self.server.cq.poll_event().is_some() {}
    }

    pub(crate) fn state(&self, qp: QpHandle) -> QpState {
        self.server.cq.state(qp).unwrap()
    }

    /// Polls until the hostile connection is in ERR.
    pub(crate) fn wait_dead(&mut self, qp: QpHandle) {
        self.wait(|victim| victim.state(qp) == QpState::Error);
    }

    /// Polls until the hostile connection takes no more RECVs of the SRQ.
    pub(crate) fn wait_drained(&mut self, qp: QpHandle) {
        while !self.server.cq.has_drained(qp) {
            self.poll();
        }
    }

    /// Polls, sleeping on the event fd, until something holds.
    pub(crate) fn wait(&mut self, until: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        loop {
            self.poll();
            if until(self) {
                return;
            }
            self.server.cq.arm().unwrap();
            self.poll();
            if until(self) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "waited in vain");
            readable(&[self.server.cq.event_fd()], Duration::from_secs(1));
            self.server.cq.clear_events().unwrap();
        }
    }

    /// Messages that a connection has received so far, in order.
    pub(crate) fn received(&self, qp: QpHandle) -> Vec<Vec<u8>> {
        let received = self.completions.iter().filter(|completion| {
            completion.qp == qp
                && completion.kind == CompletionKind::Recv
                && completion.status == Status::Success
        });
        received.map(|completion| payload(completion).to_vec()).collect()
    }

    pub(crate) fn post(&mut self, qp: QpHandle, mut wr: SendWr<'_>) {
        self.server.cq.post_send(qp, std::slice::from_mut(&mut wr)).unwrap();
        self.server.cq.flush();
    }

    /// Number of descriptors in the epoll set of the CQ, including its own doorbell.
    pub(crate) fn watched(&self) -> usize {
        let epoll = self.server.cq.event_fd().as_raw_fd();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{epoll}")).unwrap();
        info.lines().filter(|line| line.starts_with("tfd:")).count()
    }

    /// Checks that the honest connection still works, both ways.
    pub(crate) fn assert_unharmed(&mut self) {
        let qp = self.honest_qp;
        self.completions.clear();
        self.honest.got.clear();
        self.honest.send(1, b"still there?");
        let start = Instant::now();
        while self.received(qp).is_empty() || self.honest.got.is_empty() {
            self.honest.pump();
            self.poll();
            assert!(start.elapsed() < PATIENCE, "the honest connection is stuck");
        }
        assert_eq!(self.received(qp), [b"still there?"]);
        self.honest.got.clear();
        self.completions.clear();
        let buffer = self.server.recv_pool.take().unwrap();
        self.server.cq.post_recv(qp, RecvWr { wr_id: 0, buffer }).unwrap();
        self.post(qp, send(2, true, Source::Inline(b"yes")));
        while self.honest.got.is_empty() {
            self.honest.pump();
            self.poll();
            assert!(start.elapsed() < PATIENCE, "the honest connection is stuck");
        }
        assert_eq!(payload(&self.honest.got[0]), b"yes");
        self.honest.post_recv(0);
    }

    /// Checks that the listener still serves honest connectors.
    pub(crate) fn assert_listening(&mut self, connector: &dyn Connector) {
        let address = self.listener.local_address();
        let Self { runtime, listener, .. } = self;
        runtime.block_on(async {
            let connecting = async {
                let mut outgoing = connector.resolve(&address).await.unwrap();
                let mut objects = End::objects(outgoing.device(), &OPTIONS);
                let capacity = End::capacity(&OPTIONS);
                outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
                outgoing.connect(b"honest").await.map(|established: Established| established.peer)
            };
            let accepting = async {
                let incoming = listener.incoming().await.unwrap();
                assert_eq!(&incoming.private_data()[..6], b"honest");
                incoming.reject(b"").await;
            };
            let (refused, ()) = tokio::join!(connecting, accepting);
            // The request reached the application, which refused it.
            refused.unwrap_err();
        });
    }
}

/// Room for the honest connection and 15 hostile ones.
fn wide() -> Options {
    Options { sends: 256, recvs: 256, ..OPTIONS }
}

async fn accept_on(
    listener: &mut Box<dyn Listener>,
    objects: Option<Objects>,
    shares: bool,
) -> (Objects, QpHandle) {
    let mut incoming = listener.incoming().await.unwrap();
    let mut objects = objects.unwrap_or_else(|| End::objects(incoming.device(), &wide()));
    let own = End::capacity(&OPTIONS);
    let shared = QpCapacity { max_recv_wr: 0, uses_srq: true, ..own };
    let capacity = if shares { shared } else { own };
    let qp = incoming.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
    for wr_id in 0..if shares { 0 } else { POSTED } {
        let buffer = objects.recv_pool.take().unwrap();
        objects.cq.post_recv(qp, RecvWr { wr_id, buffer }).unwrap();
    }
    incoming.accept(b"").await.unwrap().attach.run(&mut *objects.cq).unwrap();
    (objects, qp)
}

/// Takes the objects out for a moment.
fn replace_objects(server: &mut Objects) -> Objects {
    let options = Options { sends: 1, recvs: 1, buffer_bytes: 64, ..OPTIONS };
    let placeholder = End::objects(&server.device.clone(), &options);
    std::mem::replace(server, placeholder)
}
