//! Metrics for Prometheus and health of a server, without the page.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use rpc_core::Channel;
use rpc_core::health::HealthReporter;
use rpc_core::stats::StatsHandle;

use crate::health::Health;
use crate::hosts::Owner;
use crate::http::{self, Numbers};
use crate::port::{Port, Terms};

const OWNER: Owner = Owner { name: "metrics", builder: "Metrics" };

/// An HTTP port with `/metrics` for Prometheus and `/healthz` for probes, and nothing else: for
/// servers in production. [`Admin`](crate::Admin) also serves a page.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use rpc_admin::Metrics;
/// use rpc_core::Server;
/// use rpc_core::health::HealthReporter;
///
/// let health = HealthReporter::new();
/// let server = Server::builder().health(&health).bind("mem://metrics").await?;
/// let metrics = Metrics::new(server.stats_handle()).health(&health);
/// let metrics = metrics.bind(([127, 0, 0, 1], 0)).await?;
/// println!("http://{}/metrics", metrics.local_address());
/// tokio::spawn(metrics.serve());
/// # Ok(()) }
/// ```
///
/// It has no authentication. On a loopback address it only answers to loopback names, so that no
/// web site can read it through a browser on this machine: see [`host`](Self::host).
#[derive(Clone)]
pub struct Metrics {
    numbers: Numbers,
    health: Option<HealthReporter>,
    terms: Terms,
}

impl Metrics {
    /// The metrics of a server: [`Server::stats_handle`](rpc_core::Server::stats_handle).
    #[must_use]
    pub fn new(server: StatsHandle) -> Self {
        let numbers = Numbers { server, channels: Vec::new() };
        Self { numbers, health: None, terms: Terms::default() }
    }

    /// Adds the metrics of a channel, labelled with `to` and this value.
    #[must_use]
    pub fn channel(mut self, to: &str, channel: &Channel) -> Self {
        self.numbers.channels.push((to.to_owned(), channel.clone()));
        self
    }

    /// Makes `/healthz` answer 503 while a service is not serving. Otherwise it does so only while
    /// the server is shutting down.
    #[must_use]
    pub fn health(mut self, reporter: &HealthReporter) -> Self {
        self.health = Some(reporter.clone());
        self
    }

    /// Accepts another host name or IP address, as [`Admin::host`](crate::Admin::host).
    #[must_use]
    pub fn host(mut self, name: impl AsRef<str>) -> Self {
        self.terms.hosts.push(name.as_ref().to_owned());
        self
    }

    /// Lets everybody who reaches the address read the metrics, also beyond this machine. An
    /// address beyond this machine needs this or `tls`.
    #[must_use]
    pub fn public(mut self) -> Self {
        self.terms.is_public = true;
        self
    }

    /// Answers over HTTPS alone, as [`Admin::tls`](crate::Admin::tls).
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: rpc_core::security::Tls) -> Self {
        self.terms.tls = Some(tls);
        self
    }

    /// Listens at `address`. Port 0 picks a free one.
    ///
    /// # Errors
    /// It cannot listen there: the error names the address. The address is beyond this machine, and
    /// neither certificates nor [`public`](Self::public) allow that. A [`host`](Self::host) is not
    /// a host name.
    pub async fn bind(self, address: impl Into<SocketAddr>) -> io::Result<BoundMetrics> {
        let port = Port::bind(OWNER, address.into(), self.terms).await?;
        Ok(BoundMetrics { port, numbers: self.numbers, health: self.health })
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("health", &self.health).finish_non_exhaustive()
    }
}

/// A listening port: requests are answered once it is served.
pub struct BoundMetrics {
    port: Port,
    numbers: Numbers,
    health: Option<HealthReporter>,
}

impl BoundMetrics {
    /// The address at which it listens.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.port.address
    }

    /// Answers requests until the future is dropped.
    pub async fn serve(self) {
        let Self { port, numbers, health } = self;
        let health = Health { servers: vec![numbers.server.clone()], reporter: health };
        let hosts = port.hosts.clone();
        port.serve(http::metrics(numbers, health, hosts)).await;
    }
}

impl fmt::Debug for BoundMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundMetrics").field("address", &self.port.address).finish_non_exhaustive()
    }
}
