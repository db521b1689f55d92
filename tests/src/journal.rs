//! Gates and marks: how a test controls handlers and learns how they ended, without a clock.
//!
//! Invariants:
//! 1. An open gate stays open.
//! 2. A handler that was started leaves exactly one further mark.

use std::collections::{HashMap, HashSet};

use tokio::sync::watch;

use crate::probe::Mark;

#[derive(Debug, Default)]
struct State {
    open: HashSet<u64>,
    marks: HashMap<(u64, Mark), u64>,
}

/// State shared by the handlers of one server.
#[derive(Debug)]
pub struct Journal {
    state: watch::Sender<State>,
    /// For handlers that block their thread.
    blocking: (parking_lot::Mutex<HashSet<u64>>, parking_lot::Condvar),
}

impl Default for Journal {
    fn default() -> Self {
        let (state, _) = watch::channel(State::default());
        Self { state, blocking: Default::default() }
    }
}

impl Journal {
    /// Opens a gate.
    pub fn open(&self, tag: u64) {
        self.blocking.0.lock().insert(tag);
        self.blocking.1.notify_all();
        self.state.send_modify(|state| {
            state.open.insert(tag);
        });
    }

    /// Waits at a gate, leaving marks.
    pub async fn pass(&self, tag: u64) {
        let mut visit = Visit { journal: self, tag, finished: false };
        self.mark(tag, Mark::Started);
        let mut state = self.state.subscribe();
        // The sender lives in `self`.
        let _ = state.wait_for(|state| state.open.contains(&tag)).await;
        visit.finished = true;
    }

    /// Waits at a gate, blocking the thread. Leaves no mark before that: a task that a mark wakes
    /// may wait for this very thread.
    pub fn pass_blocking(&self, tag: u64) {
        let mut open = self.blocking.0.lock();
        while !open.contains(&tag) {
            self.blocking.1.wait(&mut open);
        }
    }

    /// Marks so far.
    #[must_use]
    pub fn marks(&self, tag: u64, mark: Mark) -> u64 {
        self.state.borrow().marks.get(&(tag, mark)).copied().unwrap_or(0)
    }

    /// Waits for at least `count` marks; returns their number.
    pub async fn wait_for(&self, tag: u64, mark: Mark, count: u64) -> u64 {
        let mut state = self.state.subscribe();
        let count_of = |state: &State| state.marks.get(&(tag, mark)).copied().unwrap_or(0);
        match state.wait_for(|state| count_of(state) >= count).await {
            Ok(state) => count_of(&state),
            Err(_) => 0,
        }
    }

    fn mark(&self, tag: u64, mark: Mark) {
        self.state.send_modify(|state| *state.marks.entry((tag, mark)).or_default() += 1);
    }
}

/// One handler at a gate.
struct Visit<'a> {
    journal: &'a Journal,
    tag: u64,
    finished: bool,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let mark = if self.finished { Mark::Finished } else { Mark::Cancelled };
        self.journal.mark(self.tag, mark);
    }
}
