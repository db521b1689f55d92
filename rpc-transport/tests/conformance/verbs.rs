//! Fixture of a real device, or of the kernel's Soft-RoCE.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, LazyLock};

use rpc_transport::address::{Address, HostPort};
use rpc_transport::device::verbs::{
    SetupOptions, VerbsConnector, devices, listen, preflight, wait_for_teardown,
};
use rpc_transport::device::{Connector, Device, Listener};

use crate::fixture::{Fixture, PATIENCE, runtime};

/// `rdma://`, at the first device of this machine. Without one, every test fails.
pub(crate) struct Verbs;

/// An IP address that an active RDMA port answers to.
pub(crate) fn local_ip() -> IpAddr {
    static ADDRESS: LazyLock<IpAddr> = LazyLock::new(|| {
        let report = preflight();
        assert!(report.is_usable(), "these tests need an RDMA device:\n{report}");
        let mut addresses = report.addresses().into_iter();
        addresses.find(IpAddr::is_ipv4).expect("an IPv4 address of an RDMA port")
    });
    *ADDRESS
}

/// The device of this port.
#[allow(dead_code, reason = "only one of the test programs wants it")]
pub(crate) fn local_device() -> Arc<dyn Device> {
    let report = preflight();
    let found = report.devices.iter().find(|device| {
        let gids = device.ports.iter().filter(|port| port.is_active).flat_map(|port| &port.gids);
        gids.map(|gid| IpAddr::V6(gid.address).to_canonical()).any(|address| address == local_ip())
    });
    let name = &found.expect("the device of an address that it has told").name;
    let mut devices = devices().unwrap().into_iter();
    devices.find(|device| device.attributes().name == *name).expect("a device with RC")
}

/// A global IPv6 address that an active RDMA port answers to.
#[allow(dead_code, reason = "only one of the test programs wants it")]
pub(crate) fn local_ipv6() -> Ipv6Addr {
    let report = preflight();
    let ports = report.devices.iter().flat_map(|device| &device.ports);
    let gids = ports.filter(|port| port.is_active).flat_map(|port| &port.gids);
    let mut addresses = gids.map(|gid| gid.address);
    let is_global = |address: &Ipv6Addr| {
        address.to_ipv4_mapped().is_none() && address.segments()[0] & 0xffc0 != 0xfe80
    };
    addresses.find(is_global).expect("a global IPv6 address of an RDMA port")
}

/// Opens a listener from inside a runtime or outside.
pub(crate) fn listen_at(host: &str, port: u16, options: SetupOptions) -> Box<dyn Listener> {
    let address = Address::Rdma(HostPort { host: host.to_owned(), port }, Box::default());
    // A thread of its own, since a runtime cannot be entered from inside another.
    let thread = std::thread::spawn(move || runtime().block_on(listen(&address, options)));
    thread.join().unwrap().unwrap()
}

impl Fixture for Verbs {
    fn listen(&self) -> Box<dyn Listener> {
        listen_at(&local_ip().to_string(), 0, SetupOptions::default())
    }

    fn connector(&self) -> Arc<dyn Connector> {
        Arc::new(VerbsConnector::default())
    }

    fn settle(&self) {
        assert!(wait_for_teardown(PATIENCE), "something is not destroyed");
    }

    fn is_silent_unarmed(&self) -> bool {
        true
    }

    fn completes_alone(&self) -> bool {
        true
    }

    // Soft-RoCE has one key per region.
    fn keys_differ(&self) -> bool {
        false
    }
}
