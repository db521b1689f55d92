//! `shm://`: connections between processes of one machine.
//!
//! Owns the rendezvous: two messages over a Unix socket exchange private data and segments.
//! Afterwards the socket becomes the connection's side channel. Never touches a ring once both
//! sides are connected.
//!
//! ```text
//! message: magic 8 | version u8 | kind u8 | zero u16 | slots u32 | private data, or a text
//! request, reply: with the sender's segment as a file
//! ```
//!
//! Invariants:
//! 1. Both sides refuse a peer of another user.
//! 2. A segment is mapped only if it is sealed and has the size that its slot count requires.
//! 3. A request is answered even if this side cannot share memory: the peer may have another
//!    transport.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::address::Address;
use crate::device::connection_error::{ConnectError, ListenError, SetUpPhase};
use crate::device::{
    Connector, Device, Incoming, Listener, Outgoing, PeerIdentity, ProviderError,
    REJ_PRIVATE_DATA_BYTES, REP_PRIVATE_DATA_BYTES, REQ_PRIVATE_DATA_BYTES, open_files,
};
use crate::log_limit::LogLimit;
use crate::memory::process::OfProcess;
use crate::text::printable_bytes;

use super::advice::{self, cannot_connect, cannot_listen, cannot_share};
use super::mapping::refused;
use super::pending::{Event, Pending};
use super::ring::{DEFAULT_SLOTS, MAX_SLOTS, MIN_SLOTS};
use super::setup::{self, Answer, Answering, CONNECT_TIMEOUT, Dial, Dialing};
use super::socket::{self, Credentials, ListeningSocket};
use super::wire::Wire;
use super::wire_ring::{Half, PeerHalf};

const MAGIC: [u8; 8] = *b"softrdma";
/// Version of the set-up and of the ring layout.
const VERSION: u8 = 3;
const HEADER_BYTES: usize = 16;
const MAX_MESSAGE_BYTES: usize = HEADER_BYTES + REP_PRIVATE_DATA_BYTES;

/// Kinds of messages.
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
/// The application refused; private data follows.
const REJECT: u8 = 3;
/// The device refused; a text follows.
const REFUSE: u8 = 4;

type Socket = AsyncFd<OwnedFd>;

/// A message of the rendezvous.
#[derive(Debug)]
struct Message {
    kind: u8,
    slots: u32,
    body: Vec<u8>,
    files: Vec<OwnedFd>,
}

fn encode(kind: u8, slots: usize, body: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend([VERSION, kind, 0, 0]);
    bytes.extend(u32::try_from(slots).unwrap_or(0).to_le_bytes());
    bytes.extend(body);
    bytes
}

fn decode(bytes: &[u8], files: Vec<OwnedFd>) -> Result<Message, String> {
    let header = bytes.get(..HEADER_BYTES).ok_or("a message is too short")?;
    if header[..8] != MAGIC {
        return Err("a message does not begin with the magic number".to_owned());
    }
    if header[8] != VERSION {
        return Err(setup::other_version(header[8], VERSION));
    }
    let slots = u32::from_le_bytes([header[12], header[13], header[14], header[15]]);
    Ok(Message { kind: header[9], slots, body: bytes[HEADER_BYTES..].to_vec(), files })
}

impl Message {
    /// Maps the segment that came with the message.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`]: a defect of the segment; other errors say why it cannot be
    /// mapped here.
    fn map(&mut self) -> io::Result<PeerHalf> {
        let slots = self.slots as usize;
        if !slots.is_power_of_two() || !(MIN_SLOTS..=MAX_SLOTS).contains(&slots) {
            let reason = format!("a ring of {slots} slots is not possible");
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        PeerHalf::map(slots, std::mem::take(&mut self.files))
    }
}

async fn send(socket: &Socket, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    socket.async_io(Interest::WRITABLE, |fd| socket::send(fd.as_fd(), bytes, files)).await
}

/// Receives one message; the inner error describes a malformed one.
async fn receive(socket: &Socket) -> io::Result<Result<Message, String>> {
    let mut bytes = [0; MAX_MESSAGE_BYTES];
    let received =
        socket.async_io(Interest::READABLE, |fd| socket::receive(fd.as_fd(), &mut bytes)).await?;
    if received.len == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(decode(&bytes[..received.len], received.files))
}

fn identity(peer: Credentials) -> PeerIdentity {
    let Credentials { pid, uid, gid } = peer;
    PeerIdentity::Process { pid, uid, gid }
}

/// Connects to `shm://` addresses. Needs a tokio runtime with I/O and time.
#[derive(Debug, Clone, Copy)]
pub struct ShmConnector {
    slots: usize,
}

impl Default for ShmConnector {
    fn default() -> Self {
        Self { slots: DEFAULT_SLOTS }
    }
}

impl ShmConnector {
    /// Requests rings of `slots` slots of 128 bytes, rounded up to a power of two from 8 to 1024;
    /// default 512. A packet takes at most a quarter of the ring. Ring memory is allocated by the
    /// kernel only as it is used.
    #[must_use]
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots.clamp(MIN_SLOTS, MAX_SLOTS).next_power_of_two();
        self
    }
}

#[async_trait]
impl Connector for ShmConnector {
    async fn resolve(&self, address: &Address) -> Result<Box<dyn Outgoing>, ConnectError> {
        if !matches!(address, Address::ShmName(_) | Address::ShmPath(_)) {
            let reason = "the shm connector only accepts shm:// addresses".to_owned();
            return Err(ConnectError::Unreachable { address: address.clone(), reason });
        }
        let (address, slots) = (address.clone(), self.slots);
        Ok(Dialing::boxed(ShmOutgoing { address, slots }))
    }
}

#[derive(Debug)]
struct ShmOutgoing {
    address: Address,
    slots: usize,
}

#[async_trait]
impl Dial for ShmOutgoing {
    fn device(&self) -> &'static Arc<dyn Device> {
        super::shm_device()
    }

    async fn dial(
        self,
        private_data: Vec<u8>,
    ) -> Result<(Vec<u8>, PeerIdentity, Wire), ConnectError> {
        let request = encode(REQUEST, self.slots, &private_data);
        let exchange = self.exchange(&request);
        let (half, peer, socket, message) = tokio::time::timeout(CONNECT_TIMEOUT, exchange)
            .await
            .map_err(|_| ConnectError::TimedOut {
                address: self.address.clone(),
                after: CONNECT_TIMEOUT,
                phase: SetUpPhase::Connecting,
            })??;
        let mut message = message.map_err(|reason| self.protocol(reason))?;
        let mut body = std::mem::take(&mut message.body);
        match message.kind {
            REPLY => {
                let peer_half = message.map().map_err(|error| match error.kind() {
                    io::ErrorKind::InvalidData => self.protocol(error.to_string()),
                    _ => cannot_share(&error),
                })?;
                if peer_half.slots() != self.slots {
                    return Err(self.protocol("the reply is for a ring of another size".to_owned()));
                }
                let (wire, _) = half.join(peer_half, socket);
                body.resize(REP_PRIVATE_DATA_BYTES, 0);
                Ok((body, peer, Wire::Ring(Box::new(wire))))
            }
            REJECT => {
                body.resize(REJ_PRIVATE_DATA_BYTES, 0);
                Err(self.rejected("the application refused", body))
            }
            REFUSE => Err(self.rejected(&printable_bytes(&body).to_string(), Vec::new())),
            other => Err(self.protocol(format!("a reply of unknown kind {other}"))),
        }
    }
}

impl ShmOutgoing {
    /// Connects, sends the request, and waits for the answer.
    async fn exchange(
        &self,
        request: &[u8],
    ) -> Result<(Half, PeerIdentity, OwnedFd, Result<Message, String>), ConnectError> {
        let socket = self.open().await?;
        let credentials = socket::check_user(socket.as_fd())
            .map_err(|error| self.rejected(&error.to_string(), Vec::new()))?;
        let half = Half::create(self.slots, socket.as_fd());
        let half = half.map_err(|error| cannot_share(&error))?;
        let socket =
            socket::watch(socket).map_err(|error| ConnectError::from(out_of_resources(&error)))?;
        let lost = |call, error: io::Error| match error.kind() {
            _ if open_files::advice(&error).is_some() => out_of_resources(&error).into(),
            _ if socket::is_forbidden(&error) => cannot_share(&forbidden(call, error)),
            io::ErrorKind::InvalidData => self.protocol(error.to_string()),
            _ => self.rejected(&format!("the request was dropped ({error})"), Vec::new()),
        };
        let sent = send(&socket, request, &[half.file()]).await;
        sent.map_err(|error| lost("sendmsg", error))?;
        let message = receive(&socket).await.map_err(|error| lost("recvmsg", error))?;
        Ok((half, identity(credentials), socket.into_inner(), message))
    }

    async fn open(&self) -> Result<OwnedFd, ConnectError> {
        let unreachable =
            |reason: String| ConnectError::Unreachable { address: self.address.clone(), reason };
        let at = socket::address_of(&self.address)
            .ok_or_else(|| unreachable("not a shm address".to_owned()))?
            .map_err(|error| unreachable(error.to_string()))?;
        loop {
            match socket::connect(&at) {
                Ok(socket) => return Ok(socket),
                // The listener's backlog is full, and no event reports when it has room again.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                }
                Err(error) => return Err(cannot_connect(self.address.clone(), &error)),
            }
        }
    }

    fn protocol(&self, reason: String) -> ConnectError {
        ConnectError::Protocol { address: self.address.clone(), reason }
    }

    fn rejected(&self, reason: &str, private_data: Vec<u8>) -> ConnectError {
        let (address, reason) = (self.address.clone(), reason.to_owned());
        ConnectError::Rejected { address, reason, private_data }
    }
}

/// The error of a system call that this process may not make, with a remedy.
fn forbidden(call: &'static str, error: io::Error) -> io::Error {
    Errno::from_io_error(&error).map_or(error, refused(call))
}

/// The server's reason, as sent to the peer.
fn no_shared_memory(error: &io::Error) -> String {
    format!("the server offers no shared memory: {}", open_files::explain(error))
}

fn out_of_resources(error: &io::Error) -> ProviderError {
    advice::out_of_resources("making a connection", error)
}

/// Listens at a `shm://` address. A name is an abstract socket of this network namespace. A path is
/// a socket file, which is removed when the listener is dropped, and replaced if a killed listener
/// has left it behind; `<path>.lock` exists beside it briefly while binding. Only processes of this
/// user can connect. Needs a tokio runtime.
///
/// # Errors
/// [`ListenError::InUse`] when another listener has the address, [`ListenError::Unavailable`]
/// outside a runtime, or where this process cannot share memory, [`ListenError::Failed`] with the
/// operating system's error.
pub fn listen_shm(address: &Address) -> Result<Box<dyn Listener>, ListenError> {
    setup::need_runtime("shm")?;
    let failed = |error: io::Error| cannot_listen(address.clone(), &error);
    let bound = ListeningSocket::bind(address).and_then(AsyncFdOf::new);
    let socket = OfProcess::new(bound.map_err(failed)?);
    // A failure here would repeat for every connection.
    let probe = Half::create(DEFAULT_SLOTS, socket.watched.get_ref().as_fd());
    probe.map_err(|error| match error.raw_os_error() {
        None => ListenError::Unavailable { scheme: "shm", reason: error.to_string() },
        Some(_) => failed(error),
    })?;
    let refused = Arc::new(LogLimit::new("connections that were refused"));
    Ok(Box::new(ShmListener { address: address.clone(), socket, pending: Pending::new(), refused }))
}

/// The listening socket, registered with the runtime.
#[derive(Debug)]
struct AsyncFdOf {
    // Declared first, so that it is deregistered from the runtime before the descriptor is closed.
    watched: AsyncFd<OwnedFd>,
    _socket: ListeningSocket,
}

impl AsyncFdOf {
    fn new(socket: ListeningSocket) -> io::Result<Self> {
        let watched = socket::watch(socket.fd.try_clone()?)?;
        Ok(Self { watched, _socket: socket })
    }
}

#[derive(Debug)]
struct ShmListener {
    address: Address,
    /// A child of `fork(2)` must neither remove its file nor deregister it from the epoll that it
    /// shares.
    socket: OfProcess<AsyncFdOf>,
    pending: Pending<ShmIncoming>,
    refused: Arc<LogLimit>,
}

#[async_trait]
impl Listener for ShmListener {
    fn local_address(&self) -> Address {
        self.address.clone()
    }

    async fn incoming(&mut self) -> Result<Box<dyn Incoming>, ListenError> {
        loop {
            let accept =
                self.socket.watched.async_io(Interest::READABLE, |fd| socket::accept(fd.as_fd()));
            match self.pending.next(&self.address, accept).await? {
                Event::Ready(incoming) => return Ok(Answering::boxed(incoming)),
                // A peer whose memory gets no file descriptor learns that from the handshake.
                Event::Accepted(socket) | Event::Refused(socket, _) => {
                    let (address, refused) = (self.address.clone(), Arc::clone(&self.refused));
                    self.pending.start(handshake(socket, address, refused));
                }
                Event::Other => {}
            }
        }
    }
}

/// The server's part of the rendezvous, up to the application's decision.
async fn handshake(
    socket: OwnedFd,
    address: Address,
    refused: Arc<LogLimit>,
) -> Option<ShmIncoming> {
    let peer = socket::check_user(socket.as_fd());
    let socket = socket::watch(socket).ok()?;
    // Read in any case: closing a socket with unread data would discard the refusal too.
    let request = match receive(&socket).await {
        Err(error) if open_files::advice(&error).is_some() => {
            Err(out_of_resources(&error).to_string())
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error.to_string()),
        Err(error) if socket::is_forbidden(&error) => {
            socket::discard(socket.get_ref().as_fd());
            Err(no_shared_memory(&forbidden("recvmsg", error)))
        }
        Err(_) => return None,
        Ok(request) => request,
    };
    let request = match peer {
        Err(error) => Err(error.to_string()),
        Ok(peer) => request.and_then(check_request).map(|checked| (peer, checked)),
    };
    match request {
        Ok((peer, (private_data, half))) => {
            Some(ShmIncoming { address, peer, socket, private_data, half })
        }
        Err(reason) => {
            refused.fault(Instant::now(), || {
                tracing::warn!(%address, %reason, "refusing a connection");
            });
            refuse(&socket, &reason).await;
            None
        }
    }
}

/// Sends the peer the reason of its refusal. The peer may be gone already, or may not speak this
/// protocol.
async fn refuse(socket: &Socket, reason: &str) {
    let _ = send(socket, &refusal(reason), &[]).await;
}

/// The message that refuses, with as many bytes of the reason as fit.
fn refusal(reason: &str) -> Vec<u8> {
    let end =
        (0..=reason.len().min(REP_PRIVATE_DATA_BYTES)).rfind(|at| reason.is_char_boundary(*at));
    encode(REFUSE, 0, &reason.as_bytes()[..end.unwrap_or(0)])
}

/// Checks a request. Returns its private data and the peer's half.
fn check_request(mut request: Message) -> Result<(Vec<u8>, PeerHalf), String> {
    if request.kind != REQUEST {
        return Err(format!("a request was expected, not a message of kind {}", request.kind));
    }
    let half = request.map().map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => error.to_string(),
        _ => no_shared_memory(&error),
    })?;
    let private_data = setup::pad(&request.body, REQ_PRIVATE_DATA_BYTES);
    Ok((private_data.map_err(|error| error.to_string())?, half))
}

#[derive(Debug)]
struct ShmIncoming {
    address: Address,
    peer: Credentials,
    socket: Socket,
    private_data: Vec<u8>,
    half: PeerHalf,
}

#[async_trait]
impl Answer for ShmIncoming {
    fn device(&self) -> &'static Arc<dyn Device> {
        super::shm_device()
    }

    fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn peer(&self) -> PeerIdentity {
        identity(self.peer)
    }

    async fn accept(self, private_data: Vec<u8>) -> Result<Wire, ConnectError> {
        let Self { address, socket, half: peer_half, .. } = self;
        let slots = peer_half.slots();
        let half = match Half::create(slots, socket.as_fd()) {
            Ok(half) => half,
            Err(error) => {
                refuse(&socket, &no_shared_memory(&error)).await;
                return Err(cannot_share(&error));
            }
        };
        let (wire, segment) = half.join(peer_half, socket.into_inner());
        let reply = encode(REPLY, slots, &private_data);
        // Nothing else is in the socket, so the reply fits, unless the peer is gone.
        match wire.send_reply(&reply, &[segment.as_fd()]) {
            Ok(()) => Ok(Wire::Ring(Box::new(wire))),
            Err(error) if socket::is_forbidden(&error) => {
                let error = forbidden("sendmsg", error);
                let _ = wire.send_reply(&refusal(&no_shared_memory(&error)), &[]);
                Err(cannot_share(&error))
            }
            Err(error) => {
                let reason = format!("the peer gave up: {error}");
                Err(ConnectError::Refused { address, reason })
            }
        }
    }

    async fn reject(self, private_data: Vec<u8>) {
        let reason = encode(REJECT, 0, &private_data);
        // A peer that has given up needs no answer. The timeout bounds the wait for a peer that
        // does not read.
        let _ = tokio::time::timeout(CONNECT_TIMEOUT, send(&self.socket, &reason, &[])).await;
    }
}
