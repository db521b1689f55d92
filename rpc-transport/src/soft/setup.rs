//! What the set-up of all software wires has in common.
//!
//! Owns the limits of set-up and the small steps that every connector and listener takes. Never
//! speaks to a peer.

use std::time::Duration;

use crate::memory::ProtectionDomain;
use crate::provider::{
    Attach, CompletionQueue, ProviderError, QpCapacity, QpHandle, REJ_PRIVATE_DATA_BYTES,
};

use super::cq::SoftCompletionQueue;
use super::wire::Wire;

/// How long a connector waits for the peer's answer.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The QP of a connection that is being set up.
#[derive(Debug, Default)]
pub(super) struct SetupQp(Option<QpHandle>);

impl SetupQp {
    /// Creates the QP; once only.
    pub(super) fn create(
        &mut self,
        cq: &mut dyn CompletionQueue,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<QpHandle, ProviderError> {
        if self.0.is_some() {
            return Err(ProviderError::Unsupported("a second queue pair for one connection"));
        }
        let handle = SoftCompletionQueue::of(cq)?.create_qp(pd, capacity)?;
        self.0 = Some(handle);
        Ok(handle)
    }

    /// The QP, which must have been created.
    pub(super) fn created(&self) -> Result<QpHandle, ProviderError> {
        self.0.ok_or(ProviderError::Unsupported("connecting before a queue pair was created"))
    }
}

/// The step that gives a QP its wire.
pub(super) fn attach(qp: QpHandle, wire: Wire) -> Attach {
    Attach::new(move |cq| SoftCompletionQueue::of(cq)?.attach(qp, wire))
}

/// Private data as the peer sees it: padded with zeros to `limit` bytes (contract rule 18).
pub(super) fn pad(private_data: &[u8], limit: usize) -> Result<Vec<u8>, ProviderError> {
    if private_data.len() > limit {
        let (asked, limit) = (private_data.len() as u64, limit as u64);
        return Err(ProviderError::Limit { what: "private data bytes", asked, limit });
    }
    let mut padded = private_data.to_vec();
    padded.resize(limit, 0);
    Ok(padded)
}

/// Private data of a rejection. What is too long is left out, and said in the log: the peer must
/// be refused in any case.
pub(super) fn pad_rejection(private_data: &[u8]) -> Vec<u8> {
    pad(private_data, REJ_PRIVATE_DATA_BYTES).unwrap_or_else(|error| {
        tracing::warn!(%error, "a connection is rejected without the reason");
        vec![0; REJ_PRIVATE_DATA_BYTES]
    })
}
