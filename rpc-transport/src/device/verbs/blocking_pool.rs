//! A pool of threads for calls of librdmacm that wait for a peer: connects, and the destruction of
//! ids whose attempts were given up.
//!
//! Invariants:
//! 1. At most [`MAX_THREADS`] jobs run at once. From half of that on, no further job starts for a
//!    host for which [`PER_HOST`] run. The others are queued.
//! 2. The next jobs start when one has ended. A job for which no thread can be started waits for
//!    that. If no job runs, it fails instead, since none would end.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

use super::id_link::IdKey;

/// Most threads of one pool. A silent peer takes one for as long as the device is patient: siw two
/// minutes for TCP, then 10 s for an answer.
const MAX_THREADS: usize = 64;
/// Threads for one host that hold up no other host. A silent host would take all threads, as its
/// callers give up and try again long before the device does. If it is the only host, it may have
/// half of them, so that it is found soon when it comes back: a connect is retried ever less often.
const PER_HOST: usize = 2;
/// From this many queued jobs on the pool is [overloaded](BlockingPool::is_overloaded).
const LONG_QUEUE: usize = 256;

/// A pool of the process, for one kind of job.
pub(super) struct BlockingPool<J> {
    start: Start<J>,
    /// The host that each job waits for; `None`: no host that others wait for.
    running: HashMap<IdKey, Option<IpAddr>>,
    /// Empty if no job runs.
    queue: VecDeque<Queued<J>>,
}

/// Starts a thread, or gives the job back.
type Start<J> = Box<dyn FnMut(IdKey, J) -> Result<(), (J, io::Error)> + Send>;

struct Queued<J> {
    key: IdKey,
    to: Option<IpAddr>,
    job: J,
}

impl<J> BlockingPool<J> {
    pub(super) fn new(
        start: impl FnMut(IdKey, J) -> Result<(), (J, io::Error)> + Send + 'static,
    ) -> Self {
        Self { start: Box::new(start), running: HashMap::new(), queue: VecDeque::new() }
    }

    /// Starts a job that waits for this host, or queues it.
    ///
    /// # Errors
    /// There is no thread for it, and no job runs.
    pub(super) fn add(&mut self, key: IdKey, to: Option<IpAddr>, job: J) -> io::Result<()> {
        self.queue.push_back(Queued { key, to, job });
        // If one fails, no other was queued.
        self.start_queued().pop().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Whether so many jobs are queued that no peer may cause further ones.
    pub(super) fn is_overloaded(&self) -> bool {
        self.queue.len() >= LONG_QUEUE
    }

    /// Whether the job runs.
    pub(super) fn is_running(&self, key: IdKey) -> bool {
        self.running.contains_key(&key)
    }

    /// Drops a job that is queued. Returns whether it was.
    pub(super) fn cancel(&mut self, key: IdKey) -> bool {
        let at = self.queue.iter().position(|queued| queued.key == key);
        at.and_then(|at| self.queue.remove(at)).is_some()
    }

    /// A job has ended. Starts the next ones, and returns those that have failed (invariant 2).
    pub(super) fn on_done(&mut self, key: IdKey) -> Vec<(IdKey, io::Error)> {
        self.running.remove(&key);
        self.start_queued()
    }

    fn start_queued(&mut self) -> Vec<(IdKey, io::Error)> {
        let mut failed = Vec::new();
        while let Some(Queued { key, to, job }) = self.next() {
            match (self.start)(key, job) {
                Ok(()) => {
                    self.running.insert(key, to);
                }
                Err((_, error)) if self.running.is_empty() => failed.push((key, error)),
                Err((job, error)) => {
                    tracing::debug!(%error, "no thread for a call that waits for a peer");
                    self.queue.push_front(Queued { key, to, job });
                    break;
                }
            }
        }
        failed
    }

    /// The first queued job that may run.
    fn next(&mut self) -> Option<Queued<J>> {
        if self.queue.is_empty() || self.running.len() >= MAX_THREADS {
            return None;
        }
        if self.running.len() < MAX_THREADS / 2 {
            return self.queue.pop_front();
        }
        let mut counts = HashMap::<IpAddr, usize>::new();
        for to in self.running.values().flatten() {
            *counts.entry(*to).or_default() += 1;
        }
        let has_few = |to: IpAddr| counts.get(&to).is_none_or(|count| *count < PER_HOST);
        let at = self.queue.iter().position(|queued| queued.to.is_none_or(has_few))?;
        self.queue.remove(at)
    }
}

/// Runs a job in a thread. If there is no thread, gives the job back, and why.
pub(super) fn in_thread<J: Send + 'static>(
    builder: thread::Builder,
    job: J,
    run: impl FnOnce(J) + Send + 'static,
) -> Result<(), (J, io::Error)> {
    // A closure whose thread is not started is dropped.
    let job = Arc::new(Mutex::new(Some(job)));
    let taken = Arc::clone(&job);
    let body = move || {
        let job = taken.lock().take();
        if let Some(job) = job {
            run(job);
        }
    };
    let Err(error) = builder.spawn(body) else { return Ok(()) };
    let job = job.lock().take();
    job.map_or(Ok(()), |job| Err((job, error)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A pool of numbered jobs, and which were started.
    struct Numbered {
        pool: BlockingPool<usize>,
        keys: Vec<IdKey>,
        started: Arc<Mutex<Vec<usize>>>,
        has_threads: Arc<AtomicBool>,
    }

    impl Numbered {
        fn new() -> Self {
            let started = Arc::new(Mutex::new(Vec::new()));
            let has_threads = Arc::new(AtomicBool::new(true));
            let (starts, may_start) = (Arc::clone(&started), Arc::clone(&has_threads));
            let pool = BlockingPool::new(move |_, number: usize| {
                if !may_start.load(Ordering::Relaxed) {
                    return Err((number, io::ErrorKind::WouldBlock.into()));
                }
                starts.lock().push(number);
                Ok(())
            });
            Self { pool, keys: Vec::new(), started, has_threads }
        }

        fn add(&mut self, to: Option<IpAddr>) -> io::Result<()> {
            self.keys.push(IdKey::fresh());
            let number = self.keys.len() - 1;
            self.pool.add(self.keys[number], to, number)
        }

        /// The jobs with these numbers end, one after the other. Returns how many have failed.
        fn end(&mut self, numbers: impl IntoIterator<Item = usize>) -> usize {
            numbers.into_iter().map(|number| self.pool.on_done(self.keys[number]).len()).sum()
        }

        /// The jobs started since the last call.
        fn started(&self) -> Vec<usize> {
            std::mem::take(&mut *self.started.lock())
        }

        fn has_threads(&self, has: bool) {
            self.has_threads.store(has, Ordering::Relaxed);
        }
    }

    fn host(number: u8) -> Option<IpAddr> {
        Some([10, 9, 0, number].into())
    }

    #[test]
    fn silent_peers_take_a_bounded_number_of_threads() {
        let mut jobs = Numbered::new();
        (0..MAX_THREADS + 5).for_each(|_| jobs.add(None).unwrap());
        assert_eq!(jobs.started(), (0..MAX_THREADS).collect::<Vec<_>>());
        assert_eq!(jobs.end([7]), 0);
        assert_eq!(jobs.started(), [MAX_THREADS]);
        assert_eq!(jobs.end(8..20), 0);
        assert_eq!(jobs.started(), (MAX_THREADS + 1..MAX_THREADS + 5).collect::<Vec<_>>());
    }

    /// Regression: callers of seven silent servers took all threads, and those of healthy ones gave
    /// up.
    #[test]
    fn silent_hosts_leave_threads_to_others() {
        let mut jobs = Numbered::new();
        // The only host gets half of the threads.
        (0..100).for_each(|_| jobs.add(host(0)).unwrap());
        assert_eq!(jobs.started(), (0..MAX_THREADS / 2).collect::<Vec<_>>());
        for other in 1..=10 {
            for _ in 0..PER_HOST + 1 {
                jobs.add(host(other)).unwrap();
            }
            let first = 100 + (PER_HOST + 1) * (usize::from(other) - 1);
            assert_eq!(jobs.started(), (first..first + PER_HOST).collect::<Vec<_>>());
        }
        // It waits for the end of its own jobs only.
        assert_eq!(jobs.end([0]), 0);
        assert!(jobs.started().is_empty());
        assert_eq!(jobs.end([100]), 0);
        assert_eq!(jobs.started(), [100 + PER_HOST]);
        // Once few run, its next ones start.
        assert_eq!(jobs.end(1..MAX_THREADS / 2), 0);
        assert!(jobs.started().contains(&(MAX_THREADS / 2)));
    }

    #[test]
    fn a_long_queue_counts_as_overloaded() {
        let mut jobs = Numbered::new();
        for number in 0..MAX_THREADS + LONG_QUEUE {
            assert!(!jobs.pool.is_overloaded(), "{number}");
            jobs.add(None).unwrap();
        }
        assert!(jobs.pool.is_overloaded());
        assert_eq!(jobs.end([0]), 0);
        assert!(!jobs.pool.is_overloaded());
    }

    /// Regression: one thread that could not be started emptied the queue: all jobs failed.
    #[test]
    fn without_a_thread_jobs_wait_for_another_end() {
        let mut jobs = Numbered::new();
        (0..MAX_THREADS + 50).for_each(|_| jobs.add(None).unwrap());
        jobs.started();
        jobs.has_threads(false);
        assert_eq!(jobs.end([0, 1]), 0);
        // Nor does one fail that is added meanwhile.
        jobs.add(None).unwrap();
        assert!(jobs.started().is_empty());
        jobs.has_threads(true);
        assert_eq!(jobs.end([2]), 0);
        assert_eq!(jobs.started(), [MAX_THREADS, MAX_THREADS + 1, MAX_THREADS + 2]);
        // Once no job runs, the others fail.
        jobs.has_threads(false);
        assert_eq!(jobs.end(3..MAX_THREADS + 2), 0);
        assert_eq!(jobs.end([MAX_THREADS + 2]), 50 + 1 - 3);
        assert!(jobs.add(None).is_err());
        jobs.has_threads(true);
        jobs.add(None).unwrap();
    }

    /// Regression: it stayed until an earlier job ended, and so did its queue pair.
    #[test]
    fn a_queued_job_is_dropped_at_once() {
        let mut pool = BlockingPool::new(|_, _: Arc<()>| Ok(()));
        let keys = [(); MAX_THREADS].map(|()| IdKey::fresh());
        keys.iter().for_each(|key| pool.add(*key, None, Arc::default()).unwrap());
        let (key, job) = (IdKey::fresh(), Arc::new(()));
        pool.add(key, None, Arc::clone(&job)).unwrap();
        assert_eq!(Arc::strong_count(&job), 2);
        assert!(!pool.cancel(keys[0]) && pool.is_running(keys[0]), "it is under way");
        assert!(!pool.is_running(key));
        assert!(pool.cancel(key));
        assert_eq!(Arc::strong_count(&job), 1);
        assert!(pool.on_done(keys[0]).is_empty() && !pool.cancel(key));
    }

    #[test]
    fn a_job_without_a_thread_is_given_back() {
        let too_large = thread::Builder::new().stack_size(1 << 60);
        let (job, _) = in_thread(too_large, "job", |_| unreachable!()).unwrap_err();
        let (sender, receiver) = std::sync::mpsc::channel();
        let run = move |job| sender.send(job).unwrap();
        in_thread(thread::Builder::new(), job, run).unwrap();
        assert_eq!(receiver.recv().unwrap(), "job");
    }
}
