//! The service: a client's requests to the store, and the reasons to refuse them.

use std::fmt;
use std::str::FromStr;

use rpc_core::bulk::ReadError;
use rpc_core::stream::{Stream, Streaming};
use rpc_core::{Bulk, CallError, Status};
use serde::{Deserialize, Serialize};

/// Longest key, bytes: as long as a path.
pub(crate) const MAX_KEY_BYTES: usize = 4096;
/// Largest message that both ends take, bytes.
pub(crate) const MAX_MESSAGE_BYTES: u64 = 1 << 30;
/// Largest value, bytes: a message, less ample room for the key and the headers.
pub(crate) const MAX_VALUE_BYTES: usize = (1 << 30) - (1 << 20);
/// Most keys of a [`Page`].
pub(crate) const MAX_PAGE_KEYS: u32 = 1000;
/// Bytes of keys after which a [`Page`] ends.
pub(crate) const MAX_PAGE_BYTES: usize = 1 << 20;

/// A map from keys to values. Both are kept in memory; keys are texts of 1 to [`MAX_KEY_BYTES`],
/// values are bytes, at most [`MAX_VALUE_BYTES`]. Every method is atomic.
#[rpc_core::service]
pub(crate) trait Kv {
    /// The value of a key, and its version.
    #[rpc(idempotent)]
    async fn get(&self, key: &str) -> Result<Value, KvError>;

    /// Sets the value of a key, whatever it was. Returns the new version.
    async fn put(&self, key: &str, value: Bulk) -> Result<Version, KvError>;

    /// Removes a key. Returns its last version.
    async fn delete(&self, key: &str) -> Result<Version, KvError>;

    /// Sets the value of a key if its version is `expected`; `None` expects that there is no such
    /// key. Returns the new version.
    async fn compare_and_swap(
        &self,
        key: &str,
        expected: Option<Version>,
        value: Bulk,
    ) -> Result<Version, KvError>;

    /// Keys that begin with `prefix` and sort after `after`, in order, at most `limit` and at most
    /// [`MAX_PAGE_KEYS`]. Begin with an empty `after`, continue with [`Page::next`].
    #[rpc(idempotent)]
    async fn list(&self, prefix: &str, after: &str, limit: u32) -> Page;

    /// Changes of keys that begin with `prefix`, from the acceptance of the call on. A reader that
    /// is too slow misses some, and receives their number. A server that shuts down ends the
    /// stream.
    fn watch(&self, prefix: &str) -> impl Stream<Item = Result<Change, Status>>;

    /// Sets the values of keys, one after the other, until one is refused.
    #[rpc(stream_deadline = "idle")]
    async fn load(&self, pairs: Streaming<Pair>) -> Result<Loaded, CallError<KvError>>;

    /// Compares a client's contents, in the order of the keys, with the keys that begin with
    /// `prefix`; returns the differences, in the same order.
    #[rpc(stream_deadline = "idle")]
    fn sync(
        &self,
        prefix: &str,
        theirs: Streaming<Held>,
    ) -> impl Stream<Item = Result<Update, CallError<KvError>>>;

    /// The contents of the store, and the number of requests.
    #[rpc(idempotent)]
    async fn stats(&self) -> Stats;
}

/// The version of a key's value. Every change of a key gives it a greater one, also when the key
/// was deleted in between; not every number is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Version(pub(crate) u64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Version {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// A value and its version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Value {
    /// The version.
    pub(crate) version: Version,
    /// The value.
    pub(crate) bytes: Bulk,
}

/// A key in a [`Page`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listed {
    /// The key.
    pub(crate) key: String,
    /// Its version.
    pub(crate) version: Version,
    /// Size of its value, bytes.
    pub(crate) bytes: u64,
}

/// A change of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Change {
    /// It has a value, or another one.
    Set {
        /// The key.
        key: String,
        /// Its version.
        version: Version,
        /// Size of its value, bytes.
        bytes: u64,
    },
    /// It is gone.
    Deleted {
        /// The key.
        key: String,
        /// The version that it had.
        version: Version,
    },
    /// This many changes of any keys were missed: list the keys again.
    Lagged {
        /// How many.
        missed: u64,
    },
}

impl Change {
    /// Whether a watcher of `prefix` receives it.
    pub(crate) fn is_below(&self, prefix: &str) -> bool {
        match self {
            Self::Set { key, .. } | Self::Deleted { key, .. } => key.starts_with(prefix),
            Self::Lagged { .. } => true,
        }
    }
}

/// A key and its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pair {
    /// The key.
    pub(crate) key: String,
    /// The value.
    pub(crate) value: Bulk,
}

/// The result of a load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Loaded {
    /// Pairs.
    pub(crate) keys: u64,
    /// Bytes of their keys and values.
    pub(crate) bytes: u64,
}

/// A client's content of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Held {
    /// The key.
    pub(crate) key: String,
    /// The [`checksum`] of its value.
    pub(crate) checksum: u128,
}

/// A difference between the client's contents and the store's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Update {
    /// The key has this value.
    Set {
        /// The key.
        key: String,
        /// Its value.
        value: Bulk,
    },
    /// There is no such key.
    Gone {
        /// The key.
        key: String,
    },
}

/// The checksum of a value: XXH3, 128 bits.
pub(crate) fn checksum(value: &[u8]) -> u128 {
    xxhash_rust::xxh3::xxh3_128(value)
}

/// Part of a listing: all keys between two, as they were at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Page {
    /// The keys, in order.
    pub(crate) keys: Vec<Listed>,
    /// Where the next page begins; `None` if this is the last.
    pub(crate) next: Option<String>,
}

/// Numbers of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stats {
    /// Keys.
    pub(crate) keys: u64,
    /// Bytes of all keys and values.
    pub(crate) bytes: u64,
    /// Most bytes that keys and values may take.
    pub(crate) max_bytes: Option<u64>,
    /// Seconds since the start.
    pub(crate) uptime_seconds: u64,
    /// Requests since the start.
    pub(crate) requests: Requests,
}

/// Requests by method, refused ones included.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Requests {
    /// `get`.
    pub(crate) get: u64,
    /// `put`.
    pub(crate) put: u64,
    /// `delete`.
    pub(crate) delete: u64,
    /// `compare_and_swap`.
    pub(crate) compare_and_swap: u64,
    /// `list`.
    pub(crate) list: u64,
}

impl Requests {
    /// All of them.
    pub(crate) fn total(&self) -> u64 {
        self.get + self.put + self.delete + self.compare_and_swap + self.list
    }
}

/// The reason why the store refused a request. Nothing has changed then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum KvError {
    /// There is no such key.
    #[error("no such key")]
    NotFound,
    /// The key has another version than expected.
    #[error("{}", mismatch(*.current))]
    VersionMismatch {
        /// Its version; `None` if there is no such key.
        current: Option<Version>,
    },
    /// The key is empty or too long.
    #[error("a key has 1 to {max} bytes, this one has {bytes}")]
    BadKey {
        /// Its length, bytes.
        bytes: u64,
        /// The limit, bytes.
        max: u64,
    },
    /// The value is too large.
    #[error("a value of {bytes} bytes exceeds the maximum of {max} bytes")]
    TooLarge {
        /// Its size, bytes.
        bytes: u64,
        /// The limit, bytes.
        max: u64,
    },
    /// The store has no room for it.
    #[error(
        "the store is full: it holds {used} of at most {max} bytes, and this needs {needed} \
             more"
    )]
    Full {
        /// Bytes of keys and values now.
        used: u64,
        /// The limit (`kv serve --max-bytes`).
        max: u64,
        /// The bytes by which the store would grow.
        needed: u64,
    },
    /// The bytes of the value cannot be read where they arrived.
    #[error("{reason}")]
    Unreadable {
        /// Why.
        reason: String,
    },
}

impl From<ReadError> for KvError {
    fn from(error: ReadError) -> Self {
        Self::Unreadable { reason: error.to_string() }
    }
}

fn mismatch(current: Option<Version>) -> String {
    match current {
        Some(version) => format!("the key has version {version} now"),
        None => "the key does not exist".to_owned(),
    }
}
