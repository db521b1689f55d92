//! The resource limits of this process (`getrlimit(2)`).
//!
//! Owns that one question. A sandbox may refuse to answer it. Then no limit is known, and a request
//! beyond one fails where it is made.
#![allow(unsafe_code, reason = "getrlimit; rustix's panics where a sandbox refuses it")]

/// A resource of which a process has a limited amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limited {
    /// Open files; a number.
    OpenFiles,
    /// The size of each file, including files behind shared memory; bytes.
    FileSize,
    /// Locked memory, bytes.
    LockedMemory,
}

/// The soft limit; `None` if there is none, or if the system does not answer.
pub(crate) fn limit(of: Limited) -> Option<u64> {
    let resource = match of {
        Limited::OpenFiles => libc::RLIMIT_NOFILE,
        Limited::FileSize => libc::RLIMIT_FSIZE,
        Limited::LockedMemory => libc::RLIMIT_MEMLOCK,
    };
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is valid for the call to write to. If it fails, it is left as it was.
    let _ = unsafe { libc::getrlimit(resource, &raw mut limit) };
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, getrlimit};

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "there are no limits to ask for")]
    fn limits_are_those_of_the_system() {
        for (of, resource) in [
            (Limited::OpenFiles, Resource::Nofile),
            (Limited::FileSize, Resource::Fsize),
            (Limited::LockedMemory, Resource::Memlock),
        ] {
            assert_eq!(limit(of), getrlimit(resource).current, "{of:?}");
        }
    }
}
