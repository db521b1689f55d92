//! A test's own runtime, with a hard time limit.
//!
//! Invariants:
//! 1. A body that does not end in time fails the test, and its values are dropped: child processes
//!    die.
//! 2. A body that blocks its threads is ended by ending the whole process, which also ends child
//!    processes ([`crate::process`]).

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use rpc_core::{ChannelBuilder, PollMode};
pub use test_kit::Watchdog;
use tokio::runtime::{Builder, Runtime};

/// Time for one test. Generous: only a test that hangs reaches it.
pub const LIMIT: Duration = Watchdog::LIMIT;
/// Time for one test at a slower [`paced`] pace.
const SLOW_LIMIT: Duration = Duration::from_secs(300);
/// Time for the orderly end of a timed-out test.
const TAKE_DOWN: Duration = Duration::from_secs(20);

/// The time that a test gives a living process to answer, times `RPC_TEST_PACE`: an emulated
/// machine on a busy host may do nothing at all for a tenth of a second.
///
/// # Panics
/// When that is not a number.
#[must_use]
pub fn paced(time: Duration) -> Duration {
    let pace = std::env::var("RPC_TEST_PACE").ok();
    time * pace.map_or(1, |text| text.parse().expect("RPC_TEST_PACE is a number"))
}

/// Configures a channel that waits for a slow machine to connect, and never spins.
#[must_use]
pub fn patient_channel() -> ChannelBuilder {
    crate::device::channel()
        .poll_mode(PollMode::Event)
        .connect_timeout(paced(Duration::from_secs(10)).min(SLOW_LIMIT / 3))
}

fn limit() -> Duration {
    paced(LIMIT).min(SLOW_LIMIT) + long().unwrap_or_default()
}

/// Duration of open-ended tests: two minutes if `RPC_TEST_LONG` is set.
#[must_use]
pub fn long() -> Option<Duration> {
    std::env::var_os("RPC_TEST_LONG").map(|_| Duration::from_secs(120))
}

/// Runs a test on a runtime with four workers.
///
/// # Panics
/// When it does not end within [`LIMIT`].
pub fn run<F: Future<Output = ()>>(body: F) {
    let mut builder = Builder::new_multi_thread();
    run_on(builder.worker_threads(4), body);
}

/// Runs a test on one thread.
///
/// # Panics
/// When it does not end within [`LIMIT`].
pub fn run_single<F: Future<Output = ()>>(body: F) {
    run_on(&mut Builder::new_current_thread(), body);
}

/// Runs a test on a runtime of its own.
///
/// # Panics
/// When it does not end within [`LIMIT`].
pub fn run_on<F: Future<Output = ()>>(builder: &mut Builder, body: F) {
    // One type for all tests: a runtime for each takes long to compile.
    run_boxed(builder, Box::pin(body));
}

fn run_boxed(builder: &mut Builder, body: Pin<Box<dyn Future<Output = ()> + '_>>) {
    let _watchdog = Watchdog::within(limit() + TAKE_DOWN);
    let runtime = builder.enable_all().build().expect("a runtime");
    block_on(&runtime, body);
    runtime.shutdown_background();
}

/// Runs a future on a runtime, within [`LIMIT`].
///
/// # Panics
/// When it does not end in time.
pub fn block_on<F: Future>(runtime: &Runtime, body: F) -> F::Output {
    let limited = async { tokio::time::timeout(limit(), body).await };
    runtime.block_on(limited).expect("the test is stuck")
}
