//! From what is shown to an address where it is shown.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use rpc_core::{Channel, StatsHandle};
use tokio::net::TcpListener;
use tokio::time::MissedTickBehavior;

use crate::history::History;
use crate::hosts::{Hosts, is_loopback};
use crate::http;
use crate::listener::Limited;
use crate::recent::Recent;
use crate::subject::{INTERVAL, Source, Subject};
use crate::wall_clock::unix_millis;

/// The page of a server, and of the channels beside it: see [the crate](crate).
pub struct Admin {
    title: Option<String>,
    sources: Vec<(String, Source)>,
    recent: Option<Recent>,
    hosts: Vec<String>,
}

impl Admin {
    /// A page that shows a server: [`Server::stats_handle`](rpc_core::Server::stats_handle).
    #[must_use]
    pub fn new(server: StatsHandle) -> Self {
        Self {
            title: None,
            sources: vec![("server".to_owned(), Source::Server(server))],
            recent: None,
            hosts: Vec::new(),
        }
    }

    /// What stands at its top. Default: the name of the program.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Shows another server of this process, under a name of its own. One that is shown already keeps
    /// its first name, so that nothing is counted twice.
    #[must_use]
    pub fn server(mut self, name: impl Into<String>, server: StatsHandle) -> Self {
        self.add(name.into(), Source::Server(server));
        self
    }

    /// Shows a channel, under a name of its own. What it serves itself
    /// ([`ChannelBuilder::serve`](rpc_core::ChannelBuilder::serve)) is shown beside it, as `NAME serves`.
    /// One that is shown already, or a clone of it, keeps its first name.
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
                "this source is on the admin page already, and is shown once, by its first name"
            ),
        }
    }

    /// Shows failed and slow calls: of the servers and channels that have it as an interceptor.
    #[must_use]
    pub fn recent(mut self, recent: Recent) -> Self {
        self.recent = Some(recent);
        self
    }

    /// A name or an IP address that the page is asked for by besides those of the loopback: that of a
    /// proxy before it, if the proxy hands it on. A port is ignored. What is no name is an error of
    /// [`bind`](Self::bind). On a loopback address requests for other names are
    /// refused, so that no web site reads the page by giving its name that address (DNS rebinding).
    /// Pages on other addresses answer to every name.
    #[must_use]
    pub fn host(mut self, name: impl AsRef<str>) -> Self {
        self.hosts.push(name.as_ref().to_owned());
        self
    }

    /// Listens there. Port 0 takes a free one.
    ///
    /// # Errors
    /// It cannot listen there: the error names the address. A [`host`](Self::host) is none.
    pub async fn bind(self, address: impl Into<SocketAddr>) -> io::Result<BoundAdmin> {
        let address = address.into();
        let named = |error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("admin page on {address}: cannot listen there: {error}"),
            )
        };
        Hosts::new(address, &self.hosts)?;
        let listener = TcpListener::bind(address).await.map_err(named)?;
        let address = listener.local_addr()?;
        let hosts = Hosts::new(address, &self.hosts)?;
        let public = (!is_loopback(address.ip())).then_some(address);
        if public.is_some() {
            tracing::warn!(
                %address,
                "the admin page can be read by everybody who can reach this address, and asks nobody \
                 who they are; bind it to 127.0.0.1, or put a proxy before it that asks"
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
        Ok(BoundAdmin { listener, address, hosts, subject: Arc::new(subject) })
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

/// The name of this program's file.
fn program() -> String {
    let file = std::env::args_os().next().map(std::path::PathBuf::from);
    let name = file.as_ref().and_then(|file| file.file_name());
    name.map_or_else(|| "server".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// A page that listens: who asks is answered once it is served.
pub struct BoundAdmin {
    listener: TcpListener,
    address: SocketAddr,
    hosts: Hosts,
    subject: Arc<Subject>,
}

impl BoundAdmin {
    /// Where it listens.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// What to open in a browser on this machine.
    #[must_use]
    pub fn url(&self) -> String {
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        format!("http://{address}/")
    }

    /// Answers until the future is dropped.
    ///
    /// # Errors
    /// The listener failed for good.
    pub async fn serve(self) -> io::Result<()> {
        let Self { listener, hosts, subject, .. } = self;
        // Connections have tasks of their own. They end with this future.
        let (_serving, ended) = tokio::sync::oneshot::channel::<()>();
        let answering =
            axum::serve(Limited::new(listener), http::router(Arc::clone(&subject), hosts))
                .with_graceful_shutdown(async { drop(ended.await) });
        let reading = async {
            let mut ticks = tokio::time::interval(INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                subject.read();
            }
        };
        tokio::select! {
            outcome = async { answering.await } => outcome,
            () = reading => Ok(()),
        }
    }
}

impl fmt::Debug for BoundAdmin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundAdmin").field("address", &self.address).finish_non_exhaustive()
    }
}
