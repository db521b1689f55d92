//! Addresses: one scheme per transport.
//!
//! Owns parsing, printing and the error messages for a mistyped address. Never resolves
//! names or opens anything.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Longest socket path, bytes: `sun_path` is 108, less the NUL at its end.
const MAX_SHM_PATH_BYTES: usize = 107;
/// Longest shm name, bytes: less the NUL and `shm://` in front of it. Rounded down.
const MAX_SHM_NAME_BYTES: usize = 90;
/// Longest name of a network interface, bytes (`IFNAMSIZ`, less the NUL at its end).
const MAX_ZONE_BYTES: usize = 15;
/// Longest name of an RDMA device that the kernel gives, bytes.
const MAX_DEVICE_NAME_BYTES: usize = 63;

/// Where a server listens, or a client connects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// `rdma://host:port`: verbs, connected through rdma_cm. `?dev=..` and `&src=..` choose the
    /// [`LocalEnd`].
    Rdma(HostPort, Box<LocalEnd>),
    /// `tcp://host:port`: the software device over TCP.
    Tcp(HostPort),
    /// `shm://name`: the software device over shared memory, rendezvous at an abstract socket of
    /// this network namespace.
    ShmName(String),
    /// `shm:///path`: the software device over shared memory, rendezvous at a socket file.
    ShmPath(PathBuf),
    /// `mem://name`: the software device inside this process. A listener at `mem://` gets a name
    /// that no other listener has.
    Mem(String),
    /// `auto://host:port`: the best of shm, rdma and tcp, chosen by the first exchange over TCP.
    /// The [`LocalEnd`] applies to rdma only.
    Auto(HostPort, Box<LocalEnd>),
}

/// This machine's side of an RDMA connection, as an address names it. By default the system chooses
/// device and source by its routes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LocalEnd {
    /// `dev=mlx5_0`: the name of the RDMA device to connect through, or to listen on.
    pub device: Option<String>,
    /// `src=10.0.1.7`: the address to connect from. A listener has no source: it listens at its own
    /// address.
    pub source: Option<IpAddr>,
}

impl fmt::Display for LocalEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(device) = &self.device {
            write!(f, "?dev={device}")?;
        }
        match self.source {
            Some(source) if self.device.is_some() => write!(f, "&src={source}"),
            Some(source) => write!(f, "?src={source}"),
            None => Ok(()),
        }
    }
}

/// A host (name, IPv4 or bracketed IPv6 address) and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// Host name or address, without brackets.
    pub host: String,
    /// Port; 0 lets a listener choose.
    pub port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl From<std::net::SocketAddr> for HostPort {
    fn from(address: std::net::SocketAddr) -> Self {
        let host = match address {
            std::net::SocketAddr::V6(v6) if v6.scope_id() != 0 => {
                format!("{}%{}", v6.ip(), v6.scope_id())
            }
            other => other.ip().to_string(),
        };
        Self { host, port: address.port() }
    }
}

/// A string that is not a valid address. The message says what is wrong and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("bad address `{text}`: {reason}")]
pub struct AddressError {
    text: String,
    reason: String,
}

impl Address {
    /// The scheme: `rdma`, `tcp`, `shm`, `mem` or `auto`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        match self {
            Self::Rdma(..) => "rdma",
            Self::Tcp(_) => "tcp",
            Self::ShmName(_) | Self::ShmPath(_) => "shm",
            Self::Mem(_) => "mem",
            Self::Auto(..) => "auto",
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        parse(text).map_err(|reason| AddressError { text: text.to_owned(), reason })
    }
}

fn parse(text: &str) -> Result<Address, String> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err("a scheme is missing; write auto://host:port, rdma://host:port, \
                    tcp://host:port, shm://name, shm:///path or mem://name"
            .to_owned());
    };
    match scheme {
        "rdma" => with_local_end(rest).map(|(at, local)| Address::Rdma(at, local)),
        "tcp" if rest.contains('?') => Err(without_parameters("tcp")),
        "shm" | "mem" if ["?dev=", "?src="].iter().any(|name| rest.contains(name)) => {
            Err(without_parameters(scheme))
        }
        "tcp" => host_port(rest).map(Address::Tcp),
        "auto" => with_local_end(rest).map(|(at, local)| Address::Auto(at, local)),
        "shm" => shm(rest),
        "mem" if rest.is_empty() => Ok(Address::Mem(String::new())),
        "mem" => plain_name(rest).map(Address::Mem),
        other => Err(format!("unknown scheme `{other}`; use auto, rdma, tcp, shm or mem")),
    }
}

fn without_parameters(scheme: &str) -> String {
    format!("{scheme}:// has no parameters: dev and src are for rdma:// and auto://")
}

fn with_local_end(text: &str) -> Result<(HostPort, Box<LocalEnd>), String> {
    let (at, parameters) = match text.split_once('?') {
        Some((at, parameters)) => (at, Some(parameters)),
        None => (text, None),
    };
    let mut local = Box::<LocalEnd>::default();
    for parameter in parameters.into_iter().flat_map(|parameters| parameters.split('&')) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let is_new = match name {
            "dev" => local.device.replace(device_name(value)?).is_none(),
            "src" => local.source.replace(source(value)?).is_none(),
            other => {
                return Err(format!(
                    "unknown parameter `{other}`; the parameters are dev=DEVICE and src=IP-ADDRESS"
                ));
            }
        };
        if !is_new {
            return Err(format!("`{name}` is given twice"));
        }
    }
    Ok((host_port(at)?, local))
}

fn device_name(text: &str) -> Result<String, String> {
    let is_good = !text.is_empty()
        && text.len() <= MAX_DEVICE_NAME_BYTES
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
    if is_good {
        return Ok(text.to_owned());
    }
    Err(format!(
        "`{text}` is not the name of an RDMA device; write dev=mlx5_0 (`rdma link` shows them)"
    ))
}

fn source(text: &str) -> Result<IpAddr, String> {
    let wrong =
        |what| format!("`{text}` is {what}; write an address of this machine: src=10.0.1.7");
    let parsed: IpAddr = text.parse().map_err(|_| wrong("not an IP address"))?;
    let address = parsed.to_canonical();
    if address.is_unspecified() || address.is_multicast() {
        return Err(wrong("nobody's address"));
    }
    Ok(address)
}

fn host_port(text: &str) -> Result<HostPort, String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or("`[` without `]`")?;
            let port = rest.strip_prefix(':').ok_or("a port is missing after `]`")?;
            check_ipv6(host)?;
            (host, port)
        }
        None => {
            let (host, port) = text.rsplit_once(':').ok_or("a port is missing; write host:port")?;
            check_name(host)?;
            (host, port)
        }
    };
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    let number = port.parse().ok().filter(|_| digits);
    let port = number.ok_or_else(|| format!("port `{port}` is not a number from 0 to 65535"))?;
    Ok(HostPort { host: host.to_owned(), port })
}

/// Checks the host in brackets: an IPv6 address, with a zone if it needs one.
fn check_ipv6(host: &str) -> Result<(), String> {
    let (address, zone) = host.split_once('%').unwrap_or((host, "1"));
    // The name or the number of a network interface. The kernel accepts any name without blanks,
    // `/` or `:` other than `.` and `..`. Two more characters have a meaning in addresses.
    let is_good =
        |char: char| !char.is_whitespace() && !char.is_control() && !"/:]?".contains(char);
    let is_zone = !zone.is_empty()
        && zone.len() <= MAX_ZONE_BYTES
        && zone.chars().all(is_good)
        && !matches!(zone, "." | "..");
    if !is_zone || address.parse::<std::net::Ipv6Addr>().is_err() {
        return Err(format!(
            "`{host}` is not an IPv6 address; only those are written in brackets: [::1]:7471"
        ));
    }
    match zone.strip_prefix("25") {
        // The rules for a zone in a URL. An interface with another name can be given by its number.
        Some(name) if !name.is_empty() && !name.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err(format!("write the interface after a plain `%`: [{address}%{name}]"))
        }
        _ => Ok(()),
    }
}

/// Checks a host without brackets: a name or an IPv4 address.
fn check_name(host: &str) -> Result<(), String> {
    if host.is_empty() {
        return Err("the host is missing; write 0.0.0.0 to listen everywhere".to_owned());
    }
    if host.contains(':') {
        return Err("put an IPv6 address in brackets: [::1]:7471".to_owned());
    }
    // Letters of any language: names need not be ASCII before the resolver sees them.
    let is_good = |char: char| char.is_alphanumeric() || matches!(char, '-' | '.' | '_');
    if !host.chars().all(is_good) {
        return Err(format!("`{host}` is not a host name"));
    }
    Ok(())
}

fn shm(rest: &str) -> Result<Address, String> {
    if rest.starts_with('/') {
        if rest.len() > MAX_SHM_PATH_BYTES {
            return Err(format!(
                "a socket path has at most {MAX_SHM_PATH_BYTES} bytes, this one has {}",
                rest.len()
            ));
        }
        if rest.bytes().any(|byte| byte.is_ascii_control()) {
            return Err("a socket path contains no control characters".to_owned());
        }
        if rest.ends_with('/') {
            return Err("this is a directory; write the path of a socket file".to_owned());
        }
        return Ok(Address::ShmPath(PathBuf::from(rest)));
    }
    plain_name(rest).map(Address::ShmName)
}

fn plain_name(name: &str) -> Result<String, String> {
    if name.is_empty() {
        return Err("a name is missing; write shm://name, shm:///path or mem://name".to_owned());
    }
    if name.len() > MAX_SHM_NAME_BYTES {
        return Err(format!(
            "a name has at most {MAX_SHM_NAME_BYTES} bytes, this one has {}",
            name.len()
        ));
    }
    if name.bytes().any(|byte| byte == b'/' || byte.is_ascii_control()) {
        return Err(
            "a name contains no `/` and no control characters; write the path of a socket \
                    file as shm:///path"
                .to_owned(),
        );
    }
    Ok(name.to_owned())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rdma(at, local) => write!(f, "rdma://{at}{local}"),
            Self::Tcp(at) => write!(f, "tcp://{at}"),
            Self::Auto(at, local) => write!(f, "auto://{at}{local}"),
            Self::ShmName(name) => write!(f, "shm://{name}"),
            Self::ShmPath(path) => write!(f, "shm://{}", path.display()),
            Self::Mem(name) => write!(f, "mem://{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_scheme_prints_as_it_was_written() {
        for text in [
            "rdma://10.0.0.7:7471",
            "tcp://localhost:0",
            "auto://[::1]:7471",
            "tcp://[fe80::1%w+x]:7471",
            "tcp://[fe80::1%a[%b]:7471",
            "tcp://[fe80::1%25]:7471",
            "rdma://kv.example:7471?dev=mlx5_0&src=10.0.1.7",
            "auto://10.0.0.7:7471?src=fd09::1",
            "rdma://0.0.0.0:0?dev=rxe-0.1",
            "shm://kv",
            "shm:///run/kv.sock",
            "mem://test",
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("10.0.0.7:7471", "a scheme is missing"),
            ("http://x:1", "unknown scheme `http`"),
            ("tcp://x", "a port is missing"),
            ("tcp://x:65536", "port `65536`"),
            ("tcp://:80", "the host is missing"),
            ("tcp://::1:80", "in brackets"),
            ("tcp://[::1:80", "`[` without `]`"),
            ("tcp://[[x]:80", "is not an IPv6 address"),
            ("tcp://[x]:80", "is not an IPv6 address"),
            ("tcp://[::1%]:80", "is not an IPv6 address"),
            ("tcp://[fe80::1%a b]:80", "is not an IPv6 address"),
            ("tcp://[fe80::1%..]:80", "is not an IPv6 address"),
            ("tcp://[fe80::1%25eth0]:80", "a plain `%`: [fe80::1%eth0]"),
            ("tcp://x]:80", "is not a host name"),
            ("tcp://a b:80", "is not a host name"),
            ("tcp://x:+80", "port `+80`"),
            ("tcp://x:", "port ``"),
            ("tcp://x:1?dev=rxe0", "tcp:// has no parameters"),
            ("rdma://x:1?port=2", "unknown parameter `port`; the parameters are dev"),
            ("rdma://x:1?", "unknown parameter ``"),
            ("rdma://x:1?dev", "`` is not the name of an RDMA device"),
            ("auto://x:1?dev=a/b", "`a/b` is not the name of an RDMA device"),
            ("rdma://x:1?dev=a&dev=b", "`dev` is given twice"),
            ("rdma://x:1?src=eth0", "`eth0` is not an IP address"),
            ("rdma://x:1?src=0.0.0.0", "nobody's address"),
            ("rdma://x:1?src=::ffff:0.0.0.0", "nobody's address"),
            ("rdma://x:1?src=::ffff:224.0.0.1", "nobody's address"),
            ("rdma://x?dev=a", "a port is missing"),
            ("shm://kv?dev=mlx5_0", "shm:// has no parameters"),
            ("mem://kv?src=10.0.0.1", "mem:// has no parameters"),
            ("shm:///a\0b", "control characters"),
            ("shm://", "a name is missing"),
            ("shm://a/b", "shm:///path"),
            ("shm:///tmp/", "directory"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
            assert!(error.contains(text), "{error}");
        }
        let longest = format!("shm:///{}", "x".repeat(106));
        assert!(longest.parse::<Address>().is_ok());
        assert!(format!("{longest}x").parse::<Address>().unwrap_err().to_string().contains("107"));
        let long = format!("shm:///{}", "x".repeat(200));
        assert!(long.parse::<Address>().unwrap_err().to_string().contains("at most"));
    }

    /// Addresses as people mistype them: the pieces of valid ones in any order.
    fn nearly_an_address() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just("::1".to_owned()),
            Just("fe80::1%2".to_owned()),
            Just("10.0.0.7".to_owned()),
            Just("7471".to_owned()),
            Just("?dev=rxe0".to_owned()),
            Just("&src=10.0.0.1".to_owned()),
            Just("?src=::ffff:0.0.0.0".to_owned()),
            r"[\[\]:/%@ .+?&=-]",
            r"\PC{0,3}",
            "[a-z0-9._-]{0,5}",
        ];
        let scheme = prop_oneof!["rdma|tcp|auto|shm|mem", "[a-z]{0,4}"];
        (scheme, proptest::collection::vec(piece, 0..6))
            .prop_map(|(scheme, pieces)| format!("{scheme}://{}", pieces.concat()))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3_000))]

        #[test]
        fn parsing_and_printing_round_trip(text in nearly_an_address()) {
            if let Ok(address) = text.parse::<Address>() {
                let printed = address.to_string();
                prop_assert_eq!(printed.parse::<Address>(), Ok(address), "as `{}`", printed);
            }
        }

        #[test]
        fn addresses_of_sockets_parse_as_they_print(at: std::net::SocketAddr, zone: u32) {
            let at = match at {
                std::net::SocketAddr::V6(v6) => {
                    std::net::SocketAddrV6::new(*v6.ip(), v6.port(), 0, zone).into()
                }
                v4 => v4,
            };
            let address = Address::Tcp(at.into());
            prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address));
        }
    }
}
