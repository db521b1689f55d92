//! Whether an address in a registry leads other processes to a server.

use rpc_core::Address;
use rpc_core::text::is_printable;
use rpc_core::transport::HostPort;

/// Longest address in a registry, bytes.
pub(crate) const MAX_ADDRESS_BYTES: usize = 512;

/// # Errors
/// What is wrong with the address.
pub(crate) fn check(address: &Address) -> Result<(), String> {
    match address {
        Address::Mem(_) => Err("mem:// can be reached in one process only".to_owned()),
        Address::Tcp(at) | Address::Rdma(at, _) | Address::Auto(at, _) => check_host(at, address),
        _ => Ok(()),
    }
}

fn check_host(at: &HostPort, address: &Address) -> Result<(), String> {
    if is_wildcard(&at.host) {
        return Err(format!("{address} is a wildcard address, to which no client can connect"));
    }
    if at.port == 0 {
        return Err(format!("{address} has no port"));
    }
    Ok(())
}

/// Whether a server that listens there does so at all addresses of its host.
pub(crate) fn is_wildcard(host: &str) -> bool {
    let host = host.split('%').next().unwrap_or_default();
    host.parse::<core::net::IpAddr>().is_ok_and(|ip| ip.to_canonical().is_unspecified())
        || matches!(host, "" | "*" | "0")
}

/// Reads an address that a registry has.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn read(text: &str) -> Result<Address, String> {
    if text.len() > MAX_ADDRESS_BYTES {
        return Err(format!("its address has more than {MAX_ADDRESS_BYTES} bytes"));
    }
    if !is_printable(text) {
        return Err("its address has control characters".to_owned());
    }
    let address: Address = text.parse().map_err(|error| format!("{error}"))?;
    check(&address).map(|()| address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_lead_nowhere_are_refused() {
        for (text, part) in [
            ("tcp://0.0.0.0:1", "wildcard"),
            ("auto://[::]:1", "wildcard"),
            ("auto://[::ffff:0.0.0.0]:1", "wildcard"),
            ("tcp://10.0.0.1:0", "port"),
            ("mem://a", "one process"),
            ("tcp://a\u{7}b:1", "control"),
            ("10.0.0.1:7", "scheme"),
            ("http://a:1", "unknown scheme"),
            ("", "scheme"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
        assert!(read(&format!("tcp://{}:1", "a".repeat(600))).is_err());
        for text in ["tcp://10.0.0.1:1", "auto://kv.example:7471", "shm://kv", "auto://[::1]:7"] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
    }
}
