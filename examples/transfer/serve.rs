//! `transfer serve`: a directory behind the service.

use std::fs;
use std::io::{self, Write};

use examples::signals::EndSignals;
use rpc_core::{Server, ServerBuilder};

use super::cli::ServeArgs;
use super::error::CommandError;
use super::files::LocalFiles;
use super::service::FilesServer;
use super::tree::Tree;

/// Calls of one connection that run at once. Each may hold a block, so this bounds memory.
const CALLS_PER_CONNECTION: u32 = 256;

/// A server of a directory, whatever its addresses.
pub(crate) fn builder(files: LocalFiles) -> ServerBuilder {
    Server::builder()
        .add_service(FilesServer::new(files))
        .max_calls_per_connection(CALLS_PER_CONNECTION)
}

/// Serves until Ctrl-C or SIGTERM; a second one does not wait for calls in flight.
pub(crate) async fn serve(args: &ServeArgs) -> Result<(), CommandError> {
    let mut signals = EndSignals::install()?;
    let tree = fs::create_dir_all(&args.dir).and_then(|()| Tree::open(&args.dir));
    let tree = tree.map_err(CommandError::file(&args.dir))?;
    let server = builder(LocalFiles::new(tree))
        .poll_mode(args.poll.into())
        .shards(args.shards)
        .bind_all(args.addresses.iter().map(ToString::to_string))
        .await?;
    let mut stdout = io::stdout();
    for address in server.local_addresses() {
        writeln!(stdout, "READY {address}")?;
    }
    stdout.flush()?;
    let handle = server.shutdown_handle();
    let serving = server.serve();
    tokio::pin!(serving);
    tokio::select! {
        outcome = &mut serving => return Ok(outcome?),
        () = signals.next() => handle.shutdown(),
    }
    eprintln!("stopping; once more to stop at once");
    tokio::select! {
        outcome = serving => Ok(outcome?),
        () = signals.next() => Err(CommandError::Interrupted),
    }
}
