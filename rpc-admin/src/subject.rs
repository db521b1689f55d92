//! The subject of the page: servers and channels, and their history.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rpc_core::Channel;
use rpc_core::stats::PrometheusText;
use rpc_core::stats::StatsHandle;

use crate::history::{History, Reading};
use crate::recent::Recent;

/// Time between two readings of the numbers.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// A source of statistics.
#[derive(PartialEq)]
pub(crate) enum Source {
    Server(StatsHandle),
    Channel(Channel),
    /// The services that a channel serves on its connections.
    Served(Channel),
}

impl Source {
    fn read(&self) -> Reading {
        match self {
            Self::Server(handle) => Reading::of_server(handle.stats()),
            Self::Channel(channel) => Reading::of_channel(channel.stats()),
            Self::Served(channel) => Reading::of_served(channel.stats()),
        }
    }

    /// Adds its numbers to a text, labelled with its name.
    fn add_to(&self, text: PrometheusText, name: &str) -> PrometheusText {
        let labels = [("source", name)];
        match self {
            Self::Server(handle) => text.server(&handle.stats(), &labels),
            Self::Channel(channel) => text.channel(&channel.stats(), &labels),
            // They are included in those of its channel.
            Self::Served(_) => text,
        }
    }
}

/// The subject of the page.
pub(crate) struct Subject {
    pub(crate) title: String,
    pub(crate) sources: Vec<(String, Source)>,
    pub(crate) recent: Option<Recent>,
    /// The readings so far. Locked only to add one or to copy references.
    pub(crate) history: Mutex<History>,
    pub(crate) since_ms: u64,
    /// The address, if it is reachable from other machines.
    pub(crate) public: Option<SocketAddr>,
}

impl Subject {
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().map(|(name, _)| name.as_str())
    }

    pub(crate) fn servers(&self) -> impl Iterator<Item = &StatsHandle> {
        self.sources.iter().filter_map(|(_, source)| match source {
            Source::Server(handle) => Some(handle),
            _ => None,
        })
    }

    pub(crate) fn is_server(&self, at: usize) -> bool {
        matches!(self.sources.get(at), Some((_, Source::Server(_))))
    }

    /// The numbers of all sources for Prometheus, labelled with the name of the source.
    pub(crate) fn prometheus_text(&self) -> PrometheusText {
        let add = |text, (name, source): &(String, Source)| source.add_to(text, name);
        self.sources.iter().fold(PrometheusText::new(), add)
    }

    /// Takes another reading of all sources.
    pub(crate) fn read(&self) {
        let readings: Vec<Reading> = self.sources.iter().map(|(_, source)| source.read()).collect();
        let now = tokio::time::Instant::now().into_std();
        let old = self.history.lock().push(now, SystemTime::now(), readings);
        drop(old);
    }
}
