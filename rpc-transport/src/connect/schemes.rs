//! From an address to the provider that serves its scheme.
//!
//! Owns the one place where schemes meet providers. Never falls back from what was asked for:
//! only `auto://` chooses, and says why.

use crate::connect::address::Address;
use crate::connect::error::{ConnectError, ListenError};
use crate::device::soft;
use crate::device::{Connector, Listener, Outgoing};

/// A connection on its way out, and how it came to be this one.
#[derive(Debug)]
pub struct Resolved {
    /// The connection to be.
    pub outgoing: Box<dyn Outgoing>,
    /// The address that is being connected; for `auto://` the one that was chosen.
    pub address: Address,
    /// Why this way, for people.
    pub reason: String,
}

/// Resolves an address of any scheme.
///
/// # Errors
/// [`ConnectError`]: nothing listens, the scheme is not available here.
pub async fn resolve(address: &Address) -> Result<Resolved, ConnectError> {
    let outgoing = match address {
        Address::Mem(_) => soft::MemConnector.resolve(address).await?,
        Address::ShmName(_) | Address::ShmPath(_) => {
            soft::ShmConnector::default().resolve(address).await?
        }
        Address::Tcp(_) => soft::TcpConnector.resolve(address).await?,
        Address::Auto(at) => return crate::connect::negotiate::resolve(at).await,
        Address::Rdma(_) => return resolve_rdma(address).await,
    };
    let reason = format!("{}:// was asked for", address.scheme());
    Ok(Resolved { outgoing, address: address.clone(), reason })
}

/// Opens an address of any scheme.
///
/// # Errors
/// [`ListenError`]: in use, not available here.
pub async fn listen(address: &Address) -> Result<Box<dyn Listener>, ListenError> {
    match address {
        Address::Mem(name) => soft::listen_mem(name),
        Address::ShmName(_) | Address::ShmPath(_) => soft::listen_shm(address),
        Address::Tcp(at) => soft::listen_tcp(at, None).await,
        Address::Auto(at) => crate::connect::negotiate::listen(at).await,
        Address::Rdma(_) => listen_rdma(address).await,
    }
}

#[cfg(not(feature = "verbs"))]
const NO_VERBS: &str = "this program was built without the `verbs` feature; build it with \
                        `--features verbs` (Debian: libibverbs-dev librdmacm-dev libclang-dev \
                        pkg-config), or use auto://, shm:// or tcp://";

#[cfg(not(feature = "verbs"))]
pub(crate) async fn resolve_rdma(_address: &Address) -> Result<Resolved, ConnectError> {
    Err(ConnectError::Unavailable { scheme: "rdma", reason: NO_VERBS.to_owned() })
}

#[cfg(not(feature = "verbs"))]
pub(crate) async fn listen_rdma(_address: &Address) -> Result<Box<dyn Listener>, ListenError> {
    Err(ListenError::Unavailable { scheme: "rdma", reason: NO_VERBS.to_owned() })
}

#[cfg(feature = "verbs")]
pub(crate) async fn resolve_rdma(address: &Address) -> Result<Resolved, ConnectError> {
    // Whoever connects has a limit of its own, which may be longer than this provider's.
    let connect_timeout = std::time::Duration::from_secs(3600);
    let options = crate::device::verbs::SetupOptions { connect_timeout, ..Default::default() };
    let outgoing = crate::device::verbs::VerbsConnector::new(options).resolve(address).await?;
    let reason = "rdma:// was asked for".to_owned();
    Ok(Resolved { outgoing, address: address.clone(), reason })
}

#[cfg(feature = "verbs")]
pub(crate) async fn listen_rdma(address: &Address) -> Result<Box<dyn Listener>, ListenError> {
    crate::device::verbs::listen(address, crate::device::verbs::SetupOptions::default()).await
}
