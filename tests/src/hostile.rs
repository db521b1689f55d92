//! A peer below the link: a valid handshake, or none, then arbitrary bytes.
//!
//! Owns a QP of its own, through the transport's provider API, and the bytes of frames, written by
//! hand from the wire format. Obeys no credit. Only for tests.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;

use rpc_core::{Address, ConnectError};
use rpc_transport::connect::schemes;
use rpc_transport::device::{
    Capabilities, Completion, CompletionKind, CompletionQueue, Device, Established, Listener,
    QpCapacity, QpEvent, QpHandle, RecvWr, RemoteSlice, SendOp, SendWr, Source, Status,
};
use rpc_transport::memory::region::{BufferPool, ProtectionDomain};
use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::handshake::{Features, Offer};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// RECVs that are posted, and SENDs that fit.
const DEPTH: u32 = 256;
/// Size of a buffer, bytes: holds any frame of a default link, and frames that are far too large.
const BUFFER_BYTES: u32 = 32 * 1024;

/// Something that came from the other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// A frame, and its immediate.
    Frame(Vec<u8>, Option<u32>),
    /// The connection is gone; nothing follows.
    Gone,
}

/// One end of a connection, without link and session.
pub struct HostilePeer {
    cq: Box<dyn CompletionQueue>,
    qp: QpHandle,
    events: AsyncFd<OwnedFd>,
    capabilities: Capabilities,
    send_pool: BufferPool,
    recv_pool: BufferPool,
    heard: VecDeque<Heard>,
    gone: bool,
    /// The other side's private data when it accepted; empty for an accepted peer.
    pub private_data: Vec<u8>,
}

/// The handshake of an honest peer with the default configuration.
#[must_use]
pub fn honest_offer() -> Offer {
    Offer::new(&LinkConfig::default(), Features::ACK_IMMEDIATE, 7)
}

const CAPACITY: QpCapacity =
    QpCapacity { max_send_wr: DEPTH, max_recv_wr: DEPTH, max_inline_bytes: 0, uses_srq: false };

impl HostilePeer {
    /// Connects with an honest handshake.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(address: &str) -> Result<Self, ConnectError> {
        Self::connect_saying(address, &honest_offer().to_request()).await
    }

    /// Connects with this private data.
    ///
    /// # Errors
    /// [`ConnectError`].
    ///
    /// # Panics
    /// When the device has no resources.
    pub async fn connect_saying(address: &str, private_data: &[u8]) -> Result<Self, ConnectError> {
        let address: Address = address.parse()?;
        let mut outgoing = schemes::resolve(&address).await?.outgoing;
        let domain = outgoing.device().allocate_pd()?;
        let mut cq = outgoing.device().create_cq(2 * DEPTH)?;
        let qp = outgoing.create_qp(&mut *cq, &domain, CAPACITY)?;
        let mut peer = Self::new(&**outgoing.device(), cq, qp, &domain);
        peer.attach(outgoing.connect(private_data).await?);
        Ok(peer)
    }

    /// Accepts the next connection of a listener with this private data, whatever the client sent.
    ///
    /// # Panics
    /// When the listener or the client dies.
    pub async fn accept_saying(listener: &mut dyn Listener, private_data: &[u8]) -> Self {
        let mut incoming = listener.incoming().await.expect("it listens");
        let domain = incoming.device().allocate_pd().expect("a domain");
        let mut cq = incoming.device().create_cq(2 * DEPTH).expect("a queue");
        let qp = incoming.create_qp(&mut *cq, &domain, CAPACITY).expect("a queue pair");
        let mut peer = Self::new(&**incoming.device(), cq, qp, &domain);
        peer.attach(incoming.accept(private_data).await.expect("the client waits"));
        peer
    }

    /// Accepts the next connection with an honest handshake.
    pub async fn accept(listener: &mut dyn Listener) -> Self {
        Self::accept_saying(listener, &honest_offer().to_reply()).await
    }

    fn new(
        device: &dyn Device,
        cq: Box<dyn CompletionQueue>,
        qp: QpHandle,
        domain: &ProtectionDomain,
    ) -> Self {
        let fd = cq.event_fd().try_clone_to_owned().expect("a file descriptor");
        #[allow(deprecated, reason = "its successor is an unsafe fn; an `OwnedFd` is what it asks")]
        let events = AsyncFd::with_interest(fd, Interest::READABLE).expect("it can be watched");
        let pool = || BufferPool::allocate(domain, BUFFER_BYTES, DEPTH).expect("memory");
        let mut peer = Self {
            cq,
            qp,
            events,
            capabilities: device.attributes().capabilities,
            send_pool: pool(),
            recv_pool: pool(),
            heard: VecDeque::new(),
            gone: false,
            private_data: Vec::new(),
        };
        for _ in 0..DEPTH {
            peer.post_recv();
        }
        peer
    }

    fn attach(&mut self, established: Established) {
        self.private_data = established.private_data;
        established.attach.run(&mut *self.cq).expect("the queue pair is there");
    }

    fn post_recv(&mut self) {
        if let Some(buffer) = self.recv_pool.take() {
            // Refused once the QP is in ERR, which shows as `Gone`.
            let _ = self.cq.post_recv(self.qp, RecvWr { wr_id: 0, buffer });
        }
    }

    /// Sends bytes as one frame. A failure to send shows as [`Heard::Gone`].
    pub fn send(&mut self, frame: &[u8]) {
        self.post(SendOp::Send, frame);
    }

    /// Sends bytes with immediate data.
    pub fn send_with_imm(&mut self, frame: &[u8], imm: u32) {
        self.post(SendOp::SendWithImm(imm), frame);
    }

    /// Writes into memory of the other side, or to an address that claims to be.
    pub fn write(&mut self, to: RemoteSlice, bytes: &[u8]) {
        self.post(SendOp::Write(to), bytes);
    }

    /// Writes like [`HostilePeer::write`], with immediate data, which uses up one of the other
    /// side's RECVs.
    pub fn write_with_imm(&mut self, to: RemoteSlice, bytes: &[u8], imm: u32) {
        self.post(SendOp::WriteWithImm(to, imm), bytes);
    }

    /// Reads memory of the other side, as many bytes as the buffer has.
    pub fn read(&mut self, from: RemoteSlice, len: usize) {
        self.poll();
        let Some(into) = self.send_pool.take() else { return };
        let len = u32::try_from(len.min(into.len())).expect("at most a buffer");
        self.post_wr(SendOp::Read { from, into, len }, Source::Empty);
    }

    fn post(&mut self, op: SendOp, frame: &[u8]) {
        self.poll();
        let Some(mut buffer) = self.send_pool.take() else { return };
        let len = frame.len().min(buffer.len());
        buffer[..len].copy_from_slice(&frame[..len]);
        let len = u32::try_from(len).expect("at most a buffer");
        let source = match len {
            0 => Source::Empty,
            len => Source::Buffer { buffer, start: 0, len },
        };
        self.post_wr(op, source);
    }

    fn post_wr(&mut self, op: SendOp, source: Source<'_>) {
        let needed = match op {
            SendOp::SendWithImm(_) => Capabilities::IMMEDIATE,
            SendOp::WriteWithImm(..) => Capabilities::WRITE_WITH_IMM,
            SendOp::Read { .. } => Capabilities::READ,
            SendOp::Bind => Capabilities::WINDOWS,
            SendOp::Send | SendOp::Write(_) => Capabilities::NONE,
        };
        // Otherwise it would be refused, and the test would prove nothing.
        assert!(self.capabilities.contains(needed), "this device has no {needed:?}");
        let wr = SendWr { wr_id: 1, op, signaled: true, source };
        let _ = self.cq.post_send(self.qp, &mut [wr]);
        self.cq.flush();
    }

    /// The next frame, or the end of the connection.
    ///
    /// # Panics
    /// When the queue dies.
    pub async fn hear(&mut self) -> Heard {
        loop {
            self.poll();
            if let Some(heard) = self.heard.pop_front() {
                return heard;
            }
            if self.gone {
                return Heard::Gone;
            }
            self.cq.arm().expect("the queue lives");
            // A completion polled here, such as a SEND's, has spent the arming (rule 3).
            if self.poll() == 0 && !self.gone {
                let mut guard = self.events.readable().await.expect("it can be watched");
                self.cq.clear_events().expect("the queue lives");
                guard.clear_ready();
            }
        }
    }

    /// Grows the windows of both sides from 8 data credits to the 64 of default links, so that as
    /// many frames may follow at once. Drops frames that arrive in the meantime, including answers
    /// to Pings.
    ///
    /// # Panics
    /// When the other side ends the connection.
    pub async fn widen(&mut self) {
        for grown in 0..3 {
            self.send(&bytes::widening(grown));
            loop {
                let Heard::Frame(frame, imm) = self.hear().await else { panic!("it has ended") };
                if bytes::is_grown(&frame, imm) {
                    break;
                }
            }
        }
    }

    /// Waits for the end of the connection; returns the frames that came before.
    pub async fn hear_to_the_end(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Heard::Frame(bytes, _) = self.hear().await {
            frames.push(bytes);
        }
        frames
    }

    /// Takes waiting completions and events; returns the number of completions.
    fn poll(&mut self) -> usize {
        let mut count = self.poll_completions();
        while let Some(event) = self.cq.poll_event() {
            let (QpEvent::Disconnected(_) | _) = event;
            // A completion that precedes the event may have come since the poll.
            count += self.poll_completions();
            self.gone = true;
        }
        count
    }

    fn poll_completions(&mut self) -> usize {
        let mut completions = Vec::new();
        let count = self.cq.poll(&mut completions, DEPTH as usize).expect("the queue lives");
        for completion in completions {
            self.on_completion(completion);
        }
        count
    }

    fn on_completion(&mut self, completion: Completion) {
        if completion.status != Status::Success {
            self.gone = true;
            return;
        }
        let Some(buffer) = completion.buffer.filter(|_| completion.kind != CompletionKind::Send)
        else {
            return;
        };
        let bytes = buffer[..completion.byte_len as usize].to_vec();
        self.heard.push_back(Heard::Frame(bytes, completion.imm));
        drop(buffer);
        self.post_recv();
    }
}

impl fmt::Debug for HostilePeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostilePeer").field("qp", &self.qp).field("gone", &self.gone).finish()
    }
}

/// The bytes of frames, by hand (`docs/wire-format.md`).
pub mod bytes {
    pub use test_kit::hostile::frames::{
        data, hello, hello_with, is_grown, link_header, segment, session_header, session_of,
        widening,
    };

    /// A request with a signature, and a deadline if one is given (µs).
    #[must_use]
    pub fn request(
        slot: u32,
        generation: u32,
        method: &rpc_core::service::MethodDescriptor,
        deadline: Option<u64>,
        body: &[u8],
    ) -> Vec<u8> {
        let method = (method.id, method.signature_hash);
        test_kit::hostile::frames::request(slot, generation, method, deadline, body)
    }
}
