//! A watch of a resolver, as a test sees it.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use rpc_core::client::resolve::{Endpoint, Resolve, Watching};
use rpc_discovery::Etcd;

/// The watch, and what it said last.
pub(crate) struct Watched<'a> {
    stream: Watching<'a>,
    pub(crate) set: Vec<Endpoint>,
    /// Errors so far.
    pub(crate) errors: Vec<String>,
}

/// A resolver that notices quickly what goes wrong.
pub(crate) fn quick(name: &str) -> Etcd {
    let etcd: Etcd = name.parse().unwrap();
    etcd.check_every(Duration::from_millis(100)).request_timeout(Duration::from_secs(1))
}

impl<'a> Watched<'a> {
    pub(crate) fn new(etcd: &'a Etcd) -> Self {
        Self { stream: etcd.watch().unwrap(), set: Vec::new(), errors: Vec::new() }
    }

    /// The next word.
    pub(crate) async fn next(&mut self) {
        match self.stream.next().await.expect("it does not end") {
            Ok(set) => self.set = set,
            Err(error) => self.errors.push(error.to_string()),
        }
    }

    /// Waits for a set of these addresses.
    pub(crate) async fn until(&mut self, addresses: &[&str]) {
        let wanted: BTreeSet<String> = addresses.iter().map(|&it| it.to_owned()).collect();
        loop {
            self.next().await;
            if self.addresses() == wanted {
                return;
            }
        }
    }

    /// Waits for one more error.
    pub(crate) async fn until_error(&mut self) {
        let before = self.errors.len();
        while self.errors.len() == before {
            self.next().await;
        }
    }

    pub(crate) fn addresses(&self) -> BTreeSet<String> {
        self.set.iter().map(|it| it.address().to_string()).collect()
    }
}
