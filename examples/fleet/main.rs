//! `fleet`: servers that come, go, fall ill and die under load, and the calls that this costs.
//!
//! Starts etcd, servers as processes that register there, and clients that find them. Then it
//! scales up, replaces all servers, kills one, stops one, makes one answer with errors, and kills
//! and wipes etcd. At the end it prints which calls were lost.
//!
//! | file | what |
//! |---|---|
//! | `service.rs` | the service, and the process of a server |
//! | `member.rs` | a server as the parent sees it: started, drained, killed, stopped |
//! | `registry.rs` | etcd as a process |
//! | `load.rs` | the clients, and what became of their calls |
//! | `scenario.rs` | what happens to the fleet, in order |
//! | `watch.rs` | samples of all rates, and the events |
//! | `picture.rs`, `plot.rs` | both in the terminal, and as an SVG file |
//! | `verdict.rs` | what was lost |

mod load;
mod member;
mod options;
mod picture;
mod plot;
mod registry;
mod scenario;
mod service;
mod verdict;
mod watch;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use examples::logging::{self, LevelFilter};
use rpc_core::text::printable;

use self::options::{Cli, Role};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> ExitCode {
    // What is done to the fleet on purpose is no reason for a warning.
    logging::init_at(LevelFilter::ERROR);
    let cli = Cli::parse();
    let outcome = match &cli.role {
        None => scenario::run(&cli.options).await,
        Some(Role::Member(args)) => service::serve(args).await.map(|()| true),
        Some(Role::Etcd { arguments }) => Err(registry::become_etcd(arguments)),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {}", printable(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}
