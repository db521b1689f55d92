//! `rpcctl`: services from the command line.
//!
//! `options.rs` is the command line, and each command has a file or a folder. `dynamic.rs` calls
//! methods by the server's description. `target.rs` is the called server
//! and the meaning of its refusals; `json.rs` converts JSON to arguments and results to JSON, using
//! the server's description of its types.

mod call;
mod cert;
mod describe;
mod dynamic;
mod gateway;
mod health;
mod json;
mod options;
mod ping;
mod resolve;
mod schema;
mod target;
mod text;
mod top;

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use rpc_core::text::printable;

use self::options::{Cert, Command, Options, Schema};

fn main() -> ExitCode {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(command(&options));
            // A pending read of stdin ends with the process.
            runtime.shutdown_background();
            outcome
        }
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(code) => code,
        // The reader has closed the pipe.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", printable(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

async fn command(options: &Options) -> Result<ExitCode> {
    let (common, done) = (&options.common, ExitCode::SUCCESS);
    match &options.command {
        Command::List(list) => describe::list(list, common).await.map(|()| done),
        Command::Describe(what) => describe::describe(what, common).await.map(|()| done),
        Command::Call(call) => call::call(call, common).await.map(|()| done),
        Command::Gateway(gateway) => gateway::gateway(gateway, common).await.map(|()| done),
        Command::Health(health) => health::health(health, common).await,
        Command::Ping(ping) => ping::ping(ping, common).await.map(|()| done),
        Command::Resolve(name) => resolve::resolve(name, common).await.map(|()| done),
        Command::Schema(Schema::Save(save)) => schema::save(save, common).await.map(|()| done),
        Command::Schema(Schema::Diff(diff)) => schema::diff(diff, common).await,
        Command::Top(top) => top::top(top, common).await.map(|()| done),
        Command::Cert(Cert::Dev(dev)) => cert::dev(dev).map(|()| done),
        Command::Cert(Cert::Show(show)) => cert::show(show, common).map(|()| done),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
