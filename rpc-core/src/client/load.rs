//! How busy and how fast an end point is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rpc_transport::engine::clock;

use crate::channel::picker::Latency;

/// What a call is taken to have lasted that an end point has refused.
const REFUSED_LATENCY: Duration = Duration::from_secs(1);

/// The calls of an end point among several, for the choice between them.
#[derive(Default)]
pub(crate) struct Load {
    in_flight: AtomicU32,
    latency: Mutex<Latency>,
}

impl Load {
    pub(super) fn cost(&self) -> f64 {
        self.latency.lock().cost(self.in_flight.load(Ordering::Relaxed))
    }

    /// A call begins; it ends when the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Loaded {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Loaded { load: Arc::clone(self), began: clock::now() }
    }
}

/// A call under way.
pub(crate) struct Loaded {
    load: Arc<Load>,
    began: Instant,
}

impl Loaded {
    /// It was answered.
    pub(crate) fn answered(&self) {
        let now = clock::now();
        self.load.latency.lock().observe(now.saturating_duration_since(self.began), now);
    }

    /// The end point takes no calls: it is to look slow, however fast it says so.
    pub(crate) fn refused(&self) {
        self.load.latency.lock().observe(REFUSED_LATENCY, clock::now());
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.load.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
