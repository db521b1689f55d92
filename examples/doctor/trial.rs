//! A trial of one scheme: a server in this process, called by this process.

use std::fmt;
use std::time::Duration;

use examples::channel::path;
use rpc_core::{Channel, PollMode, Server};

use super::options::Scheme;
use super::rdma;

/// Longest time for one trial. Reached only if something on this machine is broken.
const LIMIT: Duration = Duration::from_secs(20);

#[rpc_core::service]
trait Pulse {
    /// Returns the number.
    async fn beat(&self, number: u64) -> u64;
}

struct Heart;

impl Pulse for Heart {
    async fn beat(&self, number: u64) -> u64 {
        number
    }
}

/// The result of a scheme.
#[derive(Debug)]
pub(crate) struct Trial {
    scheme: Scheme,
    /// The path that the call took, or the reason why there was none.
    outcome: Result<String, String>,
}

impl Trial {
    /// Tries a scheme.
    pub(crate) async fn of(scheme: Scheme) -> Self {
        let tried = tokio::time::timeout(LIMIT, call(&listen_address(scheme))).await;
        let stuck = |_| Err(format!("no answer within {LIMIT:?}"));
        Self { scheme, outcome: tried.unwrap_or_else(stuck) }
    }

    /// Whether calls work.
    pub(crate) fn works(&self) -> bool {
        self.outcome.is_ok()
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verdict, text) = match &self.outcome {
            Ok(way) => ("works", way),
            Err(reason) => ("NO", reason),
        };
        write!(f, "{:<6}{verdict:<7}{text}", self.scheme.name())
    }
}

fn listen_address(scheme: Scheme) -> String {
    let name = format!("doctor-{}", std::process::id());
    match scheme {
        Scheme::Mem => format!("mem://{name}"),
        Scheme::Shm => format!("shm://{name}"),
        Scheme::Tcp => "tcp://127.0.0.1:0".to_owned(),
        Scheme::Auto => "auto://127.0.0.1:0".to_owned(),
        Scheme::Rdma => rdma::listen_address(),
    }
}

/// Serves, connects and calls; returns the path that the call took.
async fn call(listen: &str) -> Result<String, String> {
    let builder = Server::builder().add_service(PulseServer::new(Heart));
    let server = builder.poll_mode(PollMode::Event).bind(listen).await;
    let server = server.map_err(|error| error.to_string())?;
    let address = server.local_address().to_string();
    tokio::select! {
        stopped = server.serve() => Err(format!("the server stopped: {stopped:?}")),
        called = call_at(&address) => called,
    }
}

async fn call_at(address: &str) -> Result<String, String> {
    let builder = Channel::builder().poll_mode(PollMode::Event);
    let channel = builder.connect(address).await.map_err(|error| error.to_string())?;
    let pulse = PulseClient::new(channel);
    match pulse.beat(42).await {
        Ok(42) => Ok(path(pulse.channel())),
        Ok(other) => Err(format!("the reply was {other} instead of 42")),
        Err(status) => Err(status.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_needs_no_device_works_everywhere() {
        for scheme in [Scheme::Mem, Scheme::Shm, Scheme::Tcp, Scheme::Auto] {
            let trial = Trial::of(scheme).await;
            assert!(trial.works(), "{trial}");
            assert!(trial.to_string().starts_with(&scheme.name()), "{trial}");
        }
    }

    #[tokio::test]
    async fn a_reason_stands_where_a_way_would() {
        let outcome = call("shm:///nonexistent-directory/socket").await;
        let trial = Trial { scheme: Scheme::Shm, outcome };
        assert!(!trial.works());
        let text = trial.to_string();
        assert!(text.starts_with("shm   NO     "), "{text}");
        assert!(text.contains("nonexistent-directory"), "{text}");
    }
}
