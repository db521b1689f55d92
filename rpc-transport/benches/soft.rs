//! The cost of the software device, as ratios to raw shared memory in the same run.
//!
//! Two threads on two cores, each with a completion queue of its own, exchange 80-byte inline SENDs
//! and busy-poll. Alternating with that, window by window, they exchange 80-byte messages through
//! bare slots in memory, so that both see the same disturbances of the machine. The report has the
//! medians over pairs of neighbouring windows that nothing interrupted, and the median of their
//! ratios.
//!
//! `cargo bench -p rpc-over-rdma-transport --bench soft [-- SECONDS]`

#![allow(unsafe_code, reason = "the raw exchange that is compared with")]
#![allow(clippy::unwrap_used, reason = "a benchmark")]

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rpc_transport::address::Address;
use rpc_transport::device::soft;
use rpc_transport::device::{
    Completion, CompletionKind, CompletionQueue, Connector, Device, Listener, QpCapacity, QpHandle,
    RecvWr, RemoteSlice, SendOp, SendWr, Source,
};
use rpc_transport::memory::region::{Access, BufferPool, MemoryRegion, ProtectionDomain};

const MESSAGE_BYTES: usize = 80;
/// Round trips of one window.
const WINDOW: u64 = 50;
/// A round trip longer than this was interrupted, ns.
const INTERRUPTED: f64 = 1500.0;

fn main() {
    let seconds = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(2.0);
    let time = Duration::from_secs_f64(seconds);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let shm: Address = format!("shm://bench-{}", std::process::id()).parse().unwrap();

    println!("80 B round trip, two cores, polling:    raw slots   queue pair   ratio (quartiles)");
    for idle in [0, 1000] {
        let (client, server) = runtime.block_on(pair(&shm, idle));
        let windows = round_trips(client, server, time);
        println!("  shm, {idle:4} idle connections {}", summary(&windows));
    }
    let (client, server) = runtime.block_on(pair(&shm, 0));
    one_core(client, server);
    let (client, server) = runtime.block_on(pair(&shm, 0));
    writes(client, server);
}

/// Medians over undisturbed pairs of windows (raw, device), and the quartiles of the ratio.
fn summary(windows: &[(f64, f64)]) -> String {
    let good: Vec<_> =
        windows.iter().filter(|pair| pair.0.max(pair.1) < INTERRUPTED).copied().collect();
    if good.is_empty() {
        return "every window was interrupted: the machine is too busy".to_owned();
    }
    let quantile = |of: fn(&(f64, f64)) -> f64, quarter: usize| {
        let mut values: Vec<_> = good.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[(values.len() - 1) * quarter / 4]
    };
    let ratio = |quarter| quantile(|pair| pair.1 / pair.0, quarter);
    format!(
        "{:12.0} {:12.0} ns {:7.2} ({:.2} to {:.2}), {} of {} windows",
        quantile(|pair| pair.0, 2),
        quantile(|pair| pair.1, 2),
        ratio(2),
        ratio(1),
        ratio(3),
        good.len(),
        windows.len(),
    )
}

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    // With a single core, both threads share it.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Runs each half on a core of its own; returns the result of the first.
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
        // SAFETY: the reader has taken the message of the last lap: it has answered since.
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
    QpCapacity { max_send_wr: 128, max_recv_wr: 128, max_inline_bytes: 256, uses_srq: false };
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

/// Pairs of neighbouring windows: ns per raw round trip, and per round trip of the device.
fn round_trips(mut client: End, mut server: End, time: Duration) -> Vec<(f64, f64)> {
    let (there, back) = (Slots::new(), Slots::new());
    on_two_cores(
        || {
            let mut message = [1; MESSAGE_BYTES];
            let (mut position, mut windows) = (0, Vec::new());
            // Idle connections leave the hot list first.
            for _ in 0..50_000 {
                client.cq.poll(&mut client.completions, 16).unwrap();
            }
            let start = Instant::now();
            while start.elapsed() < time {
                let begin = Instant::now();
                for _ in 0..WINDOW {
                    there.put(position, &message);
                    back.take(position, &mut message);
                    position += 1;
                }
                let middle = Instant::now();
                for count in 0..WINDOW {
                    client.send(&message, count % 32 == 31);
                    client.receive(&mut message);
                }
                let end = Instant::now();
                windows.push((nanos(middle - begin, WINDOW), nanos(end - middle, WINDOW)));
            }
            there.put(position, &[0; MESSAGE_BYTES]);
            windows
        },
        || {
            let mut message = [0; MESSAGE_BYTES];
            let mut position = 0;
            loop {
                for _ in 0..WINDOW {
                    there.take(position, &mut message);
                    if message[0] == 0 {
                        return;
                    }
                    back.put(position, &message);
                    position += 1;
                }
                for count in 0..WINDOW {
                    server.receive(&mut message);
                    server.send(&message, count % 32 == 31);
                }
            }
        },
    )
}

/// Both sides on one core, batch by batch: the CPU cost of a SEND.
fn one_core(mut client: End, mut server: End) {
    pin(0);
    let message = [1; MESSAGE_BYTES];
    let mut copy = [0; MESSAGE_BYTES];
    let mut times: [Vec<f64>; 3] = Default::default();
    let (batches, batch) = (20_000_u32, 32_u32);
    let each = |time: Duration| nanos(time, u64::from(batch));
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
        times[0].push(each(posted - start));
        times[1].push(each(polled - posted));
        times[2].push(each(polled.elapsed()));
        client.cq.poll(&mut client.completions, 16).unwrap();
        client.completions.clear();
    }
    println!("one core, per 80 B SEND in batches of {batch}, medians:");
    for (what, mut times) in ["post and flush", "poll", "read and repost"].iter().zip(times) {
        times.sort_by(f64::total_cmp);
        println!("  {what:16} {:6.1} ns", times[times.len() / 2]);
    }
}

/// One-sided WRITEs: one copy each.
fn writes(mut client: End, mut server: End) {
    for len in [4096_usize, 64 * 1024, 1 << 20] {
        let target = server.pd.allocate(len, Access::REMOTE_WRITE).unwrap();
        let source = client.pd.allocate(len, Access::LOCAL).unwrap();
        let mut plain = vec![0_u8; len];
        let to = RemoteSlice { address: target.remote_address(0), rkey: target.rkey() };
        let count = (128 << 20) / len;
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
        let mut ratios: Vec<_> = (0..count)
            .map(|_| {
                let start = Instant::now();
                write(&source);
                let middle = Instant::now();
                source.copy_out(0, black_box(&mut plain));
                (middle - start).as_secs_f64() / middle.elapsed().as_secs_f64()
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        println!("  WRITE and its completion, {len:8} B: {:5.2} x memcpy", ratios[count / 2]);
    }
}
