//! The rules of adaptive waiting. Each has its constants, its reason and its test.
//!
//! Owns what each rule remembers. [`spin`](super::spin) puts them in order.

use std::time::{Duration, Instant};

/// An answer of a peer on another core takes about a microsecond: until then a thread polls without
/// yielding. Two switches of threads take longer than that.
pub(super) struct QuietSpin;

impl QuietSpin {
    const LENGTH: Duration = Duration::from_micros(1);

    pub(super) fn holds(idle_for: Duration) -> bool {
        idle_for < Self::LENGTH
    }
}

/// A thread polls for about as long as a wake-up across cores takes: longer gains nothing over
/// parking. After a few fruitless spins it parks at once, until a park turns out so short that
/// spinning would have been better. Without this rule a virtual machine pays a wake-up of tens of
/// microseconds for each wait.
#[derive(Debug, Default)]
pub(super) struct SpinBudget {
    fruitless: u8,
}

impl SpinBudget {
    const LENGTH: Duration = Duration::from_micros(50);
    /// Fruitless spins in a row after which it is spent.
    const MAX_FRUITLESS: u8 = 3;
    /// A park shorter than this gives one of them back.
    const SHORT_PARK: Duration = Duration::from_micros(120);

    pub(super) fn allows(idle_for: Duration) -> bool {
        idle_for < Self::LENGTH
    }

    pub(super) fn is_spent(&self) -> bool {
        self.fruitless >= Self::MAX_FRUITLESS
    }

    pub(super) fn on_fruitless(&mut self) {
        self.fruitless += 1;
    }

    pub(super) fn on_answered(&mut self) {
        self.fruitless = 0;
    }

    pub(super) fn on_woken(&mut self, parked_for: Duration) {
        if parked_for < Self::SHORT_PARK {
            self.fruitless = self.fruitless.saturating_sub(1);
        }
    }
}

/// A thread that has written a payload waits longer once, for about as long as the peer reads it.
/// Payloads of 1 MiB that a client copies out: 8.4 instead of 6.4 GB/s.
#[derive(Debug, Default)]
pub(super) struct ReaderWait {
    reading: Duration,
    is_used: bool,
}

impl ReaderWait {
    /// Bytes that a peer is taken to copy in a microsecond.
    const READ_PER_MICROSECOND: u64 = 8 << 10;
    const MAX_READING: Duration = Duration::from_micros(150);

    #[inline]
    pub(super) fn on_written(&mut self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let reading = self.reading + Duration::from_micros(bytes / Self::READ_PER_MICROSECOND);
        self.reading = reading.min(Self::MAX_READING);
    }

    /// The wait without the time in which the peer reads.
    pub(super) fn shorten(&mut self, idle_for: Duration) -> Duration {
        if SpinBudget::allows(idle_for) {
            return idle_for;
        }
        self.is_used = !self.reading.is_zero();
        idle_for - self.reading.min(idle_for)
    }

    pub(super) fn on_answered(&mut self) {
        if self.is_used {
            self.end();
        }
    }

    pub(super) fn end(&mut self) {
        *self = Self::default();
    }
}

/// What became of a `sched_yield`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Yielded {
    /// No thread wanted the core.
    Refused,
    /// Another thread has run, and then waited or yielded in turn.
    Taken,
    /// Another thread has computed: it had the core for a slice of the scheduler.
    Slow,
}

impl Yielded {
    /// Two switches take 1.2 us, a yield that nobody takes 0.2, on one machine.
    const TAKEN: Duration = Duration::from_nanos(600);
    /// A thread that polls yields or parks sooner than this. A slice is a millisecond or more.
    const SLOW: Duration = Duration::from_micros(250);

    pub(super) fn of(took: Duration) -> Self {
        if took > Self::SLOW {
            Self::Slow
        } else if took > Self::TAKEN {
            Self::Taken
        } else {
            Self::Refused
        }
    }
}

const _: () = assert!(
    Yielded::SLOW.as_micros()
        > SpinBudget::LENGTH.as_micros() + ReaderWait::MAX_READING.as_micros(),
    "a thread that waits is not one that computes"
);

/// Where the peer shares this core it can only answer when the core is yielded: that is done at
/// once, before the first poll. Answers that come with yields are how that is known. Two threads
/// that yield to each other are left together by the system though another core may be idle, so
/// after some waits this one parks: a thread that is woken is placed on an idle core. A lone call
/// of two threads on one core: 3.4 instead of 10.6 us.
#[derive(Debug)]
pub(super) enum SharedCore {
    /// The peer has another core, as far as is known: so many waits in a row were answered by
    /// yields.
    Apart { answers: u8 },
    /// The core is yielded at once, for so many waits more.
    Shared { waits: u8 },
    /// The next wait parks.
    Probes,
}

impl Default for SharedCore {
    fn default() -> Self {
        Self::Apart { answers: 0 }
    }
}

impl SharedCore {
    /// Answers in a row that make the core a shared one.
    const ANSWERS: u8 = 8;
    /// Waits on a shared core until one parks.
    const WAITS: u8 = 64;

    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        matches!(self, Self::Shared { .. })
    }

    pub(super) fn is_probe_due(&self) -> bool {
        matches!(self, Self::Probes)
    }

    /// Something arrived; whether another thread had run at the last yield of the wait.
    pub(super) fn on_answered(&mut self, was_taken: bool) {
        *self = match *self {
            Self::Apart { answers } if was_taken && answers + 1 == Self::ANSWERS => {
                Self::Shared { waits: Self::WAITS }
            }
            Self::Apart { answers } if was_taken => Self::Apart { answers: answers + 1 },
            Self::Apart { .. } => Self::Apart { answers: 0 },
            Self::Shared { waits: 1 } | Self::Probes => Self::Probes,
            Self::Shared { waits } => Self::Shared { waits: waits - 1 },
        };
    }

    /// No thread wanted the core, and nothing had arrived then: the peer is elsewhere.
    pub(super) fn on_refused_in_vain(&mut self) {
        *self = Self::default();
    }

    /// A thread that computes had the core.
    pub(super) fn on_slow_yield(&mut self) {
        *self = Self::default();
    }

    pub(super) fn on_woken(&mut self) {
        if self.is_probe_due() {
            *self = Self::default();
        }
    }
}

/// A yield to a thread that computes costs a slice of the scheduler, so the core is not yielded for
/// some time: the peer is taken to be on another one, and preemption gives that thread its share. A
/// fruitless spin ends that, as the peer may wait for this core.
#[derive(Debug, Default)]
pub(super) struct Contention {
    until: Option<Instant>,
}

impl Contention {
    const LENGTH: Duration = Duration::from_millis(20);

    pub(super) fn holds(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    pub(super) fn on_slow_yield(&mut self, now: Instant) {
        self.until = Some(now + Self::LENGTH);
    }

    pub(super) fn on_fruitless(&mut self) {
        self.until = None;
    }
}

/// The caller of the only call polls for its answer in the visit that sends it. Where such polls
/// were in vain several times in a row, few calls do so. A lone call between two cores: one turn of
/// the runtime less, of a microsecond.
#[derive(Debug, Default)]
pub(super) struct LonePoll {
    vain: u8,
    skipped: u8,
}

impl LonePoll {
    /// Vain polls in a row until calls skip them.
    const PATIENCE: u8 = 6;
    /// Calls that skip them then.
    const PAUSE: u8 = 64;

    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        if self.vain < Self::PATIENCE {
            return true;
        }
        self.skipped += 1;
        if self.skipped == Self::PAUSE {
            *self = Self::default();
        }
        false
    }

    #[inline]
    pub(super) fn on_polled(&mut self, was_answered: bool) {
        self.vain = if was_answered { 0 } else { self.vain + 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    #[test]
    fn short_parks_give_the_budget_back() {
        let mut budget = SpinBudget::default();
        for _ in 0..SpinBudget::MAX_FRUITLESS {
            assert!(!budget.is_spent());
            budget.on_fruitless();
        }
        assert!(budget.is_spent());
        budget.on_woken(US(10_000));
        assert!(budget.is_spent());
        budget.on_woken(US(30));
        assert!(!budget.is_spent());
    }

    #[test]
    fn reading_takes_as_long_as_the_payload() {
        let mut reader = ReaderWait::default();
        reader.on_written(64 << 10);
        assert_eq!([57, 59].map(|us| SpinBudget::allows(reader.shorten(US(us)))), [true, false]);
        reader.on_written(1 << 30);
        let longest = SpinBudget::LENGTH + ReaderWait::MAX_READING;
        assert!(!SpinBudget::allows(reader.shorten(longest)));
        assert!(SpinBudget::allows(reader.shorten(longest - US(1))));
    }

    #[test]
    fn waiting_threads_are_distinguished_from_computing_ones() {
        // As long as a thread of ours waits in vain; as a slice.
        let took = [Duration::from_nanos(200), US(3), US(200), US(700)];
        let [refused, switch, waits, computes] = took.map(Yielded::of);
        assert_eq!([refused, switch], [Yielded::Refused, Yielded::Taken]);
        assert_eq!([waits, computes], [Yielded::Taken, Yielded::Slow]);
    }

    #[test]
    fn answers_in_a_row_make_a_core_shared() {
        let mut shared = SharedCore::default();
        for round in 0..3 {
            for _ in 1..SharedCore::ANSWERS {
                shared.on_answered(true);
                assert!(!shared.is_shared());
            }
            shared.on_answered(round == 2);
        }
        assert!(shared.is_shared());
        shared.on_refused_in_vain();
        assert!(!shared.is_shared());
    }

    #[test]
    fn a_shared_core_is_probed_after_some_waits() {
        let mut shared = SharedCore::default();
        (0..SharedCore::ANSWERS).for_each(|_| shared.on_answered(true));
        for _ in 0..SharedCore::WAITS {
            assert!(shared.is_shared() && !shared.is_probe_due());
            // The answer may be there before the core is yielded.
            shared.on_answered(false);
        }
        assert!(!shared.is_shared() && shared.is_probe_due());
        shared.on_woken();
        assert!(!shared.is_probe_due());
    }

    #[test]
    fn a_slow_yield_ends_a_shared_core() {
        let mut shared = SharedCore::default();
        (0..SharedCore::ANSWERS).for_each(|_| shared.on_answered(true));
        shared.on_slow_yield();
        assert!(!shared.is_shared());
    }

    #[test]
    fn contention_ends_by_time_or_fruitless_spin() {
        let (mut contention, now) = (Contention::default(), Instant::now());
        assert!(!contention.holds(now));
        contention.on_slow_yield(now);
        assert!(contention.holds(now) && !contention.holds(now + Contention::LENGTH));
        contention.on_fruitless();
        assert!(!contention.holds(now));
    }

    #[test]
    fn vain_lone_polls_are_skipped() {
        let mut lone = LonePoll::default();
        let mut polls = |needed: bool, calls: u32| {
            let polls = (0..calls).filter(|_| {
                let is_due = lone.is_due();
                if is_due {
                    lone.on_polled(needed);
                }
                is_due
            });
            polls.count()
        };
        assert_eq!(polls(true, 1_000), 1_000);
        assert!(polls(false, 7_000) < 700);
        // It finds out when answers are fast again.
        polls(true, 100);
        assert_eq!(polls(true, 100), 100);
    }
}
