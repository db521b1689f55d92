//! What the software device costs, as ratios to raw shared memory of the same run.
//!
//! Two threads on two cores, each with a completion queue of its own, exchange 80-byte inline
//! SENDs and busy-poll; in turn with it, the same threads exchange 80-byte messages through bare
//! slots in memory. Medians of several rounds.
//!
//! `cargo bench -p rpc-transport --bench soft [-- ROUNDS]`

#![allow(unsafe_code, reason = "the raw exchange that is compared with")]
#![allow(clippy::unwrap_used, reason = "a benchmark")]

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rpc_transport::address::Address;
use rpc_transport::memory::{Access, BufferPool, MemoryRegion, ProtectionDomain};
use rpc_transport::provider::{
    Completion, CompletionKind, CompletionQueue, Connector, Device, Listener, QpCapacity, QpHandle,
    RecvWr, RemoteSlice, SendOp, SendWr, Source,
};
use rpc_transport::soft;

const MESSAGE_BYTES: usize = 80;
const ROUND: Duration = Duration::from_millis(150);

fn main() {
    let rounds = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(7);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let shm: Address = format!("shm://bench-{}", std::process::id()).parse().unwrap();

    let (mut raw, mut device) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        raw.push(raw_round_trip());
        let (client, server) = runtime.block_on(pair(&shm, 0));
        device.push(round_trip(client, server));
    }
    let (raw, device) = (median(raw), median(device));
    println!("80 B round trip, two cores, polling:");
    println!("  raw slots          {raw:8.1} ns");
    println!("  shm queue pair     {device:8.1} ns   {:.2} x raw", device / raw);

    let idle: Vec<_> = (0..rounds)
        .map(|_| {
            let (client, server) = runtime.block_on(pair(&shm, 1000));
            round_trip(client, server)
        })
        .collect();
    let idle = median(idle);
    println!("  with 1000 idle     {idle:8.1} ns   {:.2} x without", idle / device);

    let (client, server) = runtime.block_on(pair(&shm, 0));
    one_core(client, server);
    let (client, server) = runtime.block_on(pair(&shm, 0));
    writes(client, server);
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    // With one core only, both threads share it.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Runs both halves on a core each; returns what the first gives.
fn on_two_cores<T: Send>(near: impl FnOnce() -> T + Send, far: impl FnOnce() + Send) -> T {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            far();
        });
        scope
            .spawn(|| {
                pin(0);
                near()
            })
            .join()
            .unwrap()
    })
}

// ---- the raw exchange ----

/// A slot: sequence word and message, two lines.
#[repr(C, align(128))]
struct Slot {
    sequence: AtomicU64,
    message: std::cell::UnsafeCell<[u8; MESSAGE_BYTES]>,
}

struct Slots(Vec<Slot>);

// SAFETY: a message is written before its sequence is published, and read after.
unsafe impl Sync for Slots {}

impl Slots {
    fn new() -> Self {
        let slot = |_| Slot { sequence: AtomicU64::new(0), message: [0; MESSAGE_BYTES].into() };
        Self((0..512).map(slot).collect())
    }

    #[inline(never)]
    fn put(&self, position: u64, message: &[u8; MESSAGE_BYTES]) {
        let slot = &self.0[(position % 512) as usize];
        // SAFETY: the reader has taken the message of the last lap: it answered since.
        unsafe { slot.message.get().write(*message) };
        slot.sequence.store(position + 1, Ordering::Release);
    }

    #[inline(never)]
    fn take(&self, position: u64, message: &mut [u8; MESSAGE_BYTES]) {
        let slot = &self.0[(position % 512) as usize];
        while slot.sequence.load(Ordering::Acquire) != position + 1 {
            std::hint::spin_loop();
        }
        // SAFETY: published, and not overwritten before this side answers.
        *message = unsafe { slot.message.get().read() };
    }
}

fn raw_round_trip() -> f64 {
    let (there, back) = (Slots::new(), Slots::new());
    on_two_cores(
        || {
            let (mut message, mut position) = ([1; MESSAGE_BYTES], 0);
            let start = Instant::now();
            while start.elapsed() < ROUND {
                for _ in 0..1000 {
                    there.put(position, &message);
                    back.take(position, &mut message);
                    position += 1;
                }
            }
            let took = start.elapsed();
            there.put(position, &[0; MESSAGE_BYTES]);
            nanos(took, position)
        },
        || {
            let mut message = [0; MESSAGE_BYTES];
            for position in 0.. {
                there.take(position, &mut message);
                if message[0] == 0 {
                    break;
                }
                back.put(position, &message);
            }
        },
    )
}

#[allow(clippy::cast_precision_loss, reason = "a mean")]
fn nanos(took: Duration, count: u64) -> f64 {
    took.as_nanos() as f64 / count as f64
}

// ---- the device ----

/// One side of a connection.
struct End {
    cq: Box<dyn CompletionQueue>,
    qp: QpHandle,
    pd: ProtectionDomain,
    pool: BufferPool,
    completions: Vec<Completion>,
    got: VecDeque<Completion>,
}

const CAPACITY: QpCapacity =
    QpCapacity { max_send_wr: 128, max_recv_wr: 128, max_inline_bytes: 256 };
const POSTED: u32 = 64;

impl End {
    fn new(device: &Arc<dyn Device>, connections: u32) -> Self {
        let pd = device.allocate_pd().unwrap();
        let cq = device.create_cq(256 * connections).unwrap();
        let pool = BufferPool::allocate(&pd, 4096, 256 + connections).unwrap();
        let qp = QpHandle { index: 0, generation: 0 };
        Self { cq, qp, pd, pool, completions: Vec::new(), got: VecDeque::new() }
    }

    fn fill(&mut self, qp: QpHandle, count: u32) {
        for wr_id in 0..u64::from(count) {
            let buffer = self.pool.take().unwrap();
            self.cq.post_recv(qp, RecvWr { wr_id, buffer }).unwrap();
        }
    }

    #[inline]
    fn send(&mut self, bytes: &[u8], signaled: bool) {
        let source = Source::Inline(bytes);
        let mut wr = [SendWr { wr_id: 1, op: SendOp::Send, signaled, source }];
        self.cq.post_send(self.qp, &mut wr).unwrap();
        self.cq.flush();
    }

    /// Polls until a RECV has completed, reposts its buffer, copies its bytes.
    #[inline]
    fn receive(&mut self, message: &mut [u8; MESSAGE_BYTES]) {
        loop {
            self.cq.poll(&mut self.completions, 16).unwrap();
            let mut received = false;
            for completion in self.completions.drain(..) {
                if completion.kind != CompletionKind::Recv {
                    continue;
                }
                received = true;
                let buffer = completion.buffer.unwrap();
                message.copy_from_slice(&buffer[..MESSAGE_BYTES]);
                self.cq.post_recv(self.qp, RecvWr { wr_id: 0, buffer }).unwrap();
            }
            if received {
                return;
            }
        }
    }
}

/// A connected pair, plus `idle` connections on the same two CQs.
async fn pair(address: &Address, idle: u32) -> (End, End) {
    let mut listener: Box<dyn Listener> = soft::listen_shm(address).unwrap();
    let connector = soft::ShmConnector::default();
    let (mut client, mut server): (Option<End>, Option<End>) = (None, None);
    for at in 0..=idle {
        let connect = async {
            let mut outgoing = connector.resolve(address).await.unwrap();
            let end = client.get_or_insert_with(|| End::new(outgoing.device(), idle + 1));
            let qp = outgoing.create_qp(&mut *end.cq, &end.pd, CAPACITY).unwrap();
            end.fill(qp, if at == idle { POSTED } else { 0 });
            end.qp = qp;
            outgoing.connect(b"").await.unwrap().attach.run(&mut *end.cq).unwrap();
        };
        let accept = async {
            let mut incoming = listener.incoming().await.unwrap();
            let end = server.get_or_insert_with(|| End::new(incoming.device(), idle + 1));
            let qp = incoming.create_qp(&mut *end.cq, &end.pd, CAPACITY).unwrap();
            end.fill(qp, if at == idle { POSTED } else { 0 });
            end.qp = qp;
            incoming.accept(b"").await.unwrap().attach.run(&mut *end.cq).unwrap();
        };
        tokio::join!(connect, accept);
    }
    (client.unwrap(), server.unwrap())
}

fn round_trip(mut client: End, mut server: End) -> f64 {
    on_two_cores(
        move || {
            let mut message = [1; MESSAGE_BYTES];
            let mut count = 0_u64;
            // Idle connections leave the hot list first.
            for _ in 0..50_000 {
                client.cq.poll(&mut client.completions, 16).unwrap();
            }
            let mut exchange = |times: u64| {
                for _ in 0..times {
                    count += 1;
                    client.send(&message, count.is_multiple_of(32));
                    client.receive(&mut message);
                }
            };
            exchange(10_000);
            let (start, mut measured) = (Instant::now(), 0);
            while start.elapsed() < ROUND {
                exchange(1000);
                measured += 1000;
            }
            let took = start.elapsed();
            client.send(&[0; MESSAGE_BYTES], false);
            // The server ends when it has seen this; the QP lives until then.
            let mut last = [0; MESSAGE_BYTES];
            client.receive(&mut last);
            nanos(took, measured)
        },
        move || {
            let mut message = [0; MESSAGE_BYTES];
            let mut count = 0_u64;
            loop {
                server.receive(&mut message);
                count += 1;
                server.send(&message, count.is_multiple_of(32));
                if message[0] == 0 {
                    break;
                }
            }
            // Until the client has gone.
            while server.cq.poll_event().is_none() {
                server.cq.poll(&mut server.completions, 16).unwrap();
            }
        },
    )
}

/// Both sides on one core, batch by batch: what a SEND costs in CPU.
fn one_core(mut client: End, mut server: End) {
    pin(0);
    let message = [1; MESSAGE_BYTES];
    let mut copy = [0; MESSAGE_BYTES];
    let (mut post, mut poll, mut repost) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let (batches, batch) = (20_000_u32, 32_u32);
    for _ in 0..batches {
        let start = Instant::now();
        for i in 0..batch {
            let source = Source::Inline(&message);
            let signaled = i == batch - 1;
            let mut wr = [SendWr { wr_id: 1, op: SendOp::Send, signaled, source }];
            client.cq.post_send(client.qp, &mut wr).unwrap();
        }
        client.cq.flush();
        let posted = Instant::now();
        server.cq.poll(&mut server.completions, batch as usize).unwrap();
        let polled = Instant::now();
        server.got.extend(server.completions.drain(..));
        assert_eq!(server.got.len(), batch as usize);
        for completion in server.got.drain(..) {
            let buffer = completion.buffer.unwrap();
            copy.copy_from_slice(&buffer[..MESSAGE_BYTES]);
            server.cq.post_recv(server.qp, RecvWr { wr_id: 0, buffer }).unwrap();
        }
        black_box(&copy);
        post += posted - start;
        poll += polled - posted;
        repost += polled.elapsed();
        client.cq.poll(&mut client.completions, 16).unwrap();
        client.completions.clear();
    }
    let each = |time: Duration| nanos(time, u64::from(batches * batch));
    println!("one core, per 80 B SEND in batches of {batch}:");
    println!("  post and flush     {:8.1} ns", each(post));
    println!("  poll               {:8.1} ns", each(poll));
    println!("  read and repost    {:8.1} ns", each(repost));
}

/// One-sided WRITEs: one copy each.
fn writes(mut client: End, mut server: End) {
    for len in [4096_usize, 64 * 1024, 1 << 20] {
        let target = server.pd.allocate(len, Access::REMOTE_WRITE).unwrap();
        let source = client.pd.allocate(len, Access::LOCAL).unwrap();
        let mut plain = vec![0_u8; len];
        let to = RemoteSlice { address: target.remote_address(0), rkey: target.rkey() };
        let count = (256 << 20) / len;
        let mut write = |source: &MemoryRegion| {
            let source = Source::Region { region: source.clone(), start: 0, len: len as u64 };
            let op = SendOp::Write(to);
            let mut wr = [SendWr { wr_id: 1, op, signaled: true, source }];
            client.cq.post_send(client.qp, &mut wr).unwrap();
            client.cq.flush();
            while client.completions.is_empty() {
                client.cq.poll(&mut client.completions, 16).unwrap();
                server.cq.poll(&mut server.completions, 16).unwrap();
            }
            client.completions.clear();
        };
        write(&source);
        let start = Instant::now();
        for _ in 0..count {
            write(&source);
        }
        let device = start.elapsed();
        let start = Instant::now();
        for _ in 0..count {
            source.copy_out(0, black_box(&mut plain));
        }
        let copy = start.elapsed();
        let ratio = device.as_secs_f64() / copy.as_secs_f64();
        println!("  WRITE {len:8} B   {ratio:6.2} x memcpy");
    }
}
