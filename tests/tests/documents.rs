//! The documents name files: they must be there.

use std::path::{Path, PathBuf};

/// Where a path of a document may start.
const ROOTS: [&str; 3] = ["", "rpc-core/src", "rpc-transport/src"];
/// Folders whose files a document may name without them.
const ROOMS: [&str; 5] = [
    "rpc-transport/src/protocol",
    "rpc-transport/src/protocol/link",
    "rpc-transport/src/device",
    "rpc-transport/src/device/verbs",
    "rpc-transport/src/device/soft",
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Words of `text` that look like source files.
fn source_files(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || "_-./".contains(c)))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| word.ends_with(".rs") && word.len() > 3)
}

fn missing(document: &str, rooms: &[&str]) -> (usize, Vec<String>) {
    let text = std::fs::read_to_string(workspace().join(document)).expect(document);
    let mut count = 0;
    let mut missing = Vec::new();
    for file in source_files(&text) {
        count += 1;
        let found =
            ROOTS.iter().chain(rooms).any(|root| workspace().join(root).join(file).is_file());
        if !found {
            missing.push(format!("{document}: {file}"));
        }
    }
    (count, missing)
}

#[test]
fn the_walk_of_a_call_names_files_that_exist() {
    let (count, missing) = missing("docs/design.md", &ROOMS);
    assert!(count > 25, "the walk is gone, or this test reads it no more: {count} files");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn the_other_documents_name_files_that_exist() {
    for document in ["README.md", "docs/wire-format.md", "docs/verbs.md", "docs/performance.md"] {
        let (_, missing) = missing(document, &ROOMS);
        assert!(missing.is_empty(), "{missing:#?}");
    }
}
