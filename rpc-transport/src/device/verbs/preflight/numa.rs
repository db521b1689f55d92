//! The NUMA node of a device, and whether this process runs there.
//!
//! Calls work from every core. From another node each message crosses between the sockets twice.

use std::fmt;
use std::fs;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity};

/// The kernel's list of the NUMA nodes.
const NODES: &str = "/sys/devices/system/node/online";

/// The NUMA node of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NumaNode {
    /// Its number.
    pub number: u32,
    /// Its cores, as the kernel lists them: `0-15,32-47`.
    pub cores: String,
    /// Which of them this process may run on.
    pub process: Overlap,
}

/// How the cores of this process and those near a device overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overlap {
    /// It runs near the device only.
    Near,
    /// It may run near the device, and elsewhere.
    Both,
    /// It may run elsewhere only.
    Far,
}

/// The node of a device, by its directory in `/sys`; `None` if the machine has one node, or does
/// not report nodes.
pub(super) fn node_of(device: &Path) -> Option<NumaNode> {
    let allowed = sched_getaffinity(None).ok()?;
    let read = |path: &Path| fs::read_to_string(path).ok();
    node(
        &read(Path::new(NODES))?,
        &read(&device.join("device/numa_node"))?,
        &read(&device.join("device/local_cpulist"))?,
        |cpu| allowed.is_set(cpu),
    )
}

fn node(
    nodes: &str,
    number: &str,
    cores: &str,
    is_allowed: impl Fn(usize) -> bool,
) -> Option<NumaNode> {
    if members(nodes)?.len() < 2 {
        return None;
    }
    // -1: the device belongs to no node.
    let number = number.trim().parse().ok()?;
    let near = members(cores).filter(|near| !near.is_empty())?;
    let allowed = || (0..CpuSet::MAX_CPU).filter(|cpu| is_allowed(*cpu));
    let process = match allowed().filter(|cpu| near.contains(cpu)).count() {
        0 => Overlap::Far,
        some if some == allowed().count() => Overlap::Near,
        _ => Overlap::Both,
    };
    Some(NumaNode { number, cores: cores.trim().to_owned(), process })
}

/// The members of a list in the kernel's format: `0-3,8`. `None` for anything else.
fn members(list: &str) -> Option<Vec<usize>> {
    let mut members = Vec::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= CpuSet::MAX_CPU {
            return None;
        }
        members.extend(first..=last);
    }
    Some(members)
}

impl fmt::Display for NumaNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, cores, process } = self;
        let allowed = match process {
            Overlap::Near => "only on them",
            Overlap::Both => "on others too",
            Overlap::Far => "on none of them",
        };
        write!(f, "NUMA node {number}: cores {cores}; this process may run {allowed}")
    }
}

impl NumaNode {
    /// The advice for a process that runs far from all devices.
    pub(super) fn advice(&self, device: &str) -> String {
        let Self { number, cores, .. } = self;
        format!(
            "{device} is attached to NUMA node {number} (cores {cores}), where this process may \
             not run, so each message crosses nodes: start it with `numactl --cpunodebind={number} \
             --preferred={number} ..`, or in Kubernetes use the topology manager's policy \
             `single-numa-node`"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(members("0\n"), Some(vec![0]));
        assert_eq!(members("0-2,8,10-11\n"), Some(vec![0, 1, 2, 8, 10, 11]));
        assert_eq!(members("\n"), Some(vec![]));
        for bad in ["x", "1-", "0-99999999999", "0-4294967295"] {
            assert_eq!(members(bad), None, "{bad}");
        }
    }

    #[test]
    fn cores_near_a_device_are_told_from_others() {
        let process = |allowed: &[usize]| {
            let node = node("0-1\n", "1\n", "2-3\n", |cpu| allowed.contains(&cpu));
            let node = node.expect("there are two nodes");
            assert_eq!((node.number, &*node.cores), (1, "2-3"));
            node.process
        };
        assert_eq!(process(&[2]), Overlap::Near);
        assert_eq!(process(&[2, 3]), Overlap::Near);
        assert_eq!(process(&[0, 1, 2, 3]), Overlap::Both);
        assert_eq!(process(&[0, 1]), Overlap::Far);
    }

    #[test]
    fn numa_is_silent_where_irrelevant_or_unknown() {
        for (nodes, number, cores) in [
            ("0", "0", "0-3"),
            ("0-1", "-1", "0-3"),
            ("0-1", "1", ""),
            ("0-1", "x", "0"),
            ("", "0", "0"),
        ] {
            assert_eq!(node(nodes, number, cores, |_| true), None, "{nodes} {number} {cores}");
        }
    }
}
