//! Resource usage of an end: CPU time and memory.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The scope of the CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// This process, which is one end.
    Process,
    /// This thread: both ends are in one process.
    Thread,
}

impl Scope {
    pub(crate) fn is_process(self) -> bool {
        self == Self::Process
    }
}

/// The usage so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    /// CPU time, user and system, ns.
    pub(crate) cpu_ns: u64,
    /// Resident memory of the process, bytes; shared memory is divided among its processes.
    pub(crate) resident_bytes: Option<u64>,
}

impl Usage {
    pub(crate) fn now(scope: Scope) -> Self {
        Self { cpu_ns: cpu_ns(scope), resident_bytes: resident_bytes() }
    }
}

/// CPU time of this end so far, ns.
pub(crate) fn cpu_ns(scope: Scope) -> u64 {
    let time = clock_gettime(match scope {
        Scope::Process => ClockId::ProcessCPUTime,
        Scope::Thread => ClockId::ThreadCPUTime,
    });
    let time = Duration::try_from(time).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}
