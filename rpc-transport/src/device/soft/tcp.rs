//! `tcp://`: connections between machines, or where no other device is available.
//!
//! Owns the set-up over a TCP connection: optional probes, a request, an answer. Never touches a
//! frame: the socket is handed to the wire when both sides have agreed.
//!
//! ```text
//! message: magic 8 | version u8 | kind u8 | body length u16 | body
//! ```
//!
//! Invariants:
//! 1. Exactly the bytes of a message are read, so none of the frames that follow is lost.
//! 2. Each incoming connection has [`super::pending::HANDSHAKE_TIMEOUT`] to send its request,
//!    preceded by at most [`MAX_PROBES`] probes, and does not delay any other.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::address::{Address, HostPort};
use crate::device::connection_error::{ConnectError, ListenError, SetUpPhase};
use crate::device::{
    Connector, Device, Incoming, Listener, Outgoing, PeerIdentity, REJ_PRIVATE_DATA_BYTES,
    REP_PRIVATE_DATA_BYTES, REQ_PRIVATE_DATA_BYTES, canonical,
};
use crate::log_limit::LogLimit;
use crate::memory::process::OfProcess;
use crate::text::printable_bytes;

use super::advice::{cannot_connect, cannot_listen};
use super::pending::{Event, Pending};
use super::setup::{self, Answer, Answering, CONNECT_TIMEOUT, Dial, Dialing};
use super::wire::Wire;
use super::wire_tcp::TcpWire;

const MAGIC: [u8; 8] = *b"softrdma";
/// Version of the set-up and of the frames.
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 12;
/// Longest body: that of a probe or its answer.
const MAX_BODY_BYTES: usize = 4096;
/// Most probes that one connection may send before its request.
const MAX_PROBES: usize = 4;

const REQUEST: u8 = 1;
const REPLY: u8 = 2;
/// The application refused; private data follows.
const REJECT: u8 = 3;
/// The device refused; a text follows.
const REFUSE: u8 = 4;
const PROBE: u8 = 5;
const ANSWER: u8 = 6;

/// Answers probes: maps request bytes to answer bytes, at most 4096 of each.
pub type ProbeAnswer = Arc<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

async fn send(stream: &mut TcpStream, kind: u8, body: &[u8]) -> io::Result<()> {
    let len = u16::try_from(body.len()).unwrap_or(u16::MAX);
    let mut bytes = MAGIC.to_vec();
    bytes.extend([VERSION, kind]);
    bytes.extend(len.to_le_bytes());
    bytes.extend(&body[..usize::from(len)]);
    stream.write_all(&bytes).await
}

/// Receives one message: its kind and body.
async fn receive(stream: &mut TcpStream) -> io::Result<(u8, Vec<u8>)> {
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let (mut header, mut filled) = ([0; HEADER_BYTES], 0);
    while filled < HEADER_BYTES {
        let count = stream.read(&mut header[filled..]).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        filled += count;
        let got = &header[..filled];
        if !got.starts_with(&MAGIC[..filled.min(MAGIC.len())]) {
            // The first message of another protocol may be shorter than a header.
            let unknown = (filled == HEADER_BYTES).then_some(NO_MAGIC);
            if let Some(what) = foreign(got).or(unknown) {
                return Err(invalid(what.to_owned()));
            }
        }
    }
    if header[8] != VERSION {
        return Err(invalid(setup::other_version(header[8], VERSION)));
    }
    let len = usize::from(u16::from_le_bytes([header[10], header[11]]));
    if len > MAX_BODY_BYTES {
        return Err(invalid(format!("a message of {len} bytes is too long")));
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body).await?;
    Ok((header[9], body))
}

/// The error for a message of an unknown protocol.
const NO_MAGIC: &str = "a message does not begin with the magic number";

/// The protocol that the first bytes of a connection belong to, if they reveal it.
fn foreign(got: &[u8]) -> Option<&'static str> {
    Some(match got {
        // A client's preface, and the SETTINGS frame that a server sends first.
        [b'P', b'R', b'I', b' ', b'*', ..] | [0, 0, _, 4, 0, 0, 0, 0, 0, ..] => {
            "this is HTTP/2 (such as gRPC), which this framework does not speak; correct the port, \
             or use this framework at both ends"
        }
        [b'H', b'T', b'T', b'P', b'/', ..]
        | [b'G', b'E', b'T', b' ', ..]
        | [b'H', b'E', b'A', b'D', b' ', ..]
        | [b'P', b'O', b'S', b'T', b' ', ..]
        | [b'P', b'U', b'T', b' ', ..]
        | [b'O', b'P', b'T', b'I', b'O', b'N', b'S', b' ', ..] => {
            "this is HTTP, from a web server or a metrics port; correct the port"
        }
        [b'S', b'S', b'H', b'-', ..] => "this is SSH; correct the port",
        // A record of TLS: an alert or a handshake.
        [0x15 | 0x16, 3, ..] => {
            "this is TLS, which this framework does not speak; correct the port"
        }
        [b'P', b'R', b'O', b'X', b'Y', b' ', ..] | [b'\r', b'\n', b'\r', b'\n', 0, ..] => {
            "this is the PROXY protocol, which this framework does not speak; switch it off at the \
             load balancer"
        }
        _ => return None,
    })
}

/// Sends small messages without delay. Where a sandbox refuses this, they come later.
fn send_at_once(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
}

/// Hands the socket to a wire.
fn wire(stream: TcpStream) -> io::Result<Wire> {
    send_at_once(&stream);
    let socket = OwnedFd::from(stream.into_std()?);
    Ok(Wire::Tcp(Box::new(TcpWire::new(socket))))
}

/// Connects to `tcp://` addresses. Needs a tokio runtime with I/O and time.
#[derive(Debug, Clone, Copy, Default)]
pub struct TcpConnector;

impl TcpConnector {
    /// Opens the connection and asks the listener a question before any request. The connection
    /// stays open: [`Outgoing::connect`] continues on it; dropping it closes it.
    ///
    /// # Errors
    /// [`ConnectError`], as for connecting; [`ConnectError::Config`] for a request of more than
    /// 4096 bytes.
    pub async fn probe(
        &self,
        at: &HostPort,
        request: &[u8],
    ) -> Result<(Vec<u8>, Box<dyn Outgoing>), ConnectError> {
        if request.len() > MAX_BODY_BYTES {
            return Err(ConnectError::Config(format!(
                "a probe has at most {MAX_BODY_BYTES} bytes, this one has {}",
                request.len()
            )));
        }
        let mut outgoing = TcpOutgoing::new(at);
        let exchange = async {
            let mut stream = open(at).await?;
            let ask = async {
                send(&mut stream, PROBE, request).await?;
                receive(&mut stream).await
            };
            let (kind, answer) = ask.await.map_err(|error| lost(&outgoing.address, &error))?;
            match kind {
                ANSWER => Ok((answer, stream)),
                other => Err(other_kind(&outgoing.address, other, answer)),
            }
        };
        let (answer, stream) = in_time(&outgoing.address, exchange).await?;
        outgoing.stream = Some(stream);
        Ok((answer, Dialing::boxed(outgoing)))
    }
}

#[async_trait]
impl Connector for TcpConnector {
    async fn resolve(&self, address: &Address) -> Result<Box<dyn Outgoing>, ConnectError> {
        match address {
            Address::Tcp(at) => Ok(Dialing::boxed(TcpOutgoing::new(at))),
            _ => {
                let reason = "the tcp connector only accepts tcp:// addresses".to_owned();
                Err(ConnectError::Unreachable { address: address.clone(), reason })
            }
        }
    }
}

/// Runs an exchange with the peer under a time limit.
async fn in_time<T>(
    address: &Address,
    exchange: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    let timed_out = |_| ConnectError::TimedOut {
        address: address.clone(),
        after: CONNECT_TIMEOUT,
        phase: SetUpPhase::Connecting,
    };
    tokio::time::timeout(CONNECT_TIMEOUT, exchange).await.map_err(timed_out)?
}

async fn open(at: &HostPort) -> Result<TcpStream, ConnectError> {
    let stream = TcpStream::connect((at.host.as_str(), at.port)).await;
    stream.map_err(|error| cannot_connect(Address::Tcp(at.clone()), &error))
}

/// The error for an exchange that failed midway.
fn lost(address: &Address, error: &io::Error) -> ConnectError {
    let address = address.clone();
    match error.kind() {
        io::ErrorKind::InvalidData => ConnectError::Protocol { address, reason: error.to_string() },
        _ => {
            let reason = format!(
                "the request was dropped ({error}): the program listening there is stopping, is \
                 overloaded, or speaks another protocol"
            );
            ConnectError::Rejected { address, reason, private_data: Vec::new() }
        }
    }
}

/// The error for an answer other than an acceptance.
fn other_kind(address: &Address, kind: u8, mut body: Vec<u8>) -> ConnectError {
    let address = address.clone();
    match kind {
        REJECT => {
            body.resize(REJ_PRIVATE_DATA_BYTES, 0);
            let reason = "the application refused".to_owned();
            ConnectError::Rejected { address, reason, private_data: body }
        }
        REFUSE => {
            let reason = printable_bytes(&body).to_string();
            ConnectError::Rejected { address, reason, private_data: Vec::new() }
        }
        other => {
            ConnectError::Protocol { address, reason: format!("an answer of unknown kind {other}") }
        }
    }
}

#[derive(Debug)]
struct TcpOutgoing {
    at: HostPort,
    address: Address,
    /// Already open if there was a probe.
    stream: Option<TcpStream>,
}

impl TcpOutgoing {
    fn new(at: &HostPort) -> Self {
        let address = Address::Tcp(at.clone());
        Self { at: at.clone(), address, stream: None }
    }
}

#[async_trait]
impl Dial for TcpOutgoing {
    fn device(&self) -> &'static Arc<dyn Device> {
        super::tcp_device()
    }

    async fn dial(
        self,
        private_data: Vec<u8>,
    ) -> Result<(Vec<u8>, PeerIdentity, Wire), ConnectError> {
        let Self { at, address, stream } = self;
        let exchange = async {
            let mut stream = match stream {
                Some(stream) => stream,
                None => open(&at).await?,
            };
            let ask = async {
                send(&mut stream, REQUEST, &private_data).await?;
                receive(&mut stream).await
            };
            let (kind, body) = ask.await.map_err(|error| lost(&address, &error))?;
            match kind {
                REPLY => Ok((body, stream)),
                other => Err(other_kind(&address, other, body)),
            }
        };
        let (mut private_data, stream) = in_time(&address, exchange).await?;
        private_data.resize(REP_PRIVATE_DATA_BYTES, 0);
        let peer = stream.peer_addr().map(PeerIdentity::network);
        let lost = |error: io::Error| lost(&address, &error);
        let peer = peer.map_err(lost)?;
        Ok((private_data, peer, wire(stream).map_err(lost)?))
    }
}

/// Listens on a TCP port. With port 0 the system chooses one ([`Listener::local_address`] returns
/// it). `probe` answers what connectors ask before they connect ([`TcpConnector::probe`]); without
/// it every answer is empty.
///
/// # Errors
/// [`ListenError::InUse`] when another listener has the port, [`ListenError::Unavailable`] outside
/// a tokio runtime, [`ListenError::Failed`] with the operating system's error.
pub async fn listen_tcp(
    at: &HostPort,
    probe: Option<ProbeAnswer>,
) -> Result<Box<dyn Listener>, ListenError> {
    setup::need_runtime("tcp")?;
    let bound = async {
        let listener = TcpListener::bind((at.host.as_str(), at.port)).await?;
        let local = listener.local_addr()?;
        io::Result::Ok((listener, local))
    };
    let (listener, local) =
        bound.await.map_err(|error| cannot_listen(Address::Tcp(at.clone()), &error))?;
    Ok(Box::new(TcpRendezvous {
        address: Address::Tcp(local.into()),
        listener: OfProcess::new(listener),
        probe,
        pending: Pending::new(),
        refused: Arc::new(LogLimit::new("connections that were refused")),
    }))
}

struct TcpRendezvous {
    address: Address,
    /// A child of `fork(2)` must not deregister it from the epoll that it shares.
    listener: OfProcess<TcpListener>,
    probe: Option<ProbeAnswer>,
    pending: Pending<TcpIncoming>,
    refused: Arc<LogLimit>,
}

impl fmt::Debug for TcpRendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpRendezvous").field("address", &self.address).finish_non_exhaustive()
    }
}

#[async_trait]
impl Listener for TcpRendezvous {
    fn local_address(&self) -> Address {
        self.address.clone()
    }

    async fn incoming(&mut self) -> Result<Box<dyn Incoming>, ListenError> {
        loop {
            let accept = self.listener.accept();
            match self.pending.next(&self.address, accept).await? {
                Event::Ready(incoming) => return Ok(Answering::boxed(incoming)),
                Event::Accepted((stream, peer)) => {
                    let peer = canonical(peer);
                    let address = self.address.clone();
                    let probe = self.probe.clone();
                    let refused = Arc::clone(&self.refused);
                    self.pending.start(handshake(stream, peer, address, probe, refused));
                }
                Event::Refused((stream, peer), why) => {
                    let address = &self.address;
                    self.refused.fault(Instant::now(), || {
                        tracing::warn!(%address, %peer, reason = why, "refusing a connection");
                    });
                    self.pending.start(refuse(stream, why));
                }
                Event::Other => {}
            }
        }
    }
}

/// Reports to a peer that there is no file descriptor for it.
async fn refuse(mut stream: TcpStream, why: String) -> Option<TcpIncoming> {
    // Closing a socket with unread data would discard the refusal too.
    let _ = receive(&mut stream).await;
    let reason = format!("the server cannot accept connections: {why}");
    let _ = send(&mut stream, REFUSE, reason.as_bytes()).await;
    None
}

/// The server's part of the set-up, up to the application's decision.
async fn handshake(
    mut stream: TcpStream,
    peer: SocketAddr,
    address: Address,
    probe: Option<ProbeAnswer>,
    refused: Arc<LogLimit>,
) -> Option<TcpIncoming> {
    // Messages are small and each side waits for the other's.
    send_at_once(&stream);
    match request(&mut stream, probe).await {
        Ok(private_data) => Some(TcpIncoming { address, peer, stream, private_data }),
        // The peer is gone, or needed only the answer to its probe.
        Err(error) if error.kind() != io::ErrorKind::InvalidData => None,
        Err(error) => {
            refused.fault(Instant::now(), || {
                tracing::warn!(%address, %peer, reason = %error, "refusing a connection");
            });
            // The peer may be gone already, or may not speak this protocol.
            let _ = send(&mut stream, REFUSE, error.to_string().as_bytes()).await;
            None
        }
    }
}

/// Answers probes until the request comes. Returns its private data.
async fn request(stream: &mut TcpStream, probe: Option<ProbeAnswer>) -> io::Result<Vec<u8>> {
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    for _ in 0..=MAX_PROBES {
        let (kind, body) = receive(stream).await?;
        match kind {
            PROBE => {
                let mut answer = probe.as_ref().map_or_else(Vec::new, |probe| probe(&body));
                answer.truncate(MAX_BODY_BYTES);
                send(stream, ANSWER, &answer).await?;
            }
            REQUEST => {
                let padded = setup::pad(&body, REQ_PRIVATE_DATA_BYTES);
                return padded.map_err(|error| invalid(error.to_string()));
            }
            other => {
                return Err(invalid(format!(
                    "a request was expected, not a message of kind {other}"
                )));
            }
        }
    }
    Err(invalid("too many probes".to_owned()))
}

#[derive(Debug)]
struct TcpIncoming {
    address: Address,
    peer: SocketAddr,
    stream: TcpStream,
    private_data: Vec<u8>,
}

#[async_trait]
impl Answer for TcpIncoming {
    fn device(&self) -> &'static Arc<dyn Device> {
        super::tcp_device()
    }

    fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn peer(&self) -> PeerIdentity {
        PeerIdentity::Network(self.peer)
    }

    async fn accept(self, private_data: Vec<u8>) -> Result<Wire, ConnectError> {
        let Self { address, mut stream, .. } = self;
        let given_up = |error: io::Error| {
            let reason = format!("the peer gave up: {error}");
            ConnectError::Refused { address: address.clone(), reason }
        };
        in_time(&address, async {
            send(&mut stream, REPLY, &private_data).await.map_err(given_up)
        })
        .await?;
        wire(stream).map_err(given_up)
    }

    async fn reject(mut self, private_data: Vec<u8>) {
        // A peer that has given up needs no answer. The timeout bounds the wait for a peer that
        // does not read.
        let sent = send(&mut self.stream, REJECT, &private_data);
        let _ = tokio::time::timeout(CONNECT_TIMEOUT, sent).await;
    }
}
