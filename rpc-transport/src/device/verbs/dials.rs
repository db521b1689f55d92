//! Connects that wait for their peers in a call of librdmacm, each in a thread of its own.
//!
//! Invariants:
//! 1. At most [`MOST_DIALS`] run at once. The others wait in line, and those whose connect was given up
//!    meanwhile are dropped there.
//! 2. The next one starts when one has come home.

use std::collections::VecDeque;
use std::io;

use super::id_link::IdKey;

/// Most threads that connect. A peer that says nothing takes one for as long as TCP is patient: two minutes.
const MOST_DIALS: usize = 64;

/// Those of the process.
pub(super) struct Dials<D> {
    /// Starts a thread.
    start: Box<dyn FnMut(IdKey, D) -> io::Result<()> + Send>,
    running: usize,
    waiting: VecDeque<(IdKey, D)>,
}

impl<D> Dials<D> {
    pub(super) fn new(start: impl FnMut(IdKey, D) -> io::Result<()> + Send + 'static) -> Self {
        Self { start: Box::new(start), running: 0, waiting: VecDeque::new() }
    }

    /// Starts one, or puts it in line.
    pub(super) fn add(&mut self, key: IdKey, dial: D) -> io::Result<()> {
        if self.running >= MOST_DIALS {
            self.waiting.push_back((key, dial));
            return Ok(());
        }
        (self.start)(key, dial)?;
        self.running += 1;
        Ok(())
    }

    /// One has come home. Starts the next that is wanted still; returns those that could not be started.
    pub(super) fn on_done(&mut self, is_wanted: impl Fn(IdKey) -> bool) -> Vec<(IdKey, io::Error)> {
        self.running -= 1;
        let mut failed = Vec::new();
        while self.running < MOST_DIALS {
            let Some((key, dial)) = self.waiting.pop_front() else { break };
            if !is_wanted(key) {
                continue;
            }
            match (self.start)(key, dial) {
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
    fn connects_that_wait_for_silent_peers_take_no_more_threads_than_they_may() {
        let started = Arc::new(Mutex::new(Vec::new()));
        let starts = Arc::clone(&started);
        let mut dials = Dials::new(move |_, number: usize| {
            if number == MOST_DIALS + 2 {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            starts.lock().unwrap().push(number);
            Ok(())
        });
        let keys: Vec<_> = (0..MOST_DIALS + 5).map(|_| IdKey::fresh()).collect();
        for (number, key) in keys.iter().enumerate() {
            dials.add(*key, number).unwrap();
        }
        let first: Vec<_> = (0..MOST_DIALS).collect();
        assert_eq!(*started.lock().unwrap(), first);

        // The first in line has been given up.
        let is_wanted = |key| key != keys[MOST_DIALS];
        assert!(dials.on_done(is_wanted).is_empty());
        assert_eq!(started.lock().unwrap()[MOST_DIALS..], [MOST_DIALS + 1]);
        // One that cannot be started keeps the place from nobody.
        let failed = dials.on_done(is_wanted);
        assert!(matches!(failed[..], [(key, _)] if key == keys[MOST_DIALS + 2]));
        assert_eq!(started.lock().unwrap()[MOST_DIALS..], [MOST_DIALS + 1, MOST_DIALS + 3]);
    }
}
