//! `transfer serve`: a directory behind the service.

use std::fs;
use std::io;
use std::path::Path;

use examples::serving;
use rpc_core::{Server, ServerBuilder};

use super::cli::ServeArgs;
use super::error::CommandError;
use super::files::LocalFiles;
use super::metrics;
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

/// A missing directory is created only on request: it may be a mistyped one.
fn open(dir: &Path, create: bool) -> Result<Tree, CommandError> {
    if create {
        fs::create_dir_all(dir).map_err(CommandError::file(dir))?;
    }
    Tree::open(dir).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => CommandError::NoDirectory(dir.to_owned()),
        _ => CommandError::file(dir)(error),
    })
}

/// Serves until a signal.
pub(crate) async fn serve(args: &ServeArgs) -> Result<(), CommandError> {
    let tree = open(&args.dir, args.create)?;
    let builder = builder(LocalFiles::new(tree));
    let builder = args.tls.secure(builder).map_err(CommandError::Listen)?;
    Ok(serving::serve(builder, &args.server, &args.addresses, metrics::listen).await?)
}
