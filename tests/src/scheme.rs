//! Unused addresses.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// An IPv4 address that an RDMA port of this machine answers to.
///
/// # Panics
/// Without a usable device.
#[cfg(feature = "verbs")]
#[must_use]
pub fn rdma_host() -> std::net::IpAddr {
    let report = rpc_transport::device::verbs::preflight();
    assert!(report.is_usable(), "tests over rdma:// need an RDMA device:\n{report}");
    let mut addresses = report.addresses().into_iter();
    addresses.find(std::net::IpAddr::is_ipv4).expect("an RDMA port with an IPv4 address")
}

/// The name of the device that has this port.
///
/// # Panics
/// Without a usable device.
#[cfg(feature = "verbs")]
#[must_use]
pub fn rdma_device() -> String {
    use std::net::IpAddr;
    let host = rdma_host();
    let devices = rpc_transport::device::verbs::preflight().devices;
    let found = devices.into_iter().find(|device| {
        let gids = device.ports.iter().filter(|port| port.is_active).flat_map(|port| &port.gids);
        gids.map(|gid| IpAddr::V6(gid.address).to_canonical()).any(|address| address == host)
    });
    found.expect("the device of an address that it has told").name
}

/// A way to reach a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Inside this process.
    Mem,
    /// An abstract name.
    ShmName,
    /// A socket file.
    ShmPath,
    /// A TCP port.
    Tcp,
    /// The best transport from a TCP port.
    Auto,
    /// An RDMA device of this machine.
    #[cfg(feature = "verbs")]
    Rdma,
}

impl Scheme {
    /// All schemes that need no device.
    pub const ALL: [Self; 5] = [Self::Mem, Self::ShmName, Self::ShmPath, Self::Tcp, Self::Auto];

    /// An address to listen at, different each time.
    ///
    /// # Panics
    /// For RDMA without a usable device.
    #[must_use]
    pub fn fresh_address(self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rpc-e2e-{}-{number}", std::process::id());
        match self {
            Self::Mem => format!("mem://{name}"),
            Self::ShmName => format!("shm://{name}"),
            Self::ShmPath => {
                let path: PathBuf = std::env::temp_dir().join(name);
                format!("shm://{}", path.display())
            }
            Self::Tcp => "tcp://127.0.0.1:0".to_owned(),
            Self::Auto => "auto://127.0.0.1:0".to_owned(),
            #[cfg(feature = "verbs")]
            Self::Rdma => format!("rdma://{}:0", rdma_host()),
        }
    }

    /// A fresh address at the machine where [`crate::process::Child::start_there`] starts servers.
    ///
    /// # Panics
    /// When that is another machine, which only `rdma://` reaches, and for RDMA without a usable
    /// device.
    #[must_use]
    pub fn fresh_address_there(self) -> String {
        match (self, crate::agent::of_the_peer()) {
            (_, None) | (Self::Mem, _) => self.fresh_address(),
            #[cfg(feature = "verbs")]
            (Self::Rdma, Some(peer)) => format!("rdma://{}:0", peer.ip()),
            (_, Some(peer)) => panic!("{self:?} does not reach a server at {peer}"),
        }
    }

    /// Whether a server at such an address may be another process.
    #[must_use]
    pub fn is_between_processes(self) -> bool {
        self != Self::Mem
    }

    /// Whether it needs an RDMA device.
    #[must_use]
    pub fn is_rdma(self) -> bool {
        !Self::ALL.contains(&self)
    }
}
