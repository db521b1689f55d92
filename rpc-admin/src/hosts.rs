//! The names that a page on a loopback address answers to.
//!
//! Who can make a browser on this machine resolve a name of theirs to 127.0.0.1 (DNS rebinding) reads the
//! page with it, as for the browser it is of their site. But the browser says which name it asked for.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::{HeaderValue, header};

/// Longest name that is shown back to who asked for it, characters.
const MOST_SHOWN: usize = 100;

/// What may stand in a request's `Host`.
pub(crate) struct Hosts {
    address: SocketAddr,
    /// Beside those of the loopback.
    named: Vec<String>,
}

impl Hosts {
    pub(crate) fn new(address: SocketAddr, named: Vec<String>) -> Self {
        Self { address, named }
    }

    /// Why the request is not answered, if it is not. One that names no host comes from no browser.
    pub(crate) fn refusal(&self, request: &Request) -> Option<String> {
        if !is_loopback(self.address.ip()) {
            return None;
        }
        let uri = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        let headers = request.headers().get_all(header::HOST).iter().map(HeaderValue::as_bytes);
        let wrong = uri.into_iter().chain(headers).find(|host| !self.is_known(host))?;
        let wrong = String::from_utf8_lossy(wrong);
        let shown: String = wrong.chars().take(MOST_SHOWN).collect();
        Some(format!(
            "this page is for this machine alone, and answers to localhost and loopback addresses, not to \
             {shown:?}: open http://{}/, or, if a proxy asks under that name, give it to `Admin::host`\n",
            self.address
        ))
    }

    fn is_known(&self, host: &[u8]) -> bool {
        let Ok(host) = str::from_utf8(host) else { return false };
        let name = without_port(host);
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        if address.unwrap_or(name).parse::<IpAddr>().is_ok_and(is_loopback) {
            return true;
        }
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        name == "localhost" || name.ends_with(".localhost") || self.named.contains(&name)
    }
}

/// Also of an IPv4 address in IPv6's clothes.
pub(crate) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
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
    fn names_of_the_loopback_are_known_and_no_others() {
        let hosts = Hosts::new(([127, 0, 0, 1], 9180).into(), vec!["admin.example".to_owned()]);
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
}
