//! The configuration of a server, but for what it serves.

use std::time::Duration;

use rpc_transport::device::fault::FaultPlan;
use rpc_transport::engine::spin::PollMode;
use rpc_transport::protocol::config::LinkConfig;

use crate::codec::DEFAULT_MIN_PART_BYTES;
use crate::metadata::DEFAULT_MAX_BYTES;
use crate::session::SessionLimits;

#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) link: LinkConfig,
    pub(super) limits: SessionLimits,
    pub(super) poll_mode: PollMode,
    pub(super) shards: usize,
    pub(super) max_connections: usize,
    pub(super) drain_lead: Duration,
    pub(super) grace: Duration,
    pub(super) min_part_bytes: usize,
    pub(super) max_metadata_bytes: usize,
    /// `None`: sized from the machine.
    pub(super) memory_budget: Option<u64>,
    pub(super) faults: Option<FaultPlan>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            link: LinkConfig::default(),
            limits: SessionLimits::default(),
            poll_mode: PollMode::default(),
            shards: 1,
            max_connections: 16_384,
            drain_lead: Duration::ZERO,
            grace: Duration::from_secs(10),
            min_part_bytes: DEFAULT_MIN_PART_BYTES,
            max_metadata_bytes: DEFAULT_MAX_BYTES,
            memory_budget: None,
            faults: None,
        }
    }
}
