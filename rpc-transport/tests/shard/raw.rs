//! A peer without a link: raw work requests at a shard of probes.

use std::sync::Arc;
use std::time::Duration;

use rpc_transport::address::Address;
use rpc_transport::connect::schemes;
use rpc_transport::device::connection_error::ConnectError;
use rpc_transport::device::{
    Completion, CompletionQueue, Listener, QpCapacity, QpHandle, RecvWr, SendOp, SendWr, Source,
    Status,
};
use rpc_transport::memory::region::{Access, BufferPool, ProtectionDomain};
use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::credit::Grant;
use rpc_transport::protocol::frame::{self, Frame, Kind};
use rpc_transport::protocol::handshake::{Features, Offer};

use crate::probe::Probe;
use crate::world::{End, ProbeShard};

/// The raw end.
pub(crate) struct Raw {
    cq: Box<dyn CompletionQueue>,
    qp: QpHandle,
    recvs: BufferPool,
    completions: Vec<Completion>,
    domain: ProtectionDomain,
}

impl Raw {
    /// Connects to a shard, with enough RECVs that are never given back.
    pub(crate) async fn connect(
        server: &ProbeShard,
        listener: &mut dyn Listener,
        config: &LinkConfig,
        probe: Probe,
    ) -> (Self, End) {
        Self::connect_with(Features::ARENA, server, listener, config, probe).await
    }

    /// Connects as a peer that has these features.
    pub(crate) async fn connect_with(
        features: Features,
        server: &ProbeShard,
        listener: &mut dyn Listener,
        config: &LinkConfig,
        probe: Probe,
    ) -> (Self, End) {
        let address = listener.local_address();
        let request = Offer::new(config, features, 7).to_request();
        let record = probe.record();
        let accept = async {
            let incoming = listener.incoming().await.unwrap();
            server.accept(incoming, config, probe).await.unwrap()
        };
        let (raw, accepted) = tokio::join!(Self::request(&address, &request), accept);
        (raw.unwrap().0, End { shard: Arc::clone(server), key: accepted.key, record })
    }

    /// Connects to whatever accepts at an address. Returns its reply, too.
    ///
    /// # Errors
    /// It was refused.
    pub(crate) async fn request(
        address: &Address,
        request: &[u8],
    ) -> Result<(Self, Vec<u8>), ConnectError> {
        let mut outgoing = schemes::resolve(address).await.unwrap().outgoing;
        let domain = outgoing.device().allocate_pd().unwrap();
        let mut cq = outgoing.device().create_cq(4096).unwrap();
        let capacity = QpCapacity {
            max_send_wr: 2048,
            max_recv_wr: 1024,
            max_inline_bytes: 4096,
            uses_srq: false,
        };
        let qp = outgoing.create_qp(&mut *cq, &domain, capacity).unwrap();
        let recvs = BufferPool::allocate(&domain, 8 << 10, 1024).unwrap();
        while let Some(buffer) = recvs.take() {
            cq.post_recv(qp, RecvWr { wr_id: 0, buffer }).unwrap();
        }
        let established = outgoing.connect(request).await?;
        let reply = established.private_data.clone();
        established.attach.run(&mut *cq).unwrap();
        Ok((Self { cq, qp, recvs, completions: Vec::new(), domain }, reply))
    }

    pub(crate) fn post(&mut self, op: SendOp, bytes: &[u8]) {
        self.post_source(op, Source::Inline(bytes));
    }

    /// Posts `len` bytes of memory of its own.
    pub(crate) fn post_many(&mut self, op: SendOp, len: usize) {
        let region = self.domain.allocate(len, Access::LOCAL).unwrap();
        self.post_source(op, Source::Region { region, start: 0, len: len as u64 });
    }

    fn post_source(&mut self, op: SendOp, source: Source<'_>) {
        let wr = SendWr { wr_id: 0, op, signaled: false, source };
        self.cq.post_send(self.qp, &mut [wr]).unwrap();
        self.cq.flush();
    }

    /// Sends a message, with a grant in its header.
    pub(crate) fn send(&mut self, grant: Grant, message: &[u8]) {
        let frame = [&frame::header(Kind::Data, grant)[..], message].concat();
        self.post(SendOp::Send, &frame);
    }

    /// Vanishes: the QP is destroyed without a word.
    pub(crate) fn vanish(&mut self) {
        self.cq.destroy_qp(self.qp).unwrap();
    }

    /// The frames that have arrived since the last call; waits for at least one.
    pub(crate) async fn frames(&mut self) -> Vec<Frame> {
        let parsed =
            |(imm, frame): (_, Vec<u8>)| frame::parse(&frame, imm, Features::ARENA).unwrap().0;
        self.bytes_of_frames().await.into_iter().map(parsed).collect()
    }

    /// The same as bytes, with their immediates.
    pub(crate) async fn bytes_of_frames(&mut self) -> Vec<(Option<u32>, Vec<u8>)> {
        loop {
            self.cq.poll(&mut self.completions, 64).unwrap();
            let bytes = |done: Completion| {
                // RECVs flushed after the last frame carry none.
                let buffer = done.buffer.filter(|_| done.status == Status::Success)?;
                Some((done.imm, buffer[..done.byte_len as usize].to_vec()))
            };
            let frames: Vec<_> = self.completions.drain(..).filter_map(bytes).collect();
            if !frames.is_empty() {
                return frames;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Receives without end.
    pub(crate) async fn listen(&mut self) {
        loop {
            self.poll();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// RECVs that were filled so far.
    pub(crate) fn poll(&mut self) -> usize {
        while self.cq.poll(&mut self.completions, 64).is_ok_and(|count| count > 0) {}
        self.completions.drain(..).for_each(drop);
        self.recvs.free_count()
    }
}
