//! Which connections could reach each other's memory.
//!
//! Owns the two settings that decide it: who shares a protection domain, and whether keys of arenas
//! are those of memory windows.

use super::LinkConfig;

/// Which connections share a protection domain (PD): the device refuses keys of another PD.
///
/// A peer can write only to a connection's arenas and reply slots, and only that connection's peer
/// receives their keys. But keys are sent unencrypted and can be guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Isolation {
    /// All connections of a channel, or of a server on one device. A peer that knows key and
    /// address of another connection's reply slot can write there, and so change payloads in
    /// transit; of another connection's arena, only where that is in no memory window
    /// ([`LinkConfig::memory_windows`]). For peers that trust each other.
    #[default]
    Shared,
    /// All connections that came in at one address that a server is bound to, on one device: its
    /// tenant. A key of another tenant's memory is refused, and ends the connection that used it;
    /// within a tenant it is as with [`Isolation::Shared`]. For a server that is bound to an
    /// address for each group of peers that trust each other. A channel has one tenant, its own.
    PerTenant,
    /// Each connection has its own PD. A peer that learned the keys of another connection's memory
    /// cannot use them: its own connection ends when it tries. Costs a device object for each
    /// connection, and a copy of payloads from memory that was registered for all connections.
    PerConnection,
}

impl LinkConfig {
    /// Which connections share a protection domain. Default [`Isolation::Shared`], and with TLS
    /// [`Isolation::PerConnection`], which is for servers whose peers do not trust each other.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = Some(isolation);
        self
    }

    /// Whether the peer writes arenas through memory windows (type 2B), where the device has them:
    /// their keys are valid on that connection only, and end with it. So a stolen key is of no use,
    /// although connections share a protection domain. Default true, but false with
    /// [`Isolation::PerConnection`], which needs none, and on Soft-RoCE, where a queue pair can
    /// hang when packets are lost around a bind. Each arena takes one window, and one work request
    /// more when it is made. Reply slots are in no window: their keys are as
    /// [`LinkConfig::isolation`] says.
    #[must_use]
    pub fn memory_windows(mut self, are_bound: bool) -> Self {
        self.memory_windows = Some(are_bound);
        self
    }

    /// Whether arenas are in memory windows, on a device that has them and uses them by default if
    /// `by_default`.
    pub(crate) fn binds_windows(&self, by_default: bool) -> bool {
        let default = by_default && self.isolation != Some(Isolation::PerConnection);
        self.memory_windows.unwrap_or(default)
    }

    /// With [`Isolation::PerConnection`], unless the user has said something else.
    #[must_use]
    #[doc(hidden)]
    pub fn isolated_by_default(mut self) -> Self {
        self.isolation.get_or_insert(Isolation::PerConnection);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_bound_where_a_domain_is_shared() {
        let default = LinkConfig::default();
        let of = |isolation| LinkConfig::default().isolation(isolation);
        for (config, binds) in [
            (default.clone(), true),
            (default.memory_windows(false), false),
            (of(Isolation::Shared), true),
            (of(Isolation::PerTenant), true),
            (of(Isolation::PerConnection), false),
            (of(Isolation::PerConnection).memory_windows(true), true),
            (LinkConfig::default().isolated_by_default(), false),
        ] {
            let settled = |windows| config.settled(true, windows).binds_windows(true);
            assert_eq!(settled(Some(true)), binds, "{config:?}");
            let is_wanted = config.memory_windows == Some(true);
            assert_eq!(settled(Some(false)), is_wanted, "not by default: {config:?}");
            assert!(!settled(None), "{config:?}");
        }
    }
}
