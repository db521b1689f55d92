//! The network interfaces of this machine, by their hardware addresses.
//!
//! An iWARP port has no IP addresses among its GIDs: it has one GID, which begins with the hardware
//! address of its network interface, and the interface's IP addresses are the port's.
#![allow(unsafe_code, reason = "asks the C library for the interfaces")]

use std::ffi::CStr;
use std::io;
use std::net::IpAddr;
use std::ptr;

use crate::device::verbs::sockaddr::{self, STORAGE_BYTES};

/// Length of an Ethernet address, bytes.
pub(super) const HARDWARE_BYTES: usize = 6;

/// One fact that the system reports about an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fact {
    pub(super) interface: String,
    pub(super) detail: Detail,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Detail {
    /// Its hardware address.
    Hardware([u8; HARDWARE_BYTES]),
    /// One of its IP addresses.
    Ip(IpAddr),
    /// Something else: only that the interface exists.
    Other,
}

/// The IP addresses of the interfaces with this hardware address, with the interfaces' names. An
/// interface and its VLANs share one hardware address.
pub(super) fn addresses(facts: &[Fact], hardware: [u8; HARDWARE_BYTES]) -> Vec<(IpAddr, String)> {
    let is_its = |name: &str| {
        facts.iter().any(|fact| fact.interface == name && fact.detail == Detail::Hardware(hardware))
    };
    let mut addresses = Vec::new();
    for fact in facts {
        if let Detail::Ip(ip) = fact.detail
            && is_its(&fact.interface)
        {
            addresses.push((ip, fact.interface.clone()));
        }
    }
    addresses
}

/// Asks the system. Empty if it does not answer.
pub(super) fn facts() -> Vec<Fact> {
    let mut first = ptr::null_mut();
    // SAFETY: writes the list's first element to the given pointer.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        let error = io::Error::last_os_error();
        tracing::debug!(%error, "cannot list the network interfaces");
        return Vec::new();
    }
    let mut facts = Vec::new();
    let mut next: *const libc::ifaddrs = first;
    // SAFETY: an element of the list, or its end; it is freed below.
    while let Some(element) = unsafe { next.as_ref() } {
        next = element.ifa_next;
        // SAFETY: NUL-terminated, alive as long as the list.
        let interface = unsafe { CStr::from_ptr(element.ifa_name) }.to_string_lossy().into_owned();
        // SAFETY: null, or an address of this element, as getifaddrs promises.
        let detail = unsafe { detail_of(element.ifa_addr) };
        facts.push(Fact { interface, detail: detail.unwrap_or(Detail::Other) });
    }
    // SAFETY: the list came from `getifaddrs` and is freed once.
    unsafe { libc::freeifaddrs(first) };
    facts
}

/// Reads one address; `None` for those of other families.
///
/// # Safety
/// `address` is null, or a socket address with the length of its family.
unsafe fn detail_of(address: *const libc::sockaddr) -> Option<Detail> {
    // SAFETY: the caller's promise.
    let family = i32::from(unsafe { address.as_ref() }?.sa_family);
    let length = match family {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        libc::AF_PACKET => size_of::<libc::sockaddr_ll>(),
        _ => return None,
    };
    let mut raw = [0; STORAGE_BYTES];
    // SAFETY: by its family the address has this length, and all lengths are below the array's.
    unsafe { ptr::copy_nonoverlapping(address.cast::<u8>(), raw.as_mut_ptr(), length) };
    if family == libc::AF_PACKET { hardware(&raw) } else { ip(&raw) }
}

fn ip(raw: &[u8; STORAGE_BYTES]) -> Option<Detail> {
    sockaddr::parse(raw).map(|address| Detail::Ip(address.ip()))
}

/// `struct sockaddr_ll`: the address's length is byte 11, the address follows. An all-zero address
/// (that of loopback) identifies nothing.
fn hardware(raw: &[u8; STORAGE_BYTES]) -> Option<Detail> {
    let mut address = [0; HARDWARE_BYTES];
    address.copy_from_slice(&raw[12..12 + HARDWARE_BYTES]);
    let is_ethernet = usize::from(raw[11]) == HARDWARE_BYTES && address != [0; HARDWARE_BYTES];
    is_ethernet.then_some(Detail::Hardware(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_addresses_are_found_by_hardware_address() {
        let (one, other) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let fact = |name: &str, detail| Fact { interface: name.to_owned(), detail };
        let ip = |text: &str| Detail::Ip(text.parse().unwrap());
        let facts = [
            fact("lo", ip("127.0.0.1")),
            fact("eth0", ip("10.0.0.1")),
            fact("eth0", Detail::Hardware(one)),
            fact("eth0.7", Detail::Hardware(one)),
            fact("eth0.7", ip("fd00::1")),
            fact("eth1", Detail::Hardware(other)),
            fact("eth1", ip("10.1.0.1")),
        ];
        let expected = [("10.0.0.1", "eth0"), ("fd00::1", "eth0.7")];
        let expected = expected.map(|(ip, name)| (ip.parse().unwrap(), name.to_owned()));
        assert_eq!(addresses(&facts, one), expected);
        assert_eq!(addresses(&facts, [9; HARDWARE_BYTES]), []);
    }

    #[test]
    fn this_machines_loopback_is_among_the_facts() {
        let loopback = Detail::Ip("127.0.0.1".parse().unwrap());
        let facts = facts();
        assert!(facts.iter().any(|fact| fact.detail == loopback), "{facts:?}");
    }

    #[test]
    fn zero_or_odd_hardware_address_is_none() {
        let mut raw = [0; STORAGE_BYTES];
        raw[11] = 6;
        assert_eq!(hardware(&raw), None);
        raw[12..18].copy_from_slice(&[2, 0, 0, 0, 0, 7]);
        assert_eq!(hardware(&raw), Some(Detail::Hardware([2, 0, 0, 0, 0, 7])));
        raw[11] = 20;
        assert_eq!(hardware(&raw), None);
    }
}
