//! A service with effects that outlive its process: each executed call is recorded in a file, so
//! that a test can detect whether it was executed twice, even across kills.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use rpc_core::Bulk;

/// Idempotent methods, and others.
#[rpc_core::service]
pub trait Ledger {
    /// Changes nothing.
    #[rpc(idempotent)]
    async fn read(&self, id: u64) -> u64;
    /// Takes a payload and changes nothing; returns its length.
    #[rpc(idempotent)]
    async fn weigh(&self, id: u64, data: Bulk) -> u64;
    /// Records `id`, once for each execution.
    async fn book(&self, id: u64) -> u64;
}

/// A ledger in a file.
#[derive(Debug)]
pub struct FileLedger(File);

impl FileLedger {
    /// Opens or makes the file.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn open(path: &Path) -> Self {
        let file = OpenOptions::new().append(true).create(true).open(path);
        Self(file.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }
}

impl Ledger for FileLedger {
    async fn read(&self, id: u64) -> u64 {
        id
    }

    async fn weigh(&self, id: u64, data: Bulk) -> u64 {
        id + data.len()
    }

    async fn book(&self, id: u64) -> u64 {
        // One write of a few bytes to the end: whole or not at all, even concurrently with other
        // processes.
        (&self.0).write_all(format!("{id}\n").as_bytes()).expect("the ledger can be written");
        id
    }
}

/// The file of a test; removed when dropped.
#[derive(Debug)]
pub struct LedgerFile(PathBuf);

impl Default for LedgerFile {
    fn default() -> Self {
        Self::new()
    }
}

impl LedgerFile {
    /// A file with a unique name.
    #[must_use]
    pub fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rpc-ledger-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    /// Its path.
    ///
    /// # Panics
    /// When the directory for temporary files has a name that is not UTF-8.
    #[must_use]
    pub fn path(&self) -> &str {
        self.0.to_str().expect("a plain name")
    }

    /// How often each id was booked.
    ///
    /// # Panics
    /// When it cannot be read.
    #[must_use]
    pub fn booked(&self) -> HashMap<u64, u32> {
        let text = std::fs::read_to_string(&self.0).expect("the ledger can be read");
        let mut booked = HashMap::new();
        for line in text.lines() {
            *booked.entry(line.parse().expect("a number")).or_default() += 1;
        }
        booked
    }
}

impl Drop for LedgerFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
