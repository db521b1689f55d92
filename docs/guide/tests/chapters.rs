//! The guide hangs together: each chapter is in the book, is compiled, and its links lead
//! somewhere.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Where the links of a text lead to. Code has none.
fn links(text: &str) -> Vec<String> {
    let mut is_code = false;
    let mut links = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            let targets = line.split("](").skip(1);
            links.extend(targets.map(|rest| rest.split(')').next().unwrap_or_default().to_owned()));
        }
    }
    links
}

/// The files of the folder, but for the summary.
fn chapters() -> BTreeSet<String> {
    let files = std::fs::read_dir(source()).expect("src").flatten();
    let names = files.map(|file| file.file_name().into_string().expect("a name"));
    names.filter(|name| name != "SUMMARY.md").collect()
}

#[test]
fn the_summary_names_each_chapter_once() {
    let summary = links(&read("src/SUMMARY.md"));
    let named: BTreeSet<_> = summary.iter().cloned().collect();
    assert_eq!(named.len(), summary.len(), "twice in {summary:?}");
    assert_eq!(named, chapters(), "the summary, and the files");
}

/// `cargo test --doc` compiles what `lib.rs` includes, and nothing else.
#[test]
fn each_chapter_is_compiled() {
    let library = read("lib.rs");
    let mut examples = 0;
    for chapter in chapters() {
        assert!(library.contains(&format!("\"{chapter}\"")), "lib.rs does not list {chapter}");
        let text = read(&format!("src/{chapter}"));
        // Every other fence begins a block.
        let fences = text.lines().filter_map(|line| line.strip_prefix("```")).step_by(2);
        for language in fences {
            assert!(["rust", "sh", "text", "toml"].contains(&language), "{chapter}: ```{language}");
            examples += usize::from(language == "rust");
        }
    }
    assert!(examples > 25, "{examples}: this test sees them no more");
}

#[test]
fn links_lead_to_chapters() {
    let chapters = chapters();
    let mut count = 0;
    for chapter in &chapters {
        for link in links(&read(&format!("src/{chapter}"))) {
            let (target, section) = link.split_once('#').unwrap_or((&link, ""));
            assert!(chapters.iter().any(|name| name == target), "{chapter}: there is no {link}");
            let text = read(&format!("src/{target}"));
            let mut headings = text.lines().filter_map(|line| line.strip_prefix("## "));
            let slug = |heading: &str| heading.to_lowercase().replace(' ', "-");
            let is_there = section.is_empty() || headings.any(|heading| slug(heading) == section);
            assert!(is_there, "{chapter}: {target} has no section {section}");
            count += 1;
        }
    }
    assert!(count > 20, "{count}: this test sees them no more");
}

/// Documents and crates of the project that the text names.
#[test]
fn files_that_are_named_exist() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for chapter in chapters() {
        let text = read(&format!("src/{chapter}"));
        for name in text.split('`').skip(1).step_by(2) {
            if name.starts_with("docs/") || name.starts_with("tests/") {
                assert!(project.join(name).exists(), "{chapter}: there is no {name}");
            }
        }
    }
}
