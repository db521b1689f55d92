//! Turns to compute for a handshake, of this process.
//!
//! Owns the queue of the handshakes that want to compute. Knows none of them: a handshake is a
//! waker, the runtime that polls it, and the source of its peer.
//!
//! Invariants:
//! 1. A turn is taken and given back in one poll. It is never kept for a handshake that waits, so
//!    a runtime that stands still keeps no turn from others.
//! 2. A handshake that wants a turn waits behind those of its runtime alone. While there is a turn,
//!    the first of each runtime has been woken.
//! 3. Sources are served one after the other, whatever number of handshakes each of them has.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::hash::Hash;
use std::net::IpAddr;
use std::task::{Context, Poll, Waker};

use tokio::runtime::{Handle, Id};

use crate::device::PeerIdentity;
use crate::lock::Mutex;
use crate::memory::process::PerProcess;

static TURNS: PerProcess<Turns<Id>> = PerProcess::new();

/// Where a connection comes from, as far as the device knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// A host of the network.
    Address(IpAddr),
    /// A user of this machine.
    User(u32),
    /// The device does not know.
    Unknown,
    /// This process: it connects.
    Own,
}

impl From<&PeerIdentity> for Source {
    fn from(peer: &PeerIdentity) -> Self {
        match peer {
            PeerIdentity::Network(address) => Self::Address(address.ip().to_canonical()),
            PeerIdentity::Process { uid, .. } => Self::User(*uid),
            _ => Self::Unknown,
        }
    }
}

/// Runs `step` when it is the turn of a handshake with this source: in one poll, without waiting.
pub(super) async fn compute<R>(source: Source, step: impl FnOnce() -> R) -> R {
    #[cfg(feature = "model")]
    crate::simulation::give_way().await;
    let mut place = Place::new(TURNS.get(), Handle::current().id(), source);
    let mut step = Some(step);
    poll_fn(|context| match (place.poll(context), step.take()) {
        (Some(_turn), Some(step)) => Poll::Ready(step()),
        (_, waiting) => {
            step = waiting;
            Poll::Pending
        }
    })
    .await
}

/// As many turns as half of the cores, and the handshakes that want one. `R` names a runtime.
struct Turns<R: Copy + Eq + Hash>(Mutex<State<R>>);

struct State<R> {
    free: usize,
    next_ticket: u64,
    /// None of them is empty.
    queues: HashMap<R, Queue>,
}

/// The handshakes of one runtime, by source. The source at the front is the next one.
#[derive(Default)]
struct Queue(VecDeque<(Source, VecDeque<Waiting>)>);

struct Waiting {
    ticket: u64,
    waker: Waker,
}

impl<R: Copy + Eq + Hash> Turns<R> {
    fn new(count: usize) -> Self {
        Self(Mutex::new(State { free: count, next_ticket: 0, queues: HashMap::new() }))
    }
}

impl<R: Copy + Eq + Hash> Default for Turns<R> {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self::new((cores / 2).max(1))
    }
}

impl<R: Copy + Eq + Hash> State<R> {
    /// Those to wake: the first of each runtime, if there is a turn (invariant 2).
    fn first(&self) -> Vec<Waker> {
        if self.free == 0 {
            return Vec::new();
        }
        let first = self.queues.values().filter_map(Queue::first);
        first.map(|waiting| waiting.waker.clone()).collect()
    }
}

impl Queue {
    fn first(&self) -> Option<&Waiting> {
        self.0.front().and_then(|(_, waiting)| waiting.front())
    }

    fn of(&mut self, source: Source) -> &mut VecDeque<Waiting> {
        let found = self.0.iter().position(|(of, _)| *of == source);
        let at = found.unwrap_or_else(|| {
            self.0.push_back((source, VecDeque::new()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    fn remove(&mut self, source: Source, ticket: u64) {
        self.of(source).retain(|waiting| waiting.ticket != ticket);
        self.0.retain(|(_, waiting)| !waiting.is_empty());
    }

    /// The first has its turn: its source goes behind all others.
    fn serve(&mut self) {
        if let Some((source, mut waiting)) = self.0.pop_front() {
            let _served = waiting.pop_front();
            if !waiting.is_empty() {
                self.0.push_back((source, waiting));
            }
        }
    }
}

/// The place of one handshake among those that want a turn.
struct Place<'a, R: Copy + Eq + Hash> {
    turns: &'a Turns<R>,
    runtime: R,
    source: Source,
    /// While it waits.
    ticket: Option<u64>,
}

impl<'a, R: Copy + Eq + Hash> Place<'a, R> {
    const fn new(turns: &'a Turns<R>, runtime: R, source: Source) -> Self {
        Self { turns, runtime, source, ticket: None }
    }

    /// Takes a turn, or waits for one.
    fn poll(&mut self, context: &Context<'_>) -> Option<Turn<'a, R>> {
        let waker = context.waker().clone();
        let (mut _replaced, mut turn) = (None, None);
        let woken = {
            let mut guard = self.turns.0.lock();
            let state = &mut *guard;
            let first = state.queues.get(&self.runtime).and_then(Queue::first);
            let is_first = first.map(|waiting| waiting.ticket) == self.ticket;
            if state.free > 0 && is_first {
                state.free -= 1;
                turn = Some(Turn(self.turns));
                if self.ticket.take().is_some() {
                    self.leave(state, |queue| queue.serve());
                }
                state.first()
            } else {
                let queue = state.queues.entry(self.runtime).or_default().of(self.source);
                let known = queue.iter_mut().find(|waiting| Some(waiting.ticket) == self.ticket);
                match known {
                    Some(known) => _replaced = Some(std::mem::replace(&mut known.waker, waker)),
                    None => {
                        queue.push_back(Waiting { ticket: state.next_ticket, waker });
                        self.ticket = Some(state.next_ticket);
                        state.next_ticket += 1;
                    }
                }
                Vec::new()
            }
        };
        woken.into_iter().for_each(Waker::wake);
        turn
    }

    fn leave(&self, state: &mut State<R>, by: impl FnOnce(&mut Queue)) {
        if let Some(queue) = state.queues.get_mut(&self.runtime) {
            by(queue);
            if queue.0.is_empty() {
                state.queues.remove(&self.runtime);
            }
        }
    }
}

impl<R: Copy + Eq + Hash> Drop for Place<'_, R> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let woken = {
            let mut state = self.turns.0.lock();
            self.leave(&mut state, |queue| queue.remove(self.source, ticket));
            state.first()
        };
        woken.into_iter().for_each(Waker::wake);
    }
}

/// The right to compute now.
struct Turn<'a, R: Copy + Eq + Hash>(&'a Turns<R>);

impl<R: Copy + Eq + Hash> Drop for Turn<'_, R> {
    fn drop(&mut self) {
        let woken = {
            let mut state = self.0.0.lock();
            state.free += 1;
            state.first()
        };
        woken.into_iter().for_each(Waker::wake);
    }
}

impl<R: Copy + Eq + Hash> fmt::Debug for Turns<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").field("free", &self.0.lock().free).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Counts(AtomicU32);

    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    struct Handshake<'a> {
        place: Place<'a, u8>,
        woken: Arc<Counts>,
    }

    impl<'a> Handshake<'a> {
        fn poll(&mut self) -> Option<Turn<'a, u8>> {
            let waker = Waker::from(Arc::clone(&self.woken));
            self.woken.0.store(0, Ordering::SeqCst);
            self.place.poll(&Context::from_waker(&waker))
        }

        fn is_woken(&self) -> bool {
            self.woken.0.load(Ordering::SeqCst) > 0
        }
    }

    fn peer(last: u8) -> Source {
        Source::from(&PeerIdentity::Network(([10, 0, 0, last], 7).into()))
    }

    fn new(turns: &Turns<u8>, runtime: u8, source: Source) -> Handshake<'_> {
        Handshake { place: Place::new(turns, runtime, source), woken: Arc::default() }
    }

    /// A good client that comes last waits for one turn of a crowd, not for all of them.
    #[test]
    fn a_crowd_from_one_address_delays_others_little() {
        let turns = Turns::new(1);
        let first = new(&turns, 0, peer(1)).poll();
        let mut all: Vec<_> = (0..250).map(|_| new(&turns, 0, peer(1))).collect();
        all.push(new(&turns, 0, peer(2)));
        assert!(all.iter_mut().all(|it| it.poll().is_none()));
        drop(first);
        let mut served = Vec::new();
        while let Some(at) = all.iter().position(Handshake::is_woken) {
            let turn = all[at].poll();
            assert!(turn.is_some(), "who is woken has a turn");
            served.push(at);
        }
        assert_eq!(served[..3], [0, 250, 1]);
        assert_eq!(served.len(), 251);
        assert!(turns.0.lock().queues.is_empty());
    }

    /// Those of one runtime that nobody polls any more keep nothing from another runtime.
    #[test]
    fn a_runtime_that_stands_still_keeps_no_turn() {
        let turns = Turns::new(1);
        let held = new(&turns, 0, peer(1)).poll();
        let mut idle: Vec<_> = (0..9).map(|_| new(&turns, 0, peer(1))).collect();
        let mut alive: Vec<_> = (0..2).map(|_| new(&turns, 1, peer(1))).collect();
        assert!(idle.iter_mut().chain(&mut alive).all(|it| it.poll().is_none()));
        drop(held);
        assert!(idle[0].is_woken() && alive[0].is_woken());
        assert!(!idle[1].is_woken() && !alive[1].is_woken());
        for handshake in &mut alive {
            assert!(handshake.is_woken() && handshake.poll().is_some());
        }
        assert!(new(&turns, 1, peer(1)).poll().is_some(), "nobody of this runtime waits");
        // In its own runtime nobody overtakes.
        assert!(new(&turns, 0, peer(3)).poll().is_none());
        assert!(idle[0].poll().is_some());
    }

    #[test]
    fn a_dropped_place_passes_its_turn_on() {
        let turns = Turns::new(2);
        let both = [(); 2].map(|()| new(&turns, 0, peer(1)).poll());
        let (mut first, mut second) = (new(&turns, 0, peer(1)), new(&turns, 0, peer(2)));
        assert!(first.poll().is_none() && second.poll().is_none());
        drop(both);
        assert!(first.is_woken() && !second.is_woken());
        drop(first);
        assert!(second.is_woken());
        let held = second.poll();
        assert_eq!(turns.0.lock().free, 1);
        drop(held);
        assert_eq!(turns.0.lock().free, 2);
        assert!(turns.0.lock().queues.is_empty());
    }

    #[test]
    fn mapped_addresses_are_one_source() {
        let mapped = PeerIdentity::Network("[::ffff:10.0.0.1]:7".parse().unwrap());
        assert_eq!(Source::from(&mapped), peer(1));
    }
}
