//! What the set-up of all software wires has in common.
//!
//! Owns the limits of set-up and the small steps that every connector and listener takes. Never
//! speaks to a peer.

use std::io;
use std::time::Duration;

use crate::connect::address::Address;
use crate::connect::error::ListenError;
use crate::device::{
    Attach, CompletionQueue, ProviderError, QpCapacity, QpHandle, REJ_PRIVATE_DATA_BYTES,
};
use crate::memory::region::ProtectionDomain;

use super::cq::SoftCompletionQueue;
use super::wire::Wire;

/// How long a connector waits for the peer's answer.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What to do when there is no number for another open file.
pub(super) const RAISE_FDS: &str = "raise the limit on open files (LimitNOFILE, ulimit -n)";

/// How long a listener rests when the system has no room for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

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

/// Set-up over sockets needs a runtime to wait in.
pub(super) fn need_runtime(scheme: &'static str) -> Result<(), ListenError> {
    tokio::runtime::Handle::try_current().map(drop).map_err(|_| {
        let reason = "listening needs a tokio runtime; call it from async code".to_owned();
        ListenError::Unavailable { scheme, reason }
    })
}

/// Setting up failed for want of memory or file descriptors; says which limit to raise.
pub(super) fn out_of_resources(what: &'static str, error: &io::Error) -> ProviderError {
    let message =
        if is_out_of_fds(error) { format!("{error}; {RAISE_FDS}") } else { error.to_string() };
    ProviderError::Resources { what, message }
}

/// Whether this process, or the system, has no number for another open file.
pub(super) fn is_out_of_fds(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Decides whether a listener survives a failed `accept(2)`: what is the single peer's fault, or
/// passes (no file descriptors left), is logged, and tried again.
pub(super) async fn survive_accept(address: &Address, error: io::Error) -> Result<(), ListenError> {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
            tracing::warn!(%address, %error, "cannot accept now");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            Ok(())
        }
        Some(libc::EBADF | libc::EINVAL | libc::ENOTSOCK | libc::EFAULT) | None => {
            let (address, reason) = (address.clone(), error.to_string());
            Err(ListenError::Failed { address, reason })
        }
        Some(_) => {
            tracing::debug!(%address, %error, "a connection was lost before it was accepted");
            Ok(())
        }
    }
}
