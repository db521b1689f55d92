//! Collects the facts: from libibverbs, `/sys`, `/dev` and the limits of this process.
#![allow(unsafe_code, reason = "asks libibverbs")]

use std::ffi::CStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::ptr::NonNull;

use super::interfaces::{self, Detail, HARDWARE_BYTES};
use super::{DeviceReport, Gid, IWARP, Port, PortCounters, Report, numa};
use crate::device::memlock;
use crate::device::verbs::device::{carries_traffic, is_iwarp, max_srq_wr, query_port};
use crate::device::verbs::ffi::{self, Plain};
use crate::device::verbs::options;

const KERNEL_DEVICES: &str = "/sys/class/infiniband";
const VERBS_FILES: &str = "/sys/class/infiniband_verbs";
const DEVICE_FILES: &str = "/dev/infiniband";
const CONNECTION_MANAGER: &str = "/dev/infiniband/rdma_cm";

/// Adds the details that only a person needs: reading counters costs a device commands.
pub(super) fn add_details(report: &mut Report) {
    for device in &mut report.devices {
        let directory = Path::new(KERNEL_DEVICES).join(&device.name);
        device.numa = numa::node_of(&directory);
        for port in &mut device.ports {
            let of_port = directory.join("ports").join(port.number.to_string());
            port.counters = PortCounters::of(&of_port);
        }
    }
}

/// Collects everything except the findings and those details.
pub(super) fn facts() -> Report {
    let connection_manager = OpenOptions::new().read(true).write(true).open(CONNECTION_MANAGER);
    Report {
        devices: devices(),
        kernel_devices: kernel_devices(),
        kernel_can_rdma: kernel_can_rdma(),
        connection_manager_error: connection_manager.err().map(|error| error.to_string()),
        memlock_bytes: memlock::limit_bytes(),
        traffic_class: options::traffic_class(),
        findings: Vec::new(),
    }
}

fn kernel_devices() -> Vec<String> {
    let entries = fs::read_dir(KERNEL_DEVICES).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Whether RDMA is available, or can be loaded from the modules of the running kernel.
fn kernel_can_rdma() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let modules = Path::new("/lib/modules").join(release.trim());
    [Path::new("/sys/module/ib_core"), &modules].iter().any(|path| path.exists())
}

fn devices() -> Vec<DeviceReport> {
    let mut count = 0;
    // SAFETY: writes the count to the given pointer.
    let list = unsafe { ffi::ibv_get_device_list(&raw mut count) };
    let Some(list) = NonNull::new(list) else { return Vec::new() };
    let len = usize::try_from(count).unwrap_or(0);
    // SAFETY: the call returned `len` entries; freed below.
    let entries = unsafe { std::slice::from_raw_parts(list.as_ptr(), len) };
    let reports = entries.iter().filter_map(|device| NonNull::new(*device)).map(device).collect();
    // SAFETY: the list came from `ibv_get_device_list`; opened devices are closed again.
    unsafe { ffi::ibv_free_device_list(list.as_ptr()) };
    reports
}

fn device(device: NonNull<ffi::ibv_device>) -> DeviceReport {
    let name = name(device);
    // SAFETY: a device of the list.
    let context = unsafe { ffi::ibv_open_device(device.as_ptr()) };
    let mut report = DeviceReport {
        name,
        open_error: None,
        max_qp: 0,
        max_cqe: 0,
        max_srq_wr: 0,
        max_mr: 0,
        numa: None,
        ports: Vec::new(),
    };
    let Some(context) = NonNull::new(context) else {
        let error = io::Error::last_os_error();
        report.open_error = Some(device_file_error(&report.name).unwrap_or(error.to_string()));
        return report;
    };
    let mut limits = ffi::ibv_device_attr::zeroed();
    // SAFETY: an open context; fills the struct.
    let returned = unsafe { ffi::ibv_query_device(context.as_ptr(), &raw mut limits) };
    match ffi::verbs_result(returned) {
        Ok(()) => {
            report.max_qp = u32::try_from(limits.max_qp).unwrap_or(0);
            report.max_cqe = u32::try_from(limits.max_cqe).unwrap_or(0);
            report.max_srq_wr = max_srq_wr(context, &limits);
            report.max_mr = u32::try_from(limits.max_mr).unwrap_or(0);
            let ports = 1..=limits.phys_port_cnt;
            let ports = ports.filter_map(|number| port(&report.name, context, number));
            report.ports = ports.collect();
        }
        Err(error) => report.open_error = Some(error.to_string()),
    }
    // SAFETY: opened above, closed once.
    unsafe { ffi::ibv_close_device(context.as_ptr()) };
    report
}

/// Why the file of a device cannot be opened; `None` if it can. Checked here because libibverbs may
/// report the error of a second attempt at another path.
fn device_file_error(device: &str) -> Option<String> {
    let entries = fs::read_dir(VERBS_FILES).into_iter().flatten().flatten();
    let is_of_device = |entry: &fs::DirEntry| {
        fs::read_to_string(entry.path().join("ibdev")).is_ok_and(|name| name.trim() == device)
    };
    let entry = entries.into_iter().find(is_of_device)?;
    let file = Path::new(DEVICE_FILES).join(entry.file_name());
    let error = OpenOptions::new().read(true).write(true).open(&file).err()?;
    Some(format!("{}: {error}", file.display()))
}

fn name(device: NonNull<ffi::ibv_device>) -> String {
    // SAFETY: a device of the list; returns a C string inside it.
    let name = unsafe { ffi::ibv_get_device_name(device.as_ptr()) };
    if name.is_null() {
        return "unnamed".to_owned();
    }
    // SAFETY: NUL-terminated, alive as long as the list.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

fn port(device: &str, context: NonNull<ffi::ibv_context>, number: u8) -> Option<Port> {
    let attributes = query_port(context.as_ptr(), number).ok()?;
    let gid_count = u32::try_from(attributes.gid_tbl_len).unwrap_or(0);
    let mut gids: Vec<_> =
        (0..gid_count).filter_map(|index| gid(device, context, number, index)).collect();
    let here = interfaces::facts();
    if is_iwarp(context) {
        gids = gids.iter().flat_map(|gid| iwarp_addresses(gid, &here)).collect();
    }
    Some(Port {
        number,
        is_active: carries_traffic(attributes.state),
        is_ethernet: attributes.link_layer == ffi::number::LINK_LAYER_ETHERNET,
        active_mtu_bytes: mtu_bytes(attributes.active_mtu),
        max_mtu_bytes: mtu_bytes(attributes.max_mtu),
        traffic_class: traffic_class(device, number),
        counters: PortCounters::default(),
        elsewhere: elsewhere(&gids, &here),
        gids,
    })
}

/// The network device of a port, if it is in another network namespace than this process: no device
/// of that name is here, or one of that name has none of the port's addresses.
pub(super) fn elsewhere(gids: &[Gid], here: &[interfaces::Fact]) -> Option<String> {
    let name = gids.iter().find_map(|gid| gid.network_device.clone())?;
    if here.is_empty() {
        // The system did not report any.
        return None;
    }
    let is_here = |name: &String| here.iter().any(|fact| fact.interface == *name);
    if !gids.iter().filter_map(|gid| gid.network_device.as_ref()).any(is_here) {
        return Some(name);
    }
    let has = |address: IpAddr| here.iter().any(|fact| fact.detail == Detail::Ip(address));
    let mut routable =
        gids.iter().filter(|gid| gid.is_ip_address() && gid.is_routable()).peekable();
    routable.peek()?;
    (!routable.any(|gid| has(gid.address.to_canonical()))).then_some(name)
}

/// The addresses for which the GID of an iWARP port stands.
fn iwarp_addresses(gid: &Gid, facts: &[interfaces::Fact]) -> Vec<Gid> {
    let mut hardware = [0; HARDWARE_BYTES];
    hardware.copy_from_slice(&gid.address.octets()[..HARDWARE_BYTES]);
    let addresses = interfaces::addresses(facts, hardware).into_iter();
    let address = |(ip, interface)| Gid {
        index: gid.index,
        address: match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        },
        kind: IWARP.to_owned(),
        network_device: Some(interface),
    };
    addresses.map(address).collect()
}

fn traffic_class(device: &str, port: u8) -> Option<u8> {
    let path = format!("{KERNEL_DEVICES}/{device}/tc/{port}/traffic_class");
    global_traffic_class(&fs::read_to_string(path).ok()?)
}

/// Reads mlx5's `Global tclass=106`; nothing is in force where that line is missing or 0.
pub(super) fn global_traffic_class(text: &str) -> Option<u8> {
    let class = text.lines().find_map(|line| line.trim().strip_prefix("Global tclass="))?;
    class.trim().parse().ok().filter(|class| *class > 0)
}

/// `enum ibv_mtu`: 1 is 256 bytes, each step doubles it.
fn mtu_bytes(mtu: u32) -> u32 {
    if (1..=5).contains(&mtu) { 128 << mtu } else { 0 }
}

fn gid(device: &str, context: NonNull<ffi::ibv_context>, port: u8, index: u32) -> Option<Gid> {
    let mut gid = ffi::ibv_gid::zeroed();
    let c_index = i32::try_from(index).ok()?;
    // SAFETY: an open context; fills the struct.
    let returned = unsafe { ffi::ibv_query_gid(context.as_ptr(), port, c_index, &raw mut gid) };
    ffi::verbs_result(returned).ok()?;
    let address = Ipv6Addr::from(ffi::gid_bytes(&gid));
    if address.is_unspecified() {
        return None;
    }
    let attribute = |what: &str| {
        let path = format!("{KERNEL_DEVICES}/{device}/ports/{port}/gid_attrs/{what}/{index}");
        let text = fs::read_to_string(Path::new(&path)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let kind = attribute("types").unwrap_or_default();
    Some(Gid { index, address, kind, network_device: attribute("ndevs") })
}
