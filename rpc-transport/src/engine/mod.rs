//! The engine, the only layer that moves bytes: shards, their driver tasks, and their connections.
//!
//! **Owns** every lock and task of this crate. A shard is one completion queue with its queue
//! pairs, its connections and one lock; its driver polls, hands actions to the upper layer outside
//! the lock, and sleeps. The upper layer is known only by its traits ([`upper`]).

mod accept_error;
pub mod clock;
mod connection;
pub mod connection_key;
mod deferred;
pub mod driver;
pub mod establish;
pub mod executor;
mod growth;
pub mod locked_need;
pub mod poll;
mod pump_queue;
pub mod security;
pub mod shard;
mod shared_recvs;
pub mod tenant;
pub mod turns;
mod unlock;
pub mod upper;

pub use self::poll::spin;
