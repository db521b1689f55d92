//! The socket file of a server process: a test that kills a server removes the file that it leaves.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file of a server that is up. Dropping it removes the file, unless another server has
/// replaced it since.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

/// The time is part of it: a removed file may leave its number to the next one.
type Identity = (u64, u64, i64, i64);

impl SocketFile {
    /// The file of a server at this address; `None` if it has no file.
    pub(crate) fn at(address: &str) -> Option<Self> {
        let path = address.strip_prefix("shm://").map(Path::new)?;
        let identity = path.is_absolute().then(|| identity(path))??;
        Some(Self { path: path.to_owned(), identity })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path) == Some(self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<Identity> {
    let of = |file: Metadata| (file.dev(), file.ino(), file.ctime(), file.ctime_nsec());
    std::fs::symlink_metadata(path).ok().map(of)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::SocketFile;
    use crate::scheme::Scheme;

    #[test]
    fn a_server_only_removes_its_own_file() {
        let address = Scheme::ShmPath.fresh_address();
        let path = address.strip_prefix("shm://").unwrap();
        let _first = UnixListener::bind(path).unwrap();
        let file = SocketFile::at(&address).unwrap();
        std::fs::remove_file(path).unwrap();
        let _second = UnixListener::bind(path).unwrap();
        drop(file);
        assert!(std::fs::exists(path).unwrap(), "it belongs to the second server");
        drop(SocketFile::at(&address).unwrap());
        assert!(!std::fs::exists(path).unwrap(), "it belonged to a server that is gone");
        assert!(SocketFile::at(&address).is_none());
        assert!(SocketFile::at("shm://a-name").is_none(), "a name is no file");
    }
}
