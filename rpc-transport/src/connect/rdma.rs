//! `rdma://`: served by the verbs device; without that feature, an error that says so.

use crate::address::{Address, HostPort, LocalEnd};
use crate::connect::resolved::Resolved;
#[cfg(feature = "verbs")]
use crate::device::Connector;
use crate::device::connection_error::{ConnectError, ListenError};
use crate::device::{Listener, QueueLimits};

#[cfg(not(feature = "verbs"))]
const NO_VERBS: &str = "this program was built without the `verbs` feature; build it with \
                        `--features verbs` (Debian: libibverbs-dev librdmacm-dev libclang-dev \
                        pkg-config), or use auto://, shm:// or tcp://";

#[cfg(not(feature = "verbs"))]
pub(crate) async fn resolve(_address: &Address) -> Result<Resolved, ConnectError> {
    Err(ConnectError::Unavailable { scheme: "rdma", reason: NO_VERBS.to_owned() })
}

#[cfg(not(feature = "verbs"))]
pub(crate) async fn listen(_address: &Address) -> Result<Box<dyn Listener>, ListenError> {
    Err(ListenError::Unavailable { scheme: "rdma", reason: NO_VERBS.to_owned() })
}

#[cfg(not(feature = "verbs"))]
pub(crate) async fn candidates(
    address: &Address,
    _at: &HostPort,
    _local: &LocalEnd,
) -> Result<Vec<Address>, ConnectError> {
    Ok(vec![address.clone()])
}

#[cfg(not(feature = "verbs"))]
pub(crate) fn lacks_locked_memory(
    _registered: u64,
    _in_all: &dyn Fn(QueueLimits) -> u64,
) -> Option<String> {
    None
}

/// The error for a limit on locked memory that is too low for these connections.
#[cfg(feature = "verbs")]
pub(crate) fn lacks_locked_memory(
    registered: u64,
    in_all: &dyn Fn(QueueLimits) -> u64,
) -> Option<String> {
    let devices = || crate::device::verbs::devices().unwrap_or_default();
    let limits =
        || devices().iter().map(|device| device.attributes().queue_limits()).collect::<Vec<_>>();
    crate::device::verbs::lacks_locked_memory(registered, || most_needed(&limits(), in_all))
}

/// The need on the device with the largest need, since any of them may serve the connections.
#[cfg(any(feature = "verbs", test))]
fn most_needed(devices: &[QueueLimits], in_all: &dyn Fn(QueueLimits) -> u64) -> u64 {
    let most = devices.iter().map(|limits| in_all(*limits)).max();
    most.unwrap_or_else(|| in_all(QueueLimits::UNLIMITED))
}

/// One address for each address of the host name.
#[cfg(feature = "verbs")]
pub(crate) async fn candidates(
    address: &Address,
    at: &HostPort,
    local: &LocalEnd,
) -> Result<Vec<Address>, ConnectError> {
    let found = crate::device::verbs::look_up(at).await;
    let found =
        found.map_err(|reason| ConnectError::Unreachable { address: address.clone(), reason })?;
    Ok(found.into_iter().map(|at| Address::Rdma(at.into(), Box::new(local.clone()))).collect())
}

#[cfg(feature = "verbs")]
pub(crate) async fn resolve(address: &Address) -> Result<Resolved, ConnectError> {
    // The caller of `connect` has its own time limit, which may exceed this provider's default.
    let connect_timeout = std::time::Duration::from_secs(3600);
    let options = crate::device::verbs::SetupOptions { connect_timeout, ..Default::default() };
    let outgoing = crate::device::verbs::VerbsConnector::new(options).resolve(address).await?;
    let reason = "rdma:// was asked for".to_owned();
    Ok(Resolved::new(outgoing, address.clone(), reason))
}

#[cfg(feature = "verbs")]
pub(crate) async fn listen(address: &Address) -> Result<Box<dyn Listener>, ListenError> {
    crate::device::verbs::listen(address, crate::device::verbs::SetupOptions::default()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn need_reported_is_that_of_the_neediest_device() {
        let limits = |max_srq_wr| QueueLimits { max_cqe: 1 << 20, max_srq_wr };
        let in_all = |limits: QueueLimits| if limits.max_srq_wr == 0 { 900 } else { 100 };
        assert_eq!(most_needed(&[limits(32_767), limits(0), limits(64)], &in_all), 900);
        assert_eq!(most_needed(&[limits(32_767)], &in_all), 100);
        assert_eq!(most_needed(&[], &in_all), 100);
    }
}
