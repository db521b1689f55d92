//! Keeps a server registered in etcd.
//!
//! Owns the requests of [`Lease`], and the order at the end: draining, then removed.

use futures::future::BoxFuture;
use rpc_core::Address;
use rpc_core::client::resolve::Endpoint;
use rpc_core::server::{Register, Registered};
use rpc_transport::log_limit::LogLimit;
use tokio::time::Instant;

use super::Etcd;
use super::client::{Client, EtcdError};
use crate::protocol::entry;
use crate::protocol::etcd_messages::{
    Done, GrantReply, KeepAliveReply, Streamed, delete, grant, keep_alive, put, revoke,
};
use crate::protocol::jitter::full_jitter;
use crate::protocol::lease::{Lease, Step};
use crate::protocol::reach;
use crate::random::random;

/// Most metadata of a server, and its bytes.
const MAX_METADATA: (usize, usize) = (16, 4 << 10);
/// Shortest lease, seconds.
const MIN_LEASE_SECONDS: u64 = 2;

static FAILURES: LogLimit = LogLimit::new("registrations that failed");

impl Etcd {
    /// The end point to register of a server that is bound to these addresses.
    fn announced(&self, bound: &[Address]) -> Result<Endpoint, String> {
        let advice = "name the address by which clients reach this server, with `advertise`";
        let address = match &self.announced.address {
            Some(address) => with_port(address.clone(), bound),
            None => {
                let usable = bound.iter().find(|it| reach::check(it).is_ok()).or(bound.first());
                usable.ok_or("the server is bound to no address")?.clone()
            }
        };
        reach::check(&address).map_err(|reason| format!("{reason}; {advice}"))?;
        let server = Endpoint::from(address)
            .with_weight(self.announced.weight)
            .with_priority(self.announced.priority);
        let server = match &self.announced.zone {
            Some(zone) => server.with_zone(zone.as_str()),
            None => server,
        };
        // As its clients will.
        entry::read(entry::written(&server, &self.announced.metadata).as_bytes())
    }

    /// Does one request.
    async fn renew(
        &self,
        client: &Client,
        lease: &mut Lease,
        step: Step,
        key: &str,
        server: &Endpoint,
    ) -> Result<(), EtcdError> {
        match step {
            Step::Wait(at) => tokio::time::sleep_until(at.into()).await,
            Step::Grant => {
                let asked = grant(self.announced.lease.as_secs());
                let began = Instant::now().into_std();
                let (_, granted) = client.call::<GrantReply>("lease/grant", &asked).await?;
                lease.on_lease(began, granted.id, granted.ttl);
            }
            Step::KeepAlive(id) => {
                let began = Instant::now().into_std();
                let kept = client.call("lease/keepalive", &keep_alive(id)).await?;
                let (_, Streamed::<KeepAliveReply> { result, error }) = kept;
                match (result, error) {
                    (Some(kept), _) => lease.on_lease(began, id, kept.ttl),
                    (None, error) => {
                        let error = error.map(|it| it.to_string()).unwrap_or_default();
                        let error = rpc_core::text::printable(&error).to_string();
                        return Err(EtcdError::Over(format!("the lease is not renewed: {error}")));
                    }
                }
            }
            Step::Put(id) => {
                let is_draining = lease.is_draining();
                let server = if is_draining { server.clone().draining() } else { server.clone() };
                let value = entry::written(&server, &self.announced.metadata);
                client.call::<Done>("kv/put", &put(key, &value, id)).await?;
                lease.on_put(is_draining);
                tracing::info!(key, address = %server.address(), is_draining, "registered in etcd");
            }
        }
        Ok(())
    }
}

/// With the port of the server instead of port 0.
fn with_port(mut address: Address, bound: &[Address]) -> Address {
    let port = |it: &Address| match it {
        Address::Tcp(at) | Address::Rdma(at, _) | Address::Auto(at, _) => Some(at.port),
        _ => None,
    };
    let is_alike = |it: &&Address| it.scheme() == address.scheme();
    let found = bound.iter().find(is_alike).and_then(port);
    let found = found.or_else(|| bound.iter().find_map(port));
    if let Address::Tcp(at) | Address::Rdma(at, _) | Address::Auto(at, _) = &mut address
        && at.port == 0
    {
        at.port = found.unwrap_or(0);
    }
    address
}

impl Register for Etcd {
    fn name(&self) -> String {
        self.to_string()
    }

    fn check(&self, addresses: &[Address]) -> Result<(), String> {
        let seconds = self.announced.lease.as_secs();
        if seconds < MIN_LEASE_SECONDS || self.announced.lease.subsec_nanos() != 0 {
            return Err(format!("`lease` is whole seconds, at least {MIN_LEASE_SECONDS}"));
        }
        let bytes = self.announced.metadata.iter().map(|(name, value)| name.len() + value.len());
        let (most, most_bytes) = MAX_METADATA;
        if self.announced.metadata.len() > most || bytes.sum::<usize>() > most_bytes {
            return Err(format!("more than {most} `metadata`, or more than {most_bytes} bytes"));
        }
        self.announced(addresses).map(drop)
    }

    fn keep(&self, server: Registered) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let Ok(announced) = self.announced(server.addresses()) else { return };
            let key = format!("{}{:016x}", self.prefix, random());
            let (client, mut lease) = (self.client(), Lease::default());
            let (mut leaving, mut draining) =
                (Box::pin(server.leaving()), Box::pin(server.draining()));
            loop {
                let step = lease.step(Instant::now().into_std());
                // A request that was given up might overwrite the next one.
                let may_drain = !lease.is_draining() && matches!(step, Step::Wait(_));
                tokio::select! {
                    biased;
                    () = &mut leaving => break,
                    () = &mut draining, if may_drain => lease.drain(),
                    done = self.renew(&client, &mut lease, step, &key, &announced) => {
                        let Err(error) = done else { continue };
                        let now = Instant::now().into_std();
                        let wait = full_jitter(lease.failures().saturating_add(1), random());
                        lease.on_failed(now, error.is_not_found(), wait);
                        FAILURES.fault(now, || {
                            let registry = self.to_string();
                            tracing::warn!(registry, %error, "the server is not registered yet");
                        });
                    }
                }
            }
            let _ = client.call::<Done>("kv/deleterange", &delete(&key)).await;
            if let Some(id) = lease.id() {
                // What is not revoked ends by itself.
                let _ = client.call::<Done>("lease/revoke", &revoke(id)).await;
            }
            tracing::info!(key, "removed from etcd");
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn addresses(texts: &[&str]) -> Vec<Address> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_wildcard_address_is_never_registered() {
        let etcd = || "etcd://a/rpc/kv".parse::<Etcd>().unwrap();
        let at = |text: &str| text.parse::<Address>().unwrap();
        for (etcd, bound, registered) in [
            (etcd(), &["auto://10.0.0.5:7000"][..], "auto://10.0.0.5:7000"),
            (etcd(), &["tcp://0.0.0.0:1", "shm://kv"], "shm://kv"),
            (
                etcd().advertise(at("auto://h:0")),
                &["tcp://0.0.0.0:1", "auto://[::]:7"],
                "auto://h:7",
            ),
            (etcd().advertise(at("tcp://h:9")), &["auto://0.0.0.0:7"], "tcp://h:9"),
        ] {
            let bound = addresses(bound);
            assert_eq!(etcd.check(&bound), Ok(()));
            assert_eq!(etcd.announced(&bound).unwrap().address().to_string(), registered);
        }
        for (etcd, bound, part) in [
            (etcd(), &["auto://0.0.0.0:7000"][..], "wildcard address"),
            (etcd(), &["mem://a"], "one process"),
            (etcd(), &[], "no address"),
            (etcd().advertise(at("auto://[::]:1")), &["auto://10.0.0.5:7000"], "with `advertise`"),
            (etcd().advertise(at("auto://h:0")), &["shm://a"], "no port"),
            (etcd().zone("a\nb"), &["shm://a"], "zone"),
            (etcd().lease(Duration::from_millis(2500)), &["shm://a"], "whole seconds"),
            (etcd().lease(Duration::from_secs(1)), &["shm://a"], "at least 2"),
            (etcd().metadata("a", "b".repeat(5000)), &["shm://a"], "metadata"),
        ] {
            let error = etcd.check(&addresses(bound)).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
