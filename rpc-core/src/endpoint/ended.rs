//! The end of an established connection, as its owner learns of it and as it is logged.

use std::sync::Arc;

use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::engine::clock;
use rpc_transport::log_limit::LogLimit;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::identity::{Credentials, Identity};

/// A change of a connection, reported to its owner with no lock held.
#[derive(Debug)]
pub(crate) enum ConnectionEvent {
    /// The peer takes no new calls.
    PeerGoingAway,
    /// The connection has ended.
    Ended(CloseCause),
}

/// Receives the peer's hello, with the credentials in it.
pub(crate) type Door = oneshot::Sender<Option<Credentials>>;

/// The owner's callback for [`ConnectionEvent`].
pub(crate) type OnEvent = Arc<dyn Fn(ConnectionEvent) + Send + Sync>;

/// How an established connection ended.
pub(crate) struct Ended {
    pub(super) peer: Arc<Identity>,
    pub(super) cause: CloseCause,
    pub(super) on_event: Option<OnEvent>,
    pub(super) on_end: Option<OnEvent>,
    /// The connection's permit, if its queue pair is gone already.
    pub(super) _place: Option<OwnedSemaphorePermit>,
    /// Dropping it wakes who waits for the peer's hello.
    pub(super) _door: Option<Door>,
}

static LOST: LogLimit = LogLimit::new("connections that were lost");

impl Ended {
    /// Logs the end, and reports it to the connection's owner.
    pub(crate) fn report(self) {
        self.log();
        for report in [&self.on_event, &self.on_end].into_iter().flatten() {
            report(ConnectionEvent::Ended(self.cause.clone()));
        }
    }

    /// A close that either side asked for is logged at a lower level than a failure.
    fn log(&self) {
        let Self { peer, cause, .. } = self;
        match cause {
            CloseCause::Local => tracing::debug!(%peer, %cause, "connection ended"),
            // Peers come and go. A pending call fails with this cause anyway.
            CloseCause::Peer(_) | CloseCause::Disconnected | CloseCause::DriverGone => {
                tracing::info!(%peer, %cause, "connection ended");
            }
            // The shard has already logged which rule was broken.
            CloseCause::Protocol(_) => tracing::debug!(%peer, %cause, "connection ended"),
            _ => LOST.fault(clock::now(), || {
                tracing::warn!(%peer, %cause, "connection ended");
            }),
        }
    }
}
