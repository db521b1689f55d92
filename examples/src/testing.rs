//! For the programs' tests: directories that are removed at the end, and a time limit for what
//! hangs.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Runs a future that could hang; only a hang reaches the limit.
///
/// # Panics
/// After two minutes.
pub async fn limited<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), work).await.expect("stuck")
}

/// A new, empty directory.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one below the system's directory for temporary files.
    ///
    /// # Panics
    /// When that cannot be written.
    #[expect(
        clippy::new_without_default,
        reason = "each is another one, with a directory behind it"
    )]
    #[must_use]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("example-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a directory for a test");
        Self(path)
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
