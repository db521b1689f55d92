//! Calls of librdmacm that wait for a peer, each in a thread of its own: connects, and the ends of those
//! that were given up.
//!
//! Invariants:
//! 1. Of one kind at most [`MOST_ERRANDS`] run at once. The others wait in line, and those that are not wanted
//!    any more are dropped there.
//! 2. The next one starts when one has come home.

use std::collections::VecDeque;
use std::io;

use super::id_link::IdKey;

/// Most threads of one kind. A peer that says nothing takes one for as long as the device is patient: siw two
/// minutes for TCP, then 10 s for an answer.
const MOST_ERRANDS: usize = 64;
/// From this many in line on there are [too many](Errands::are_too_many).
const LONG_LINE: usize = 256;

/// Those of one kind, of the process.
pub(super) struct Errands<E> {
    /// Starts a thread.
    start: Box<dyn FnMut(IdKey, E) -> io::Result<()> + Send>,
    running: usize,
    waiting: VecDeque<(IdKey, E)>,
}

impl<E> Errands<E> {
    pub(super) fn new(start: impl FnMut(IdKey, E) -> io::Result<()> + Send + 'static) -> Self {
        Self { start: Box::new(start), running: 0, waiting: VecDeque::new() }
    }

    /// Starts one, or puts it in line.
    pub(super) fn add(&mut self, key: IdKey, errand: E) -> io::Result<()> {
        if self.running >= MOST_ERRANDS {
            self.waiting.push_back((key, errand));
            return Ok(());
        }
        (self.start)(key, errand)?;
        self.running += 1;
        Ok(())
    }

    /// Whether so many wait in line that no peer may cause further ones.
    pub(super) fn are_too_many(&self) -> bool {
        self.waiting.len() >= LONG_LINE
    }

    /// One has come home. Starts the next that is wanted still; returns those that could not be started.
    pub(super) fn on_done(&mut self, is_wanted: impl Fn(IdKey) -> bool) -> Vec<(IdKey, io::Error)> {
        self.running -= 1;
        let mut failed = Vec::new();
        while self.running < MOST_ERRANDS {
            let Some((key, errand)) = self.waiting.pop_front() else { break };
            if !is_wanted(key) {
                continue;
            }
            match (self.start)(key, errand) {
                Ok(()) => self.running += 1,
                Err(error) => failed.push((key, error)),
            }
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn calls_that_wait_for_silent_peers_take_no_more_threads_than_they_may() {
        let started = Arc::new(Mutex::new(Vec::new()));
        let starts = Arc::clone(&started);
        let mut errands = Errands::new(move |_, number: usize| {
            if number == MOST_ERRANDS + 2 {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            starts.lock().unwrap().push(number);
            Ok(())
        });
        let keys: Vec<_> = (0..MOST_ERRANDS + 5).map(|_| IdKey::fresh()).collect();
        for (number, key) in keys.iter().enumerate() {
            errands.add(*key, number).unwrap();
        }
        let first: Vec<_> = (0..MOST_ERRANDS).collect();
        assert_eq!(*started.lock().unwrap(), first);

        // The first in line has been given up.
        let is_wanted = |key| key != keys[MOST_ERRANDS];
        assert!(errands.on_done(is_wanted).is_empty());
        assert_eq!(started.lock().unwrap()[MOST_ERRANDS..], [MOST_ERRANDS + 1]);
        // One that cannot be started keeps the place from nobody.
        let failed = errands.on_done(is_wanted);
        assert!(matches!(failed[..], [(key, _)] if key == keys[MOST_ERRANDS + 2]));
        assert_eq!(started.lock().unwrap()[MOST_ERRANDS..], [MOST_ERRANDS + 1, MOST_ERRANDS + 3]);
    }

    #[test]
    fn a_long_line_is_told_until_it_is_shorter() {
        let mut errands = Errands::new(|_, _: usize| Ok(()));
        for number in 0..MOST_ERRANDS + LONG_LINE {
            assert!(!errands.are_too_many(), "{number}");
            errands.add(IdKey::fresh(), number).unwrap();
        }
        assert!(errands.are_too_many());
        assert!(errands.on_done(|_| true).is_empty());
        assert!(!errands.are_too_many());
    }
}
