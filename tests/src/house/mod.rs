//! The numbers of the house: what a program can measure of its style and structure, each with its
//! goal. `cargo run -p tests --bin house` prints them, and the test `house` checks them.

mod functions;
mod imports;
mod prose;

use std::collections::BTreeMap;

use crate::workspace::files;

/// Lines of a file, without the tests at its end.
const MAX_LINES: usize = 600;

/// A number that is to be at most its goal.
#[derive(Debug)]
pub struct Number {
    /// What is counted.
    pub name: &'static str,
    /// The number of now.
    pub now: usize,
    /// What it should be at most.
    pub goal: usize,
    /// What it may be at most until the goal is reached: only ever lowered.
    pub bound: usize,
    /// What was counted, if there is more to say than the number.
    pub places: Vec<String>,
}

impl Number {
    fn new(name: &'static str, now: usize, goal: usize) -> Self {
        Self { name, now, goal, bound: goal, places: Vec::new() }
    }

    fn of(name: &'static str, places: Vec<String>, goal: usize) -> Self {
        Self { now: places.len(), places, ..Self::new(name, 0, goal) }
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

fn production_lines(files: &Files) -> usize {
    let is_production = |file: &str| {
        (file.starts_with("rpc-core/") || file.starts_with("rpc-transport/"))
            && !["test", "benches/", "examples/"].iter().any(|word| file.contains(word))
    };
    let production = files.iter().filter(|(file, _)| is_production(file));
    production.map(|(_, text)| line_count(text)).sum()
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
    let mut phrases = search(&rust, prose::banned);
    // This file lists them.
    phrases.retain(|place| !place.starts_with("tests/src/house/prose.rs:"));
    phrases.extend(search(&documents, prose::banned));

    let (mut file_circles, mut folder_circles) = (Vec::new(), Vec::new());
    for (folder, least) in [
        ("rpc-transport/src", 500),
        ("rpc-core/src", 500),
        ("rpc-macros/src", 20),
        ("rpc-schema/src", 4),
        ("rpc-discovery/src", 20),
    ] {
        let sources = files(folder, "rs");
        let (uses, circles) = imports::circles(&sources);
        assert!(uses > least, "{folder}: this no longer reads it: only {uses} uses found");
        file_circles.extend(circles.into_iter().map(|circle| format!("{folder}: {circle}")));
        let circles = imports::folder_circles(&sources).into_iter();
        folder_circles.extend(circles.map(|circle| format!("{folder}: {circle}")));
    }

    let mut sources = files("rpc-core/src", "rs");
    sources.extend(files("rpc-transport/src", "rs"));
    let (private, once) = functions::called_once(&sources);
    assert!(private > 1500, "this no longer reads them: only {private} functions found");
    let once = once.into_iter().collect();
    let root = imports::root_names(&rust["rpc-core/src/lib.rs"]);

    vec![
        Number::new("lines of README.md", line_count(&documents["README.md"]), 200),
        Number::of("comments above 100 columns", search(&rust, prose::wide_comments), 0),
        Number::of("prose above 100 columns", search(&documents, prose::wide_prose), 0),
        Number::of("banned phrases", phrases, 0),
        Number::of("test names above 8 words", search(&rust, prose::long_names), 0),
        Number::of("files above 600 lines, without tests", long_files(&rust), 0),
        Number::of("circles of files", file_circles, 0),
        Number::of("circles of folders", folder_circles, 0),
        Number::of("names at the root of rpc_core", root, 25),
        Number::of("private functions named once", once, private * 8 / 100),
        Number {
            bound: 102_000,
            ..Number::new("production lines", production_lines(&rust), 73_000)
        },
    ]
}
