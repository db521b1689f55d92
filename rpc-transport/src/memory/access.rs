//! Who may access registered memory, and how.

/// The accesses that a registered region allows. Local reads and writes by the device are always
/// allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// A peer that knows the rkey may write.
    pub remote_write: bool,
    /// A peer that knows the rkey may read.
    pub remote_read: bool,
    /// Memory windows may be bound to the region: peers write through their keys.
    pub windows: bool,
}

impl Access {
    /// Only this process and its device.
    pub const LOCAL: Self = Self { remote_write: false, remote_read: false, windows: false };
    /// Peers may write: a landing zone.
    pub const REMOTE_WRITE: Self = Self { remote_write: true, ..Self::LOCAL };
    /// Peers may read.
    pub const REMOTE_READ: Self = Self { remote_read: true, ..Self::LOCAL };
    /// Peers may read and write.
    pub const REMOTE_READ_WRITE: Self = Self { remote_read: true, ..Self::REMOTE_WRITE };
    /// Peers may write through memory windows, and not by the key of the region.
    pub const WINDOWS: Self = Self { windows: true, ..Self::LOCAL };

    /// Whether a peer may touch the memory at all.
    #[must_use]
    pub const fn is_remote(self) -> bool {
        self.remote_write || self.remote_read || self.windows
    }
}
