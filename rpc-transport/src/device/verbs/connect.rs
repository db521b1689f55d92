//! Connecting: from an `rdma://` address to a QP in RTS.
//!
//! Owns name resolution and its error texts. Never retries once a peer has answered.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::oneshot;

use crate::address::{Address, HostPort};
use crate::device::connection_error::ConnectError;
use crate::device::{
    CompletionQueue, Connector, CqRef, Device, Established, Outgoing, PeerIdentity, ProviderError,
    QpCapacity, QpHandle, REP_PRIVATE_DATA_BYTES, REQ_PRIVATE_DATA_BYTES,
};
use crate::memory::region::ProtectionDomain;

use super::dispatcher;
use super::failure::Failure;
use super::id_link::{IdKey, IdLink};
use super::local_end::{self, Route};
use super::options::SetupOptions;
use super::preflight;
use super::service::{Command, Service};
use super::setup_qp::{Attempt, AttemptError, check_private_data};
use super::tcp_port::MOST_PORTS;

/// Connects to `rdma://` addresses.
#[derive(Debug, Clone, Default)]
pub struct VerbsConnector {
    options: Arc<SetupOptions>,
}

impl VerbsConnector {
    /// A connector with these options.
    #[must_use]
    pub fn new(options: SetupOptions) -> Self {
        Self { options: Arc::new(options) }
    }
}

#[async_trait]
impl Connector for VerbsConnector {
    async fn resolve(&self, address: &Address) -> Result<Box<dyn Outgoing>, ConnectError> {
        let Address::Rdma(at, local) = address else {
            let reason = "the verbs connector only accepts rdma:// addresses".to_owned();
            return Err(ConnectError::Unreachable { address: address.clone(), reason });
        };
        let service = dispatcher::service().map_err(|error| {
            let reason = preflight::why_unavailable(&error);
            ConnectError::Unavailable { scheme: "rdma", reason }
        })?;
        let unreachable = |reason| ConnectError::Unreachable { address: address.clone(), reason };
        let candidates = look_up(at).await.map_err(unreachable)?;
        let routes = local_end::routes(local, candidates).await.map_err(unreachable)?;
        let mut last = None;
        for Route { from, to } in routes {
            match self.resolve_one(service, from, to).await {
                Ok(attempt) => {
                    local_end::is_through(local, attempt.device()).map_err(unreachable)?;
                    let peer = attempt.peer().unwrap_or(to);
                    let address = address.clone();
                    return Ok(Box::new(VerbsOutgoing { address, peer, attempt }));
                }
                Err(failure) => last = Some(failure),
            }
        }
        // If the machine lacks something, report that instead of the failed call.
        let report = preflight::facts();
        if let Some(reason) = report.first_problem() {
            return Err(ConnectError::Unavailable { scheme: "rdma", reason });
        }
        let failure = last.unwrap_or(Failure::Gone);
        Err(match failure.into_connect_error(address) {
            ConnectError::Unreachable { address, reason } => {
                ConnectError::Unreachable { address, reason: report.with_ports_down(reason) }
            }
            other => other,
        })
    }
}

impl VerbsConnector {
    /// Resolves until there is a source port that the connect can use.
    async fn resolve_one(
        &self,
        service: &'static Service,
        from: Option<SocketAddr>,
        to: SocketAddr,
    ) -> Result<Attempt, Failure> {
        let mut tries = 0;
        loop {
            let (answer, answered) = oneshot::channel();
            // Dropping this future drops the link, which closes the id.
            let link = IdLink::new(service, IdKey::fresh());
            let options = Arc::clone(&self.options);
            service.send(Command::Resolve { key: link.key(), from, to, options, answer });
            let resolved = answered.await.unwrap_or(Err(Failure::Gone))?;
            let attempt = Attempt::new(service, link, resolved);
            tries += 1;
            if tries == MOST_PORTS || !attempt.has_taken_port() {
                return Ok(attempt);
            }
        }
    }
}

/// All addresses of a host; a literal address is not looked up.
pub(crate) async fn look_up(at: &HostPort) -> Result<Vec<SocketAddr>, String> {
    if let Some(literal) = literal(at) {
        return Ok(vec![literal]);
    }
    let found = tokio::net::lookup_host((at.host.as_str(), at.port)).await;
    let found: Vec<_> = found.map_err(|error| error.to_string())?.collect();
    if found.is_empty() { Err("the name has no address".to_owned()) } else { Ok(found) }
}

fn literal(at: &HostPort) -> Option<SocketAddr> {
    if let Ok(ip) = at.host.parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, at.port));
    }
    // An IPv6 address with a scope: fe80::1%3.
    format!("[{}]:{}", at.host, at.port).parse().ok()
}

#[derive(Debug)]
struct VerbsOutgoing {
    address: Address,
    peer: SocketAddr,
    attempt: Attempt,
}

#[async_trait]
impl Outgoing for VerbsOutgoing {
    fn device(&self) -> &Arc<dyn Device> {
        self.attempt.device()
    }

    async fn prepare_qp(
        &mut self,
        cq: &CqRef,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<(), ProviderError> {
        self.attempt.prepare_qp(cq, pd, capacity).await
    }

    fn create_qp(
        &mut self,
        cq: &mut dyn CompletionQueue,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<QpHandle, ProviderError> {
        self.attempt.create_qp(cq, pd, capacity)
    }

    async fn connect(self: Box<Self>, private_data: &[u8]) -> Result<Established, ConnectError> {
        check_private_data(private_data, REQ_PRIVATE_DATA_BYTES)?;
        let Self { address, peer, attempt } = *self;
        let key = attempt.link().key();
        let private_data = private_data.to_vec();
        let connected =
            attempt.fulfil(|qp, answer| Command::Connect { key, qp, private_data, answer }).await;
        let (attach, mut reply) = connected.map_err(|error| match error {
            AttemptError::Failure(failure) => failure.into_connect_error(&address),
            AttemptError::Provider(error) => error.into(),
        })?;
        reply.resize(REP_PRIVATE_DATA_BYTES, 0);
        Ok(Established { private_data: reply, peer: PeerIdentity::network(peer), attach })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_addresses_need_no_name_service() {
        for (address, expected) in [
            ("rdma://10.9.0.1:7471", "10.9.0.1:7471"),
            ("rdma://[fd09::1]:1", "[fd09::1]:1"),
            ("rdma://[fe80::1%3]:1", "[fe80::1%3]:1"),
        ] {
            let Ok(Address::Rdma(at, _)) = address.parse() else { panic!("{address}") };
            assert_eq!(literal(&at), Some(expected.parse().unwrap()));
        }
        let named = HostPort { host: "node7".to_owned(), port: 1 };
        assert_eq!(literal(&named), None);
    }
}
