//! Unix sockets of rows that are served over one.

use crate::row::Row;

/// An unused socket file for one row of this process. Removed when this is dropped.
#[derive(Debug)]
pub(crate) struct SocketFile(String);

impl SocketFile {
    pub(crate) fn new(row: Row) -> Self {
        let name = format!("peers-{}-{}-{}", std::process::id(), row.peer, row.over);
        let path = std::env::temp_dir().join(name).to_string_lossy().into_owned();
        // Left by a process of the same id.
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        &self.0
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
