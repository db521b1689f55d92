//! The configuration of a server, but for what it serves.

use std::sync::Arc;
use std::time::Duration;

use rpc_transport::address::Address;
use rpc_transport::device::fault::FaultPlan;
use rpc_transport::device::{Incoming, PeerIdentity};
use rpc_transport::engine::security::Security;
use rpc_transport::engine::spin::PollMode;
use rpc_transport::protocol::config::{ConfigError, LinkConfig};
use rpc_transport::protocol::handshake::{Features, Offer};
use rpc_transport::protocol::lock::Exchange;

use super::adaptive_limit::AdaptiveLimit;
use super::allow::Allow;
use super::door::Door;
use crate::codec::DEFAULT_MIN_PART_BYTES;
use crate::metadata::{DEFAULT_MAX_BYTES, check_limit};
use crate::secured::{Keep, Secured};
use crate::session::{SessionLimits, check_least};

#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) link: LinkConfig,
    pub(super) limits: SessionLimits,
    pub(super) adaptive_limit: Option<AdaptiveLimit>,
    pub(super) poll_mode: PollMode,
    pub(super) shards: usize,
    pub(super) max_connections: usize,
    pub(super) max_connection_idle: Option<Duration>,
    pub(super) max_connection_age: Option<Duration>,
    pub(super) drain_lead: Duration,
    pub(super) grace: Duration,
    pub(super) min_part_bytes: usize,
    pub(super) max_metadata_bytes: usize,
    /// `None`: sized from the machine.
    pub(super) memory_budget: Option<u64>,
    pub(super) faults: Option<FaultPlan>,
    pub(super) door: Door,
    pub(super) allow: Option<Allow>,
    /// Or what is wrong with the options of TLS.
    pub(super) secured: Option<Result<Secured, String>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            link: LinkConfig::default(),
            limits: SessionLimits::default(),
            adaptive_limit: None,
            poll_mode: PollMode::default(),
            shards: 1,
            max_connections: 16_384,
            max_connection_idle: None,
            max_connection_age: None,
            drain_lead: Duration::ZERO,
            grace: Duration::from_secs(10),
            min_part_bytes: DEFAULT_MIN_PART_BYTES,
            max_metadata_bytes: DEFAULT_MAX_BYTES,
            memory_budget: None,
            faults: None,
            door: Door::default(),
            allow: None,
            secured: None,
        }
    }
}

impl Config {
    /// Checks what is not of the link.
    ///
    /// # Errors
    /// [`ConfigError`] for the first value out of range.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        self.limits.validate()?;
        check_least("max_connection_idle", self.max_connection_idle)?;
        check_least("max_connection_age", self.max_connection_age)?;
        check_limit(self.max_metadata_bytes)
    }

    /// Checks what TLS demands, and isolates connections from each other where it is on.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub(super) fn check_secured(&mut self, addresses: &[Address]) -> Result<(), String> {
        let Some(secured) = &self.secured else { return Ok(()) };
        let secured = secured.as_ref().map_err(String::clone)?;
        self.link = std::mem::take(&mut self.link).isolated_by_default();
        secured.check_link(&self.link).map_err(|error| error.to_string())?;
        if self.allow.is_none() && secured.is_optional {
            return Err("`Tls::optional` lets everybody connect: say who may call what by \
                        `ServerBuilder::allow`, where plain clients are `anonymous`"
                .to_owned());
        }
        if self.allow.is_none() {
            tracing::warn!(
                "every client whose certificate is of a trusted authority may call everything: say \
                 who may call what by `ServerBuilder::allow`"
            );
        }
        addresses.iter().try_for_each(|address| secured.check(address))
    }

    /// What goes on behind the handshakes, where there are any.
    pub(super) fn keeper(&self) -> Option<&Arc<dyn Keep>> {
        Some(&self.secured.as_ref()?.as_ref().ok()?.keeper)
    }

    /// Whether a peer may do without TLS, and would better have it.
    pub(super) fn has_optional_tls(&self, peer: &PeerIdentity) -> bool {
        let Some(Ok(secured)) = &self.secured else { return false };
        let is_process = matches!(peer, PeerIdentity::Process { .. });
        secured.is_optional && !(secured.trusts_kernel && is_process)
    }

    /// For a connection by a listener; `None`: it is to be a plain one.
    ///
    /// # Errors
    /// The certificates cannot be used, so no connection can be made. `bind` has refused that.
    pub(super) fn security(
        &self,
        incoming: &dyn Incoming,
        exchange: Option<Arc<Exchange>>,
    ) -> Result<Option<Security>, String> {
        let Some(secured) = &self.secured else { return Ok(None) };
        let secured = secured.as_ref().map_err(String::clone)?;
        let peer = incoming.peer();
        let is_local = matches!(peer, PeerIdentity::Process { .. }) && exchange.is_none();
        let offers_plain = || {
            let offer = Offer::from_request(incoming.private_data());
            offer.is_ok_and(|offer| !offer.features.contains(Features::SECURE))
        };
        if secured.trusts_kernel && is_local || secured.is_optional && offers_plain() {
            return Ok(None);
        }
        let handshakes = secured.keeper.handshakes(Some(&peer));
        Ok(Some(Security::new(handshakes).with_exchange(exchange)))
    }
}
