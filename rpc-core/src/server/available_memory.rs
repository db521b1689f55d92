//! The memory available to this process, from which the default budget is computed.
//!
//! Owns reading the kernel's limits. Never fails: a limit that cannot be read is ignored.

use std::fs;
use std::path::{Path, PathBuf};

/// The budget is this fraction (1/4) of the available memory.
const SHARE: u64 = 4;
/// The budget if no limit can be read, bytes.
const UNKNOWN: u64 = 1 << 30;

/// The budget of a server that sets none, bytes.
pub(super) fn default_budget() -> u64 {
    available().map_or(UNKNOWN, |available| available / SHARE)
}

/// Bytes that this process may still allocate, by the strictest limit that is known.
fn available() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| kilobytes(&text, "MemAvailable:"));
    let used = read("/proc/self/status").and_then(|text| kilobytes(&text, "VmSize:"));
    let space = read("/proc/self/limits").and_then(|text| address_space(&text));
    let space = space.map(|limit| limit.saturating_sub(used.unwrap_or(0)));
    let group = read("/proc/self/cgroup")
        .and_then(|text| group_of(&text))
        .and_then(|group| group.ancestors().filter_map(left_in_group).min());
    [machine, space, group].into_iter().flatten().min()
}

/// A line of `/proc/meminfo` or `/proc/PID/status`, bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let count: u64 = line.split_whitespace().next()?.parse().ok()?;
    count.checked_mul(1024)
}

/// The soft limit of the address space in `/proc/PID/limits`, bytes; `None` if there is none.
fn address_space(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The directory of this process's control group (version 2).
fn group_of(text: &str) -> Option<PathBuf> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new("/sys/fs/cgroup").join(path))
}

/// What a control group may still allocate, bytes; `None` without a limit.
fn left_in_group(group: &Path) -> Option<u64> {
    let number = |file: &str| -> Option<u64> {
        fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()
    };
    Some(number("memory.max")?.saturating_sub(number("memory.current").unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_understood() {
        let meminfo = "MemTotal:       24681 kB\nMemAvailable:   22806 kB\nBuffers:  1 kB\n";
        assert_eq!(kilobytes(meminfo, "MemAvailable:"), Some(22_806 * 1024));
        assert_eq!(kilobytes(meminfo, "SwapTotal:"), None);
        let limits = |soft| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max address space         {soft}            unlimited            bytes     \n"
            )
        };
        assert_eq!(address_space(&limits("419430400")), Some(400 << 20));
        assert_eq!(address_space(&limits("unlimited")), None);
        let group = group_of("1:cpu:/x\n0::/system.slice/kv.service\n").unwrap();
        assert_eq!(group, Path::new("/sys/fs/cgroup/system.slice/kv.service"));
    }

    #[test]
    fn there_is_always_a_budget() {
        assert!(default_budget() > 0);
        assert!(available().is_some_and(|bytes| bytes > 0), "this machine says nothing");
    }
}
