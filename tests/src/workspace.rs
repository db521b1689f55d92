//! The files of the workspace, for tests that read them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The root folder of the workspace.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All files with this extension below a folder of the workspace: their paths in the workspace, and
/// their texts. Build output, vendored code and other checkouts are left out.
///
/// # Panics
///
/// If a folder or a file cannot be read.
#[must_use]
pub fn files(folder: &str, extension: &str) -> BTreeMap<String, String> {
    let root = root();
    let mut folders = vec![root.join(folder)];
    let mut found = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            // Another test has removed a folder of its own since it was listed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && folder != root => {
                continue;
            }
            Err(error) => panic!("{}: {error}", folder.display()),
        };
        for entry in entries {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with('.') || path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                let others = ["CACHEDIR.TAG", ".cargo-checksum.json", ".git"];
                if name != "target" && !others.iter().any(|name| path.join(name).exists()) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|found| found == extension) {
                let text = std::fs::read_to_string(&path).expect("a text file");
                let path = path.strip_prefix(&root).expect("it is below").display().to_string();
                found.insert(path.trim_start_matches("./").to_owned(), text);
            }
        }
    }
    found
}
