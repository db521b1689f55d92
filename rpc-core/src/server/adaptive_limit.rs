//! Overload control: a limit of the calls in flight of a whole server, which follows its capacity.
//!
//! An interceptor in front of all others: it counts the calls, refuses those above the limit, and
//! gives the times of the others to the rule (`limiter.rs`).
//!
//! Invariants:
//! 1. A call that was let in is counted until its `after`, which comes exactly once.
//! 2. A call is let in or refused by atomic counts; only its end takes the lock of the rule.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rpc_transport::engine::clock;
use rpc_transport::lock::Mutex;

use super::limiter::{Limiter, OLD_WINDOW, WINDOW, WINDOW_CALLS, Window};
use crate::context::Context;
use crate::interceptor::{Ended, Ending, Inbound, ServerInterceptor};
use crate::runtime::random::random;
use crate::service::MethodDescriptor;
use crate::stats::OverloadStats;
use crate::status::{Code, Status};

/// Least and longest delay that a refused caller is asked for, before jitter.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// How important a call is to an overloaded server: see
/// [`ServerBuilder::adaptive_limit`](crate::ServerBuilder::adaptive_limit).
///
/// The caller sets it as metadata:
/// `client.report().metadata(Priority::KEY, Priority::Sheddable.as_str())`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// Refused first, from three quarters of the limit on: work that can be done later.
    Sheddable,
    /// Refused at the limit. Calls without a priority, or with an unknown one, have this.
    #[default]
    Default,
    /// Refused a quarter above the limit.
    Critical,
}

impl Priority {
    /// The key of the metadata.
    pub const KEY: &'static str = "priority";

    /// The value of the metadata: `sheddable`, `default` or `critical`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sheddable => "sheddable",
            Self::Default => "default",
            Self::Critical => "critical",
        }
    }

    fn of(call: &Inbound<'_>) -> Self {
        match call.metadata().text(Self::KEY) {
            Some("sheddable") => Self::Sheddable,
            Some("critical") => Self::Critical,
            _ => Self::Default,
        }
    }

    /// The calls in flight at which one of this priority is refused.
    const fn share(self, limit: u32) -> u32 {
        match self {
            Self::Sheddable => limit.div_ceil(4) * 3,
            Self::Default => limit,
            Self::Critical => limit.saturating_add(limit.div_ceil(4)),
        }
    }
}

/// The bounds of an adaptive limit: see
/// [`ServerBuilder::adaptive_limit`](crate::ServerBuilder::adaptive_limit).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdaptiveLimit {
    least: u32,
    most: u32,
}

impl Default for AdaptiveLimit {
    fn default() -> Self {
        Self { least: 1, most: 1 << 20 }
    }
}

impl AdaptiveLimit {
    /// Never falls below this many calls in flight. Default 1.
    #[must_use]
    pub fn at_least(mut self, calls: u32) -> Self {
        self.least = calls;
        self
    }

    /// Never rises above this many calls in flight. Default 1,048,576.
    #[must_use]
    pub fn at_most(mut self, calls: u32) -> Self {
        self.most = calls;
        self
    }
}

/// The calls since the last window.
struct Sums {
    began: Option<Instant>,
    calls: u32,
    time: Duration,
    limiter: Limiter,
}

/// The counts of a server.
pub(super) struct Overload {
    limit: AtomicU32,
    in_flight: AtomicU32,
    /// Most in flight in this window.
    peak: AtomicU32,
    /// Mean time of the last window, ns.
    mean: AtomicU64,
    shed: AtomicU64,
    sums: Mutex<Sums>,
}

impl Overload {
    pub(super) fn new(bounds: AdaptiveLimit) -> Arc<Self> {
        let limiter = Limiter::new(bounds.least, bounds.most);
        Arc::new(Self {
            limit: AtomicU32::new(limiter.limit()),
            in_flight: AtomicU32::new(0),
            peak: AtomicU32::new(0),
            mean: AtomicU64::new(0),
            shed: AtomicU64::new(0),
            sums: Mutex::new(Sums { began: None, calls: 0, time: Duration::ZERO, limiter }),
        })
    }

    pub(super) fn stats(&self) -> OverloadStats {
        OverloadStats {
            limit: self.limit.load(Ordering::Relaxed),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            shed: self.shed.load(Ordering::Relaxed),
        }
    }

    #[cold]
    fn refuse(&self, call: &Inbound<'_>, limit: u32) -> Status {
        self.shed.fetch_add(1, Ordering::Relaxed);
        let mean = Duration::from_nanos(self.mean.load(Ordering::Relaxed));
        let wait = mean.clamp(RETRY_AFTER.0, RETRY_AFTER.1);
        // Up to twice that: callers that were refused together do not come back together.
        let jitter = wait * u32::try_from(random() % 1024).unwrap_or(0) / 1024;
        let name = call.method().name;
        Status::resource_exhausted(format!(
            "{name}: the server is overloaded: it has {limit} calls in flight, its limit at present"
        ))
        .with_retry_after(wait + jitter)
    }

    /// A call of this duration has ended.
    fn add(&self, took: Duration) {
        let mut sums = self.sums.lock();
        let now = clock::now();
        let began = *sums.began.get_or_insert(now);
        sums.calls += 1;
        sums.time += took;
        let length = now.saturating_duration_since(began);
        if length < WINDOW || (sums.calls < WINDOW_CALLS && length < OLD_WINDOW) {
            return;
        }
        let mean = sums.time / sums.calls;
        let peak = self.peak.swap(self.in_flight.load(Ordering::Relaxed), Ordering::Relaxed);
        sums.limiter.on_window(Window { mean, peak, length });
        (sums.began, sums.calls, sums.time) = (Some(now), 0, Duration::ZERO);
        self.limit.store(sums.limiter.limit(), Ordering::Relaxed);
        let nanos = u64::try_from(mean.as_nanos()).unwrap_or(u64::MAX);
        self.mean.store(nanos, Ordering::Relaxed);
    }
}

/// Whether calls of the method count. Those with streams wait more than they work, and may last for
/// days; the framework's own services answer operators.
fn counts(method: &MethodDescriptor) -> bool {
    !method.has_streams() && !method.name.starts_with("rpc.")
}

/// [`Overload`] as the outermost interceptor.
pub(super) struct Shedding(pub(super) Arc<Overload>);

impl ServerInterceptor for Shedding {
    fn name(&self) -> &str {
        "adaptive limit"
    }

    fn before(&self, call: &mut Inbound<'_>) -> Result<(), Status> {
        let Self(overload) = self;
        if !counts(call.method()) {
            return Ok(());
        }
        let limit = Priority::of(call).share(overload.limit.load(Ordering::Relaxed));
        let now = overload.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        if now > limit {
            overload.in_flight.fetch_sub(1, Ordering::Relaxed);
            return Err(overload.refuse(call, limit));
        }
        if now > overload.peak.load(Ordering::Relaxed) {
            overload.peak.fetch_max(now, Ordering::Relaxed);
        }
        Ok(())
    }

    fn after(&self, _: &Context, call: &Ended<'_>) {
        let Self(overload) = self;
        if !counts(call.method()) {
            return;
        }
        overload.in_flight.fetch_sub(1, Ordering::Relaxed);
        let took = call.elapsed();
        let is_telling = match call.ending() {
            Ending::Ok | Ending::UserError => true,
            // It would have taken longer still.
            Ending::Cancelled => was_long(overload, took),
            Ending::Status(status) => {
                status.code() == Code::DeadlineExceeded && was_long(overload, took)
            }
        };
        if is_telling {
            overload.add(took);
        }
    }
}

/// Whether a call that was cut off says something about the time of calls.
fn was_long(overload: &Overload, took: Duration) -> bool {
    took.as_nanos() >= u128::from(overload.mean.load(Ordering::Relaxed))
}

impl fmt::Debug for Overload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overload").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
