//! The service: a client's requests to the directory behind a server, and the reasons to refuse
//! them.
//!
//! The server keeps nothing between calls: no open files, no sessions. So a call never depends on
//! the connection of an earlier one, and a client that is gone leaves at most a partial file, which
//! the next one resumes.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::block::Block;
use super::path::{PathError, Shown};
use super::sums::{LEAF_BYTES, Sum};

/// Most items of a batch.
pub(crate) const MAX_BATCH: usize = 1024;
/// Most bytes of a block.
pub(crate) const MAX_BLOCK_BYTES: usize = 32 << 20;
/// Most entries of all pages in one answer.
pub(crate) const MAX_LISTED: usize = 4096;
/// Most leaves that one call sums: 256 MiB.
pub(crate) const MAX_SUMS: usize = (256 << 20) / LEAF_BYTES;
/// A file of at most this many bytes travels with others in a batch.
pub(crate) const SMALL_BYTES: u64 = LEAF_BYTES as u64;
/// The mode bits that are kept. Owners are not, so set-user-ID and set-group-ID bits would have
/// another meaning there.
pub(crate) const MODE_BITS: u32 = 0o1777;

/// Files below one directory. Paths have `/` between the names; the empty one is the directory.
/// Symbolic links are never followed. Answers to a batch come in its order.
#[rpc_core::service]
pub(crate) trait Files {
    /// Lists directories, page by page. Answers as many of the requests as fit, at least one.
    async fn list(&self, asks: Vec<ListAsk>) -> Result<Vec<Result<Page, FileError>>, FileError>;

    /// Returns the entry at each path, and the size of its partial file.
    async fn survey(&self, paths: Vec<Bytes>) -> Result<Vec<Result<Found, FileError>>, FileError>;

    /// Sums leaves of files. Answers as many of the requests as [`MAX_SUMS`] allows, the last one
    /// perhaps in part, at least one leaf.
    async fn sums(&self, asks: Vec<SumAsk>) -> Result<Vec<Result<Vec<Sum>, FileError>>, FileError>;

    /// Reads a block of a file. `offset` is at a leaf. Fewer bytes come back where the file ends.
    async fn read(&self, path: Bytes, offset: u64, bytes: u64) -> Result<Piece, FileError>;

    /// Reads small files into one block.
    async fn read_small(&self, asks: Vec<SmallAsk>) -> Result<Smalls, FileError>;

    /// Creates directories and their parents, and lets their owner write into them.
    async fn make_dirs(&self, paths: Vec<Bytes>) -> Result<Vec<Result<(), FileError>>, FileError>;

    /// Creates or replaces symbolic links.
    async fn make_links(&self, links: Vec<Link>) -> Result<Vec<Result<(), FileError>>, FileError>;

    /// Creates or replaces small files, whose bytes lie in `block` one after the other.
    async fn put_small(
        &self,
        files: Vec<Small>,
        block: Block,
    ) -> Result<Vec<Result<(), FileError>>, FileError>;

    /// Makes a partial file have `keep` bytes, whether it existed or not.
    async fn begin(&self, path: Bytes, keep: u64) -> Result<(), FileError>;

    /// Writes a block into a partial file.
    async fn write(&self, path: Bytes, offset: u64, block: Block) -> Result<(), FileError>;

    /// Checks a whole partial file and renames it to its name.
    async fn commit(&self, file: Whole) -> Result<(), FileError>;

    /// Removes a partial file, if there is one.
    async fn abandon(&self, path: Bytes) -> Result<(), FileError>;

    /// Sets modes and times of existing files and directories.
    async fn settle(&self, items: Vec<Settle>) -> Result<Vec<Result<(), FileError>>, FileError>;
}

/// The attributes of an entry that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meta {
    /// Permissions, of [`MODE_BITS`].
    pub(crate) mode: u32,
    /// Time of the last change: seconds since 1970.
    pub(crate) mtime: i64,
    /// Nanoseconds after those seconds.
    pub(crate) mtime_nanos: u32,
}

/// The kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// A regular file.
    File {
        /// Its size.
        bytes: u64,
    },
    /// A directory.
    Dir,
    /// A symbolic link.
    Link {
        /// Where it leads.
        target: Bytes,
    },
    /// Something that is not copied.
    Other(Special),
}

/// An entry that is not copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Special {
    /// A named pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A device.
    Device,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// What it is.
    pub(crate) kind: Kind,
    /// Mode and time.
    pub(crate) meta: Meta,
}

/// A directory to list.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ListAsk {
    /// Its path.
    pub(crate) dir: Bytes,
    /// Only names after this one; empty for all.
    pub(crate) after: Bytes,
}

/// Entries of a directory, in the order of their names.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Page {
    /// Their names, and the entries or the reasons why they are unknown.
    pub(crate) entries: Vec<(Bytes, Result<Entry, FileError>)>,
    /// Whether more entries follow.
    pub(crate) more: bool,
}

/// The state of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// The entry, if there is one.
    pub(crate) entry: Option<Entry>,
    /// Bytes of its partial file, if there is one.
    pub(crate) part_bytes: Option<u64>,
}

/// Leaves to sum.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SumAsk {
    /// The file.
    pub(crate) path: Bytes,
    /// Whether it is its partial file.
    pub(crate) part: bool,
    /// The first leaf.
    pub(crate) first: u64,
    /// How many.
    pub(crate) count: u64,
}

/// A block that was read, and the sums of its leaves.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Piece {
    /// The bytes.
    pub(crate) block: Block,
    /// Their sums.
    pub(crate) sums: Vec<Sum>,
}

/// A small file to read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SmallAsk {
    /// Its path.
    pub(crate) path: Bytes,
    /// The size that it had when it was found.
    pub(crate) bytes: u64,
}

/// Small files that were read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Smalls {
    /// The size and digest of each.
    pub(crate) files: Vec<Result<(u64, Sum), FileError>>,
    /// Their bytes, one after the other.
    pub(crate) block: Block,
}

/// A small file to write.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Small {
    /// Its final attributes.
    pub(crate) whole: Whole,
    /// Where its bytes begin in the block.
    pub(crate) at: u64,
}

/// A file that is to appear under its name.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Whole {
    /// Its path.
    pub(crate) path: Bytes,
    /// Its size.
    pub(crate) bytes: u64,
    /// Its digest.
    pub(crate) digest: Sum,
    /// Mode and time.
    pub(crate) meta: Meta,
}

/// A symbolic link to create.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Link {
    /// Its path.
    pub(crate) path: Bytes,
    /// Its target. Kept unchanged, and never followed.
    pub(crate) target: Bytes,
    /// Its time; links have no mode.
    pub(crate) meta: Meta,
}

/// A file or directory whose mode and time are to be set.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settle {
    /// Its path.
    pub(crate) path: Bytes,
    /// Mode and time.
    pub(crate) meta: Meta,
}

/// Why an operation on a file was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum FileError {
    /// The path is not acceptable.
    #[error("{0}")]
    Path(PathError),
    /// There is nothing.
    #[error("no such file or directory")]
    NotFound,
    /// On the way there is something that is no directory.
    #[error("`{}` is a file or a symbolic link, not a directory; move it away", Shown(.0))]
    NotADirectory(Bytes),
    /// In its place there is a directory.
    #[error("a directory of that name exists; move it away")]
    IsADirectory,
    /// It is something else than a regular file.
    #[error("it is not a regular file")]
    NotAFile,
    /// There is no room.
    #[error("{0}; free some space and run the same command again")]
    Full(String),
    /// Source and listing differ.
    #[error("it changed while being copied; run the same command again")]
    Changed,
    /// The written bytes differ from the bytes read.
    #[error(
        "the file differs from the one sent: its checksum is wrong; run the same command again, \
         and check disk and memory if it recurs"
    )]
    Mismatch,
    /// Another one has the partial file.
    #[error("another transfer is writing it; run the same command again when that one has ended")]
    Busy,
    /// A batch, a block or a range beyond the limits.
    #[error("{what} exceeds the {limit} that one call may request")]
    TooMuch {
        /// What.
        what: String,
        /// How much is allowed.
        limit: u64,
    },
    /// The system refused.
    #[error("{0}")]
    Io(String),
}

impl From<PathError> for FileError {
    fn from(error: PathError) -> Self {
        Self::Path(error)
    }
}

impl From<std::io::Error> for FileError {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind;
        match error.kind() {
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::IsADirectory => Self::IsADirectory,
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::Full(error.to_string()),
            _ => Self::Io(error.to_string()),
        }
    }
}

impl From<rustix::io::Errno> for FileError {
    fn from(error: rustix::io::Errno) -> Self {
        std::io::Error::from(error).into()
    }
}
