//! The RDMA capabilities of this machine, the defects, and their remedies.
//!
//! Owns the report and its conclusions: [`judge`] is a pure function of the facts that [`probe`]
//! collects. Never changes anything.

mod counters;
mod interfaces;
mod numa;
mod probe;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

pub use self::counters::PortCounters;
pub use self::numa::{NumaNode, Overlap};
use super::completion_channel::CqGuard;
use super::failure::port_down;
use super::options::TRAFFIC_CLASS_VARIABLE;
use crate::device::QueueLimits;
use crate::device::memlock::raise;

/// A limit on locked memory below this, bytes, is too small for even a few connections: the receive
/// buffers of one take a quarter of it.
const SMALL_MEMLOCK_BYTES: u64 = 4 * 1024 * 1024;
/// RDMA MTU below which large messages are noticeably slower, bytes.
const GOOD_MTU_BYTES: u32 = 4096;

/// [`Gid::kind`] of an IP address over RoCE.
const ROCE_V2: &str = "RoCE v2";
/// [`Gid::kind`] of an address of an iWARP port.
const IWARP: &str = "iWARP";

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It works, but could be better.
    Advice,
    /// Something will fail.
    Problem,
}

/// A finding, and its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How serious it is.
    pub severity: Severity,
    /// The problem, and its remedy.
    pub text: String,
}

/// An address of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gid {
    /// Index in the port's table. An iWARP port has one entry, which stands for all addresses of
    /// its network device.
    pub index: u32,
    /// The address; IPv4 is mapped.
    pub address: Ipv6Addr,
    /// Its kind, in the kernel's words: `RoCE v2`, `IB/RoCE v1`; empty if the kernel does not say.
    /// `iWARP`: an address of the network device.
    pub kind: String,
    /// The network device that it belongs to, if any.
    pub network_device: Option<String>,
}

impl Gid {
    /// Whether it is an IP address, as on RoCE v2. On InfiniBand and RoCE v1 it is made of other
    /// numbers, or is a second form of an address that is there already.
    fn is_ip_address(&self) -> bool {
        self.kind == ROCE_V2 || self.kind == IWARP
    }

    /// Whether a peer in another network can reach this address.
    fn is_routable(&self) -> bool {
        let is_link_local = self.address.segments()[0] & 0xffc0 == 0xfe80;
        !is_link_local && !self.address.is_unspecified()
    }
}

/// A port of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Port {
    /// Number, from 1.
    pub number: u8,
    /// Whether traffic can flow.
    pub is_active: bool,
    /// Whether it is Ethernet (RoCE, iWARP); else InfiniBand.
    pub is_ethernet: bool,
    /// RDMA MTU now in use, bytes.
    pub active_mtu_bytes: u32,
    /// Largest RDMA MTU, bytes.
    pub max_mtu_bytes: u32,
    /// The traffic class that the administrator has set for all connections of this port, if the
    /// driver has such a setting and it is in force (mlx5).
    pub traffic_class: Option<u8>,
    /// Counters that do not rise in a good network.
    pub counters: PortCounters,
    /// The network device of its addresses, if that is in another network namespace.
    pub elsewhere: Option<String>,
    /// Addresses.
    pub gids: Vec<Gid>,
}

impl Port {
    /// The problem that its network device is in another namespace, if so, with a remedy.
    pub(super) fn why_elsewhere(&self, device: &str) -> Option<String> {
        let (number, interface) = (self.number, self.elsewhere.as_ref()?);
        Some(format!(
            "{device} port {number} belongs to the network device {interface}, which is not in \
             this network namespace, so it reaches no peers from here. Give the container that \
             network device, or the host's network; with `rdma system set netns exclusive` a \
             container sees only the RDMA devices assigned to it"
        ))
    }

    /// Whether it has its link, and its network device is in this namespace.
    fn is_reachable(&self) -> bool {
        self.is_active && self.elsewhere.is_none()
    }
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceReport {
    /// Its name.
    pub name: String,
    /// Why it cannot be opened; `None` if it can.
    pub open_error: Option<String>,
    /// Most QPs of the device.
    pub max_qp: u32,
    /// Most entries of a CQ, as the device says; see [`queue_limits`](Self::queue_limits).
    pub max_cqe: u32,
    /// Most receives of a shared receive queue; 0: connections cannot share theirs.
    pub max_srq_wr: u32,
    /// Most memory regions.
    pub max_mr: u32,
    /// Its place on a machine with several NUMA nodes.
    pub numa: Option<NumaNode>,
    /// Its ports.
    pub ports: Vec<Port>,
}

impl DeviceReport {
    /// Limits on its queues in this program, which reserves a part of each completion queue.
    #[must_use]
    pub fn queue_limits(&self) -> QueueLimits {
        let max_cqe = CqGuard::usable_entries(self.max_cqe);
        QueueLimits { max_cqe, max_srq_wr: self.max_srq_wr }
    }
}

/// The result of the preflight check.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Devices that libibverbs knows.
    pub devices: Vec<DeviceReport>,
    /// Devices that the kernel knows, whether or not libibverbs can drive them.
    pub kernel_devices: Vec<String>,
    /// Whether the kernel supports RDMA, or has modules that add it.
    pub kernel_can_rdma: bool,
    /// Why the connection manager cannot be used; `None` if it can.
    pub connection_manager_error: Option<String>,
    /// Limit on locked memory, bytes; `None` when this process has no limit.
    pub memlock_bytes: Option<u64>,
    /// The traffic class that connections of this process request; `None` for the system's.
    pub traffic_class: Option<u8>,
    /// Problems and their remedies, most serious first.
    pub findings: Vec<Finding>,
}

/// Examines this machine, with the permissions of this user.
#[must_use]
pub fn preflight() -> Report {
    let mut report = probe::facts();
    probe::add_details(&mut report);
    report.findings = judge(&report);
    report
}

/// The facts that decide whether connecting is possible.
pub(super) fn facts() -> Report {
    let mut report = probe::facts();
    report.findings = judge(&report);
    report
}

/// Why connecting is impossible, given that the connection manager could not be opened.
pub(super) fn why_unavailable(error: &io::Error) -> String {
    facts().first_problem().unwrap_or_else(|| format!("cannot use the connection manager: {error}"))
}

impl Report {
    /// Whether connections can be expected to work: there is no finding worse than advice.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.findings.iter().all(|found| found.severity == Severity::Advice)
    }

    /// The most serious problem of this machine, if any.
    pub(super) fn first_problem(&self) -> Option<String> {
        let problem = self.findings.iter().find(|found| found.severity == Severity::Problem);
        problem.map(|found| found.text.clone())
    }

    /// Adds the ports that are down to the reason why a peer is not reached: the system drops a
    /// port's routes with its link, and its error mentions neither.
    pub(super) fn with_ports_down(&self, mut reason: String) -> String {
        for device in &self.devices {
            for port in device.ports.iter().filter(|port| !port.is_active) {
                let down = port_down(&device.name, port.number);
                if !reason.contains(&down) {
                    reason = format!("{reason}; {down}");
                }
            }
        }
        reason
    }

    /// The addresses at which peers reach the active ports of this machine.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        let gids = self.devices.iter().flat_map(DeviceReport::active_gids);
        gids.filter(|gid| gid.is_routable()).map(|gid| gid.address.to_canonical()).collect()
    }
}

impl DeviceReport {
    /// The IP addresses of the active ports, link-local ones as well. Empty where GIDs are not IP
    /// addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let gids = self.active_gids().filter(|gid| gid.is_ip_address());
        gids.map(|gid| gid.address.to_canonical())
    }

    /// Whether it has an active port that peers can reach.
    fn is_usable(&self) -> bool {
        let mut ports = self.ports.iter().filter(|port| port.is_reachable());
        self.open_error.is_none()
            && ports.any(|port| port.gids.iter().any(|gid| gid.is_routable() || !port.is_ethernet))
    }

    fn active_gids(&self) -> impl Iterator<Item = &Gid> {
        let ports = self.ports.iter().filter(|port| port.is_reachable());
        ports.flat_map(|port| &port.gids)
    }
}

/// Derives findings from the facts.
fn judge(facts: &Report) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |severity, text: String| findings.push(Finding { severity, text });
    if facts.devices.is_empty() {
        add(Severity::Problem, no_device(facts));
    } else if let Some(error) = &facts.connection_manager_error {
        let text = format!(
            "cannot open the RDMA connection manager (/dev/infiniband/rdma_cm): {error}; load it \
             with `modprobe rdma_ucm`, and give this user read and write access to the file"
        );
        add(Severity::Problem, text);
    }
    // A defect of one device does not affect the others.
    let works = facts.devices.iter().any(DeviceReport::is_usable);
    for device in &facts.devices {
        judge_device(device, &mut |severity, text| {
            add(if works { Severity::Advice } else { severity }, text);
        });
    }
    // A process near one of several devices is far from the others.
    let usable = || facts.devices.iter().filter(|device| device.is_usable());
    let nodes = || usable().filter_map(|device| Some((device, device.numa.as_ref()?)));
    if nodes().all(|(_, node)| node.process == Overlap::Far) {
        for (device, node) in nodes() {
            add(Severity::Advice, node.advice(&device.name));
        }
    }
    if let Some(bytes) = facts.memlock_bytes.filter(|bytes| *bytes < SMALL_MEMLOCK_BYTES) {
        let text = format!(
            "the limit on locked memory (RLIMIT_MEMLOCK) is only {bytes} bytes, and registered \
             memory is locked: {}",
            raise()
        );
        add(Severity::Problem, text);
    }
    findings.sort_by_key(|found| std::cmp::Reverse(found.severity));
    findings
}

fn no_device(facts: &Report) -> String {
    let kernel_devices = &facts.kernel_devices;
    if kernel_devices.is_empty() && !facts.kernel_can_rdma {
        return "this machine has no RDMA device, and its kernel has no RDMA support, so a software \
                device cannot be created either: use a real or virtual machine whose kernel \
                supports RDMA"
            .to_owned();
    }
    if kernel_devices.is_empty() {
        return "this machine has no RDMA device: install the adapter's driver, or create a \
                software device with `modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0`"
            .to_owned();
    }
    let names = kernel_devices.join(", ");
    format!(
        "libibverbs does not find the kernel's RDMA devices ({names}): install its drivers \
         (package ibverbs-providers) and enable user-space access with `modprobe ib_uverbs`"
    )
}

fn judge_device(device: &DeviceReport, add: &mut impl FnMut(Severity, String)) {
    let name = &device.name;
    if let Some(error) = &device.open_error {
        let text = format!(
            "cannot open {name}: {error}; this user needs read and write access to \
             /dev/infiniband/uverbs* (often through a group, such as rdma)"
        );
        return add(Severity::Problem, text);
    }
    if device.ports.iter().all(|port| !port.is_active) {
        let text = format!("{name} has no active port: check the cable and `ip link`/`rdma link`");
        add(Severity::Problem, text);
    }
    for port in device.ports.iter().filter(|port| port.is_active) {
        judge_port(name, port, add);
    }
}

fn judge_port(device: &str, port: &Port, add: &mut impl FnMut(Severity, String)) {
    let number = port.number;
    if let Some(text) = port.why_elsewhere(device) {
        return add(Severity::Problem, text);
    }
    let is_roce = port.is_ethernet && port.gids.iter().any(|gid| gid.kind == ROCE_V2);
    for text in port.counters.advice(device, number, is_roce) {
        add(Severity::Advice, text);
    }
    if port.gids.is_empty() {
        let text =
            format!("{device} port {number} has no address (GID): bring its network device up");
        return add(Severity::Problem, text);
    }
    if port.is_ethernet && !port.gids.iter().any(Gid::is_routable) {
        let text = format!(
            "{device} port {number} has only link-local addresses: give its network device an IP \
             address"
        );
        add(Severity::Problem, text);
    }
    if port.active_mtu_bytes < port.max_mtu_bytes.min(GOOD_MTU_BYTES) {
        let text = format!(
            "{device} port {number} uses an RDMA MTU of {} bytes, but {} are possible: a larger \
             MTU of the network device (4200 for 4096) speeds up large messages",
            port.active_mtu_bytes, port.max_mtu_bytes
        );
        add(Severity::Advice, text);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for device in &self.devices {
            write!(f, "{device}")?;
        }
        if self.devices.is_empty() {
            writeln!(f, "no RDMA device")?;
        }
        match self.memlock_bytes {
            None => writeln!(f, "locked memory: no limit")?,
            Some(bytes) => writeln!(f, "locked memory: {bytes} bytes")?,
        }
        match self.traffic_class {
            Some(class) => writeln!(f, "traffic class: {class}, set by {TRAFFIC_CLASS_VARIABLE}")?,
            None => writeln!(
                f,
                "traffic class: the system's default, which is 0 unless the administrator has set \
                 one; set it with {TRAFFIC_CLASS_VARIABLE} (106 if the network gives RDMA a \
                 priority at DSCP 26)"
            )?,
        }
        for found in &self.findings {
            let mark = match found.severity {
                Severity::Problem => "PROBLEM",
                Severity::Advice => "advice",
            };
            writeln!(f, "{mark}: {}", found.text)?;
        }
        write!(
            f,
            "{}",
            if self.is_usable() { "ready for rdma://" } else { "not ready for rdma://" }
        )
    }
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, open_error, max_qp, max_cqe, max_srq_wr, max_mr, numa, ports } = self;
        if let Some(error) = open_error {
            return writeln!(f, "{name}: {error}");
        }
        write!(f, "{name}: at most {max_qp} QPs, {max_mr} MRs, {max_cqe} entries per CQ, ")?;
        match max_srq_wr {
            0 => writeln!(f, "no shared receives")?,
            count => writeln!(f, "{count} shared receives")?,
        }
        if let Some(numa) = numa {
            writeln!(f, "  {numa}")?;
        }
        for port in ports {
            let state = if port.is_active { "active" } else { "not active" };
            let layer = if port.is_ethernet { "Ethernet" } else { "InfiniBand" };
            let (number, mtu) = (port.number, port.active_mtu_bytes);
            writeln!(f, "  port {number}: {state}, {layer}, MTU {mtu} of {}", port.max_mtu_bytes)?;
            if let Some(class) = port.traffic_class {
                writeln!(
                    f,
                    "    traffic class {class} for all connections, set by the \
                             administrator"
                )?;
            }
            if let Some(counters) = port.counters.text() {
                writeln!(f, "    counted: {counters}")?;
            }
            for gid in &port.gids {
                let address = gid.address.to_canonical();
                write!(f, "    GID {}: {address} {}", gid.index, gid.kind)?;
                match &gid.network_device {
                    Some(device) => writeln!(f, " on {device}")?,
                    None => writeln!(f)?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
