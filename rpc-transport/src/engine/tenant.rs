//! The peers of one listener, as far as they are kept apart from those of others.
//!
//! Owns their protection domains, one on each device. Decides nothing: see
//! [`Isolation::PerTenant`](crate::protocol::config::Isolation::PerTenant).

use std::sync::Arc;

use crate::device::{Device, ProviderError};
use crate::lock::Mutex;
use crate::memory::region::ProtectionDomain;

/// A listener's tenant.
#[derive(Debug, Default)]
pub struct Tenant {
    /// At most one for each device name: a device may be replaced by another object.
    domains: Mutex<Vec<(Arc<dyn Device>, ProtectionDomain)>>,
}

impl Tenant {
    /// Its protection domain on a device, made when it is first asked for.
    ///
    /// # Errors
    /// Those of [`Device::allocate_pd`].
    pub(super) fn domain(
        &self,
        device: &Arc<dyn Device>,
    ) -> Result<ProtectionDomain, ProviderError> {
        let mut domains = self.domains.lock();
        if let Some((_, domain)) = domains.iter().find(|(known, _)| Arc::ptr_eq(known, device)) {
            return Ok(domain.clone());
        }
        let domain = device.allocate_pd()?;
        let name = &device.attributes().name;
        domains.retain(|(known, _)| known.attributes().name != *name);
        domains.push((Arc::clone(device), domain.clone()));
        Ok(domain)
    }
}
