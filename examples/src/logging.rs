//! The log: to stderr, so that stdout holds results only.

use std::env::{self, VarError};
use std::io::{self, IsTerminal};
use std::process;

pub use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Configures the log.
const VARIABLE: &str = "RUST_LOG";

/// Starts logging. `RUST_LOG` configures it: a level, or levels of modules such as
/// `info,rpc_core::server=debug`. The default is warnings and errors. Ends the process with an
/// error if the variable cannot be parsed.
pub fn init() {
    init_at(LevelFilter::WARN);
}

/// As [`init`], with another default.
pub fn init_at(default: LevelFilter) {
    let filter = filter(env::var(VARIABLE), default).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        process::exit(2);
    });
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    tracing_subscriber::registry().with(lines).with(filter).init();
}

fn filter(said: Result<String, VarError>, default: LevelFilter) -> Result<Targets, String> {
    let said = match said {
        Ok(said) => said,
        Err(VarError::NotPresent) => String::new(),
        Err(error @ VarError::NotUnicode(_)) => return Err(format!("{VARIABLE}: {error}")),
    };
    if said.trim().is_empty() {
        return Ok(Targets::new().with_default(default));
    }
    said.parse().map_err(|error| {
        format!(
            "{VARIABLE}={said:?}: {error}; use off, error, warn, info, debug or trace, alone or \
             per module, in a list: info,rpc_core::server=debug"
        )
    })
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    fn said(text: &str) -> Result<Targets, String> {
        filter(Ok(text.to_owned()), LevelFilter::WARN)
    }

    #[test]
    fn warnings_are_shown_unless_something_else_is_said() {
        for filter in [filter(Err(VarError::NotPresent), LevelFilter::WARN), said(""), said(" ")] {
            let filter = filter.unwrap();
            assert!(filter.would_enable("rpc_core::server", &Level::WARN));
            assert!(!filter.would_enable("rpc_core::server", &Level::INFO));
        }
    }

    #[test]
    fn a_level_and_levels_of_modules_are_taken() {
        let filter = said("info,rpc_core::server=debug").unwrap();
        assert!(filter.would_enable("rpc_core::server::acceptor", &Level::DEBUG));
        assert!(!filter.would_enable("rpc_core::client", &Level::DEBUG));
        assert!(filter.would_enable("rpc_core::client", &Level::INFO));
    }

    #[test]
    fn invalid_filter_lists_the_valid_ones() {
        let error = said("rpc_core=loud").unwrap_err();
        assert!(error.starts_with("RUST_LOG=\"rpc_core=loud\": "), "{error}");
        assert!(error.contains("info,rpc_core::server=debug"), "{error}");
    }
}
