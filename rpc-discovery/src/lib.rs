//! Registries for `rpc-over-rdma`: channels find the servers of a name there, and servers register
//! themselves.
//!
//! [`resolver`] makes a resolver from a name such as `etcd://10.0.0.1:2379/rpc/kv`, for
//! [`ChannelBuilder::connect_balanced`](rpc_core::ChannelBuilder::connect_balanced):
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rpc_core::Channel;
//!
//! let servers = rpc_discovery::resolver("etcd://10.0.0.1:2379,10.0.0.2:2379/rpc/kv")?;
//! let channel = Channel::builder().connect_balanced(servers)?; // connects with its first call
//! # Ok(()) }
//! ```
//!
//! | feature | default | content |
//! |---|---|---|
//! | `etcd` | yes | [`Etcd`]: watches a prefix, and registers servers below it |
//! | `tls` | no | `RegistryTls`: requests to etcd are encrypted |
//! | `dns-srv` | no | `Srv`: SRV records in DNS |
//! | `kubernetes` | no | `Kubernetes`: the EndpointSlices of a service |
//!
//! A registry may fail without harm: the servers that a channel knows stay. See the guide,
//! "Discovery and balancing".

mod destination;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod http;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod name_error;
mod names;
#[cfg(any(feature = "etcd", feature = "dns-srv", feature = "kubernetes"))]
mod protocol;
#[cfg(any(feature = "etcd", feature = "dns-srv", feature = "kubernetes"))]
mod random;
#[cfg(feature = "dns-srv")]
mod srv;
#[cfg(all(feature = "tls", any(feature = "etcd", feature = "kubernetes")))]
mod tls;

pub use self::destination::Destination;
#[cfg(feature = "etcd")]
pub use self::etcd::Etcd;
#[cfg(feature = "kubernetes")]
pub use self::kubernetes::Kubernetes;
pub use self::name_error::NameError;
pub use self::names::resolver;
#[cfg(feature = "dns-srv")]
pub use self::srv::Srv;
#[cfg(all(feature = "tls", any(feature = "etcd", feature = "kubernetes")))]
pub use self::tls::{RegistryTls, RegistryTlsError};

/// The examples of the README.
#[cfg(all(doctest, feature = "etcd"))]
#[doc = include_str!("../README.md")]
mod readme {}
