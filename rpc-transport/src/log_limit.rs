//! A limit on what peers can make this process log.
//!
//! Owns the count of one kind of fault at one place. Never a clock: time is an argument.
//!
//! Invariants:
//! 1. In each interval the first five faults are logged in full, and later ones are counted.
//! 2. One line reports the count, before the first fault of a later interval.

use std::time::{Duration, Instant};

use crate::lock::Mutex;
use crate::user_code::logged;

/// Faults per interval that are logged in full.
const LINES: u32 = 5;
/// Length of an interval.
const INTERVAL: Duration = Duration::from_secs(10);

/// Decides which faults of peers are logged.
#[derive(Debug)]
pub struct LogLimit {
    /// Names the faults, for the line that sums them up.
    what: &'static str,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the interval began.
    since: Option<Instant>,
    seen: u32,
    silenced: u64,
}

impl LogLimit {
    /// A limit without any fault yet. `what` names the faults, in the plural.
    #[must_use]
    pub const fn new(what: &'static str) -> Self {
        let state = State { since: None, seen: 0, silenced: 0 };
        Self { what, state: Mutex::new(state) }
    }

    /// A fault at `now`: logs it by calling `log`, or counts it.
    pub fn fault(&self, now: Instant, log: impl FnOnce()) {
        let Some(silenced) = self.admit(now) else { return };
        if silenced > 0 {
            let (what, last) = (self.what, INTERVAL);
            logged(move || {
                tracing::warn!(
                    "{what}: {silenced} more since the last line (at most {LINES} in {last:?} are \
                     logged)"
                );
            });
        }
        log();
    }

    /// Whether to log the fault; the number of earlier ones that were not logged.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        if state.since.is_none_or(|since| now.saturating_duration_since(since) >= INTERVAL) {
            state.since = Some(now);
            state.seen = 0;
        }
        state.seen = state.seen.saturating_add(1);
        if state.seen > LINES {
            state.silenced += 1;
            return None;
        }
        Some(std::mem::take(&mut state.silenced))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// Counts lines.
    #[derive(Clone, Default)]
    struct Lines(Arc<AtomicUsize>);

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn flood_of_faults_logs_few_lines_and_counts() {
        let lines = Lines::default();
        let count = || lines.0.load(Ordering::Relaxed);
        let limit = LogLimit::new("connections that were refused");
        let start = Instant::now();
        let fault = |at| limit.fault(start + at, || tracing::warn!("refused"));
        tracing::subscriber::with_default(lines.clone(), || {
            for millis in 0..9000 {
                fault(Duration::from_millis(millis));
            }
            assert_eq!(count(), 5);
            // The next interval sums up the previous one, once.
            fault(INTERVAL);
            assert_eq!(count(), 7);
            fault(INTERVAL);
            assert_eq!(count(), 8);
            fault(3 * INTERVAL);
            assert_eq!(count(), 9, "nothing was left out");
        });
        assert_eq!(limit.state.lock().silenced, 0);
    }

    #[test]
    fn none_of_the_silenced_is_forgotten() {
        let limit = LogLimit::new("faults");
        let start = Instant::now();
        let (mut logged, mut summed) = (0, 0);
        for millis in 0..1_000_u32 {
            if let Some(silenced) = limit.admit(start + millis * Duration::from_millis(77)) {
                logged += 1;
                summed += silenced;
            }
        }
        assert_eq!(logged + summed + limit.state.lock().silenced, 1000);
        assert!(logged <= 5 * 8, "{logged} lines in 77 s");
    }
}
