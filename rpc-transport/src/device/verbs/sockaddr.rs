//! Socket addresses in the kernel's layout.
//!
//! Owns the conversion between [`SocketAddr`] and `struct sockaddr_in` / `sockaddr_in6`. Pure.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// Size of `struct sockaddr_storage`, bytes.
pub(super) const STORAGE_BYTES: usize = 128;

/// A socket address in the kernel's layout, with room for any family.
#[repr(C, align(8))]
pub(super) struct RawAddress([u8; STORAGE_BYTES]);

impl RawAddress {
    /// Pointer for calls that read a `struct sockaddr`.
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
}

impl From<SocketAddr> for RawAddress {
    fn from(address: SocketAddr) -> Self {
        let mut raw = [0; STORAGE_BYTES];
        let mut put = |offset: usize, bytes: &[u8]| {
            raw[offset..offset + bytes.len()].copy_from_slice(bytes);
        };
        match address {
            SocketAddr::V4(v4) => {
                put(0, &AF_INET.to_ne_bytes());
                put(2, &v4.port().to_be_bytes());
                put(4, &v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                put(0, &AF_INET6.to_ne_bytes());
                put(2, &v6.port().to_be_bytes());
                put(4, &v6.flowinfo().to_be_bytes());
                put(8, &v6.ip().octets());
                put(24, &v6.scope_id().to_ne_bytes());
            }
        }
        Self(raw)
    }
}

/// Reads an address in the kernel's layout; `None` for any other family (an id without an address
/// has family 0).
pub(super) fn parse(raw: &[u8; STORAGE_BYTES]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes([raw[2], raw[3]]);
    match u16::from_ne_bytes([raw[0], raw[1]]) {
        AF_INET => {
            let ip = Ipv4Addr::new(raw[4], raw[5], raw[6], raw[7]);
            Some(SocketAddrV4::new(ip, port).into())
        }
        AF_INET6 => {
            let mut ip = [0; 16];
            ip.copy_from_slice(&raw[8..24]);
            let word = |at: usize| [raw[at], raw[at + 1], raw[at + 2], raw[at + 3]];
            let flowinfo = u32::from_be_bytes(word(4));
            let scope_id = u32::from_ne_bytes(word(24));
            Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, flowinfo, scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_kernels_layout() {
        for text in ["10.9.0.1:7471", "0.0.0.0:0", "[fd09::1]:65535", "[fe80::1%3]:80", "[::]:0"] {
            let address: SocketAddr = text.parse().unwrap();
            let raw = RawAddress::from(address);
            assert_eq!(parse(&raw.0), Some(address));
        }
    }

    #[test]
    fn the_layout_is_that_of_the_c_headers() {
        let raw = RawAddress::from("1.2.3.4:513".parse::<SocketAddr>().unwrap());
        assert_eq!(raw.0[..8], [2, 0, 2, 1, 1, 2, 3, 4]);
        let raw = RawAddress::from("[1::2%7]:513".parse::<SocketAddr>().unwrap());
        assert_eq!(raw.0[..4], [10, 0, 2, 1]);
        assert_eq!(raw.0[8..24], [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(raw.0[24..28], [7, 0, 0, 0]);
    }

    #[test]
    fn an_unset_address_is_none() {
        assert_eq!(parse(&[0; STORAGE_BYTES]), None);
    }
}
