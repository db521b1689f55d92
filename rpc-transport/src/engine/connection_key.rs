//! The name of a connection.

/// Names a connection of a [`Shard`](crate::engine::shard::Shard).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionKey {
    pub(super) index: u32,
    /// Another connection at the same index has another one.
    pub(super) generation: u32,
}
