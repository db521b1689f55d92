//! The host names to which a page on a loopback address answers.
//!
//! A web site could make a browser on this machine resolve its name to 127.0.0.1 (DNS rebinding)
//! and then read the page, which for the browser belongs to that site. But the browser sends the
//! name in the `Host` header.

use std::io;
use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use rpc_core::text::printable_bytes;

/// Maximum length of a requested name that is repeated in an error, bytes.
const MOST_SHOWN: usize = 100;

/// The owner of the port, for errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    /// Its name, for people.
    pub(crate) name: &'static str,
    /// Its builder type.
    pub(crate) builder: &'static str,
}

/// The allowed values of a request's `Host`.
#[derive(Clone)]
pub(crate) struct Hosts {
    owner: Owner,
    address: SocketAddr,
    /// In addition to the loopback names.
    named: Vec<String>,
}

impl Hosts {
    /// # Errors
    /// A given name is not a host name.
    pub(crate) fn new(owner: Owner, address: SocketAddr, named: &[String]) -> io::Result<Self> {
        let named = named.iter().map(|given| {
            let name = normal(given);
            // Browsers send international names in their ASCII form.
            let is_other =
                |letter: char| !letter.is_ascii_alphanumeric() && !"-_.".contains(letter);
            let is_address = name.parse::<IpAddr>().is_ok();
            if name.is_empty() || !is_address && name.contains(is_other) {
                let Owner { name, builder } = owner;
                let text = format!(
                    "{name}: {given:?} is not a valid `{builder}::host`: pass a host name or an IP \
                     address, with or without a port"
                );
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            Ok(name)
        });
        Ok(Self { owner, address, named: named.collect::<io::Result<_>>()? })
    }

    /// The reason to reject the request, if there is one. A request without a host does not come
    /// from a browser.
    pub(crate) fn refusal(&self, request: &Request) -> Option<String> {
        if !is_loopback(self.address.ip()) {
            return None;
        }
        let uri = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        let headers = request.headers().get_all(header::HOST).iter().map(HeaderValue::as_bytes);
        let wrong = uri.into_iter().chain(headers).find(|host| !self.is_known(host))?;
        let shown = printable_bytes(wrong).at_most(MOST_SHOWN);
        Some(format!(
            "this page only serves this machine: it answers to localhost and loopback addresses, \
             not to {shown:?}; open http://{}/, or, if a proxy forwards that name, pass it to \
             `{}::host`\n",
            self.address, self.owner.builder
        ))
    }

    fn is_known(&self, host: &[u8]) -> bool {
        let Ok(host) = str::from_utf8(host) else { return false };
        let name = normal(host);
        if name.parse::<IpAddr>().is_ok_and(is_loopback) {
            return true;
        }
        name == "localhost" || name.ends_with(".localhost") || self.named.contains(&name)
    }
}

/// Also for IPv4-mapped IPv6 addresses.
pub(crate) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// A host in normal form, for comparison: without port, in lower case; an IP address in its
/// canonical form, without brackets.
fn normal(host: &str) -> String {
    // An IPv6 address without brackets has no port.
    let name = if host.parse::<IpAddr>().is_ok() { host } else { without_port(host) };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    match address.unwrap_or(name).parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase(),
    }
}

/// The name of `name:port`; an IPv6 address keeps its brackets.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(hosts: &Hosts, host: &str) -> bool {
        hosts.is_known(host.as_bytes())
    }

    #[test]
    fn only_loopback_names_are_known() {
        let hosts = hosts(&["Admin.Example.:9180"]).expect("a name");
        for host in [
            "localhost",
            "LocalHost:9180",
            "localhost.:9180",
            "shop.localhost:1",
            "127.0.0.1",
            "127.0.0.1:9180",
            "127.1.2.3:9180",
            "[::1]",
            "[::1]:9180",
            "[::ffff:127.0.0.1]:9180",
            "admin.example",
            "Admin.Example.:443",
        ] {
            assert!(asked(&hosts, host), "{host}");
        }
        for host in [
            "",
            ":9180",
            "evil.example",
            "evil.example:9180",
            "localhost.evil.example",
            "notlocalhost",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "10.0.0.7:9180",
            "0.0.0.0:9180",
            "[::]:9180",
            "[::ffff:10.0.0.7]:9180",
            "[::1",
            "x.admin.example",
        ] {
            assert!(!asked(&hosts, host), "{host}");
        }
        assert!(!hosts.is_known(b"\xfflocalhost"));
    }

    fn hosts(named: &[&str]) -> io::Result<Hosts> {
        let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
        let owner = Owner { name: "admin page", builder: "Admin" };
        Hosts::new(owner, ([127, 0, 0, 1], 9180).into(), &named)
    }

    #[test]
    fn names_are_given_as_they_are_asked_for() {
        for given in ["[2001:DB8::7]:9180", "[2001:db8::7]", "2001:db8:0::7"] {
            let hosts = hosts(&[given]).expect("an address");
            for host in ["[2001:db8::7]", "[2001:db8::7]:443", "[2001:DB8:0:0::7]:1"] {
                assert!(asked(&hosts, host), "{host} of {given}");
            }
            for host in ["[2001:db8::8]", "[2001:db8::]:7", "2001"] {
                assert!(!asked(&hosts, host), "{host} of {given}");
            }
        }
        for given in ["10.0.0.7", "10.0.0.7:9180", "[::ffff:10.0.0.7]:9180"] {
            let hosts = hosts(&[given]).expect("an address");
            assert!(asked(&hosts, "10.0.0.7:80") && !asked(&hosts, "10.0.0.8:80"), "{given}");
        }
        let ported = hosts(&["admin.example:8443"]).expect("a name");
        assert!(asked(&ported, "admin.example") && asked(&ported, "admin.example:443"));
    }

    #[test]
    fn invalid_host_names_are_reported() {
        for given in [
            "",
            ".",
            ":9180",
            "https://admin.example/",
            "[admin.example]",
            "a b",
            "me@host",
            "admin.example:http",
            "a:b:80",
            "*.example.com",
            "bücher.example",
        ] {
            let error = hosts(&[given]).err().unwrap_or_else(|| panic!("{given:?} was taken"));
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(&format!("{given:?} is not a valid")), "{error}");
        }
    }
}
