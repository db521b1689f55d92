//! Speaks the protocol of `rping` (package rdmacm-utils) in both roles, through the transport's
//! public interface, with an unmodified `rping` at the other end:
//!
//! ```text
//! rping -s -a 10.9.0.1 -V &     cargo run --features verbs --example rping -- -c -a 10.9.0.1 -C 10
//! cargo run --features verbs --example rping -- -s &         rping -c -a 10.9.0.1 -C 10 -V
//! ```
//!
//! One round: the client SENDs {address u64, rkey u32, length u32}, big-endian, of its source; the
//! server READs the source and SENDs a go-ahead; the client SENDs the same triple of its sink; the
//! server WRITEs the data there and SENDs a completion message.

use std::error::Error;
use std::process::ExitCode;

use rpc_transport::address::Address;
use rpc_transport::device::verbs::{SetupOptions, VerbsConnector, listen};
use rpc_transport::device::{
    Completion, CompletionKind, CompletionQueue, Connector, Device, Established, QpCapacity,
    QpEvent, QpHandle, RecvWr, RemoteSlice, SendOp, SendWr, Source, Status,
};
use rpc_transport::memory::region::{Access, Buffer, BufferPool, MemoryRegion, ProtectionDomain};
use rustix::event::{PollFd, PollFlags, poll};

type Failure = Box<dyn Error>;

const USAGE: &str = "\
usage: rping -s|-c [-a ADDRESS] [-p PORT] [-C COUNT] [-S SIZE] [-v]
  -s / -c     server / client
  -a ADDRESS  address to listen at (default 0.0.0.0) or to connect to
  -p PORT     default 7174
  -C COUNT    rounds of the client, default 10
  -S SIZE     bytes per round of the client, 16 to 65536, default 64
  -v          print the data";

const MAX_SIZE: usize = 64 * 1024;
const ADVERTISEMENT_BYTES: usize = 16;
const CAPACITY: QpCapacity =
    QpCapacity { max_send_wr: 8, max_recv_wr: 4, max_inline_bytes: 64, uses_srq: false };

#[derive(Debug, Clone)]
struct Arguments {
    is_server: bool,
    address: Option<String>,
    port: u16,
    count: u64,
    size: usize,
    is_verbose: bool,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, Failure> {
    let mut role = None;
    let mut arguments = Arguments {
        is_server: false,
        address: None,
        port: 7174,
        count: 10,
        size: 64,
        is_verbose: false,
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"));
        match word.as_str() {
            "-s" => role = Some(true),
            "-c" => role = Some(false),
            "-a" => arguments.address = Some(value()?),
            "-p" => arguments.port = value()?.parse()?,
            "-C" => arguments.count = value()?.parse()?,
            "-S" => arguments.size = value()?.parse()?,
            "-v" => arguments.is_verbose = true,
            other => return Err(format!("unknown argument {other}\n{USAGE}").into()),
        }
    }
    arguments.is_server = role.ok_or(USAGE)?;
    if !(ADVERTISEMENT_BYTES..=MAX_SIZE).contains(&arguments.size) {
        return Err(USAGE.into());
    }
    Ok(arguments)
}

impl Arguments {
    fn address(&self, default: &str) -> Result<Address, Failure> {
        let host = self.address.as_deref().unwrap_or(default);
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        Ok(format!("rdma://{host}:{}", self.port).parse()?)
    }
}

/// One connected QP with everything around it.
struct Link {
    cq: Box<dyn CompletionQueue>,
    qp: QpHandle,
    domain: ProtectionDomain,
    completions: Vec<Completion>,
    is_disconnected: bool,
    _recv_pool: BufferPool,
}

/// A QP that is not connected yet.
struct Objects {
    cq: Box<dyn CompletionQueue>,
    domain: ProtectionDomain,
    recv_pool: BufferPool,
}

impl Objects {
    fn new(device: &dyn Device) -> Result<Self, Failure> {
        let domain = device.allocate_pd()?;
        let cq = device.create_cq(CAPACITY.max_send_wr + CAPACITY.max_recv_wr)?;
        let recv_pool = BufferPool::allocate(&domain, 64, CAPACITY.max_recv_wr)?;
        Ok(Self { cq, domain, recv_pool })
    }

    /// RECVs are in place before the peer can send.
    fn post_receives(&mut self, qp: QpHandle) -> Result<(), Failure> {
        while let Some(buffer) = self.recv_pool.take() {
            let posted = self.cq.post_recv(qp, RecvWr { wr_id: 0, buffer });
            posted.map_err(|(error, _)| error)?;
        }
        Ok(())
    }

    fn connected(mut self, qp: QpHandle, established: Established) -> Result<Link, Failure> {
        established.attach.run(&mut *self.cq)?;
        let Self { cq, domain, recv_pool } = self;
        let completions = Vec::new();
        Ok(Link { cq, qp, domain, completions, is_disconnected: false, _recv_pool: recv_pool })
    }
}

async fn connect(address: &Address) -> Result<Link, Failure> {
    let mut outgoing = VerbsConnector::default().resolve(address).await?;
    let mut objects = Objects::new(&**outgoing.device())?;
    let qp = outgoing.create_qp(&mut *objects.cq, &objects.domain, CAPACITY)?;
    objects.post_receives(qp)?;
    let established = outgoing.connect(b"").await?;
    objects.connected(qp, established)
}

async fn accept(address: &Address) -> Result<Link, Failure> {
    let mut listener = listen(address, SetupOptions::default()).await?;
    println!("listening at {}", listener.local_address());
    let mut incoming = listener.incoming().await?;
    let mut objects = Objects::new(&**incoming.device())?;
    let qp = incoming.create_qp(&mut *objects.cq, &objects.domain, CAPACITY)?;
    objects.post_receives(qp)?;
    let established = incoming.accept(b"").await?;
    objects.connected(qp, established)
}

impl Link {
    /// Waits for the next completion of the SQ or of the RQ. `None` when the peer has left.
    fn next(&mut self, is_recv: bool) -> Result<Option<Completion>, Failure> {
        let wanted = |completion: &Completion| (completion.kind != CompletionKind::Send) == is_recv;
        loop {
            if let Some(at) = self.completions.iter().position(wanted) {
                let completion = self.completions.remove(at);
                return match completion.status {
                    Status::Success => Ok(Some(completion)),
                    Status::FlushError if self.is_disconnected => Ok(None),
                    status => Err(format!("a work request failed: {status:?}").into()),
                };
            }
            if self.look()? {
                continue;
            }
            // Arm, look once more, only then sleep.
            self.cq.arm()?;
            if self.look()? {
                continue;
            }
            poll(&mut [PollFd::from_borrowed_fd(self.cq.event_fd(), PollFlags::IN)], None)?;
            self.cq.clear_events()?;
        }
    }

    /// Returns whether there was anything.
    fn look(&mut self) -> Result<bool, Failure> {
        let count = self.cq.poll(&mut self.completions, 16)?;
        let event = self.cq.poll_event();
        self.is_disconnected |= matches!(event, Some(QpEvent::Disconnected(_)));
        Ok(count > 0 || event.is_some())
    }

    /// Posts one signaled WR and waits for its completion; returns the buffer that it brings back,
    /// if any.
    fn perform(&mut self, op: SendOp, source: Source<'_>) -> Result<Option<Buffer>, Failure> {
        self.cq.post_send(self.qp, &mut [SendWr { wr_id: 0, op, signaled: true, source }])?;
        let done = self.next(false)?.ok_or("the peer disconnected during the run")?;
        Ok(done.buffer)
    }

    fn advertise(&mut self, region: &MemoryRegion, len: usize) -> Result<(), Failure> {
        let mut message = [0; ADVERTISEMENT_BYTES];
        message[..8].copy_from_slice(&region.remote_address(0).to_be_bytes());
        message[8..12].copy_from_slice(&region.rkey().to_be_bytes());
        message[12..].copy_from_slice(&u32::try_from(len)?.to_be_bytes());
        self.perform(SendOp::Send, Source::Inline(&message)).map(drop)
    }

    /// The next message; its RECV is posted again. `None` when the peer has left.
    fn receive(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let Some(completion) = self.next(true)? else { return Ok(None) };
        let buffer = completion.buffer.ok_or("a RECV without its buffer")?;
        let message = buffer[..completion.byte_len as usize].to_vec();
        let posted = self.cq.post_recv(self.qp, RecvWr { wr_id: 0, buffer });
        posted.map_err(|(error, _)| error)?;
        Ok(Some(message))
    }

    /// A peer's advertisement: a remote slice and its length.
    fn receive_advertisement(&mut self) -> Result<Option<(RemoteSlice, usize)>, Failure> {
        let Some(message) = self.receive()? else { return Ok(None) };
        let message: [u8; ADVERTISEMENT_BYTES] = message
            .try_into()
            .map_err(|message: Vec<u8>| format!("a message of {} bytes", message.len()))?;
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, l0, l1, l2, l3] = message;
        let address = u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
        let rkey = u32::from_be_bytes([k0, k1, k2, k3]);
        let len = usize::try_from(u32::from_be_bytes([l0, l1, l2, l3]))?;
        if len > MAX_SIZE {
            return Err(
                format!("the peer offers {len} bytes, at most {MAX_SIZE} are allowed").into()
            );
        }
        Ok(Some((RemoteSlice { address, rkey }, len)))
    }
}

/// Text that ends with a NUL, as the other side's server expects it.
fn text(round: u64, size: usize) -> Vec<u8> {
    let mut text = format!("rdma-ping-{round}: ").into_bytes();
    let start = usize::from(b'A') + usize::try_from(round % 58).unwrap_or(0);
    text.extend((start..).map(|at| b'A' + u8::try_from((at - 65) % 58).unwrap_or(0)).take(size));
    text.truncate(size - 1);
    text.push(0);
    text
}

fn show(arguments: &Arguments, who: &str, bytes: &[u8]) {
    if arguments.is_verbose {
        println!("{who}: {}", String::from_utf8_lossy(bytes).trim_end_matches('\0'));
    }
}

fn client(arguments: &Arguments, mut link: Link) -> Result<(), Failure> {
    let size = arguments.size;
    let left = || Failure::from("the peer disconnected during the run");
    let sink = link.domain.allocate(size, Access::REMOTE_WRITE)?;
    for round in 0..arguments.count {
        let expected = text(round, size);
        let source = link.domain.register(expected.clone(), Access::REMOTE_READ)?;
        link.advertise(&source, size)?;
        link.receive()?.ok_or_else(left)?;
        link.advertise(&sink, size)?;
        link.receive()?.ok_or_else(left)?;
        let mut got = vec![0; size];
        sink.copy_out(0, &mut got);
        if got != expected {
            return Err(format!("round {round}: the data was changed on its way").into());
        }
        show(arguments, "ping data", &got);
    }
    println!("{} rounds of {size} bytes, all data as it was sent", arguments.count);
    link.cq.modify_to_error(link.qp)?;
    Ok(())
}

fn server(arguments: &Arguments, mut link: Link) -> Result<(), Failure> {
    let pool = BufferPool::allocate(&link.domain, u32::try_from(MAX_SIZE)?, 1)?;
    let left = || Failure::from("the peer disconnected during the run");
    let none = || Failure::from("a buffer was not returned");
    let mut rounds = 0;
    while let Some((from, len)) = link.receive_advertisement()? {
        let into = pool.take().ok_or_else(none)?;
        let read = SendOp::Read { from, into, len: u32::try_from(len)? };
        let buffer = link.perform(read, Source::Empty)?.ok_or_else(none)?;
        show(arguments, "server ping data", &buffer[..len]);
        link.perform(SendOp::Send, Source::Inline(&[0; ADVERTISEMENT_BYTES]))?;
        let (to, room) = link.receive_advertisement()?.ok_or_else(left)?;
        let source = Source::Buffer { buffer, start: 0, len: u32::try_from(len.min(room))? };
        link.perform(SendOp::Write(to), source)?;
        link.perform(SendOp::Send, Source::Inline(&[0; ADVERTISEMENT_BYTES]))?;
        rounds += 1;
    }
    println!("the client disconnected after {rounds} rounds");
    Ok(())
}

fn run() -> Result<(), Failure> {
    let arguments = parse(std::env::args().skip(1))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if arguments.is_server {
        let address = arguments.address("0.0.0.0")?;
        server(&arguments, runtime.block_on(accept(&address))?)
    } else {
        let address = arguments.address("127.0.0.1")?;
        client(&arguments, runtime.block_on(connect(&address))?)
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rping: {error}");
            ExitCode::FAILURE
        }
    }
}
