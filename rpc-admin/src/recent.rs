//! Recent failed and slow calls.
//!
//! Invariants:
//! 1. Memory is bounded: the number of calls of each kind and the length of each text are limited.
//! 2. A successful call that is not slow costs a comparison, and no lock.
//! 3. No call waits for the lock: calls that cannot be kept at once are counted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rpc_core::interceptor::{ClientInterceptor, Ended, Ending, ServerInterceptor};
use rpc_core::text::printable;
use rpc_core::trace::TraceParent;
use rpc_core::{Code, Context};
use serde::Serialize;

use crate::history::is_failure;
use crate::wall_clock::unix_millis;

/// Number of calls kept of each kind.
const MOST: usize = 64;
/// Maximum length of a call's text, characters.
const MOST_CHARS: usize = 240;
/// Default threshold for slow calls.
const SLOW: Duration = Duration::from_millis(100);

/// An interceptor of servers and channels that keeps the most recent failed and slow calls for the
/// page. Clones share them.
///
/// A call failed if it ended with a status other than `Cancelled`; a method's own error is an
/// answer. A handler that was stopped after its deadline had passed counts as `DeadlineExceeded`.
/// Arguments and metadata are not kept, but the texts of statuses are.
///
/// ```
/// use rpc_admin::Recent;
/// use std::time::Duration;
///
/// let recent = Recent::new().slower_than(Duration::from_millis(20));
/// let server = rpc_core::Server::builder().interceptor(recent.clone());
/// let channel = rpc_core::Channel::builder().interceptor(recent);
/// ```
#[derive(Debug, Clone)]
pub struct Recent {
    slow: Duration,
    kept: Arc<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    rings: Mutex<Rings>,
    missed: AtomicU64,
}

#[derive(Debug, Clone, Default)]
struct Rings {
    failed: VecDeque<Arc<CallRow>>,
    slow: VecDeque<Arc<CallRow>>,
}

/// A kept call.
#[derive(Debug, Serialize)]
pub(crate) struct CallRow {
    at_ms: u64,
    method: &'static str,
    /// `server` or `client`.
    end: &'static str,
    code: String,
    text: String,
    took_ns: u64,
    peer: Option<String>,
    trace_id: Option<String>,
}

/// The calls for the page, latest first.
#[derive(Debug, Default, Serialize)]
pub(crate) struct RecentRows {
    pub(crate) slow_ns: u64,
    pub(crate) failed: Vec<Arc<CallRow>>,
    pub(crate) slow: Vec<Arc<CallRow>>,
    pub(crate) missed: u64,
}

impl Recent {
    /// Starts empty. Calls of more than 100 ms count as slow.
    #[must_use]
    pub fn new() -> Self {
        Self { slow: SLOW, kept: Arc::default() }
    }

    /// Sets the threshold for slow calls: on a server for the time of the handler, in a client for
    /// that of the call with all its attempts; for streams, until their end.
    #[must_use]
    pub fn slower_than(mut self, slow: Duration) -> Self {
        self.slow = slow;
        self
    }

    pub(crate) fn rows(&self) -> RecentRows {
        let rings = self.kept.rings.lock().clone();
        RecentRows {
            slow_ns: nanos(self.slow),
            failed: rings.failed.into_iter().rev().collect(),
            slow: rings.slow.into_iter().rev().collect(),
            missed: self.kept.missed.load(Ordering::Relaxed),
        }
    }

    fn after(&self, end: &'static str, call: &Ended<'_>, context: Option<&Context>) {
        let took = call.elapsed();
        if took <= self.slow && matches!(call.ending(), Ending::Ok | Ending::UserError) {
            return;
        }
        self.keep(end, call, took, context);
    }

    #[cold]
    fn keep(&self, end: &'static str, call: &Ended<'_>, took: Duration, context: Option<&Context>) {
        let (code, text) = match call.ending() {
            Ending::Cancelled if context.is_some_and(is_late) => (Code::DeadlineExceeded, ""),
            Ending::Status(status) => (status.code(), status.message()),
            ending => (ending.code(), ""),
        };
        let is_failed = is_failure(code);
        let is_slow = took > self.slow;
        if !is_failed && !is_slow {
            return;
        }
        let code = match call.ending() {
            Ending::UserError => "UserError".to_owned(),
            _ => format!("{code:?}"),
        };
        let trace = context.and_then(|context| TraceParent::of(context.metadata()));
        let row = Arc::new(CallRow {
            at_ms: unix_millis(SystemTime::now()),
            method: call.method().name,
            end,
            code,
            text: short(text),
            took_ns: nanos(took),
            peer: context.and_then(Context::peer).map(|peer| short(&format!("{peer}"))),
            trace_id: trace.map(|trace| format!("{:032x}", trace.trace_id)),
        });
        let Some(mut rings) = self.kept.rings.try_lock() else {
            self.kept.missed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if is_failed {
            push(&mut rings.failed, Arc::clone(&row));
        }
        if is_slow {
            push(&mut rings.slow, row);
        }
    }
}

impl Default for Recent {
    fn default() -> Self {
        Self::new()
    }
}

impl ServerInterceptor for Recent {
    fn after(&self, context: &Context, call: &Ended<'_>) {
        self.after("server", call, Some(context));
    }
}

impl ClientInterceptor for Recent {
    fn after(&self, call: &Ended<'_>) {
        self.after("client", call, None);
    }
}

/// Whether the call's deadline has passed.
fn is_late(context: &Context) -> bool {
    context.deadline().is_some_and(|deadline| deadline <= Instant::now())
}

fn push(ring: &mut VecDeque<Arc<CallRow>>, row: Arc<CallRow>) {
    if ring.len() == MOST {
        ring.pop_front();
    }
    ring.push_back(row);
}

/// The printable text, cut if it is too long.
fn short(text: &str) -> String {
    let mut text = printable(text).to_string();
    if let Some((end, _)) = text.char_indices().nth(MOST_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
