//! Errors of a pool of buffers, and those of reading a payload.

use std::error::Error;
use std::sync::Arc;

use rpc_transport::device::ProviderError;
use rpc_transport::message::read_error::ReadError;

use crate::status::{CallError, Code, Status};

/// Why a pool cannot give a buffer.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The requested length exceeds the maximum length of a buffer.
    #[error("a buffer of {bytes} bytes exceeds the maximum of {max} bytes", max = u32::MAX)]
    TooLong {
        /// The requested length.
        bytes: u64,
    },
    /// The pool belongs to the parent of this forked process.
    #[error("the pool {}", rpc_transport::memory::process::FORKED)]
    Forked,
    /// The device has no memory, or cannot register it.
    #[error(transparent)]
    Device(#[from] ProviderError),
}

/// For `?` in a handler. The code is [`FailedPrecondition`](Code::FailedPrecondition) in a child of
/// `fork(2)`.
impl From<ReadError> for Status {
    #[cold]
    fn from(error: ReadError) -> Self {
        let code = match error {
            ReadError::Forked => Code::FailedPrecondition,
            _ => Code::DataLoss,
        };
        Self::new(code, error.to_string())
            .with_source(Arc::new(error) as Arc<dyn Error + Send + Sync>)
    }
}

/// For `?` in a handler.
impl<E> From<ReadError> for CallError<E> {
    #[cold]
    fn from(error: ReadError) -> Self {
        Self::Status(error.into())
    }
}
