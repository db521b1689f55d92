//! Calls of librdmacm that wait for a peer, each in a thread of its own: connects, and the ends of those
//! that were given up.
//!
//! Invariants:
//! 1. Of one kind at most [`MOST_ERRANDS`] run at once, and from half of that on none to a host to which
//!    [`FEW`] do. The others wait in line.
//! 2. The next ones start when one has come home. One for which there is no thread waits for that; where
//!    none is out it has failed, since none would come home.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

use super::id_link::IdKey;

/// Most threads of one kind. A peer that says nothing takes one for as long as the device is patient: siw two
/// minutes for TCP, then 10 s for an answer.
const MOST_ERRANDS: usize = 64;
/// So many to one host hold up no others: a host that is silent would take all threads, as its callers give
/// up and try again long before the device does. Alone it may have half of them, so that it is found soon
/// when it comes back: the tries of a connect get rarer.
const FEW: usize = 2;
/// From this many in line on there are [too many](Errands::are_too_many).
const LONG_LINE: usize = 256;

/// Those of one kind, of the process.
pub(super) struct Errands<E> {
    start: Start<E>,
    /// Where they go; `None`: nowhere that others go to.
    running: HashMap<IdKey, Option<IpAddr>>,
    /// Empty where none runs.
    waiting: VecDeque<Waiting<E>>,
}

/// Starts a thread, or gives back what it was for.
type Start<E> = Box<dyn FnMut(IdKey, E) -> Result<(), (E, io::Error)> + Send>;

struct Waiting<E> {
    key: IdKey,
    to: Option<IpAddr>,
    errand: E,
}

impl<E> Errands<E> {
    pub(super) fn new(
        start: impl FnMut(IdKey, E) -> Result<(), (E, io::Error)> + Send + 'static,
    ) -> Self {
        Self { start: Box::new(start), running: HashMap::new(), waiting: VecDeque::new() }
    }

    /// Starts one to this host, or puts it in line. An error: there is no thread, and none is out.
    pub(super) fn add(&mut self, key: IdKey, to: Option<IpAddr>, errand: E) -> io::Result<()> {
        self.waiting.push_back(Waiting { key, to, errand });
        // Where one fails nobody else was in line.
        self.start_waiting().pop().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Whether so many wait in line that no peer may cause further ones.
    pub(super) fn are_too_many(&self) -> bool {
        self.waiting.len() >= LONG_LINE
    }

    /// Whether one is out.
    pub(super) fn is_out(&self, key: IdKey) -> bool {
        self.running.contains_key(&key)
    }

    /// One is not wanted any more: it is dropped, if it is in line. Whether it was.
    pub(super) fn forget(&mut self, key: IdKey) -> bool {
        let at = self.waiting.iter().position(|waiting| waiting.key == key);
        at.and_then(|at| self.waiting.remove(at)).is_some()
    }

    /// One has come home. Starts the next; returns those that have failed (invariant 2).
    pub(super) fn on_done(&mut self, key: IdKey) -> Vec<(IdKey, io::Error)> {
        self.running.remove(&key);
        self.start_waiting()
    }

    fn start_waiting(&mut self) -> Vec<(IdKey, io::Error)> {
        let mut failed = Vec::new();
        while let Some(Waiting { key, to, errand }) = self.next() {
            match (self.start)(key, errand) {
                Ok(()) => {
                    self.running.insert(key, to);
                }
                Err((_, error)) if self.running.is_empty() => failed.push((key, error)),
                Err((errand, error)) => {
                    tracing::debug!(%error, "no thread for a call that waits for a peer");
                    self.waiting.push_front(Waiting { key, to, errand });
                    break;
                }
            }
        }
        failed
    }

    /// The first in line that may run.
    fn next(&mut self) -> Option<Waiting<E>> {
        if self.waiting.is_empty() || self.running.len() >= MOST_ERRANDS {
            return None;
        }
        if self.running.len() < MOST_ERRANDS / 2 {
            return self.waiting.pop_front();
        }
        let mut counts = HashMap::<IpAddr, usize>::new();
        for to in self.running.values().flatten() {
            *counts.entry(*to).or_default() += 1;
        }
        let has_few = |to: IpAddr| counts.get(&to).is_none_or(|count| *count < FEW);
        let at = self.waiting.iter().position(|waiting| waiting.to.is_none_or(has_few))?;
        self.waiting.remove(at)
    }
}

/// Runs an errand in a thread, or gives it back with why there is none.
pub(super) fn in_thread<E: Send + 'static>(
    builder: thread::Builder,
    errand: E,
    run: impl FnOnce(E) + Send + 'static,
) -> Result<(), (E, io::Error)> {
    // A thread that is not started drops what it was to have.
    let errand = Arc::new(Mutex::new(Some(errand)));
    let taken = Arc::clone(&errand);
    let job = move || {
        let errand = taken.lock().take();
        if let Some(errand) = errand {
            run(errand);
        }
    };
    let Err(error) = builder.spawn(job) else { return Ok(()) };
    let errand = errand.lock().take();
    errand.map_or(Ok(()), |errand| Err((errand, error)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Errands with numbers for keys, and what has been started.
    struct Office {
        errands: Errands<usize>,
        keys: Vec<IdKey>,
        started: Arc<Mutex<Vec<usize>>>,
        has_threads: Arc<AtomicBool>,
    }

    impl Office {
        fn new() -> Self {
            let started = Arc::new(Mutex::new(Vec::new()));
            let has_threads = Arc::new(AtomicBool::new(true));
            let (starts, may_start) = (Arc::clone(&started), Arc::clone(&has_threads));
            let errands = Errands::new(move |_, number: usize| {
                if !may_start.load(Ordering::Relaxed) {
                    return Err((number, io::ErrorKind::WouldBlock.into()));
                }
                starts.lock().push(number);
                Ok(())
            });
            Self { errands, keys: Vec::new(), started, has_threads }
        }

        fn add(&mut self, to: Option<IpAddr>) -> io::Result<()> {
            self.keys.push(IdKey::fresh());
            let number = self.keys.len() - 1;
            self.errands.add(self.keys[number], to, number)
        }

        /// The errands with these numbers come home, one after the other. How many have failed.
        fn come_home(&mut self, numbers: impl IntoIterator<Item = usize>) -> usize {
            numbers.into_iter().map(|number| self.errands.on_done(self.keys[number]).len()).sum()
        }

        /// What has been started since the last call.
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
    fn calls_that_wait_for_silent_peers_take_no_more_threads_than_they_may() {
        let mut office = Office::new();
        (0..MOST_ERRANDS + 5).for_each(|_| office.add(None).unwrap());
        assert_eq!(office.started(), (0..MOST_ERRANDS).collect::<Vec<_>>());
        assert_eq!(office.come_home([7]), 0);
        assert_eq!(office.started(), [MOST_ERRANDS]);
        assert_eq!(office.come_home(8..20), 0);
        assert_eq!(office.started(), (MOST_ERRANDS + 1..MOST_ERRANDS + 5).collect::<Vec<_>>());
    }

    /// Callers of seven silent servers took all threads, and healthy ones were given up in line.
    #[test]
    fn hosts_that_are_silent_leave_threads_to_others() {
        let mut office = Office::new();
        // One alone gets half of the threads.
        (0..100).for_each(|_| office.add(host(0)).unwrap());
        assert_eq!(office.started(), (0..MOST_ERRANDS / 2).collect::<Vec<_>>());
        for other in 1..=10 {
            for _ in 0..FEW + 1 {
                office.add(host(other)).unwrap();
            }
            let first = 100 + (FEW + 1) * (usize::from(other) - 1);
            assert_eq!(office.started(), (first..first + FEW).collect::<Vec<_>>());
        }
        // Still it waits for its own and for no others'.
        assert_eq!(office.come_home([0]), 0);
        assert!(office.started().is_empty());
        assert_eq!(office.come_home([100]), 0);
        assert_eq!(office.started(), [100 + FEW]);
        // Once few are out it goes on.
        assert_eq!(office.come_home(1..MOST_ERRANDS / 2), 0);
        assert!(office.started().contains(&(MOST_ERRANDS / 2)));
    }

    #[test]
    fn a_long_line_is_told_until_it_is_shorter() {
        let mut office = Office::new();
        for number in 0..MOST_ERRANDS + LONG_LINE {
            assert!(!office.errands.are_too_many(), "{number}");
            office.add(None).unwrap();
        }
        assert!(office.errands.are_too_many());
        assert_eq!(office.come_home([0]), 0);
        assert!(!office.errands.are_too_many());
    }

    /// One thread that could not be started emptied the line: all of it had failed.
    #[test]
    fn for_want_of_a_thread_the_line_waits_for_the_next_that_comes_home() {
        let mut office = Office::new();
        (0..MOST_ERRANDS + 50).for_each(|_| office.add(None).unwrap());
        office.started();
        office.has_threads(false);
        assert_eq!(office.come_home([0, 1]), 0);
        // Nor does one fail that comes meanwhile.
        office.add(None).unwrap();
        assert!(office.started().is_empty());
        office.has_threads(true);
        assert_eq!(office.come_home([2]), 0);
        assert_eq!(office.started(), [MOST_ERRANDS, MOST_ERRANDS + 1, MOST_ERRANDS + 2]);
        // Where none comes home any more they fail.
        office.has_threads(false);
        assert_eq!(office.come_home(3..MOST_ERRANDS + 2), 0);
        assert_eq!(office.come_home([MOST_ERRANDS + 2]), 50 + 1 - 3);
        assert!(office.add(None).is_err());
        office.has_threads(true);
        office.add(None).unwrap();
    }

    /// It stayed until one of those before it came home, and with it the queue pair and all that it has.
    #[test]
    fn one_that_is_given_up_in_line_is_dropped_at_once() {
        let mut errands = Errands::new(|_, _: Arc<()>| Ok(()));
        let keys = [(); MOST_ERRANDS].map(|()| IdKey::fresh());
        keys.iter().for_each(|key| errands.add(*key, None, Arc::default()).unwrap());
        let (key, errand) = (IdKey::fresh(), Arc::new(()));
        errands.add(key, None, Arc::clone(&errand)).unwrap();
        assert_eq!(Arc::strong_count(&errand), 2);
        assert!(!errands.forget(keys[0]) && errands.is_out(keys[0]), "it is under way");
        assert!(!errands.is_out(key));
        assert!(errands.forget(key));
        assert_eq!(Arc::strong_count(&errand), 1);
        assert!(errands.on_done(keys[0]).is_empty() && !errands.forget(key));
    }

    #[test]
    fn what_a_thread_was_for_comes_back_if_there_is_none() {
        let too_large = thread::Builder::new().stack_size(1 << 60);
        let (errand, _) = in_thread(too_large, "errand", |_| unreachable!()).unwrap_err();
        let (tell, told) = std::sync::mpsc::channel();
        let run = move |errand| tell.send(errand).unwrap();
        in_thread(thread::Builder::new(), errand, run).unwrap();
        assert_eq!(told.recv().unwrap(), "errand");
    }
}
