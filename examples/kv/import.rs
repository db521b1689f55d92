//! `kv import`: every file of a tree becomes a key.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use examples::units::bytes;
use rustix::fs::OFlags;

use super::cli::ImportArgs;
use super::commands::read_limited;
use super::connect::connect;
use super::error::CommandError;
use super::service::{KvClient, MAX_VALUE_BYTES};
use super::transfer::{FileError, Moved, Transfer};
use super::walk::{Found, walk};

/// A key to be stored: that of a file, or that of an empty directory.
struct Item {
    key: String,
    bytes: u64,
    file: Option<PathBuf>,
}

/// Imports.
pub(crate) async fn import(args: &ImportArgs) -> Result<(), CommandError> {
    let dir = args.dir.clone();
    let walked = tokio::task::spawn_blocking(move || walk(&dir)).await;
    let tree = walked.map_err(io::Error::other)?.map_err(CommandError::file(&args.dir))?;
    let client = connect(&args.connect).await?;
    let transfer = Transfer::new("imported", tree.files.len() as u64, tree.bytes());
    for (path, kind) in &tree.skipped {
        transfer.skip(&format_args!("{}: a {kind}", path.display()));
    }
    for (path, error) in &tree.failed {
        transfer.fail(&format_args!("{}: {error}", path.display()));
    }
    let files = tree.files.into_iter().map(Item::file);
    let items = files.chain(tree.empty_dirs.into_iter().map(Item::dir));
    let work = |item| store(&client, &args.prefix, item);
    transfer.run(items, args.transfer.in_flight, |item| item.bytes, work).await?;
    transfer.finish(&format!("from {}", args.dir.display()))
}

impl Item {
    fn file(found: Found) -> Self {
        Self { key: found.key, bytes: found.bytes, file: Some(found.path) }
    }

    fn dir(key: String) -> Self {
        Self { key, bytes: 0, file: None }
    }
}

async fn store(client: &KvClient, prefix: &str, item: Item) -> Result<Moved, FileError> {
    let key = format!("{prefix}{}", item.key);
    let Some(path) = item.file else {
        put(client, &key, &[], &item.key).await?;
        return Ok(Moved::Dir);
    };
    let shown = path.display().to_string();
    let reading = tokio::task::spawn_blocking(move || read(&path));
    let value = reading.await.map_err(io::Error::other).and_then(|inner| inner);
    let value = value.map_err(|error| FileError::Failed(format!("{shown}: {error}")))?;
    put(client, &key, &value, &shown).await?;
    Ok(Moved::File(value.len() as u64))
}

async fn put(client: &KvClient, key: &str, value: &[u8], shown: &str) -> Result<(), FileError> {
    match client.put(key, value).await {
        Ok(_) => Ok(()),
        Err(error) => Err(FileError::from_call(client.channel(), shown, error)),
    }
}

/// Reads a regular file of at most the size of a value.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    // What was a regular file when the tree was read may be a pipe or a link by now.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file any more"));
    }
    // The file may grow while it is read, so both its size and what was read are checked.
    let value = match usize::try_from(metadata.len()) {
        Ok(size) if size <= MAX_VALUE_BYTES => read_limited(file, size)?,
        _ => return Err(too_large()),
    };
    if value.len() > MAX_VALUE_BYTES { Err(too_large()) } else { Ok(value) }
}

fn too_large() -> io::Error {
    let max = bytes(MAX_VALUE_BYTES as u64);
    io::Error::other(format!("it is larger than the {max} that one key holds"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::super::testing::Scratch;
    use super::*;

    #[test]
    fn what_is_no_regular_file_any_more_is_not_read() {
        let dir = Scratch::new();
        fs::write(dir.path().join("f"), "x").unwrap();
        symlink("f", dir.path().join("link")).unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert_eq!(read(&dir.path().join("f")).unwrap(), b"x");
        assert!(read(&dir.path().join("link")).is_err());
        assert!(read(&pipe).unwrap_err().to_string().contains("not a regular file"));
        assert!(read(dir.path()).unwrap_err().to_string().contains("not a regular file"));
    }

    #[test]
    fn a_file_that_is_too_large_is_refused() {
        let dir = Scratch::new();
        let path = dir.path().join("sparse");
        let file = fs::File::create(&path).unwrap();
        file.set_len(MAX_VALUE_BYTES as u64 + 1).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert_eq!(error, "it is larger than the 1023.0 MiB that one key holds");
    }
}
