//! The memory available to this process, from which the default budget is computed.
//!
//! Owns reading the kernel's limits, also those of control groups (versions 1 and 2). Never fails:
//! a limit that cannot be read is ignored.

use std::fs;
use std::path::{Path, PathBuf};

/// The budget is this fraction (1/4) of the available memory.
const SHARE: u64 = 4;
/// The budget if no limit can be read, bytes.
const UNKNOWN: u64 = 1 << 30;

/// How files are read; `None` for one that is not there.
type Files<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// The budget of a server that sets none, bytes.
pub(super) fn default_budget() -> u64 {
    available().map_or(UNKNOWN, |available| available / SHARE)
}

/// Bytes that this process may still allocate, by the strictest limit that is known.
fn available() -> Option<u64> {
    available_by(&|path| fs::read_to_string(path).ok())
}

/// [`available`] on a machine whose files are read by `file`.
fn available_by(file: Files<'_>) -> Option<u64> {
    let read = |path: &str| file(Path::new(path));
    let machine = read("/proc/meminfo").and_then(|text| kilobytes(&text, "MemAvailable:"));
    let used = read("/proc/self/status").and_then(|text| kilobytes(&text, "VmSize:"));
    let space = read("/proc/self/limits").and_then(|text| address_space(&text));
    let space = space.map(|limit| limit.saturating_sub(used.unwrap_or(0)));
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let mounts = read("/proc/self/mountinfo").unwrap_or_default();
    let group = mounts.lines().filter_map(Hierarchy::of_line).filter_map(|hierarchy| {
        let group = hierarchy.directory_of(&groups)?;
        hierarchy.left_in(file, &group)
    });
    [machine, space, group.min()].into_iter().flatten().min()
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

/// A mounted hierarchy of control groups that limits memory.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy<'a> {
    /// Version 1 with the controller `memory`, or version 2.
    is_v1: bool,
    /// The group that is mounted: `/`, or in a container that container's own.
    top: &'a str,
    /// Where.
    at: PathBuf,
}

impl<'a> Hierarchy<'a> {
    /// From a line of `/proc/PID/mountinfo`: `id parent device root mount-point options.. - type
    /// source super-options`.
    fn of_line(line: &'a str) -> Option<Self> {
        let (mount, kind) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (top, at) = (mount.next()?, PathBuf::from(mount.next()?));
        let mut kind = kind.split(' ');
        let is_v1 = match kind.next()? {
            "cgroup2" => false,
            "cgroup" if kind.nth(1)?.split(',').any(|option| option == "memory") => true,
            _ => return None,
        };
        Some(Self { is_v1, top, at })
    }

    /// The directory of this process's group, from `/proc/self/cgroup`: `id:controllers:path`.
    fn directory_of(&self, groups: &str) -> Option<PathBuf> {
        let path = groups.lines().find_map(|line| {
            let (id, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let is_ours = match self.is_v1 {
                true => controllers.split(',').any(|name| name == "memory"),
                false => id == "0" && controllers.is_empty(),
            };
            is_ours.then_some(path)
        })?;
        // Outside of what is mounted, as in some containers: then the mounted group is what is
        // known.
        let below = Path::new(path).strip_prefix(self.top).unwrap_or(Path::new(""));
        Some(self.at.join(below))
    }

    /// The least that a group, or one that it lies in, may still allocate, bytes; `None` without a
    /// limit.
    fn left_in(&self, file: Files<'_>, group: &Path) -> Option<u64> {
        let [limit, used] = match self.is_v1 {
            true => ["memory.limit_in_bytes", "memory.usage_in_bytes"],
            false => ["memory.max", "memory.current"],
        };
        let left = |group: &Path| {
            let number =
                |name: &str| -> Option<u64> { file(&group.join(name))?.trim().parse().ok() };
            Some(number(limit)?.saturating_sub(number(used).unwrap_or(0)))
        };
        group.ancestors().take_while(|group| group.starts_with(&self.at)).filter_map(left).min()
    }
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
    }

    /// What is available to a process whose groups and mounts are these, where files hold such
    /// numbers.
    fn available_with(groups: &str, mounts: &str, files: &[(&str, u64)]) -> Option<u64> {
        available_by(&|path| {
            Some(match path.to_str()? {
                "/proc/meminfo" => "MemAvailable:   8388608 kB\n".to_owned(),
                "/proc/self/cgroup" => groups.to_owned(),
                "/proc/self/mountinfo" => mounts.to_owned(),
                path => format!("{}\n", files.iter().find(|(name, _)| *name == path)?.1),
            })
        })
    }

    const V2: &str = "24 1 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
    const V1: &str = "30 24 0:26 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                      31 24 0:27 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory\n";

    #[test]
    fn the_least_limit_of_nested_groups_counts() {
        let groups = "1:cpu:/elsewhere\n0::/system.slice/kv.service/worker\n";
        let nested = [
            ("/sys/fs/cgroup/system.slice/memory.max", 3 << 20),
            ("/sys/fs/cgroup/system.slice/memory.current", 1 << 20),
            ("/sys/fs/cgroup/system.slice/kv.service/memory.max", 64 << 20),
            ("/sys/fs/cgroup/system.slice/kv.service/worker/memory.max", 32 << 20),
        ];
        for (files, expected) in [
            (&[][..], 8 << 30),
            (&[("/sys/fs/cgroup/elsewhere/memory.max", 5)], 8 << 30),
            (&nested[2..3], 64 << 20),
            (&nested[2..], 32 << 20),
            (&nested, 2 << 20),
        ] {
            assert_eq!(available_with(groups, V2, files), Some(expected), "{files:?}");
        }
    }

    /// A server with 64 MB by version 1 took what the machine had, and was killed.
    #[test]
    fn limits_of_version_1_are_seen() {
        let unlimited = 0x7fff_ffff_ffff_f000;
        let groups = "9:memory:/kv/inner\n4:cpu,cpuacct:/other\n0::/\n";
        let files = [
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", unlimited),
            ("/sys/fs/cgroup/memory/kv/memory.limit_in_bytes", 64 << 20),
            ("/sys/fs/cgroup/memory/kv/memory.usage_in_bytes", 4 << 20),
            ("/sys/fs/cgroup/memory/kv/inner/memory.limit_in_bytes", unlimited),
        ];
        assert_eq!(available_with(groups, &format!("{V2}{V1}"), &files), Some(60 << 20));
    }

    #[test]
    fn a_container_sees_the_group_that_is_mounted() {
        // With a namespace of its own, without one, and where only its own group is mounted.
        for (groups, top) in [("0::/\n", "/"), ("0::/a/b\n", "/a/b"), ("0::/../x\n", "/")] {
            let mounts = format!("24 1 0:22 {top} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
            let files = [("/sys/fs/cgroup/memory.max", 7 << 20)];
            assert_eq!(available_with(groups, &mounts, &files), Some(7 << 20), "{groups}");
        }
    }

    #[test]
    fn there_is_always_a_budget() {
        assert!(default_budget() > 0);
        assert!(available().is_some_and(|bytes| bytes > 0), "this machine says nothing");
    }
}
