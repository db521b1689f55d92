//! One set-up: from a connection request to a connection that is let in.
//!
//! Owns the count and the log of how it ended.

use std::sync::Arc;
use std::time::Duration;

use rpc_transport::device::Incoming;
use rpc_transport::device::connection_error::ConnectError;
use rpc_transport::engine::establish::AcceptError;
use rpc_transport::engine::security::Security;
use rpc_transport::engine::tenant::Tenant;
use rpc_transport::log_limit::LogLimit;
use rpc_transport::protocol::handshake::{Reject, RejectCode};
use tokio::sync::oneshot;

use super::{Acceptor, Place};
use crate::channel::backoff::unit;
use crate::endpoint::RpcEndpoint;
use crate::identity::{Identity, Proof};
use crate::runtime::random::random;
use crate::server::config::Config;
use crate::session::Role;

/// Longest time for one set-up, while there is room for others; see `set_ups` when there is none.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(15);

/// Counts a set-up as failed if it ends as nothing else, also when it gives way or the server ends.
pub(super) struct SetUp {
    acceptor: Arc<Acceptor>,
    is_counted: bool,
}

impl SetUp {
    pub(super) fn begin(acceptor: &Arc<Acceptor>) -> Self {
        Self { acceptor: Arc::clone(acceptor), is_counted: false }
    }

    pub(super) async fn accept(
        mut self,
        incoming: Box<dyn Incoming>,
        tenant: &Tenant,
        security: Option<&Security>,
        faults: &LogLimit,
    ) {
        self.acceptor.accept(incoming, tenant, security, faults, &mut self.is_counted).await;
    }
}

impl Drop for SetUp {
    fn drop(&mut self) {
        if !self.is_counted {
            self.acceptor.admissions.failed.add_shared(1);
        }
    }
}

impl Acceptor {
    async fn accept(
        &self,
        incoming: Box<dyn Incoming>,
        tenant: &Tenant,
        security: Option<&Security>,
        faults: &LogLimit,
        is_counted: &mut bool,
    ) {
        let from = incoming.peer();
        let fault = |log: &dyn Fn()| faults.fault(std::time::Instant::now(), log);
        if let Err(text) = self.config.door.admit(&from) {
            self.admissions.denied.add_shared(1);
            *is_counted = true;
            fault(&|| tracing::info!(peer = %from, text, "not admitted"));
            incoming.reject(&Reject::new(RejectCode::Application, text).to_bytes()).await;
            return;
        }
        let device = incoming.device().attributes().name.clone();
        let place = match self.place(incoming.device()).await {
            Ok(place) => place,
            Err(text) => {
                self.admissions.refused.add_shared(1);
                *is_counted = true;
                fault(&|| tracing::warn!(peer = %from, "cannot serve: {text}"));
                incoming.reject(&Reject::new(RejectCode::Busy, text.clone()).to_bytes()).await;
                return;
            }
        };
        let Config { limits, min_part_bytes, .. } = self.config;
        let Place { shard, permit, under_way: _under_way } = place;
        let bulk = shard.bulk.clone();
        let (queue, memory) = (self.config.link.queue_limit(), self.memory.share());
        let peer = RpcEndpoint::new(Role::Server, limits, bulk, min_part_bytes, queue, memory);
        let peer = peer
            .holding(permit)
            .placed_on(&shard)
            .watching(self.phase.clone())
            .closing_when_idle(self.config.max_connection_idle)
            .closing_at_age(self.config.max_connection_age.map(with_jitter))
            .taking_metadata(self.config.max_metadata_bytes);
        let door = &self.config.door;
        let (told, hello) = oneshot::channel();
        let peer = if door.verifies() { peer.checking(told) } else { peer };
        let accepting = async {
            let link = &self.config.link;
            let connected = shard.accept_for(incoming, link, peer, tenant, security).await?;
            let let_in = door.let_in(&shard, &connected, hello).await;
            Ok((connected, let_in))
        };
        let accepted = tokio::time::timeout(ACCEPT_TIMEOUT, accepting).await;
        match accepted {
            Ok(Ok((_, Err(reason)))) => {
                if reason.is_some() {
                    self.admissions.denied.add_shared(1);
                    *is_counted = true;
                }
                let reason = reason.as_deref().unwrap_or("it left before it was let in");
                fault(&|| tracing::info!(peer = %from, reason, "not admitted"));
            }
            Ok(Ok((connected, Ok(())))) => {
                self.admissions.accepted.add_shared(1);
                *is_counted = true;
                if connected.secured.is_none() && self.config.has_optional_tls(&from) {
                    self.admissions.plain.add_shared(1);
                }
                if let Some(keeper) = self.config.keeper() {
                    let context = shard.look(connected.key, |peer| Arc::clone(peer.context()));
                    context.iter().for_each(|context| keeper.keep(context, None));
                }
                let proof = connected.secured.as_ref().and_then(Proof::of);
                let peer = Identity::from(connected.peer).proven(proof);
                tracing::debug!(%peer, device, "connection began");
            }
            Ok(Err(AcceptError::Connect(
                error @ (ConnectError::Provider(_) | ConnectError::Unavailable { .. }),
            ))) => {
                fault(&|| tracing::warn!(peer = %from, %error, "set-up failed"));
            }
            Ok(Err(AcceptError::Handshake(failure))) => {
                self.admissions.denied.add_shared(1);
                *is_counted = true;
                let reason = failure.reason;
                fault(&|| tracing::info!(peer = %from, ?reason, %failure, "not admitted"));
            }
            // A client without TLS at a server that requires it.
            Ok(Err(AcceptError::Refused(reject))) if reject.code == RejectCode::Application => {
                self.admissions.denied.add_shared(1);
                *is_counted = true;
                fault(&|| tracing::info!(peer = %from, reason = %reject.text, "not admitted"));
            }
            Ok(Err(error)) => fault(&|| tracing::info!(peer = %from, %error, "set-up failed")),
            Err(_) => fault(&|| tracing::info!(peer = %from, "set-up took too long")),
        }
    }
}

/// A tenth more or less, so that connections that began together do not end together.
fn with_jitter(age: Duration) -> Duration {
    let factor = 0.9 + 0.2 * unit(random());
    Duration::try_from_secs_f64(age.as_secs_f64() * factor).unwrap_or(age)
}
