//! A server at an address of some scheme, and clients of it.
//!
//! For `mem://` the server is a task of the test, for every other scheme a process of its own: on
//! the peer's machine if the tests have one ([`crate::agent`]).

use std::sync::Arc;

use rpc_core::{Channel, ChannelBuilder, PollMode};
use tokio::task::JoinHandle;

use crate::changed;
use crate::flow::{FlowClient, FlowServer, FlowService};
use crate::journal::Journal;
use crate::limit::patient_channel;
use crate::probe::{Mark, ProbeClient, ProbeServer};
use crate::process::{Child, READY};
use crate::raw::RawService;
use crate::scheme::Scheme;
use crate::service::ProbeService;
use crate::versions::{OldLedger, old};

/// A server that runs.
#[derive(Debug)]
pub struct World {
    /// Its scheme.
    pub scheme: Scheme,
    /// Its address, with the real port.
    pub address: String,
    server: Running,
}

#[derive(Debug)]
enum Running {
    Process(Box<Child>),
    Task(JoinHandle<()>),
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Self::Task(task) = self {
            task.abort();
        }
    }
}

impl World {
    /// Starts a server with default options.
    pub async fn start(program: &str, scheme: Scheme) -> Self {
        Self::start_with(program, scheme, &[]).await
    }

    /// Starts a server process with options for it; `mem://` uses those that it supports.
    ///
    /// # Panics
    /// When it does not come up.
    pub async fn start_with(program: &str, scheme: Scheme, options: &[&str]) -> Self {
        let listen = scheme.fresh_address_there();
        if scheme == Scheme::Mem {
            return Self::start_here(listen, options).await;
        }
        let (child, address) = start_server(program, &listen, options).await;
        Self { scheme, address, server: Running::Process(Box::new(child)) }
    }

    async fn start_here(address: String, options: &[&str]) -> Self {
        let (mut next, mut max_calls, mut depot) = (None, None, None);
        for option in options.chunks(2) {
            match *option {
                ["--next", address] => next = Some(address.to_owned()),
                ["--max-calls", count] => max_calls = Some(count.parse().expect("a number")),
                ["--depot", build] => depot = Some(build.parse().expect("a number")),
                ref other => panic!("no such option for mem://: {other:?}"),
            }
        }
        let journal = Arc::new(Journal::default());
        let service = ProbeService::new(Arc::clone(&journal), next);
        let mut builder = crate::device::server()
            .add_service(FlowServer::new(FlowService::new(journal)))
            .add_service(ProbeServer::new(service))
            .add_service(old::LedgerServer::new(OldLedger))
            .add_service(changed::old::CatalogServer::new(changed::Service))
            .add_service(RawService)
            .poll_mode(PollMode::Event);
        if let Some(count) = max_calls {
            builder = builder.max_calls_per_connection(count);
        }
        if let Some(build) = depot {
            builder = crate::depot::added_to(builder, build);
        }
        let server = builder.bind(&address).await.expect("the name is free");
        let task = tokio::spawn(async move { server.serve().await.expect("it listens") });
        Self { scheme: Scheme::Mem, address, server: Running::Task(task) }
    }

    /// Connects a client.
    pub async fn client(&self) -> ProbeClient {
        self.client_with(|builder| builder).await
    }

    /// Connects a client with a configuration of its own.
    pub async fn client_with(
        &self,
        configure: impl FnOnce(ChannelBuilder) -> ChannelBuilder,
    ) -> ProbeClient {
        ProbeClient::new(self.channel_with(configure).await)
    }

    /// Connects a client of the service with streams.
    pub async fn flow(&self) -> FlowClient {
        FlowClient::new(self.channel_with(|builder| builder).await)
    }

    /// Connects a channel with a configuration of its own.
    ///
    /// # Panics
    /// When that fails.
    pub async fn channel_with(
        &self,
        configure: impl FnOnce(ChannelBuilder) -> ChannelBuilder,
    ) -> Channel {
        let builder = configure(patient_channel());
        builder.connect(&self.address).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// The server's process.
    ///
    /// # Panics
    /// For `mem://`.
    pub fn process(&mut self) -> &mut Child {
        match &mut self.server {
            Running::Process(child) => child,
            Running::Task(_) => panic!("a mem:// server is no process"),
        }
    }

    /// The server's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        match &self.server {
            Running::Process(child) => child.pid(),
            Running::Task(_) => std::process::id(),
        }
    }
}

/// Starts a server process on the peer's machine, if there is one; returns it with its real
/// address.
///
/// # Panics
/// When it does not come up.
pub async fn start_server(program: &str, listen: &str, options: &[&str]) -> (Child, String) {
    let arguments = ["--listen", listen].into_iter().chain(options.iter().copied());
    let mut child = Child::start_there(program, arguments);
    let address = child.expect(READY).await;
    child.listens_at(&address);
    (child, address)
}

/// Waits until handlers of the server have left `count` marks.
///
/// # Panics
/// When the server cannot be asked.
pub async fn marked(client: &ProbeClient, tag: u64, mark: Mark, count: u64) -> u64 {
    client.wait_for(tag, mark, count).await.expect("the server answers")
}
