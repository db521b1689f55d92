//! Why a pool has no memory to give.

use rpc_transport::device::ProviderError;

/// Why a pool cannot give a buffer.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Longer than one buffer can be.
    #[error("a buffer of {bytes} bytes is longer than the {max} that one can have", max = u32::MAX)]
    TooLong {
        /// The requested length.
        bytes: u64,
    },
    /// The device has no memory, or cannot register it.
    #[error(transparent)]
    Device(#[from] ProviderError),
}
