//! [`Place`]: the facts that decide whether two processes can share memory.

use std::fmt;

/// The facts of a process that decide whether it can share memory with another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// The kernel's random id of this boot; empty if it cannot be read.
    pub(crate) boot: String,
    /// The network namespace, in which abstract socket names live.
    pub(crate) namespace: String,
    /// The user, which decides what sockets of others let through.
    pub(crate) user: u32,
}

impl Place {
    pub(crate) fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let namespace = std::fs::read_link("/proc/self/ns/net");
        Self {
            boot: read("/proc/sys/kernel/random/boot_id").trim().to_owned(),
            namespace: namespace.map(|link| link.display().to_string()).unwrap_or_default(),
            user: rustix::process::geteuid().as_raw(),
        }
    }
}

/// Boot and namespace, without the user: a server as root may serve users.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.boot, self.namespace)
    }
}
