//! `kv export`: every key becomes a file below a directory.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use rpc_core::CallError;

use super::cli::ExportArgs;
use super::connect::connect;
use super::error::CommandError;
use super::key_path::{KeyPath, Printable};
use super::listing::Listing;
use super::service::{KvClient, KvError, Listed};
use super::target_dir::TargetDir;
use super::transfer::{FileError, Moved, Transfer};

/// Exports.
pub(crate) async fn export(args: &ExportArgs) -> Result<(), CommandError> {
    let client = connect(&args.connect).await?;
    let listed = list_all(&client, &args.prefix).await?;
    let target = TargetDir::open(&args.dir).map_err(CommandError::file(&args.dir))?;
    let target = Arc::new(target);
    let plan = Plan::new(listed, args.prefix.len());
    let bytes = plan.items.iter().map(|item| item.bytes).sum();
    let files = plan.items.iter().filter(|item| !item.key.ends_with('/')).count();
    let transfer = Transfer::new("exported", files as u64, bytes);
    for (key, error) in &plan.refused {
        transfer.fail(&format_args!("{}: {error}", Printable(key)));
    }
    let work = |item| fetch(&client, &target, args.prefix.len(), item);
    transfer.run(plan.items, args.transfer.in_flight, |item| item.bytes, work).await?;
    transfer.finish(&format!("to {}", args.dir.display()))
}

/// All keys that begin with a prefix.
async fn list_all(client: &KvClient, prefix: &str) -> Result<Vec<Listed>, CommandError> {
    let mut all = Vec::new();
    let mut listing = Listing::new(client, prefix);
    while let Some(keys) = listing.next(u64::MAX).await? {
        all.extend(keys);
    }
    Ok(all)
}

/// The files to write, and the keys that cannot be files.
#[derive(Debug, Default)]
struct Plan {
    items: Vec<Listed>,
    refused: Vec<(String, String)>,
}

impl Plan {
    /// Sorts the keys. The first `skip` bytes of each are not part of its path.
    fn new(listed: Vec<Listed>, skip: usize) -> Self {
        let dirs = directories(&listed, skip);
        let mut plan = Self::default();
        for item in listed {
            match refusal(&item, skip, &dirs) {
                None => plan.items.push(item),
                Some(why) => plan.refused.push((item.key, why)),
            }
        }
        plan
    }
}

/// All directories that the keys need, as paths without a trailing `/`.
fn directories(listed: &[Listed], skip: usize) -> HashSet<String> {
    let paths = listed.iter().map(|item| &item.key[skip..]);
    let usable = paths.filter(|path| KeyPath::parse(path).is_ok());
    usable.flat_map(|path| path.match_indices('/').map(|(at, _)| path[..at].to_owned())).collect()
}

fn refusal(item: &Listed, skip: usize, dirs: &HashSet<String>) -> Option<String> {
    let path = &item.key[skip..];
    match KeyPath::parse(path) {
        Err(error) => Some(format!("cannot be a file: {error}")),
        Ok(KeyPath { file: None, .. }) if item.bytes > 0 => {
            Some("names a directory, but has a value".to_owned())
        }
        Ok(_) if dirs.contains(path) => {
            Some(format!("cannot be a file: other keys need the directory `{}/`", Printable(path)))
        }
        Ok(_) => None,
    }
}

async fn fetch(
    client: &KvClient,
    target: &Arc<TargetDir>,
    skip: usize,
    item: Listed,
) -> Result<Moved, FileError> {
    let shown = Printable(&item.key).to_string();
    let value = match client.get(&item.key).await {
        Ok(value) => value.bytes,
        Err(CallError::User(KvError::NotFound)) => {
            return Err(FileError::Skipped(format!("{shown}: deleted in the meantime")));
        }
        Err(error) => return Err(FileError::from_call(client.channel(), &shown, error)),
    };
    let moved = if item.key.ends_with('/') { Moved::Dir } else { Moved::File(value.len()) };
    let target = Arc::clone(target);
    // Runs to its end once begun, even if this future is dropped: no half-written file remains.
    let writing = tokio::task::spawn_blocking(move || {
        let path = KeyPath::parse(&item.key[skip..]).map_err(|error| error.to_string())?;
        target.write(&path, &value).map_err(|error| error.to_string())
    });
    let written =
        writing.await.map_err(|error| io::Error::other(error).to_string()).and_then(|inner| inner);
    match written {
        Ok(()) => Ok(moved),
        Err(error) => Err(FileError::Failed(format!("{shown}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;
    use rpc_core::Address;

    use super::super::cli::{Cli, Command};
    use super::super::import::import;
    use super::super::serve::builder;
    use super::super::service::Version;
    use super::super::store::Store;
    use rpc_discovery::Destination;

    use super::*;
    use examples::testing::{Scratch, limited};

    fn plan(keys: &[(&str, u64)], skip: usize) -> (Vec<String>, Vec<String>) {
        let listed = |&(key, bytes): &(&str, u64)| Listed {
            key: key.to_owned(),
            version: Version(1),
            bytes,
        };
        let plan = Plan::new(keys.iter().map(listed).collect(), skip);
        let refused = plan.refused.into_iter().map(|(key, why)| format!("{key}: {why}"));
        (plan.items.into_iter().map(|item| item.key).collect(), refused.collect())
    }

    #[test]
    fn key_both_file_and_directory_is_refused() {
        let keys =
            [("a", 1), ("a-b", 1), ("a/b", 1), ("a/b/c/d", 1), ("b", 1), ("b/", 0), ("c/", 0)];
        let (items, refused) = plan(&keys, 0);
        assert_eq!(items, ["a-b", "a/b/c/d", "b/", "c/"]);
        assert_eq!(
            refused,
            [
                "a: cannot be a file: other keys need the directory `a/`",
                "a/b: cannot be a file: other keys need the directory `a/b/`",
                "b: cannot be a file: other keys need the directory `b/`",
            ]
        );
    }

    #[test]
    fn keys_invalid_as_files_are_refused_alone() {
        let keys = [("/a", 1), ("a", 1), ("a/../b", 1), ("d/", 3), ("x", 1), ("x//y", 1)];
        let (items, refused) = plan(&keys, 0);
        assert_eq!(items, ["a", "x"]);
        assert_eq!(
            refused,
            [
                "/a: cannot be a file: it is an absolute path",
                "a/../b: cannot be a file: it contains the path component `..`",
                "d/: names a directory, but has a value",
                "x//y: cannot be a file: it contains an empty path component",
            ]
        );
    }

    #[test]
    fn a_prefix_is_no_part_of_the_path() {
        let keys = [("p/", 0), ("p//etc/passwd", 1), ("p/a", 1), ("p/a/b", 1), ("p/c", 1)];
        let (items, refused) = plan(&keys, 2);
        assert_eq!(items, ["p/a/b", "p/c"]);
        assert_eq!(
            refused,
            [
                "p/: cannot be a file: the key is empty",
                "p//etc/passwd: cannot be a file: it is an absolute path",
                "p/a: cannot be a file: other keys need the directory `a/`",
            ]
        );
    }

    /// Runs a command of the command line against a server in this process.
    async fn run(address: &str, line: &[&str]) -> Result<(), CommandError> {
        let line = ["kv"].iter().chain(&line[..1]).chain(&["shm://replaced"]).chain(&line[1..]);
        let address: Address = address.parse().unwrap();
        match Cli::parse_from(line).command {
            Command::Import(mut args) => {
                args.connect.address = Destination::Server(address);
                import(&args).await
            }
            Command::Export(mut args) => {
                args.connect.address = Destination::Server(address);
                export(&args).await
            }
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn tree_round_trips_and_full_store_reports_refusals() {
        limited(async {
            let address = "mem://kv-export";
            let server = builder(&Arc::new(Store::new(Some(100)))).bind(address).await.unwrap();
            tokio::spawn(server.serve());
            let (from, to) = (Scratch::new(), Scratch::new());
            let (from, to) = (from.path(), to.path());
            fs::create_dir_all(from.join("a/empty")).unwrap();
            fs::write(from.join("a/file"), "content").unwrap();
            run(address, &["import", from.to_str().unwrap()]).await.unwrap();
            fs::write(from.join("large"), [0; 100]).unwrap();
            let error = run(address, &["import", from.to_str().unwrap()]).await.unwrap_err();
            assert_eq!(error.to_string(), "1 entry failed, see above");
            run(address, &["export", to.to_str().unwrap()]).await.unwrap();
            assert_eq!(fs::read(to.join("a/file")).unwrap(), b"content");
            assert!(to.join("a/empty").is_dir() && !to.join("large").exists());
        })
        .await;
    }
}
