//! Addresses that nobody else uses.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

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
    /// The best way from a TCP port.
    Auto,
}

impl Scheme {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Mem, Self::ShmName, Self::ShmPath, Self::Tcp, Self::Auto];

    /// An address to listen at, different each time.
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
        }
    }

    /// Whether a server at such an address may be another process.
    #[must_use]
    pub fn is_between_processes(self) -> bool {
        self != Self::Mem
    }
}
