//! From an address to the provider that serves its scheme.
//!
//! Owns the only mapping of schemes to providers. Never falls back to another transport: only
//! `auto://` chooses, and says why.

use crate::address::Address;
use crate::connect::rdma;
pub use crate::connect::resolved::Resolved;
use crate::device::connection_error::{ConnectError, ListenError};
use crate::device::soft;
use crate::device::{Connector, Listener, QueueLimits};

/// The addresses to try in turn for this one: all addresses of a host name, where the device does
/// not try them itself; otherwise the address alone.
///
/// # Errors
/// [`ConnectError`]: the name has no address.
pub async fn candidates(address: &Address) -> Result<Vec<Address>, ConnectError> {
    match address {
        Address::Rdma(at, local) => rdma::candidates(address, at, local).await,
        _ => Ok(vec![address.clone()]),
    }
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
        Address::Auto(at, local) => return crate::connect::negotiate::resolve(at, local).await,
        Address::Rdma(..) => return rdma::resolve(address).await,
    };
    let reason = format!("{}:// was asked for", address.scheme());
    Ok(Resolved::new(outgoing, address.clone(), reason))
}

/// Opens an address of any scheme.
///
/// # Errors
/// [`ListenError`]: in use, not available here.
pub async fn listen(address: &Address) -> Result<Box<dyn Listener>, ListenError> {
    listen_locking(address, 0, &|_| 0).await
}

/// Opens an address of any scheme for connections that register `registered` bytes and lock
/// `in_all` bytes including their queues, under the device's queue limits. `auto://` leaves out
/// RDMA, with a warning, if this process may not lock that much: clients would choose it and be
/// refused.
///
/// # Errors
/// [`ListenError`]: in use, not available here.
pub async fn listen_locking(
    address: &Address,
    registered: u64,
    in_all: &(dyn Fn(QueueLimits) -> u64 + Sync),
) -> Result<Box<dyn Listener>, ListenError> {
    match address {
        Address::Mem(name) => soft::listen_mem(name),
        Address::ShmName(_) | Address::ShmPath(_) => soft::listen_shm(address),
        Address::Tcp(at) => soft::listen_tcp(at, None).await,
        Address::Auto(at, local) => {
            let lack = rdma::lacks_locked_memory(registered, in_all);
            crate::connect::negotiate::listen(at, local, lack).await
        }
        Address::Rdma(..) => rdma::listen(address).await,
    }
}

/// Why this process cannot have connections at such an address: they register `registered` bytes
/// and lock `in_all` bytes including their queues, under the device's queue limits, and the
/// process's limit on locked memory is lower. Known before anything is created. `None` if it can,
/// if nothing is locked, or if another transport may be used.
#[must_use]
pub fn lacks_locked_memory(
    address: &Address,
    registered: u64,
    in_all: &dyn Fn(QueueLimits) -> u64,
) -> Option<String> {
    match address {
        Address::Rdma(..) => rdma::lacks_locked_memory(registered, in_all),
        _ => None,
    }
}
