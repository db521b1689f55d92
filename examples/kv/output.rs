//! The file that a value is written to.
//!
//! Owns the rule that a file gets its name only when it is complete: a failure leaves the old one
//! unchanged.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rpc_core::Bulk;

/// Writes a value to a file: under a temporary name in its directory, which is then renamed. A
/// target that is not a regular file (a pipe, a terminal) is written to directly.
pub(crate) fn write(path: &Path, value: &Bulk) -> io::Result<()> {
    let old = match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => {
            return value.write_to(OpenOptions::new().write(true).open(path)?);
        }
        Ok(metadata) => Some(metadata.permissions()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    // A link to a file stays one.
    let place = if old.is_some() { fs::canonicalize(path)? } else { path.to_owned() };
    let (temporary, file) = create_beside(&place)?;
    let written = value.write_to(&file).and_then(|()| match old {
        Some(permissions) => file.set_permissions(permissions),
        None => Ok(()),
    });
    let renamed = written.and_then(|()| fs::rename(&temporary, &place));
    if renamed.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    renamed
}

fn create_beside(place: &Path) -> io::Result<(PathBuf, File)> {
    let mut number = 0_u32;
    loop {
        let temporary = place.with_file_name(format!(".kv-get-{}-{number}", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            created => return created.map(|file| (temporary, file)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use examples::testing::Scratch;

    #[test]
    fn replacing_keeps_mode_and_follows_links() {
        let dir = Scratch::new();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        write(&file, &Bulk::from("old")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();
        write(&link, &Bulk::from("new")).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_is_no_file_is_not_replaced() {
        write(Path::new("/dev/null"), &Bulk::from("gone")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        let dir = Scratch::new();
        assert!(write(dir.path(), &Bulk::from("x")).is_err());
    }
}
