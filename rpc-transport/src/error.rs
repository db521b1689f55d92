//! Errors of device operations outside the data path.
//!
//! Separate from the device contract, so that `memory` can use the error without depending on
//! devices.

/// A device operation outside the data path has failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// No room for another QP on this CQ (contract rule 13).
    #[error(
        "a completion queue of {capacity} entries, {used} in use, has no room for a queue pair \
         with {wanted} entries"
    )]
    CompletionQueueFull {
        /// Entries in all.
        capacity: u32,
        /// Entries reserved already.
        used: u32,
        /// Entries the QP would need.
        wanted: u32,
    },
    /// An object that belongs to another device was passed in.
    #[error("{0} belongs to another device")]
    WrongDevice(&'static str),
    /// No such QP.
    #[error("no such queue pair on this completion queue")]
    UnknownQp,
    /// A request beyond a limit of the device.
    #[error("{what}: {asked} is beyond the device's limit of {limit}")]
    Limit {
        /// The requested resource.
        what: &'static str,
        /// How much.
        asked: u64,
        /// The limit.
        limit: u64,
    },
    /// The operating system or driver refused; the text says what to do.
    #[error("{what}: {message}")]
    Resources {
        /// The attempted operation.
        what: &'static str,
        /// What went wrong and what to do.
        message: String,
    },
    /// A shared receive queue that is not there, or not in a state for this (contract rule 22).
    #[error("shared receive queue: {0}")]
    Srq(&'static str),
    /// The device lacks this ability.
    #[error("{0} is not supported by this device")]
    Unsupported(&'static str),
    /// The CQ is dead (overflow or device loss); every QP on it is lost.
    #[error("completion queue is dead: {0}")]
    CompletionQueueDead(String),
}
