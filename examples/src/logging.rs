//! The log: to stderr, so that stdout holds results only.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

/// Starts logging. `RUST_LOG` says what is shown; the default is warnings and errors.
pub fn init() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
}
