//! What the page is about: servers and channels, and what they have shown so far.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rpc_core::{Channel, StatsHandle};

use crate::history::{History, Reading};
use crate::recent::Recent;

/// Time between two readings of the numbers.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// Whose numbers are shown.
#[derive(PartialEq)]
pub(crate) enum Source {
    Server(StatsHandle),
    Channel(Channel),
    /// What a channel serves on its connections.
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

    /// `None`: it is part of another's.
    fn prometheus_text(&self) -> Option<String> {
        match self {
            Self::Server(handle) => Some(handle.stats().prometheus_text()),
            Self::Channel(channel) => Some(channel.stats().prometheus_text()),
            Self::Served(_) => None,
        }
    }
}

/// What the page is about.
pub(crate) struct Subject {
    pub(crate) title: String,
    pub(crate) sources: Vec<(String, Source)>,
    pub(crate) recent: Option<Recent>,
    /// Readings so far. Locked for as long as it takes to add one or to copy references.
    pub(crate) history: Mutex<History>,
    pub(crate) since_ms: u64,
    /// Where it can be seen by more than this machine.
    pub(crate) public: Option<SocketAddr>,
}

impl Subject {
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().map(|(name, _)| name.as_str())
    }

    pub(crate) fn is_server(&self, at: usize) -> bool {
        matches!(self.sources.get(at), Some((_, Source::Server(_))))
    }

    /// The texts for Prometheus, with the names of their sources.
    pub(crate) fn prometheus_texts(&self) -> Vec<(&str, String)> {
        let texts = self.sources.iter();
        texts
            .filter_map(|(name, source)| Some((name.as_str(), source.prometheus_text()?)))
            .collect()
    }

    /// Reads all of them once more, for the history.
    pub(crate) fn read(&self) {
        let readings: Vec<Reading> = self.sources.iter().map(|(_, source)| source.read()).collect();
        let now = tokio::time::Instant::now().into_std();
        let old = self.history.lock().push(now, SystemTime::now(), readings);
        drop(old);
    }
}
