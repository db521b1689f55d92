//! The counters of calls.
//!
//! Owns the counters of each method, and their assignment to writers. Memory grows with the methods
//! of this process, never with the names that a peer sends.
//!
//! Invariants:
//! 1. A [`Counter`] used with [`Counter::add`] has one writer at a time: the holder of the shard's
//!    lock, or the driver. So counting is a plain addition, and a reader takes no lock.
//! 2. A dropped [`Lease`] returns its counters, and the next one continues with them: no count is
//!    lost, and memory does not grow with the number of past connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rpc_transport::engine::clock;
use rpc_transport::lock::Mutex;

use super::histogram::Recorder;
use super::report::MethodStats;
use crate::method::MethodDescriptor;
use crate::reply::Reply;
use crate::status::Code;

/// The first calls, which are all timed; after them, one in this many is timed.
const TIMED: u32 = 16;

/// A number that can be read without a lock.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds to a counter with a single writer (invariant 1).
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before.wrapping_add(count), Ordering::Relaxed);
    }

    /// Adds to a counter with any number of writers.
    pub(crate) fn add_shared(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// With the method's own error.
    UserError,
    Code(Code),
}

impl End {
    pub(crate) const OK: Self = Self::Code(Code::Ok);

    /// The outcome of a reply, and the length of its body, bytes.
    #[inline]
    pub(crate) fn of(reply: &Reply) -> (Self, u64) {
        match reply {
            Reply::Ok(body) => (Self::OK, body.total_len()),
            Reply::UserError(body) => (Self::UserError, body.total_len()),
            Reply::Status(status) => (Self::Code(status.code()), 0),
        }
    }

    #[inline]
    fn index(self) -> usize {
        match self {
            Self::Code(code) => usize::from(code.number()),
            Self::UserError => Code::ALL.len(),
        }
    }
}

/// The counters of a method.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    started: Counter,
    /// By code; the last one counts the method's own errors.
    ended: [Counter; Code::ALL.len() + 1],
    request_bytes: Counter,
    reply_bytes: Counter,
}

impl Counts {
    #[inline]
    pub(crate) fn on_start(&self, request_bytes: u64) {
        self.started.add(1);
        self.request_bytes.add(request_bytes);
    }

    #[inline]
    pub(crate) fn on_end(&self, end: End, reply_bytes: u64) {
        self.ended[end.index()].add(1);
        self.reply_bytes.add(reply_bytes);
    }

    /// The call that was counted last is no call: its caller sends it again with its schema.
    #[cold]
    pub(crate) fn take_back(&self, request_bytes: u64) {
        self.started.add(1_u64.wrapping_neg());
        self.request_bytes.add(request_bytes.wrapping_neg());
    }

    /// As [`Counts`], but for several writers.
    pub(crate) fn on_shared_end(&self, end: End, reply_bytes: u64) {
        self.ended[end.index()].add_shared(1);
        self.reply_bytes.add_shared(reply_bytes);
    }

    /// Counts a call that ended before it could be sent.
    pub(crate) fn on_shared_start(&self) {
        self.started.add_shared(1);
    }
}

/// The counters of a method of a server or channel.
#[derive(Debug)]
pub(crate) struct Method {
    /// `None`: all unknown methods.
    descriptor: Option<&'static MethodDescriptor>,
    /// For writers that hold no lock.
    pub(crate) shared: Counts,
    pub(crate) took: Recorder,
    /// Each has one writer, or is unused.
    counts: Mutex<Vec<Arc<Counts>>>,
    free: Mutex<Vec<(Arc<Counts>, Sample)>>,
}

impl Method {
    fn new(descriptor: Option<&'static MethodDescriptor>) -> Self {
        let (counts, free) = (Mutex::default(), Mutex::default());
        Self { descriptor, shared: Counts::default(), took: Recorder::new(), counts, free }
    }

    fn lease(self: &Arc<Self>) -> Lease {
        let (counts, sample) = self.free.lock().pop().unwrap_or_else(|| {
            let counts = Arc::<Counts>::default();
            self.counts.lock().push(Arc::clone(&counts));
            (counts, Sample::default())
        });
        Lease { method: Arc::clone(self), counts, sample }
    }

    fn read(&self) -> MethodStats {
        let descriptor = self.descriptor;
        let mut read = MethodStats {
            name: descriptor.map_or("", |descriptor| descriptor.name),
            took: self.took.read(),
            ..MethodStats::default()
        };
        // The ended calls are read before the started ones, so that no snapshot has more of the
        // former.
        let all = self.counts.lock().clone();
        let mut ended = [0; Code::ALL.len() + 1];
        for counts in all.iter().map(|counts| &**counts).chain([&self.shared]) {
            for (ended, counter) in ended.iter_mut().zip(&counts.ended) {
                *ended += counter.get();
            }
        }
        std::sync::atomic::fence(Ordering::Acquire);
        for counts in all.iter().map(|counts| &**counts).chain([&self.shared]) {
            read.started += counts.started.get();
            read.request_bytes += counts.request_bytes.get();
            read.reply_bytes += counts.reply_bytes.get();
        }
        let by_code = Code::ALL.into_iter().zip(ended).filter(|(_, count)| *count > 0);
        read.ended = by_code.collect();
        read.user_errors = ended[Code::ALL.len()];
        read
    }
}

/// The state of the sampling. The next lease continues it: restarted with each connection, it would
/// mostly time the first calls of connections.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    /// Calls since the last timed one.
    untimed: u32,
    /// Number of timed calls, up to [`TIMED`].
    timed: u32,
}

/// The right to count calls of a method without taking a lock.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) method: Arc<Method>,
    pub(crate) counts: Arc<Counts>,
    sample: Sample,
}

/// The start of a timed call, and the number of calls that it represents.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timed {
    pub(crate) at: Instant,
    weight: u32,
}

impl Lease {
    /// The start of the call, if it is timed.
    #[inline]
    pub(crate) fn begin(&mut self) -> Option<Timed> {
        let Sample { untimed, timed } = &mut self.sample;
        if *timed < TIMED {
            *timed += 1;
            return Some(Timed { at: clock::now(), weight: 1 });
        }
        *untimed += 1;
        if *untimed < TIMED {
            return None;
        }
        *untimed = 0;
        Some(Timed { at: clock::now(), weight: TIMED })
    }

    /// Records the end of a timed call.
    #[cold]
    pub(crate) fn took(&self, Timed { at, weight }: Timed) {
        let took = clock::now().saturating_duration_since(at);
        self.method.took.record(took, weight.into());
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.method.free.lock().push((Arc::clone(&self.counts), self.sample));
    }
}

/// The counters of all methods of a server or channel.
#[derive(Debug, Default)]
pub(crate) struct Methods {
    known: Mutex<Vec<Arc<Method>>>,
}

impl Methods {
    /// The counters of a method; `None` for all unknown ones.
    #[cold]
    pub(crate) fn method(&self, descriptor: Option<&'static MethodDescriptor>) -> Arc<Method> {
        let mut known = self.known.lock();
        let id = |it: Option<&'static MethodDescriptor>| it.map(std::ptr::from_ref);
        if let Some(found) = known.iter().find(|method| id(method.descriptor) == id(descriptor)) {
            return Arc::clone(found);
        }
        let method = Arc::new(Method::new(descriptor));
        known.push(Arc::clone(&method));
        method
    }

    /// Reports these methods, and the unknown ones, from now on, even before they are called.
    pub(crate) fn know(&self, descriptors: impl Iterator<Item = &'static MethodDescriptor>) {
        descriptors.map(Some).chain([None]).for_each(|descriptor| drop(self.method(descriptor)));
    }

    #[cold]
    pub(crate) fn lease(&self, descriptor: Option<&'static MethodDescriptor>) -> Lease {
        self.method(descriptor).lease()
    }

    /// The methods, sorted by name.
    pub(crate) fn read(&self) -> Vec<MethodStats> {
        let known = self.known.lock().clone();
        let mut read: Vec<_> = known.iter().map(|method| method.read()).collect();
        read.sort_unstable_by_key(|method| method.name);
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static METHOD: MethodDescriptor = MethodDescriptor::new("T.f", "() -> ()", &[]);

    fn only(methods: &Methods) -> MethodStats {
        let [read] = &methods.read()[..] else { panic!("one method") };
        read.clone()
    }

    #[test]
    fn counts_stay_and_their_memory_is_reused() {
        let methods = Methods::default();
        for round in 1..=100 {
            let leases = [methods.lease(Some(&METHOD)), methods.lease(Some(&METHOD))];
            for lease in &leases {
                lease.counts.on_start(10);
                lease.counts.on_end(End::Code(Code::NotFound), 1);
            }
            leases[0].counts.on_start(0);
            leases[0].counts.on_end(End::UserError, 1);
            let read = only(&methods);
            assert_eq!((read.started, read.in_flight()), (3 * round, 0));
            assert_eq!(read.ended[&Code::NotFound], 2 * round);
            assert_eq!(read.user_errors, round);
            assert_eq!((read.request_bytes, read.reply_bytes), (20 * round, 3 * round));
        }
        assert_eq!(methods.method(Some(&METHOD)).counts.lock().len(), 2);
    }

    /// Regression: each connection's first calls were timed, and no others of short connections.
    #[test]
    fn the_sample_goes_on_with_the_next_connection() {
        let methods = Methods::default();
        let timed = (0..16 * 10).filter(|_| methods.lease(Some(&METHOD)).begin().is_some());
        assert_eq!(timed.count(), 16 + 9);
    }

    #[test]
    fn the_sample_stands_for_all_calls() {
        let methods = Methods::default();
        let mut lease = methods.lease(Some(&METHOD));
        // Calls end in any order, and long after other calls have begun.
        let begun: Vec<Timed> = (0..16 * 100).filter_map(|_| lease.begin()).collect();
        assert_eq!(begun.len(), 16 + 99);
        begun.into_iter().rev().for_each(|timed| lease.took(timed));
        assert_eq!(only(&methods).took.count(), 16 * 100);
    }
}
