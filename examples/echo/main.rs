//! `cargo run --release --example echo`: a service called from another process.
//!
//! `service.rs` has the service, `server.rs` and `client` below the two ends. The rest makes it a
//! program for people: options, a table, and a server process that never outlives the run.

mod error;
mod measure;
mod options;
mod process;
mod report;
mod server;
mod service;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use rpc_core::Channel;
use rpc_core::LinkConfig;
use rpc_core::text::printable;

use self::error::EchoError;
use self::options::{CallOptions, Options, Role, RunOptions};
use self::process::ServerProcess;
use self::service::EchoClient;

/// Both ends accept messages as large as the largest `--size`, with room for headers.
const MAX_MESSAGE_BYTES: u64 = 1 << 30;

// One thread for each end: more of them would only pass each call back and forth.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    examples::logging::init();
    let options = Options::parse();
    let outcome = match &options.role {
        None => run(&options.run).await,
        Some(Role::Server(options)) => server::serve(options).await,
        Some(Role::Client(options)) => client(&options.address.to_string(), &options.calls).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", printable(&error.to_string()));
            ExitCode::from(error.exit_code())
        }
    }
}

fn link() -> LinkConfig {
    LinkConfig::default().max_message_bytes(MAX_MESSAGE_BYTES)
}

/// Starts a server process, calls it, ends it.
async fn run(options: &RunOptions) -> Result<(), EchoError> {
    let mut signals = rpc_core::signal::shutdown();
    let mut server = tokio::select! {
        started = ServerProcess::start(options) => started?,
        () = &mut signals => return Err(EchoError::Interrupted),
    };
    let process = server.id().map_or_else(String::new, |id| format!(", process {id}"));
    report::line("server", &format!("{}{process}", server.address()))?;
    let address = server.address().to_owned();
    let mut outcome = tokio::select! {
        status = server.ended() => Err(EchoError::ServerEnded(status?)),
        outcome = client(&address, &options.calls) => outcome,
        () = &mut signals => Err(EchoError::Interrupted),
    };
    // When the server dies, calls fail because of it.
    if let Err(EchoError::Call(_) | EchoError::Connect(_)) = outcome
        && let Some(status) = server.just_ended().await
    {
        outcome = Err(EchoError::ServerEnded(status));
    }
    let stopped = server.stop().await;
    outcome?;
    Ok(stopped?)
}

/// Connects, calls, reports.
async fn client(address: &str, options: &CallOptions) -> Result<(), EchoError> {
    let channel = (options.tls.secure(Channel::builder())?)
        .codec(options.codec.into())
        .poll_mode(options.poll.into())
        .link(link())
        .connect(address)
        .await?;
    let client = EchoClient::new(channel);
    report::path(&examples::channel::path(client.channel()))?;
    report::heading(options)?;
    let data: Arc<[u8]> = (0..options.size).map(|byte| byte.to_le_bytes()[0]).collect();
    for &in_flight in &options.in_flight {
        let progress = report::progress(options.calls(), in_flight);
        let row = measure::measure(&client, &data, options.calls(), in_flight, &progress).await;
        progress.finish_and_clear();
        report::row(&row?)?;
    }
    Ok(())
}
