//! The limit on locked memory, and the advice to give when it is reached.
//!
//! Owns the error texts for refused registrations. Registering pins pages, and pinned pages count
//! against `RLIMIT_MEMLOCK`, each registration in full.

use std::io;

use rustix::process::{Resource, getrlimit};

use crate::device::ProviderError;

/// The limit on locked memory of this process, bytes; `None` when unlimited.
pub(super) fn memlock_bytes() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

/// How to raise the limit.
pub(super) const RAISE_MEMLOCK: &str = "raise it with `ulimit -l` (or memlock in \
     /etc/security/limits.conf), LimitMEMLOCK= in a systemd unit, or grant CAP_IPC_LOCK";

/// The error for a refused registration of `len` bytes.
pub(super) fn registration_refused(len: usize, error: &io::Error) -> ProviderError {
    let message = match (error.kind(), memlock_bytes()) {
        (io::ErrorKind::OutOfMemory, Some(limit)) => format!(
            "{error}; registering {len} bytes pins them, and the limit on locked memory \
             (RLIMIT_MEMLOCK) is {limit} bytes: {RAISE_MEMLOCK}"
        ),
        _ => format!("{error} (registering {len} bytes)"),
    };
    ProviderError::Resources { what: "register memory", message }
}

/// The error for any other refusal of the device.
pub(super) fn refused(what: &'static str, error: &io::Error) -> ProviderError {
    ProviderError::Resources { what, message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_registration_names_the_limit_and_three_ways_out() {
        let text = registration_refused(1 << 20, &io::Error::from_raw_os_error(12)).to_string();
        if memlock_bytes().is_some() {
            for part in ["1048576", "RLIMIT_MEMLOCK", "ulimit -l", "LimitMEMLOCK", "CAP_IPC_LOCK"] {
                assert!(text.contains(part), "{part} is missing in: {text}");
            }
        }
        // Another errno has another cause.
        let text = registration_refused(0, &io::Error::from_raw_os_error(22)).to_string();
        assert!(!text.contains("ulimit"), "{text}");
    }
}
