//! How whoever polls waits: spin, yield the core, park.
//!
//! Owns the adaptive wait policy. Pure: it is told what happened and how long it took, and answers
//! what to do next. It adapts because each fixed policy loses by orders of magnitude somewhere: a
//! wake-up across cores costs tens of microseconds on a virtual machine; spinning with
//! `sched_yield` costs other threads nothing; and a core that other threads want should not be spun
//! on.
//!
//! Invariants:
//! 1. An idle endpoint parks: it never spins for longer than `SPIN_BUDGET` without an arrival. One wait
//!    after a payload was written to the peer may take as much longer as reading that takes, `MAX_READING`
//!    at most.
//! 2. A core that other threads want is not yielded again and again: each slow yield is followed by
//!    `PARKS_AFTER_SLOW_YIELD` waits that park after a short spin, whatever arrives meanwhile. Where
//!    callers may poll in place of the driver, a yield is slow only if somebody computes on the core.
//! 3. Who may run on one core only and waits for a peer there yields it at once: after
//!    `ANSWERS_UNTIL_SHARED` yields in a row that let another thread run, and after which something
//!    had arrived. One that let nobody run, and after which nothing had, ends that: who answers runs
//!    elsewhere. A third thread is not long taken for the peer: after `SHARED_WAITS` such waits one
//!    spins first, which an answer ends. Who may run on several cores does none of that: the system
//!    leaves two that yield to each other together, though another core may be idle.
//! 4. The budget drops to zero after `FAILURES_UNTIL_PARK` fruitless spins, and comes back after a
//!    park that was shorter than the budget would have been.

use std::time::{Duration, Instant};

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

/// Longest spin: about one wake-up across cores. Spinning longer gains nothing over parking.
const SPIN_BUDGET: Duration = Duration::from_micros(50);
/// Bytes of a payload that a peer is taken to copy in a microsecond.
const READ_PER_MICROSECOND: u64 = 8 << 10;
/// Most that a wait is longer for it.
const MAX_READING: Duration = Duration::from_micros(150);
/// Time of spinning before the core is yielded.
const QUIET_SPIN: Duration = Duration::from_micros(1);
/// A yield that took longer than this has let another thread run: two switches take 1.2 us, a yield
/// that nobody takes 0.2, on one machine. Where that is wrong, little is lost (invariant 3): if taken yields
/// are quicker, each wait spins for `QUIET_SPIN` first, as it does where there are other cores; if those that
/// nobody takes are slower, waits of who may run on one core only begin with one, until a probe is answered.
const TAKEN_YIELD: Duration = Duration::from_nanos(600);
/// Answered yields in a row after which the core is yielded at once.
const ANSWERS_UNTIL_SHARED: u8 = 8;
/// One more makes it so many.
const ASKED: u8 = ANSWERS_UNTIL_SHARED - 1;
/// Waits that yield at once, after which that is put to the test.
const SHARED_WAITS: u8 = 64;
/// The value of [`SpinPolicy::answered_yields`] with which a wait spins first.
const PROBE: u8 = ANSWERS_UNTIL_SHARED + SHARED_WAITS;
/// A yield that took longer than this means that another thread wants the core.
const SLOW_YIELD: Duration = Duration::from_micros(20);
/// The same for who may run on one core only: a peer that shares it polls in vain at first.
const SLOW_YIELD_CONFINED: Duration = Duration::from_micros(50);
/// The same for a caller that polls in place of the driver, and for the driver beside it: what it leaves to the driver costs a wake-up of another
/// thread each time, and whoever takes its core for less than this waits like it, its own driver or the peer. Such a
/// thread yields the core in turn, or sleeps when it has waited in vain, at the latest after `SPIN_BUDGET + MAX_READING`;
/// whoever computes keeps it for a slice of the scheduler's, a millisecond or more.
const SLOW_YIELD_OF_LEADER: Duration = Duration::from_micros(250);
const _: () =
    assert!(SLOW_YIELD_OF_LEADER.as_micros() > SPIN_BUDGET.as_micros() + MAX_READING.as_micros());
/// Waits that park at once after a slow yield: a parked thread is woken before those that only
/// yield.
const PARKS_AFTER_SLOW_YIELD: u8 = 8;
/// Fruitless spins in a row after which the budget is dropped.
const FAILURES_UNTIL_PARK: u8 = 3;
/// After a park shorter than this, spinning would have been better.
const SHORT_PARK: Duration = Duration::from_micros(120);

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

/// State of the wait policy of one shard.
#[derive(Debug)]
pub(crate) struct SpinPolicy {
    mode: PollMode,
    failures: u8,
    /// Waits left that park because another thread wants the core.
    parks: u8,
    /// Taken yields in a row after which something had arrived, up to [`PROBE`].
    answered_yields: u8,
    /// The last one since something arrived.
    last_yield: Option<Yield>,
    /// How long the peer reads what was written to it.
    reading: Duration,
    /// Whether this wait is longer for that.
    awaits_reader: bool,
}

/// What became of a `sched_yield`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Yield {
    /// Another thread has run.
    Taken,
    /// Nobody wanted the core.
    Refused,
}

impl SpinPolicy {
    pub(crate) fn new(mode: PollMode) -> Self {
        Self {
            mode,
            failures: 0,
            parks: 0,
            answered_yields: 0,
            last_yield: None,
            reading: Duration::ZERO,
            awaits_reader: false,
        }
    }

    /// Nothing has arrived for `idle_for`.
    pub(crate) fn on_idle(&mut self, idle_for: Duration) -> Wait {
        match self.mode {
            PollMode::Busy => Wait::Spin,
            PollMode::Event => Wait::Park,
            PollMode::Adaptive => self.adaptive(idle_for),
        }
    }

    fn adaptive(&mut self, idle_for: Duration) -> Wait {
        if self.last_yield == Some(Yield::Refused) {
            self.answered_yields = 0;
        }
        if self.failures >= FAILURES_UNTIL_PARK {
            return Wait::Park;
        }
        if idle_for < QUIET_SPIN && !self.shares_core() {
            Wait::Spin
        } else if self.parks > 0 {
            Wait::Park
        } else if idle_for < SPIN_BUDGET {
            Wait::Yield
        } else if idle_for < SPIN_BUDGET + self.reading {
            self.awaits_reader = true;
            Wait::Yield
        } else {
            self.end_reading();
            self.failures += 1;
            Wait::Park
        }
    }

    /// Whether who is waited for needs this core to answer: polling before it is yielded is in vain.
    #[inline]
    pub(crate) fn shares_core(&self) -> bool {
        (ANSWERS_UNTIL_SHARED..PROBE).contains(&self.answered_yields)
    }

    /// Whether the core has been yielded since something last arrived.
    pub(crate) fn has_yielded(&self) -> bool {
        self.last_yield.is_some()
    }

    /// Whether the next waits park because another thread wants the core.
    #[cfg(test)]
    pub(crate) fn parks(&self) -> bool {
        self.parks > 0
    }

    /// A `sched_yield` took this long. `leads`: whether it is that of a caller that polls in place of the driver.
    /// `is_confined`: whether this thread may run on one core only. Returns whether another thread has run meanwhile.
    pub(crate) fn on_yielded(
        &mut self,
        took: Duration,
        leads: bool,
        is_confined: impl FnOnce() -> bool,
    ) -> bool {
        let was_taken = took > TAKEN_YIELD;
        // Asked seldom, as it costs a system call.
        let is_shared = was_taken && matches!(self.answered_yields, ASKED | PROBE);
        if is_shared || took > SLOW_YIELD {
            let most = if is_confined() {
                SLOW_YIELD_CONFINED
            } else {
                self.answered_yields = 0;
                if leads { SLOW_YIELD_OF_LEADER } else { SLOW_YIELD }
            };
            if took > most {
                self.parks = PARKS_AFTER_SLOW_YIELD;
            }
        }
        self.last_yield = Some(if was_taken { Yield::Taken } else { Yield::Refused });
        was_taken
    }

    /// Bytes of a payload were written to the peer.
    #[inline]
    pub(crate) fn on_written(&mut self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let reading = self.reading + Duration::from_micros(bytes / READ_PER_MICROSECOND);
        self.reading = reading.min(MAX_READING);
    }

    fn end_reading(&mut self) {
        (self.reading, self.awaits_reader) = (Duration::ZERO, false);
    }

    /// Something arrived while spinning.
    pub(crate) fn on_progress(&mut self) {
        self.failures = 0;
        if self.awaits_reader {
            self.end_reading();
        }
        let was_taken = self.last_yield.take() == Some(Yield::Taken);
        self.answered_yields = match self.answered_yields {
            PROBE if was_taken => ANSWERS_UNTIL_SHARED,
            yields if was_taken || self.shares_core() => yields + 1,
            _ => 0,
        };
    }

    /// Something arrived `parked_for` after parking.
    pub(crate) fn on_woken(&mut self, parked_for: Duration) {
        self.parks = self.parks.saturating_sub(1);
        self.last_yield = None;
        if parked_for < SHORT_PARK {
            self.failures = self.failures.saturating_sub(1);
        }
    }
}

/// Lets other threads have the core. Returns how long they had it.
pub(crate) fn yield_core() -> Duration {
    let began = Instant::now();
    rustix::thread::sched_yield();
    #[cfg(test)]
    if let Some(peer) = PEER.take() {
        peer();
        PEER.set(Some(peer));
        return TOOK.get();
    }
    began.elapsed()
}

#[cfg(test)]
thread_local! {
    /// Where a test has set it, it is what another thread does whenever this one yields its core.
    pub(crate) static PEER: std::cell::Cell<Option<Box<dyn Fn()>>> = const { std::cell::Cell::new(None) };
    /// How long such a yield takes.
    pub(crate) static TOOK: std::cell::Cell<Duration> = const { std::cell::Cell::new(Duration::from_nanos(1_200)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    #[test]
    fn an_idle_adaptive_driver_spins_yields_and_parks() {
        let mut policy = SpinPolicy::new(PollMode::Adaptive);
        assert_eq!(policy.on_idle(US(0)), Wait::Spin);
        assert_eq!(policy.on_idle(US(10)), Wait::Yield);
        assert_eq!(policy.on_idle(US(60)), Wait::Park);
    }

    #[test]
    fn fruitless_spins_end_spinning_and_short_parks_bring_it_back() {
        let mut policy = SpinPolicy::new(PollMode::Adaptive);
        for _ in 0..FAILURES_UNTIL_PARK {
            assert_eq!(policy.on_idle(US(60)), Wait::Park);
        }
        assert_eq!(policy.on_idle(US(0)), Wait::Park);
        policy.on_woken(Duration::from_millis(10));
        assert_eq!(policy.on_idle(US(0)), Wait::Park);
        policy.on_woken(US(30));
        assert_eq!(policy.on_idle(US(0)), Wait::Spin);
    }

    #[test]
    fn one_wait_is_longer_for_a_payload_that_the_peer_reads() {
        let mut policy = SpinPolicy::new(PollMode::Adaptive);
        policy.on_written(1 << 20);
        // Waits that are short anyway do not use it up.
        assert_eq!(policy.on_idle(US(40)), Wait::Yield);
        policy.on_progress();
        assert_eq!(policy.on_idle(US(120)), Wait::Yield);
        policy.on_progress();
        assert_eq!(policy.on_idle(US(60)), Wait::Park);

        policy.on_written(64 << 10);
        assert_eq!(policy.on_idle(US(57)), Wait::Yield);
        assert_eq!(policy.on_idle(US(59)), Wait::Park);
        policy.on_written(1 << 30);
        assert_eq!(policy.on_idle(SPIN_BUDGET + MAX_READING), Wait::Park);
        policy.on_woken(US(60));
        assert_eq!(policy.on_idle(US(60)), Wait::Park);
    }

    #[test]
    fn a_slow_yield_is_followed_by_parks_whatever_arrives() {
        let mut policy = SpinPolicy::new(PollMode::Adaptive);
        policy.on_yielded(US(500), false, || true);
        for _ in 0..PARKS_AFTER_SLOW_YIELD {
            policy.on_progress();
            assert_eq!(policy.on_idle(US(0)), Wait::Spin);
            assert_eq!(policy.on_idle(US(2)), Wait::Park);
            policy.on_woken(US(500));
        }
        assert_eq!(policy.on_idle(US(2)), Wait::Yield);
    }

    /// The policy after so many answered yields of a thread that may run on one core only, or not.
    fn after(yields: u8, is_confined: bool) -> SpinPolicy {
        let mut policy = SpinPolicy::new(PollMode::Adaptive);
        for _ in 0..yields {
            assert!(policy.on_yielded(US(3), false, || is_confined));
            policy.on_progress();
        }
        policy
    }

    #[test]
    fn a_core_that_the_peer_needs_is_yielded_at_once() {
        let mut policy = after(ASKED, true);
        assert_eq!(policy.on_idle(US(0)), Wait::Spin);
        assert_eq!(policy.on_idle(US(2)), Wait::Yield);
        policy.on_yielded(US(3), false, || true);
        policy.on_progress();
        assert_eq!(policy.on_idle(US(0)), Wait::Yield);
    }

    #[test]
    fn who_may_run_elsewhere_does_not_settle_on_the_core_of_its_peer() {
        for yields in 0..=2 * PROBE {
            assert_eq!(after(yields, false).on_idle(US(0)), Wait::Spin);
        }
        // It may from now on.
        let mut policy = after(PROBE, true);
        policy.on_yielded(US(3), false, || false);
        policy.on_progress();
        assert_eq!(policy.on_idle(US(0)), Wait::Spin);
    }

    #[test]
    fn a_yield_that_is_slow_elsewhere_is_not_where_the_peer_has_no_other_core() {
        assert_eq!(wait_after(30, false, false), Wait::Park);
        assert_eq!(wait_after(30, false, true), Wait::Yield);
        assert_eq!(wait_after(80, false, true), Wait::Park);
    }

    #[test]
    fn a_leader_that_yields_to_who_waits_leads_on_and_one_that_yields_to_who_computes_parks() {
        // As long as a thread of ours waits in vain.
        assert_eq!(wait_after(50, true, false), Wait::Yield);
        assert_eq!(wait_after(200, true, false), Wait::Yield);
        // As long as a hog has it.
        assert_eq!(wait_after(700, true, false), Wait::Park);
        // Where there is no other core, the peer needs this one.
        assert_eq!(wait_after(80, true, true), Wait::Park);
    }

    /// What a wait does after a yield that took so long.
    fn wait_after(took: u64, leads: bool, is_confined: bool) -> Wait {
        let mut policy = SpinPolicy::new(PollMode::Adaptive);
        policy.on_yielded(US(took), leads, || is_confined);
        policy.on_progress();
        policy.on_idle(US(2))
    }

    #[test]
    fn a_core_that_nobody_takes_is_spun_on_again_unless_the_answer_was_there() {
        let mut policy = after(ANSWERS_UNTIL_SHARED, true);
        let alone = Duration::from_nanos(200);
        assert!(!policy.on_yielded(alone, false, || true));
        policy.on_progress();
        assert_eq!(policy.on_idle(US(0)), Wait::Yield);
        assert!(!policy.on_yielded(alone, false, || true));
        assert_eq!(policy.on_idle(US(0)), Wait::Spin);
    }

    #[test]
    fn sharing_a_core_is_put_to_the_test_now_and_then() {
        let mut policy = after(PROBE, true);
        assert_eq!(policy.on_idle(US(0)), Wait::Spin);
        assert_eq!(policy.on_idle(US(2)), Wait::Yield);
        policy.on_yielded(US(3), false, || true);
        policy.on_progress();
        assert_eq!(policy.on_idle(US(0)), Wait::Yield);
    }

    #[test]
    fn another_thread_on_the_core_is_not_long_taken_for_the_peer() {
        let mut policy = after(PROBE, true);
        policy.on_idle(US(0));
        // The answer came while it spun.
        policy.on_progress();
        assert_eq!(policy.on_idle(US(0)), Wait::Spin);
        assert_eq!(policy.on_idle(US(2)), Wait::Yield);
    }

    #[test]
    fn answers_that_need_no_yield_are_spun_for() {
        let mut policy = SpinPolicy::new(PollMode::Adaptive);
        for _ in 0..3 * ANSWERS_UNTIL_SHARED {
            policy.on_yielded(US(3), false, || true);
            policy.on_progress();
            policy.on_progress();
            assert_eq!(policy.on_idle(US(0)), Wait::Spin);
        }
    }

    #[test]
    fn busy_never_parks_and_event_never_spins() {
        assert_eq!(SpinPolicy::new(PollMode::Busy).on_idle(Duration::from_secs(9)), Wait::Spin);
        assert_eq!(SpinPolicy::new(PollMode::Event).on_idle(US(0)), Wait::Park);
    }
}
