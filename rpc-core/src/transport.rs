//! Addresses, connections and their settings: the public types of the transport layer.
//!
//! Most programs need only [`Address`](crate::Address), [`LinkConfig`](crate::LinkConfig),
//! [`PollMode`](crate::PollMode) and the errors [`ConnectError`](crate::ConnectError) and
//! [`ListenError`](crate::ListenError), which are at the root of the crate.

pub use rpc_transport::address::{AddressError, HostPort, LocalEnd};
pub use rpc_transport::device::connection_error::CloseCause;
pub use rpc_transport::device::fault::FaultPlan;
pub use rpc_transport::device::{PeerIdentity, ProviderError, Status as CompletionStatus};
pub use rpc_transport::memory::mapped::MappedFile;
pub use rpc_transport::protocol::arena::ArenaConfig;
pub use rpc_transport::protocol::config::{ConfigError, Isolation, WhenFull};
pub use rpc_transport::protocol::link::LinkMetrics;
