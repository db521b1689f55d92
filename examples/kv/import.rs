//! `kv import`: every file of a tree becomes a key.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use examples::units::bytes;
use rpc_core::{Bulk, BulkPool};
use rustix::fs::OFlags;

use super::cli::ImportArgs;
use super::commands::read_limited;
use super::connect::connect;
use super::error::CommandError;
use super::service::{KvClient, MAX_VALUE_BYTES};
use super::transfer::{FileError, Moved, Transfer};
use super::walk::{Found, walk};

/// Files of at least this many bytes are read into registered buffers.
const REGISTERED_BYTES: usize = 64 << 10;

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
        put(client, &key, Bulk::new(), &item.key).await?;
        return Ok(Moved::Dir);
    };
    let shown = path.display().to_string();
    let pool = client.channel().bulk_pool().clone();
    let reading = tokio::task::spawn_blocking(move || read(&path, &pool));
    let value = reading.await.map_err(io::Error::other).and_then(|inner| inner);
    let value = value.map_err(|error| FileError::Failed(format!("{shown}: {error}")))?;
    let bytes = value.len();
    put(client, &key, value, &shown).await?;
    Ok(Moved::File(bytes))
}

async fn put(client: &KvClient, key: &str, value: Bulk, shown: &str) -> Result<(), FileError> {
    match client.put(key, value).await {
        Ok(_) => Ok(()),
        Err(error) => Err(FileError::from_call(client.channel(), shown, error)),
    }
}

/// Reads a regular file of at most the size of a value.
fn read(path: &Path, pool: &BulkPool) -> io::Result<Bulk> {
    // A regular file of the listing may be a pipe or a link by now.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no longer a regular file"));
    }
    // The file may grow while it is read, so both its size and the bytes read are checked.
    let value = match usize::try_from(metadata.len()) {
        Ok(size) if size <= MAX_VALUE_BYTES => read_all(file, size, pool)?,
        _ => return Err(too_large()),
    };
    if value.len() > MAX_VALUE_BYTES as u64 { Err(too_large()) } else { Ok(value) }
}

/// Reads a file that is expected to have `size` bytes. A large one goes into a registered buffer,
/// to be sent from there, if one can be had: a process may lock a limited amount of memory.
fn read_all(mut file: File, size: usize, pool: &BulkPool) -> io::Result<Bulk> {
    let registered = (size >= REGISTERED_BYTES).then(|| pool.take(size).ok()).flatten();
    let Some(mut buffer) = registered else { return Ok(read_limited(file, size)?.into()) };
    let mut filled = 0;
    while filled < size {
        match file.read(&mut buffer[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    buffer.truncate(filled);
    let behind = read_limited(file, 0)?;
    if behind.is_empty() { Ok(buffer.freeze()) } else { Ok([&buffer[..], &behind].concat().into()) }
}

fn too_large() -> io::Error {
    let max = bytes(MAX_VALUE_BYTES as u64);
    io::Error::other(format!("it is larger than {max}, the maximum size of a value"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::Arc;

    use rpc_core::Channel;
    use rpc_core::transport::FaultPlan;
    use rpc_transport::device::fault::MLX5;
    use rpc_transport::memory::budget::MemoryBudget;

    use super::super::serve::builder;
    use super::super::store::Store;
    use super::*;
    use examples::testing::Scratch;

    /// The pool of a connection to `mem://name`.
    async fn pool(name: &str) -> BulkPool {
        let address = format!("mem://{name}");
        let server = builder(&Arc::new(Store::new(None))).bind(&address).await.unwrap();
        tokio::spawn(server.serve());
        Channel::connect(&address).await.unwrap().bulk_pool().clone()
    }

    #[tokio::test]
    async fn files_of_every_size_are_read_whole() {
        let (dir, pool) = (Scratch::new(), pool("kv-import-sizes").await);
        for size in [0, 1, REGISTERED_BYTES - 1, REGISTERED_BYTES, 3 * REGISTERED_BYTES + 1] {
            let path = dir.path().join(size.to_string());
            let content: Vec<u8> = (0..=250).cycle().take(size).collect();
            fs::write(&path, &content).unwrap();
            assert_eq!(read(&path, &pool).unwrap(), content);
            // Of another size than expected.
            for believed in [REGISTERED_BYTES, 2 * REGISTERED_BYTES, 4 * REGISTERED_BYTES] {
                let read = read_all(File::open(&path).unwrap(), believed, &pool);
                assert_eq!(read.unwrap(), content, "{size} {believed}");
            }
        }
    }

    /// A regression: an ordinary user's file of 6 MB failed where 8 MiB may be locked.
    #[tokio::test]
    async fn file_is_read_without_lockable_memory() {
        let (dir, limit) = (Scratch::new(), MemoryBudget::new(2 << 20));
        let server = builder(&Arc::new(Store::new(None))).bind("mem://kv-import-locked").await;
        tokio::spawn(server.unwrap().serve());
        let faults = FaultPlan::new(1).profile(&MLX5).lock_limit(&limit);
        let channel = Channel::builder().faults(faults).connect("mem://kv-import-locked").await;
        let pool = channel.unwrap().bulk_pool();
        let content: Vec<u8> = (0..=250).cycle().take(3 << 20).collect();
        let path = dir.path().join("large");
        fs::write(&path, &content).unwrap();
        assert!(pool.take(content.len()).is_err());
        assert_eq!(read(&path, &pool).unwrap(), content);
    }

    #[tokio::test]
    async fn former_regular_file_is_not_read() {
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
        let pool = pool("kv-import-kinds").await;
        let read = |path: &Path| read(path, &pool);
        assert_eq!(read(&dir.path().join("f")).unwrap(), *b"x");
        assert!(read(&dir.path().join("link")).is_err());
        assert!(read(&pipe).unwrap_err().to_string().contains("no longer a regular file"));
        assert!(read(dir.path()).unwrap_err().to_string().contains("no longer a regular file"));
    }

    #[tokio::test]
    async fn a_file_that_is_too_large_is_refused() {
        let dir = Scratch::new();
        let path = dir.path().join("sparse");
        let file = fs::File::create(&path).unwrap();
        file.set_len(MAX_VALUE_BYTES as u64 + 1).unwrap();
        let pool = pool("kv-import-large").await;
        let error = read(&path, &pool).unwrap_err().to_string();
        assert_eq!(error, "it is larger than 1023.0 MiB, the maximum size of a value");
    }
}
