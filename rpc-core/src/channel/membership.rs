//! Which end points a channel uses, given what its resolver says and when.
//!
//! Owns the end points in use. A registry may be wrong: it may be wiped, restored from an old
//! copy, or change its mind all the time. So not all that it says is done at once.
//!
//! Invariants:
//! 1. An error changes nothing. A set that says what the last one said changes nothing.
//! 2. Sets are applied [`DEBOUNCE`] after the first that was not; the latest counts. The first set
//!    of all is applied at once.
//! 3. A set without end points is obeyed once it has been the last word for [`EMPTY_GRACE`].
//! 4. Of more than half of the end points that leave at once, those that still answer leave in
//!    steps: half of them each [`STEP`].
//! 5. At most [`MAX_MEMBERS`] are in use that a set names, each once, and as many that leave.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rpc_transport::address::Address;
use rpc_transport::wait::after;

use super::endpoint::Endpoint;
use super::rendezvous::{address_hash, subset};

/// Most end points that are used of those that a resolver names.
pub const MAX_MEMBERS: usize = 1024;
/// How long sets are collected before the latest is applied.
pub const DEBOUNCE: Duration = Duration::from_millis(100);
/// How long the last word must be that there is nobody.
pub const EMPTY_GRACE: Duration = Duration::from_secs(30);
/// Most end points of a priority, where nothing else is asked for: in general, and where they are
/// reached by NICs, which have room for fewer connections.
const SUBSET: usize = 32;
const SUBSET_OF_NICS: usize = 8;
/// Time between two steps in which end points leave.
pub const STEP: Duration = Duration::from_secs(10);

/// The end points of a channel.
#[derive(Debug)]
pub struct Membership {
    /// Those of the last set that was applied.
    named: Vec<Endpoint>,
    /// Those that are named no longer, and when the next of them leave.
    leaving: Vec<Endpoint>,
    leave_at: Option<Instant>,
    /// What the resolver said last.
    said: Option<Vec<Endpoint>>,
    /// When that is applied, if it is not yet.
    due: Option<Instant>,
    /// Most members of one priority, and what makes the choice of this channel its own.
    subset: Option<usize>,
    nonce: u64,
}

impl Membership {
    /// Uses at most `subset` end points of each priority; which ones depends on the `nonce`.
    #[must_use]
    pub fn new(subset: Option<usize>, nonce: u64) -> Self {
        let (named, leaving) = (Vec::new(), Vec::new());
        Self { named, leaving, leave_at: None, said: None, due: None, subset, nonce }
    }

    /// The end points in use, each once.
    pub fn members(&self) -> impl Iterator<Item = &Endpoint> {
        self.named.iter().chain(&self.leaving)
    }

    /// Records what the resolver says: the whole set. Gives how many of it are beyond what may be
    /// used.
    pub fn on_set(&mut self, set: Vec<Endpoint>, now: Instant) -> usize {
        let mut known = HashSet::new();
        let mut once: Vec<Endpoint> =
            set.into_iter().filter(|it| known.insert(it.address().clone())).collect();
        let beyond = once.len().saturating_sub(MAX_MEMBERS);
        if beyond > 0 {
            // Not the first ones: the order may change with each answer.
            once.sort_by_cached_key(|it| address_hash(it.address()));
            once.truncate(MAX_MEMBERS);
        }
        once.sort_by_cached_key(|it| it.address().to_string());
        if self.said.as_ref() == Some(&once) {
            return beyond;
        }
        let wait = match (once.is_empty(), self.members().next().is_none()) {
            (true, _) => EMPTY_GRACE,
            (false, true) => Duration::ZERO,
            (false, false) => DEBOUNCE,
        };
        let due = after(now, wait);
        let was_empty = self.said.as_ref().is_some_and(Vec::is_empty);
        self.due = Some(match self.due {
            // Sets that come all the time do not put the first one off.
            Some(before) if !once.is_empty() && !was_empty => before.min(due),
            _ => due,
        });
        self.said = Some(once);
        beyond
    }

    /// When [`Membership::step`] is to be called next; `None`: when the next set was recorded.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.due.into_iter().chain(self.leave_at).min()
    }

    /// Applies what is due. `answers`: whether an end point has a connection. Returns whether the
    /// members have changed.
    pub fn step(&mut self, now: Instant, answers: impl Fn(&Address) -> bool) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            self.due = None;
            self.apply(&answers);
            if self.leaving.is_empty() {
                self.leave_at = None;
            } else {
                self.leave_at.get_or_insert(after(now, STEP));
            }
        }
        let leave = self.leave_at.is_some_and(|at| at <= now);
        if leave {
            self.leaving.retain(|it| answers(it.address()));
            self.leaving.truncate(self.leaving.len() / 2);
            self.leave_at = (!self.leaving.is_empty()).then(|| after(now, STEP));
        }
        is_due || leave
    }

    fn apply(&mut self, answers: &impl Fn(&Address) -> bool) {
        let said = self.said.as_deref().unwrap_or_default();
        let has_nics = said.iter().any(|it| matches!(it.address(), Address::Rdma(..)));
        let most = self.subset.unwrap_or(if has_nics { SUBSET_OF_NICS } else { SUBSET });
        let old = std::mem::replace(&mut self.named, subset(said, most.max(1), self.nonce));
        let named: HashSet<&Address> = self.named.iter().map(Endpoint::address).collect();
        self.leaving.retain(|it| !named.contains(it.address()));
        let count = old.len();
        let lost = old.into_iter().filter(|it| !named.contains(it.address()));
        let lost: Vec<Endpoint> = lost.collect();
        if lost.len() * 2 > count {
            self.leaving.extend(lost.into_iter().filter(|it| answers(it.address())));
            self.leaving.truncate(MAX_MEMBERS);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::Range;

    use test_kit::Rng;

    use super::*;

    fn set(numbers: impl IntoIterator<Item = u64>) -> Vec<Endpoint> {
        numbers.into_iter().map(|at| format!("mem://{at}").parse().unwrap()).collect()
    }

    fn numbers(membership: &Membership) -> BTreeSet<u64> {
        let number = |it: &Endpoint| it.address().to_string()[6..].parse().unwrap();
        membership.members().map(number).collect()
    }

    #[test]
    fn a_flapping_set_is_applied_now_and_then() {
        let (mut membership, mut now) = (Membership::new(None, 1), Instant::now());
        let mut applied = 0;
        for turn in 0..1000_u32 {
            let odd = u64::from(turn % 2);
            assert_eq!(membership.on_set(set([1, 2, 3, 4 + odd]), now), 0);
            applied += u32::from(membership.step(now, |_| true));
            now += Duration::from_millis(10);
        }
        assert!((90..=101).contains(&applied), "{applied} in ten seconds");
    }

    #[test]
    fn nobody_is_believed_after_a_while_and_slowly() {
        let (mut membership, now) = (Membership::new(None, 1), Instant::now());
        membership.on_set(set(0..8), now);
        assert!(membership.step(now, |_| true));
        for second in 0..30 {
            let now = now + Duration::from_secs(second);
            membership.on_set(Vec::new(), now);
            membership.step(now, |_| true);
            assert_eq!(numbers(&membership).len(), 8);
        }
        let sizes = (30..80).step_by(10).map(|second| {
            let now = now + Duration::from_secs(second);
            membership.on_set(Vec::new(), now);
            membership.step(now, |_| true);
            numbers(&membership).len()
        });
        assert_eq!(sizes.collect::<Vec<_>>(), [8, 4, 2, 1, 0]);
        // Those that do not answer go at once.
        membership.on_set(set(0..8), now + Duration::from_secs(90));
        assert!(membership.step(now + Duration::from_secs(90), |_| true), "there was nobody");
        let then = now + Duration::from_secs(100);
        membership.on_set(set(6..9), then);
        assert!(membership.step(then + DEBOUNCE, |address| address.to_string() == "mem://1"));
        assert_eq!(numbers(&membership), BTreeSet::from([1, 6, 7, 8]));
    }

    /// 1,000 clients of 100 servers, half of which are replaced. Each client hears of it within an
    /// interval of 30 s.
    #[test]
    fn a_thousand_clients_follow_a_replaced_half() {
        let (mut rng, start) = (Rng::new(1), Instant::now());
        let mut clients: Vec<_> =
            (0..1000).map(|_| Membership::new(Some(32), rng.next())).collect();
        let mut settle = |clients: &mut [Membership], servers: Range<u64>, now| {
            let mut load = vec![0_u32; 150];
            for client in clients {
                let mut now = now + Duration::from_millis(rng.below(30_000));
                client.on_set(set(servers.clone()), now);
                now += DEBOUNCE;
                client.step(now, |_| true);
                let named = numbers(client).into_iter().filter(|it| servers.contains(it));
                assert!(named.count() >= 32, "those that are new are used at once");
                while let Some(at) = client.next_at() {
                    now = now.max(at);
                    client.step(now, |_| true);
                }
                assert_eq!(numbers(client).len(), 32);
                for number in numbers(client) {
                    load[usize::try_from(number).unwrap()] += 1;
                }
            }
            load
        };
        let before = settle(&mut clients, 0..100, start);
        let after = settle(&mut clients, 50..150, start + Duration::from_secs(60));
        for load in before[..100].iter().chain(&after[50..]) {
            assert!((272..=368).contains(load), "15 % of 320: {load}");
        }
        assert!(after[..50].iter().all(|load| *load == 0));
    }

    #[test]
    fn a_few_that_leave_leave_at_once() {
        let (mut membership, now) = (Membership::new(None, 1), Instant::now());
        membership.on_set(set(0..4), now);
        membership.step(now, |_| true);
        membership.on_set(set(2..5), now);
        assert_eq!(membership.next_at(), Some(now + DEBOUNCE));
        assert!(!membership.step(now, |_| true));
        assert!(membership.step(now + DEBOUNCE, |_| true));
        assert_eq!(numbers(&membership), BTreeSet::from([2, 3, 4]));
        assert_eq!(membership.next_at(), None);
        assert_eq!(membership.on_set(set((0..3000).chain(0..3000)), now), 3000 - MAX_MEMBERS);
    }

    /// Random sets at random times: a server that is named for long enough is a member, and
    /// no working fleet vanishes at once.
    #[test]
    fn random_sets_settle_and_never_drop_all() {
        for seed in 0..100 {
            let mut rng = Rng::new(seed);
            let mut membership = Membership::new(Some(1 + rng.index(12)), rng.next());
            let most = membership.subset.unwrap_or(0);
            let mut now = Instant::now();
            for _ in 0..100 {
                let before = numbers(&membership).len();
                let named: Vec<u64> = (0..16).filter(|_| rng.chance(40)).collect();
                let said = if rng.chance(20) { Vec::new() } else { named };
                membership.on_set(set(said.iter().copied()), now);
                if membership.step(now, |_| true) {
                    let after = numbers(&membership).len();
                    assert!(after * 2 + 1 >= before.min(most), "seed {seed}: {before} to {after}");
                }
                let lasts = rng.pick(&[1, 50, 200, 10_000, 300_000]);
                let until = now + Duration::from_millis(lasts);
                while let Some(at) = membership.next_at().filter(|at| *at <= until) {
                    now = now.max(at);
                    assert!(membership.step(now, |_| true), "seed {seed}: nothing was due");
                }
                now = until;
                if lasts >= 300_000 {
                    let members = numbers(&membership);
                    assert_eq!(members.len(), said.len().min(most), "seed {seed}");
                    assert!(members.iter().all(|it| said.contains(it)), "seed {seed}");
                    assert_eq!(membership.next_at(), None, "seed {seed}");
                }
            }
        }
    }
}
