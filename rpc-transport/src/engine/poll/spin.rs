//! How a thread that polls waits: it spins, yields its core, or parks.
//!
//! Owns the wait policy of a shard. Pure: time is an argument, as is what became of a yield or a
//! park. It adapts because each fixed policy loses by orders of magnitude somewhere: a wake-up
//! across cores costs tens of microseconds on a virtual machine, and a core that other threads want
//! should not be spun on. The rules of adaptive waiting (`poll::rules`) are applied in this order:
//!
//! | condition | wait | rule |
//! |---|---|---|
//! | the last spins were fruitless | park | `SpinBudget` |
//! | the peer shared this core for a while | park once | `SharedCore` |
//! | the peer shares this core | yield at once | `SharedCore` |
//! | the first microsecond | spin | `QuietSpin` |
//! | within 50 us, and another thread computes on this core | spin | `Contention` |
//! | within 50 us | yield | `SpinBudget` |
//! | the peer reads a payload, within 150 us more | as before | `ReaderWait` |
//! | else | park | |
//!
//! A step of a handshake of identities does not begin the wait anew: see `State::on_idle`.
//!
//! Invariant: an idle endpoint parks. It never spins for longer than `SpinBudget::LENGTH` without
//! an arrival, or once for as much longer as the peer reads a payload, `ReaderWait::MAX_READING` at
//! most.

use std::time::{Duration, Instant};

use super::rules::{Contention, LonePoll, QuietSpin, ReaderWait, SharedCore, SpinBudget, Yielded};

/// How a driver waits for the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum PollMode {
    /// Spins for about as long as a wake-up takes, yielding the core, then parks. An idle endpoint
    /// uses no CPU.
    #[default]
    Adaptive,
    /// Never parks: the lowest latency, one core per shard at 100 %.
    Busy,
    /// Parks at once: for tests, and for machines whose cores are needed by other work.
    Event,
}

/// What to do while nothing arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Poll again at once.
    Spin,
    /// Call `sched_yield`, report how long it took, poll again.
    Yield,
    /// Arm and sleep.
    Park,
}

/// The wait policy of one shard.
#[derive(Debug)]
pub(crate) struct WaitPolicy {
    mode: PollMode,
    budget: SpinBudget,
    reader: ReaderWait,
    shared_core: SharedCore,
    contention: Contention,
    lone_poll: LonePoll,
    /// The last yield since something arrived.
    last_yield: Option<Yielded>,
}

impl WaitPolicy {
    pub(crate) fn new(mode: PollMode) -> Self {
        Self {
            mode,
            budget: SpinBudget::default(),
            reader: ReaderWait::default(),
            shared_core: SharedCore::default(),
            contention: Contention::default(),
            lone_poll: LonePoll::default(),
            last_yield: None,
        }
    }

    /// Nothing has arrived since `since`.
    pub(crate) fn on_idle(&mut self, now: Instant, since: Instant) -> Wait {
        match self.mode {
            PollMode::Busy => Wait::Spin,
            PollMode::Event => Wait::Park,
            PollMode::Adaptive => self.adaptive(now, now.saturating_duration_since(since)),
        }
    }

    fn adaptive(&mut self, now: Instant, idle_for: Duration) -> Wait {
        if self.last_yield == Some(Yielded::Refused) {
            self.shared_core.on_refused_in_vain();
        }
        if self.budget.is_spent() || self.shared_core.is_probe_due() {
            Wait::Park
        } else if QuietSpin::holds(idle_for) && !self.shares_core() {
            Wait::Spin
        } else if SpinBudget::allows(self.reader.shorten(idle_for)) {
            if self.contention.holds(now) { Wait::Spin } else { Wait::Yield }
        } else {
            self.reader.end();
            self.budget.on_fruitless();
            self.contention.on_fruitless();
            Wait::Park
        }
    }

    /// Whether an adaptive thread that waits since then has polled for long enough.
    pub(crate) fn is_over(&self, now: Instant, since: Instant) -> bool {
        let idle_for = now.saturating_duration_since(since);
        self.mode == PollMode::Adaptive && !SpinBudget::allows(idle_for)
    }

    /// Whether the peer needs this core to answer: polling before it is yielded is in vain.
    #[inline]
    pub(crate) fn shares_core(&self) -> bool {
        self.shared_core.is_shared()
    }

    /// Whether the core has been yielded since something last arrived.
    pub(crate) fn has_yielded(&self) -> bool {
        self.last_yield.is_some()
    }

    /// Whether another thread computes on this core.
    #[cfg(test)]
    pub(crate) fn is_contended(&self, now: Instant) -> bool {
        self.contention.holds(now)
    }

    /// A `sched_yield` ended at `now` and took this long. Returns whether another thread has run
    /// meanwhile.
    pub(crate) fn on_yielded(&mut self, now: Instant, took: Duration) -> bool {
        let yielded = Yielded::of(took);
        if yielded == Yielded::Slow {
            self.contention.on_slow_yield(now);
            self.shared_core.on_slow_yield();
        }
        self.last_yield = Some(yielded);
        yielded != Yielded::Refused
    }

    /// Whether the caller of the only call polls for its answer before it waits.
    #[inline]
    pub(crate) fn polls_for_one(&mut self) -> bool {
        !self.shares_core() && self.lone_poll.is_due()
    }

    /// The caller of the only call has polled for its answer.
    #[inline]
    pub(crate) fn on_polled_for_one(&mut self, was_answered: bool) {
        self.lone_poll.on_polled(was_answered);
    }

    /// Bytes of a payload were written to the peer.
    #[inline]
    pub(crate) fn on_written(&mut self, bytes: u64) {
        self.reader.on_written(bytes);
    }

    /// Something arrived while spinning.
    pub(crate) fn on_progress(&mut self) {
        self.budget.on_answered();
        self.reader.on_answered();
        let was_taken = self.last_yield.take().is_some_and(|it| it != Yielded::Refused);
        self.shared_core.on_answered(was_taken);
    }

    /// Something arrived `parked_for` after parking.
    pub(crate) fn on_woken(&mut self, parked_for: Duration) {
        self.last_yield = None;
        self.shared_core.on_woken();
        self.budget.on_woken(parked_for);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    /// A policy, and the time at which nothing has arrived.
    struct Waiting(WaitPolicy, Instant);

    impl Waiting {
        fn new(mode: PollMode) -> Self {
            Self(WaitPolicy::new(mode), Instant::now())
        }

        fn idle_for(&mut self, idle_for: u64) -> Wait {
            self.0.on_idle(self.1 + US(idle_for), self.1)
        }

        fn yielded(&mut self, took: Duration) -> bool {
            self.0.on_yielded(self.1, took)
        }
    }

    #[test]
    fn an_idle_adaptive_driver_spins_yields_and_parks() {
        let mut waiting = Waiting::new(PollMode::Adaptive);
        let waits = [0, 10, 60].map(|idle_for| waiting.idle_for(idle_for));
        assert_eq!(waits, [Wait::Spin, Wait::Yield, Wait::Park]);
    }

    #[test]
    fn busy_mode_spins_and_event_mode_parks() {
        assert_eq!(Waiting::new(PollMode::Busy).idle_for(9_000_000), Wait::Spin);
        assert_eq!(Waiting::new(PollMode::Event).idle_for(0), Wait::Park);
    }

    #[test]
    fn fruitless_spins_end_spinning() {
        let mut waiting = Waiting::new(PollMode::Adaptive);
        while waiting.idle_for(0) == Wait::Spin {
            assert_eq!(waiting.idle_for(60), Wait::Park);
        }
        assert_eq!(waiting.idle_for(0), Wait::Park);
        waiting.0.on_woken(US(30));
        assert_eq!(waiting.idle_for(0), Wait::Spin);
    }

    #[test]
    fn wait_extends_once_while_the_peer_reads() {
        let mut waiting = Waiting::new(PollMode::Adaptive);
        waiting.0.on_written(1 << 20);
        // Waits that are short anyway do not use it up.
        assert_eq!(waiting.idle_for(40), Wait::Yield);
        waiting.0.on_progress();
        assert_eq!(waiting.idle_for(120), Wait::Yield);
        waiting.0.on_progress();
        assert_eq!(waiting.idle_for(60), Wait::Park);
    }

    #[test]
    fn a_contended_core_is_spun_on() {
        let mut waiting = Waiting::new(PollMode::Adaptive);
        waiting.yielded(US(2_000));
        waiting.0.on_progress();
        assert_eq!([waiting.idle_for(10), waiting.idle_for(40)], [Wait::Spin; 2]);
        assert_eq!(waiting.idle_for(60), Wait::Park);
        // The peer was not elsewhere.
        assert_eq!(waiting.idle_for(10), Wait::Yield);
    }

    #[test]
    fn shared_core_is_yielded_at_once() {
        let mut waiting = Waiting::new(PollMode::Adaptive);
        while !waiting.0.shares_core() {
            assert_eq!(waiting.idle_for(0), Wait::Spin);
            assert!(waiting.yielded(US(3)));
            waiting.0.on_progress();
        }
        assert_eq!(waiting.idle_for(0), Wait::Yield);
        // Nobody took it, but the answer was there.
        assert!(!waiting.yielded(Duration::from_nanos(200)));
        waiting.0.on_progress();
        assert_eq!(waiting.idle_for(0), Wait::Yield);
        assert!(!waiting.yielded(Duration::from_nanos(200)));
        assert_eq!(waiting.idle_for(0), Wait::Spin);
    }

    #[test]
    fn a_shared_core_is_left_by_a_park() {
        let mut waiting = Waiting::new(PollMode::Adaptive);
        while waiting.idle_for(0) != Wait::Park {
            waiting.yielded(US(3));
            waiting.0.on_progress();
        }
        waiting.0.on_woken(US(3));
        assert_eq!(waiting.idle_for(0), Wait::Spin);
    }

    #[test]
    fn only_call_does_not_poll_on_shared_core() {
        let mut waiting = Waiting::new(PollMode::Adaptive);
        assert!(waiting.0.polls_for_one());
        while !waiting.0.shares_core() {
            waiting.yielded(US(3));
            waiting.0.on_progress();
        }
        assert!(!waiting.0.polls_for_one());
    }
}
