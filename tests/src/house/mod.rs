//! The numbers of the house: what a program can measure of its style and structure, each with its
//! bound. That on lines is the sum of a table of reasons, `docs/size.md`; the others are fixed.
//! `cargo run -p tests --bin house` prints them, and the test `house` checks them.

mod imports;
mod prose;
mod size;

use std::collections::BTreeMap;

use crate::workspace::files;

/// Lines of a file, without the tests at its end.
const MAX_LINES: usize = 600;

/// A number with its bound.
#[derive(Debug)]
pub struct Number {
    /// What is counted.
    pub name: &'static str,
    /// The number of now.
    pub now: usize,
    /// What it is at most.
    pub most: usize,
    /// What was counted, if there is more to say than the number.
    pub places: Vec<String>,
}

impl Number {
    fn new(name: &'static str, now: usize, most: usize) -> Self {
        Self { name, now, most, places: Vec::new() }
    }

    fn of(name: &'static str, places: Vec<String>, most: usize) -> Self {
        Self { now: places.len(), places, ..Self::new(name, 0, most) }
    }
}

type Files = BTreeMap<String, String>;

/// Without comments, and without the tests at the end.
pub fn code(text: &str) -> String {
    let lines = without_tests(text).lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// What `find` reports of each file: the number of a line, from 1, and what is wrong there.
fn search(files: &Files, find: impl Fn(&str) -> Vec<(usize, String)>) -> Vec<String> {
    let in_file = |(file, text): (&String, &String)| {
        let found = find(text).into_iter();
        found.map(|(line, what)| format!("{file}:{line}: {what}")).collect::<Vec<_>>()
    };
    files.iter().flat_map(in_file).collect()
}

fn long_files(files: &Files) -> Vec<String> {
    let long = files.iter().map(|(file, text)| (file, line_count(without_tests(text))));
    let long = long.filter(|(_, lines)| *lines > MAX_LINES);
    long.map(|(file, lines)| format!("{file}: {lines} lines")).collect()
}

fn without_tests(text: &str) -> &str {
    let begins = |found: &(usize, &str)| {
        let rest = &text[found.0 + found.1.len()..];
        rest.strip_prefix("pub(super) ").unwrap_or(rest).starts_with("mod tests {")
    };
    text.match_indices("#[cfg(test)]\n").find(begins).map_or(text, |(at, _)| &text[..at])
}

fn line_count(text: &str) -> usize {
    text.lines().count()
}

/// All numbers, measured in the files of this workspace.
///
/// # Panics
///
/// If a file cannot be read, or the sources are written in a way that is not understood here.
#[must_use]
pub fn numbers() -> Vec<Number> {
    // Without those whose text a compiler's message repeats.
    let mut rust = files(".", "rs");
    rust.retain(|file, _| !file.starts_with("tests/ui/"));
    let documents = files(".", "md");
    let published = size::published_crates();

    let (mut file_circles, mut folder_circles, mut all_uses) = (Vec::new(), Vec::new(), 0);
    for folder in &published {
        let sources = files(&format!("{folder}/src"), "rs");
        let (uses, circles) = imports::circles(&sources);
        // A checker that finds nothing to check is broken.
        let is_in = |file: &String| file.starts_with(&format!("{folder}/"));
        assert!(rust.keys().any(is_in), "{folder}: this no longer reads it");
        all_uses += uses;
        file_circles.extend(circles.into_iter().map(|circle| format!("{folder}: {circle}")));
        let circles = imports::folder_circles(&sources).into_iter();
        folder_circles.extend(circles.map(|circle| format!("{folder}: {circle}")));
    }

    assert!(all_uses > 2000, "this no longer reads them: only {all_uses} uses found");
    let root = imports::root_names(&rust["rpc-core/src/lib.rs"]);

    assert!(root.len() > 10, "this no longer reads the root: only {root:?} found");
    let tests = rust.values().map(|text| prose::tests_in(text)).sum::<usize>();
    assert!(tests > 2000, "this no longer finds tests: only {tests}");

    vec![
        Number::of("comments above 100 columns", search(&rust, prose::wide_comments), 0),
        Number::of("prose above 100 columns", search(&documents, prose::wide_prose), 0),
        Number::of("test names above 8 words", search(&rust, prose::long_names), 0),
        Number::of("files above 600 lines, without tests", long_files(&rust), 0),
        Number::of("circles of files", file_circles, 0),
        Number::of("circles of folders", folder_circles, 0),
        Number::of("names at the root of rpc_core", root, 25),
        size::production_lines(&rust, &published),
    ]
}
