//! The cost of moving 1 MiB over shared memory, as a ratio to a bare copy in the same run.
//!
//! Two threads, each with a shard and a driver of its own, move a registered region into the peer's
//! arena; the receiver reads one byte of each page and answers with a small message. Alternating
//! with that, a thread copies the same bytes into shared memory and another reads one byte of each
//! page. The report has medians over pairs of neighbouring windows, and the median of their ratios.
//!
//! `cargo bench -p rpc-over-rdma-transport --bench large [-- SECONDS]`

#![allow(unsafe_code, reason = "the raw copy that is compared with")]
#![allow(clippy::unwrap_used, reason = "a benchmark")]

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use rpc_transport::address::Address;
use rpc_transport::connect::schemes;
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::device::{Device, PeerIdentity};
use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::engine::driver::Driver;
use rpc_transport::engine::establish::completions_per_connection;
use rpc_transport::engine::executor::Executor;
use rpc_transport::engine::shard::{Shard, State};
use rpc_transport::engine::spin::PollMode;
use rpc_transport::engine::upper::{Outside, Revoke, Submission, UpperLayer};
use rpc_transport::memory::region::{Access, MemoryRegion};
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::part::OutPart;
use rpc_transport::message::received::Message;
use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::link::{Lane, SubmitError};

const BYTES: usize = 1 << 20;
const PAGE: usize = 4096;
/// Messages of one window.
const WINDOW: u64 = 512;

/// Sends regions, or answers them.
struct Mover {
    region: Option<MemoryRegion>,
    /// Messages still to send, unanswered messages, and the most that may be unanswered.
    due: u64,
    out: u64,
    in_flight: u64,
    answers: u64,
    done: Sender<Instant>,
    received: Vec<Message>,
}

impl UpperLayer for Mover {
    type Action = Message;

    fn on_established(&mut self, _: ConnectionKey, _: &PeerIdentity, _: u64) {}

    fn on_message(&mut self, message: Message, _: Revoke<'_>) -> Result<(), Arc<str>> {
        match message.tail() {
            None => {
                self.out -= 1;
                if self.out == 0 && self.due == 0 {
                    self.done.send(Instant::now()).unwrap();
                }
            }
            Some(_) => self.received.push(message),
        }
        Ok(())
    }

    fn on_refused(&mut self, _: u64, error: &SubmitError) {
        panic!("{error}");
    }

    fn poll_transmit(&mut self) -> Option<Submission> {
        let mut frame = OutBuf::new();
        frame.extend_from_slice(b"sixteen byte head");
        if self.answers > 0 {
            self.answers -= 1;
            return Some(Submission { lane: Lane::Small, tag: 0, frame });
        }
        if self.due == 0 || self.out >= self.in_flight {
            return None;
        }
        self.due -= 1;
        self.out += 1;
        frame.push_tail(OutPart::region(self.region.clone()?, 0, BYTES as u64, None));
        Some(Submission { lane: Lane::Bulk, tag: 0, frame })
    }

    fn drain_actions(&mut self, outside: &mut Outside<'_, Message>) {
        std::iter::from_fn(|| self.received.pop()).for_each(|message| outside.run(message));
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn on_timeout(&mut self, _: Instant, _: Revoke<'_>) {}

    fn on_closed(&mut self, cause: &CloseCause, _: Revoke<'_>) {
        println!("closed: {cause}");
    }

    fn on_released(&mut self) {}

    fn is_idle(&self) -> bool {
        true
    }
}

/// Reads a byte of each page of an arrived message, outside the lock, and has it answered.
#[derive(Default)]
struct Reader {
    answers: Vec<ConnectionKey>,
}

impl Executor<Mover> for Reader {
    fn execute(&mut self, key: ConnectionKey, mut message: Message) -> bool {
        let tail = message.take_tail().unwrap();
        let mut byte = [0];
        for at in (0..tail.len()).step_by(PAGE) {
            tail.copy_to(at, &mut byte).unwrap();
            black_box(byte);
        }
        self.answers.push(key);
        false
    }

    fn discard(&mut self, _: Message) {}

    fn apply(&mut self, state: &mut State<Mover>) {
        for key in self.answers.drain(..) {
            state.with(key, |mover| mover.answers += 1);
        }
    }

    fn has_results(&self) -> bool {
        !self.answers.is_empty()
    }
}

fn mover(done: &Sender<Instant>) -> Mover {
    let done = done.clone();
    Mover { region: None, due: 0, out: 0, in_flight: 0, answers: 0, done, received: Vec::new() }
}

fn shard(device: &Arc<dyn Device>, config: &LinkConfig) -> Arc<Shard<Mover>> {
    let domain = device.allocate_pd().unwrap();
    Shard::new(Arc::clone(device), domain, completions_per_connection(config)).unwrap()
}

/// Runs the driver of a shard on a thread.
fn drive(shard: &Arc<Shard<Mover>>, core: usize) {
    let shard = Arc::clone(shard);
    std::thread::spawn(move || {
        pin(core);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            Driver::new(shard, Reader::default(), PollMode::Adaptive).unwrap().await;
        });
    });
}

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    // With a single core, both threads share it.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Memory that one thread writes and another reads.
struct Raw {
    slots: Box<[UnsafeCell<Vec<u8>>]>,
    sent: AtomicU64,
    read: AtomicU64,
    /// The reader's thread, which sleeps between two windows.
    reader: OnceLock<Thread>,
}

// SAFETY: a slot is written before `sent` passes it, and read before `read` does.
unsafe impl Sync for Raw {}

impl Raw {
    fn new(slots: usize) -> Arc<Self> {
        let slot = || UnsafeCell::new(vec![1; BYTES]);
        let slots = (0..slots).map(|_| slot()).collect();
        let (sent, read) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { slots, sent, read, reader: OnceLock::new() })
    }

    /// Reads without end.
    fn serve(self: Arc<Self>) {
        pin(1);
        self.reader.set(std::thread::current()).unwrap();
        for number in 0_u64.. {
            if number.is_multiple_of(WINDOW) && self.sent.load(Ordering::Acquire) <= number {
                std::thread::park();
            }
            while self.sent.load(Ordering::Acquire) <= number {
                std::hint::spin_loop();
            }
            let slot = self.slots[usize::try_from(number).unwrap() % self.slots.len()].get();
            // SAFETY: it was sent, and is not written again before it was read.
            let bytes = unsafe { &*slot };
            for at in (0..BYTES).step_by(PAGE) {
                black_box(bytes[at]);
            }
            self.read.store(number + 1, Ordering::Release);
        }
    }

    fn window(&self, from: &[u8], in_flight: u64) -> f64 {
        while self.reader.get().is_none() {
            std::thread::yield_now();
        }
        self.reader.get().unwrap().unpark();
        let start = Instant::now();
        let first = self.sent.load(Ordering::Relaxed);
        for number in first..first + WINDOW {
            while self.read.load(Ordering::Acquire) + in_flight <= number {
                std::hint::spin_loop();
            }
            let slot = self.slots[usize::try_from(number).unwrap() % self.slots.len()].get();
            // SAFETY: the reader is done with it.
            let bytes = unsafe { &mut *slot };
            bytes.copy_from_slice(from);
            self.sent.store(number + 1, Ordering::Release);
        }
        while self.read.load(Ordering::Acquire) < first + WINDOW {
            std::hint::spin_loop();
        }
        gigabytes(start.elapsed())
    }
}

fn gigabytes(time: Duration) -> f64 {
    WINDOW as f64 * BYTES as f64 / time.as_secs_f64() / 1e9
}

fn main() {
    let seconds = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(2.0);
    let time = Duration::from_secs_f64(seconds);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = LinkConfig::default().keep_alive(None);
    let (done, ended) = mpsc::channel();
    let (client, key) = runtime.block_on(async {
        let address: Address = format!("shm://large-{}", std::process::id()).parse().unwrap();
        let mut listener = schemes::listen(&address).await.unwrap();
        let outgoing = schemes::resolve(&address).await.unwrap().outgoing;
        let (client, server) =
            (shard(outgoing.device(), &config), shard(outgoing.device(), &config));
        let limit = Duration::from_secs(10);
        let connect = client.connect(outgoing, &address, &config, limit, mover(&done));
        let accept = async {
            let incoming = listener.incoming().await.unwrap();
            server.accept(incoming, &config, mover(&done)).await.unwrap()
        };
        let (connected, _) = tokio::join!(connect, accept);
        drive(&server, 1);
        drive(&client, 0);
        (client, connected.unwrap().key)
    });
    let region = client.domain().register(vec![7; BYTES], Access::LOCAL).unwrap();
    client.with(key, |mover| mover.region = Some(region)).unwrap();
    println!("1 MiB, shm, GB/s:   raw copy   arena   ratio (quartiles)");
    for in_flight in [1, 4] {
        let raw = Raw::new(in_flight);
        let served = Arc::clone(&raw);
        std::thread::spawn(move || served.serve());
        let from = vec![7; BYTES];
        let in_flight = in_flight as u64;
        let mut windows = Vec::new();
        let start = Instant::now();
        while start.elapsed() < time {
            pin(0);
            let bare = raw.window(&from, in_flight);
            windows.push((bare, window(&client, key, &ended, in_flight)));
        }
        let quantile = |of: fn(&(f64, f64)) -> f64, quarter: usize| {
            let mut values: Vec<_> = windows.iter().skip(2).map(of).collect();
            values.sort_by(f64::total_cmp);
            values[(values.len() - 1) * quarter / 4]
        };
        let ratio = |quarter| quantile(|pair| pair.1 / pair.0, quarter);
        println!(
            "  {in_flight} in flight {:14.1} {:9.1} {:7.2} ({:.2} to {:.2})",
            quantile(|pair| pair.0, 2),
            quantile(|pair| pair.1, 2),
            ratio(2),
            ratio(1),
            ratio(3),
        );
    }
}

/// One window through the arena.
fn window(
    client: &Shard<Mover>,
    key: ConnectionKey,
    ended: &Receiver<Instant>,
    in_flight: u64,
) -> f64 {
    let start = Instant::now();
    client.with(key, |mover| (mover.due, mover.in_flight) = (WINDOW, in_flight)).unwrap();
    gigabytes(ended.recv().unwrap() - start)
}
