//! `transfer serve`: a directory behind the service.

use std::fs;

use examples::serving;
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

/// Serves until a signal.
pub(crate) async fn serve(args: &ServeArgs) -> Result<(), CommandError> {
    let tree = fs::create_dir_all(&args.dir).and_then(|()| Tree::open(&args.dir));
    let tree = tree.map_err(CommandError::file(&args.dir))?;
    Ok(serving::serve(builder(LocalFiles::new(tree)), &args.server, &args.addresses).await?)
}
