//! `rpcctl`: services from the command line.
//!
//! `options.rs` is the command line, and each command has a file. `target.rs` is the server that is
//! asked, and what its refusals mean; `schema.rs` and `value.rs` turn JSON into arguments and results
//! into JSON, by what the server says of its types.

mod call;
mod describe;
mod health;
mod options;
mod ping;
mod schema;
mod target;
mod text;
mod top;
mod value;

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use self::options::{Command, Options};

fn main() -> ExitCode {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(command(&options));
            // A read of stdin that is still under way ends with the process.
            runtime.shutdown_background();
            outcome
        }
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(code) => code,
        // Whoever reads has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", text::clean(&format!("{error:#}")));
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
        Command::Health(health) => health::health(health, common).await,
        Command::Ping(ping) => ping::ping(ping, common).await.map(|()| done),
        Command::Top(top) => top::top(top, common).await.map(|()| done),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
