//! Builds the page and binds it to an address.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use rpc_core::Channel;
use rpc_core::health::HealthReporter;
use rpc_core::stats::StatsHandle;
use tokio::time::MissedTickBehavior;

use crate::health::Health;
use crate::history::History;
use crate::hosts::Owner;
use crate::http;
use crate::port::{Port, Terms};
use crate::recent::Recent;
use crate::subject::{INTERVAL, Source, Subject};
use crate::wall_clock::unix_millis;

/// The page of a server and its channels: see [the crate](crate).
pub struct Admin {
    title: Option<String>,
    sources: Vec<(String, Source)>,
    recent: Option<Recent>,
    health: Option<HealthReporter>,
    terms: Terms,
}

const OWNER: Owner = Owner { name: "admin page", builder: "Admin" };

impl Admin {
    /// A page that shows a server: [`Server::stats_handle`](rpc_core::Server::stats_handle).
    #[must_use]
    pub fn new(server: StatsHandle) -> Self {
        Self {
            title: None,
            sources: vec![("server".to_owned(), Source::Server(server))],
            recent: None,
            health: None,
            terms: Terms::default(),
        }
    }

    /// Sets the title of the page. Default: the name of the program.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Shows another server of this process under the given name. A server that is already shown
    /// keeps its first name, so that nothing is counted twice.
    #[must_use]
    pub fn server(mut self, name: impl Into<String>, server: StatsHandle) -> Self {
        self.add(name.into(), Source::Server(server));
        self
    }

    /// Shows a channel under the given name. Services that it serves itself
    /// ([`ChannelBuilder::serve`](rpc_core::ChannelBuilder::serve)) are shown separately, as
    /// `NAME serves`. A channel that is already shown, or a clone of it, keeps its first name.
    #[must_use]
    pub fn channel(mut self, name: impl Into<String>, channel: &Channel) -> Self {
        let name = name.into();
        let served = format!("{name} serves");
        self.add(name, Source::Channel(channel.clone()));
        if !channel.stats().served.is_empty() {
            self.add(served, Source::Served(channel.clone()));
        }
        self
    }

    fn add(&mut self, name: String, source: Source) {
        match self.sources.iter().find(|(_, other)| *other == source) {
            None => self.sources.push((name, source)),
            Some((first, _)) if *first == name => {}
            Some((first, _)) => tracing::warn!(
                name,
                first,
                "this source is already on the admin page, and is shown under its first name only"
            ),
        }
    }

    /// Shows failed and slow calls of the servers and channels that have it as an interceptor.
    #[must_use]
    pub fn recent(mut self, recent: Recent) -> Self {
        self.recent = Some(recent);
        self
    }

    /// Makes `/healthz` answer 503 while a service is not serving. Otherwise it does so only while
    /// a server is shutting down.
    #[must_use]
    pub fn health(mut self, reporter: &HealthReporter) -> Self {
        self.health = Some(reporter.clone());
        self
    }

    /// Accepts another host name or IP address in addition to the loopback ones: the name of a
    /// proxy that forwards the `Host` header. A port is ignored. An invalid name is an error of
    /// [`bind`](Self::bind). On a loopback address, requests for unknown names are refused, so that
    /// no web site can read the page through DNS rebinding. Pages on other addresses answer to
    /// every name.
    #[must_use]
    pub fn host(mut self, name: impl AsRef<str>) -> Self {
        self.terms.hosts.push(name.as_ref().to_owned());
        self
    }

    /// Lets everybody who reaches the address read the page, also beyond this machine. An address
    /// beyond this machine needs this or `tls`.
    #[must_use]
    pub fn public(mut self) -> Self {
        self.terms.is_public = true;
        self
    }

    /// Answers over HTTPS alone. Clients show certificates as those of a server with this `Tls` do,
    /// and [`Tls::authorize`](rpc_core::security::Tls::authorize) is asked about them; with
    /// [`allow_anonymous_clients`](rpc_core::security::Tls::allow_anonymous_clients) they need
    /// none. The files are read again with those of a server that has the same `Tls`.
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
    pub async fn bind(self, address: impl Into<SocketAddr>) -> io::Result<BoundAdmin> {
        let port = Port::bind(OWNER, address.into(), self.terms).await?;
        let address = port.address;
        let public = port.is_public.then_some(address);
        if public.is_some() {
            tracing::warn!(
                %address,
                "everybody who reaches this address can read the admin page: bind it to 127.0.0.1, \
                 or have clients prove who they are by `Admin::tls`"
            );
        }
        let subject = Subject {
            title: self.title.unwrap_or_else(program),
            history: Mutex::new(History::new(self.sources.len())),
            sources: self.sources,
            recent: self.recent,
            since_ms: unix_millis(SystemTime::now()),
            public,
        };
        let servers = subject.servers().cloned().collect();
        let health = Health { servers, reporter: self.health };
        Ok(BoundAdmin { port, health, subject: Arc::new(subject) })
    }

    /// [`bind`](Self::bind), and [`serve`](BoundAdmin::serve).
    ///
    /// # Errors
    /// It cannot listen there: the error names the address.
    pub async fn serve(self, address: impl Into<SocketAddr>) -> io::Result<()> {
        self.bind(address).await?.serve().await
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.sources.iter().map(|(name, _)| name).collect();
        f.debug_struct("Admin").field("title", &self.title).field("sources", &names).finish()
    }
}

/// The file name of this program.
fn program() -> String {
    let file = std::env::args_os().next().map(std::path::PathBuf::from);
    let name = file.as_ref().and_then(|file| file.file_name());
    name.map_or_else(|| "server".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// A listening page: requests are answered once it is served.
pub struct BoundAdmin {
    port: Port,
    health: Health,
    subject: Arc<Subject>,
}

impl BoundAdmin {
    /// The address at which it listens.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.port.address
    }

    /// The URL to open in a browser on this machine.
    #[must_use]
    pub fn url(&self) -> String {
        let mut address = self.port.address;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        format!("{}://{address}/", self.port.scheme())
    }

    /// Answers requests until the future is dropped.
    ///
    /// # Errors
    /// The listener failed permanently.
    pub async fn serve(self) -> io::Result<()> {
        let Self { port, health, subject } = self;
        let hosts = port.hosts.clone();
        let answering = port.serve(http::page(Arc::clone(&subject), health, hosts));
        let reading = async {
            let mut ticks = tokio::time::interval(INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                subject.read();
            }
        };
        tokio::select! {
            () = answering => {}
            () = reading => {}
        }
        Ok(())
    }
}

impl fmt::Debug for BoundAdmin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundAdmin").field("address", &self.port.address).finish_non_exhaustive()
    }
}
