//! Ports that connections over software iWARP have in the kernel's TCP.
//!
//! Owns the question whether TCP has a port for them. rdma_cm chooses ports from a space of its
//! own, and siw binds a TCP socket to one only when it connects or listens: where a program of this
//! machine listens there, that fails.

use std::net::SocketAddr;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

/// Most ports of the system's choice that are tried. So many taken ones in a row are no chance.
pub(super) const MOST_PORTS: u32 = 16;

/// Whether TCP refuses a socket at this address, asked in siw's way. What cannot be found out
/// counts as no.
pub(super) fn is_taken(at: SocketAddr) -> bool {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let bound =
        socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).and_then(|socket| {
            sockopt::set_socket_reuseaddr(&socket, true)?;
            bind(&socket, &at)
        });
    matches!(bound, Err(Errno::ADDRINUSE))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_port_is_taken_while_somebody_listens_there() {
        for host in ["127.0.0.1", "::1"] {
            let listener = TcpListener::bind((host, 0)).unwrap();
            let at = listener.local_addr().unwrap();
            assert!(is_taken(at), "{at}");
            // Connections of the listener that are left are no listener.
            let client = TcpStream::connect(at).unwrap();
            let server = listener.accept().unwrap();
            drop(listener);
            assert!(!is_taken(at), "{at}");
            drop((client, server));
        }
    }
}
