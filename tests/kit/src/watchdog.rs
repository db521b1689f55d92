//! A hard time limit: ends the process of a test that hangs, whatever its threads wait for.

use std::io::{self, Write};
use std::sync::mpsc;
use std::time::Duration;

/// Ends the process with a message if it is not dropped in time.
#[derive(Debug)]
pub struct Watchdog {
    #[expect(dead_code, reason = "its end is what counts")]
    alive: mpsc::Sender<()>,
}

impl Watchdog {
    /// Default time limit of a test. Only a test that hangs reaches it: the busiest test takes 20 s
    /// on a quiet machine, and machines running a dozen other jobs were seen.
    pub const LIMIT: Duration = Duration::from_secs(240);

    /// Guards a test of this name for [`Watchdog::LIMIT`].
    ///
    /// # Panics
    /// When no thread can be started.
    #[must_use]
    pub fn start(name: &str) -> Self {
        Self::named(name.to_owned(), Self::LIMIT)
    }

    /// Guards the test that this thread runs.
    ///
    /// # Panics
    /// When no thread can be started.
    #[must_use]
    pub fn within(limit: Duration) -> Self {
        Self::named(std::thread::current().name().unwrap_or("a test").to_owned(), limit)
    }

    fn named(test: String, limit: Duration) -> Self {
        let (alive, ended) = mpsc::channel::<()>();
        let watch = move || {
            if ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                // `eprintln` would be buffered until the end of the test, which never comes.
                let _ = writeln!(
                    io::stderr(),
                    "{test} is stuck: no end within {limit:?}, ending the process"
                );
                std::process::abort();
            }
        };
        std::thread::Builder::new().name("watchdog".to_owned()).spawn(watch).expect("a thread");
        Self { alive }
    }
}
