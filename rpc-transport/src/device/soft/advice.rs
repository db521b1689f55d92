//! Advice for I/O errors during set-up: adds a remedy to the operating system's text.
//!
//! Owns the translation of I/O errors into connect and listen errors. Always keeps the operating
//! system's own text.

use std::io;

use crate::address::Address;
use crate::device::ProviderError;
use crate::device::connection_error::{ConnectError, ListenError};
use crate::device::open_files;

/// Makes the error for a failed attempt to listen at `address`.
pub(super) fn cannot_listen(address: Address, error: &io::Error) -> ListenError {
    let reason = with_advice(error, advice_to_listen(&address, error));
    match error.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse { address, reason },
        _ => ListenError::Failed { address, reason },
    }
}

/// Makes the error for a failed attempt to connect to `address`.
pub(super) fn cannot_connect(address: Address, error: &io::Error) -> ConnectError {
    let reason = |advice| with_advice(error, advice);
    match error.kind() {
        // No advice here: the text of `ConnectError::Refused` already gives it, for every device.
        io::ErrorKind::ConnectionRefused => ConnectError::Refused { address, reason: reason(None) },
        io::ErrorKind::NotFound if is_shm(&address) => {
            ConnectError::Refused { address, reason: reason(None) }
        }
        _ => {
            let reason = reason(advice_to_connect(&address, error));
            ConnectError::Unreachable { address, reason }
        }
    }
}

fn with_advice(error: &io::Error, advice: Option<&str>) -> String {
    match advice {
        Some(advice) => format!("{error}; {advice}"),
        None => error.to_string(),
    }
}

fn is_shm(address: &Address) -> bool {
    matches!(address, Address::ShmName(_) | Address::ShmPath(_))
}

fn advice_to_listen(address: &Address, error: &io::Error) -> Option<&'static str> {
    if let Some(advice) = open_files::advice(error) {
        return Some(advice);
    }
    let shm = is_shm(address);
    Some(match error.kind() {
        io::ErrorKind::AddrInUse if shm => "stop the other listener or choose another name",
        io::ErrorKind::AddrInUse => {
            "stop the other listener or choose another port (0 takes a free one)"
        }
        _ if lacks_ipv6(address, error) => NO_IPV6,
        _ if lacks_zone(address) => NO_ZONE,
        io::ErrorKind::AddrNotAvailable => {
            "no interface of this host has that address; 0.0.0.0 and [::] listen on all interfaces"
        }
        io::ErrorKind::PermissionDenied if shm => {
            "choose a directory in which this user can create files"
        }
        io::ErrorKind::PermissionDenied => "choose a port from 1024 on",
        io::ErrorKind::NotFound if shm => "create the directory first",
        io::ErrorKind::NotADirectory => "choose a path whose parents are directories",
        _ => return unknown_host(address, error),
    })
}

fn advice_to_connect(address: &Address, error: &io::Error) -> Option<&'static str> {
    if let Some(advice) = open_files::advice(error) {
        return Some(advice);
    }
    Some(match error.kind() {
        io::ErrorKind::PermissionDenied if is_shm(address) => {
            "run both ends as the same user, or use tcp://"
        }
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
            "check the address and this host's network"
        }
        _ if lacks_ipv6(address, error) => NO_IPV6,
        _ if lacks_zone(address) => NO_ZONE,
        io::ErrorKind::AddrNotAvailable if is_number(address) => {
            "no local port is free; close other connections"
        }
        io::ErrorKind::TimedOut => "check the address and firewalls on the path",
        _ => return unknown_host(address, error),
    })
}

const NO_IPV6: &str = "this host has no IPv6, or does not have that address; use an IPv4 address \
                       (127.0.0.1)";

const NO_ZONE: &str = "a link-local address needs an interface of this host: [fe80::1%eth0] (`ip \
                       -6 address` lists them)";

/// Whether the requested address is a link-local one without an interface, or with an interface
/// that this host does not have: the interface's name is looked up like a host's.
fn lacks_zone(address: &Address) -> bool {
    let Address::Tcp(at) = address else { return false };
    let (ip, zone) = at.host.split_once('%').unwrap_or((&at.host, ""));
    let is_link_local = ip.parse().is_ok_and(|ip: std::net::Ipv6Addr| ip.is_unicast_link_local());
    let known = || std::fs::exists(format!("/sys/class/net/{zone}")).unwrap_or(true);
    let is_number = !zone.is_empty() && zone.bytes().all(|byte| byte.is_ascii_digit());
    is_link_local && (zone.is_empty() || !is_number && !known())
}

/// Whether the host is a literal address. A name may stand for addresses that this host cannot
/// reach.
fn is_number(address: &Address) -> bool {
    matches!(address, Address::Tcp(at) if at.host.parse::<std::net::IpAddr>().is_ok())
}

/// Whether an IPv6 address was requested on a host that may have none.
fn lacks_ipv6(address: &Address, error: &io::Error) -> bool {
    let is_ipv6 = matches!(address, Address::Tcp(at) if at.host.contains(':'));
    let numbers = [Some(libc::EADDRNOTAVAIL), Some(libc::EAFNOSUPPORT)];
    is_ipv6 && numbers.contains(&error.raw_os_error())
}

/// Recognizes failed name lookups, which carry no OS error number.
fn unknown_host(address: &Address, error: &io::Error) -> Option<&'static str> {
    let is_lookup = !is_shm(address) && error.raw_os_error().is_none();
    is_lookup.then_some("check the spelling of the host, or give its IP address")
}

/// The error when memory cannot be shared: it says which call was refused, or which limit to raise.
pub(super) fn cannot_share(error: &io::Error) -> ConnectError {
    match error.raw_os_error() {
        None => ConnectError::Unavailable { scheme: "shm", reason: error.to_string() },
        Some(_) => out_of_resources("sharing memory", error).into(),
    }
}

/// The error when set-up fails for lack of memory or file descriptors; says which limit to raise.
pub(super) fn out_of_resources(what: &'static str, error: &io::Error) -> ProviderError {
    ProviderError::Resources { what, message: open_files::explain(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listening(address: &str, errno: i32) -> String {
        let error = io::Error::from_raw_os_error(errno);
        cannot_listen(address.parse().unwrap(), &error).to_string()
    }

    #[test]
    fn errors_of_listening_say_what_to_do() {
        let cases = [
            ("tcp://127.0.0.1:80", libc::EACCES, "choose a port from 1024 on"),
            ("tcp://1.2.3.4:80", libc::EADDRNOTAVAIL, "0.0.0.0"),
            ("tcp://[::1]:80", libc::EADDRNOTAVAIL, "use an IPv4 address"),
            ("tcp://[::1]:80", libc::EAFNOSUPPORT, "use an IPv4 address"),
            ("tcp://[fe80::1]:80", libc::EINVAL, "[fe80::1%eth0]"),
            ("tcp://127.0.0.1:80", libc::ENFILE, "fs.file-max"),
            ("tcp://127.0.0.1:80", libc::EADDRINUSE, "another port"),
            ("tcp://127.0.0.1:80", libc::EMFILE, "ulimit -n"),
            ("shm://name", libc::EADDRINUSE, "another name"),
            ("shm:///dir/name", libc::ENOENT, "create the directory first"),
            ("shm:///dir/name", libc::EACCES, "can create files"),
            ("shm:///dir/name", libc::ENOTDIR, "parents are directories"),
        ];
        for (address, errno, advice) in cases {
            let text = listening(address, errno);
            assert!(text.contains(address) && text.contains("; "), "{text}");
            assert!(text.contains(advice) && text.contains("(os error"), "{text}");
        }
    }

    #[test]
    fn errors_of_connecting_say_what_to_do() {
        let error = |address: &str, error: io::Error| {
            cannot_connect(address.parse().unwrap(), &error).to_string()
        };
        let number = io::Error::from_raw_os_error;
        let lookup = io::Error::other("failed to lookup address information");
        let no_interface = io::Error::other("failed to lookup address information");
        for (text, advice) in [
            (error("tcp://h:1", number(libc::ECONNREFUSED)), "start the server there"),
            (error("shm:///a/b", number(libc::ENOENT)), "start the server there"),
            (error("shm:///a/b", number(libc::EACCES)), "as the same user"),
            (error("tcp://h:1", number(libc::ENETUNREACH)), "network"),
            (error("tcp://h:1", number(libc::EHOSTUNREACH)), "network"),
            (error("tcp://h:1", number(libc::ETIMEDOUT)), "firewalls"),
            (error("tcp://[::1]:1", number(libc::EADDRNOTAVAIL)), "use an IPv4 address"),
            (error("tcp://1.2.3.4:1", number(libc::EADDRNOTAVAIL)), "no local port is free"),
            (error("tcp://[fe80::1]:1", number(libc::EINVAL)), "[fe80::1%eth0]"),
            (error("tcp://[fe80::1%nosuch]:1", no_interface), "[fe80::1%eth0]"),
            (error("tcp://h:1", lookup), "spelling of the host"),
        ] {
            assert!(text.contains(advice), "{text}");
        }
    }
}
