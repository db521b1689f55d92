//! Who may connect: what the user says about a peer before its connection costs anything, and about
//! its credentials before anything else of it is taken.
//!
//! Owns the user's checks. They run in the task of a set-up: those of peers before it has a place,
//! a queue pair or memory of a shard, those of credentials when the peer's hello has arrived.
//!
//! Invariant: where credentials are checked, a connection whose peer was not let in ends with its
//! set-up, however that ends.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use futures::future::BoxFuture;
use rpc_transport::device::PeerIdentity;
use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::engine::establish::Connected;
use rpc_transport::protocol::frame::{CloseCode, CloseReason};
use rpc_transport::user_code::caught;
use tokio::sync::oneshot::Receiver;

use crate::endpoint::RpcShard;
use crate::identity::{Credentials, Verified};

const FAILED: &str = "the server failed to check its caller";

type Verify =
    dyn Fn(Credentials, PeerIdentity) -> BoxFuture<'static, Result<Verified, String>> + Send + Sync;
type Check = dyn Fn(&PeerIdentity) -> Result<(), String> + Send + Sync;

/// The checks.
#[derive(Clone, Default)]
pub(super) struct Door {
    /// In the order in which they were added.
    pub(super) checks: Vec<Arc<Check>>,
    pub(super) verify: Option<Arc<Verify>>,
}

impl Door {
    /// Whether the peer may connect.
    ///
    /// # Errors
    /// The reason, for the peer.
    pub(super) fn admit(&self, peer: &PeerIdentity) -> Result<(), String> {
        let failed = || Err(FAILED.to_owned());
        self.checks.iter().try_for_each(|check| caught(|| check(peer)).unwrap_or_else(failed))
    }

    /// Whether there are no checks.
    pub(super) fn is_open(&self) -> bool {
        self.checks.is_empty() && self.verify.is_none()
    }

    /// Whether connections have to be [let in](Self::let_in).
    pub(super) fn verifies(&self) -> bool {
        self.verify.is_some()
    }

    /// Lets the peer in if its credentials, which arrive with its hello, are good. Else, or if this
    /// is dropped before it is ready, the connection ends.
    ///
    /// # Errors
    /// The reason, which the peer gets too. `None`: the connection has ended.
    pub(super) async fn let_in(
        &self,
        shard: &Arc<RpcShard>,
        Connected { key, peer, .. }: &Connected,
        hello: Receiver<Option<Credentials>>,
    ) -> Result<(), Option<String>> {
        let Some(verify) = &self.verify else { return Ok(()) };
        let mut outside = Outside {
            shard,
            key: *key,
            reason: Some("no hello with credentials came in time".to_owned()),
        };
        let credentials = hello.await.map_err(|_| None)?;
        let verified = match credentials {
            None => {
                Err("this server wants credentials: Channel::builder().credentials(..)".to_owned())
            }
            Some(credentials) => {
                outside.reason = Some("the credentials were not checked in time".to_owned());
                let mut verifying = caught(|| verify(credentials, peer.clone()));
                poll_fn(|cx| {
                    let polled = |it: &mut BoxFuture<'static, _>| caught(|| it.as_mut().poll(cx));
                    let polled = verifying.as_mut().and_then(polled);
                    polled.unwrap_or_else(|| Poll::Ready(Err(FAILED.to_owned())))
                })
                .await
            }
        };
        match verified {
            Ok(verified) => {
                outside.reason = None;
                shard.with(*key, |endpoint| endpoint.admit(&verified));
                Ok(())
            }
            Err(reason) => {
                outside.reason = Some(reason.clone());
                Err(Some(reason))
            }
        }
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Door({} checks, verifies: {})", self.checks.len(), self.verifies())
    }
}

/// A connection whose peer is not let in yet: closes it when dropped, unless there is no reason.
struct Outside<'a> {
    shard: &'a Arc<RpcShard>,
    key: ConnectionKey,
    reason: Option<String>,
}

impl Drop for Outside<'_> {
    fn drop(&mut self) {
        if let Some(reason) = self.reason.take() {
            self.shard.close(self.key, CloseReason::new(CloseCode::Application, reason));
        }
    }
}
