//! From an address to the provider that serves its scheme.
//!
//! Owns the only mapping of schemes to providers. Never falls back to another transport: only
//! `auto://` chooses, and says why.

use crate::connect::address::Address;
use crate::connect::error::{ConnectError, ListenError};
use crate::connect::rdma;
pub use crate::connect::resolved::Resolved;
use crate::device::soft;
use crate::device::{Connector, Listener};

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
        Address::Rdma(_) => return rdma::resolve(address).await,
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
        Address::Rdma(_) => rdma::listen(address).await,
    }
}
