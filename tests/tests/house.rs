//! How the house is kept: where `unsafe` may be, and that files do not use each other in circles. What
//! they use by a re-export counts as the file's that it is from.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Folders whose files may have unsafe code: memory, and devices that read and write it.
const FENCE: [&str; 3] = [
    "rpc-transport/src/device/soft/",
    "rpc-transport/src/device/verbs/",
    "rpc-transport/src/memory/",
];

/// Files beyond the fence that have some, and why it cannot be elsewhere.
const BEYOND: [(&str, &str); 19] = [
    ("models/src/link/end.rs", "writes as a peer does"),
    ("rpc-core/src/bulk/tests.rs", "maps a file"),
    ("rpc-core/src/service/pooled_future.rs", "futures of handlers in memory that is used again"),
    ("rpc-perf/src/floor.rs", "measures raw shared memory"),
    ("rpc-perf/src/floor/large.rs", "measures raw copies"),
    ("rpc-transport/benches/large.rs", "measures raw copies"),
    ("rpc-transport/benches/soft.rs", "measures raw shared memory"),
    ("rpc-transport/examples/toy_device/main.rs", "a device that reads and writes memory"),
    ("rpc-transport/src/message/trusted.rs", "a payload as a slice, for who trusts the peer"),
    ("rpc-transport/tests/conformance/main.rs", "plays the user of a device"),
    ("rpc-transport/tests/faults.rs", "plays the user of a device"),
    ("rpc-transport/tests/hostile_soft/main.rs", "plays a hostile peer"),
    ("rpc-transport/tests/soft_leaks.rs", "plays the user of a device"),
    ("rpc-transport/tests/soft_processes.rs", "plays the user of a device"),
    ("rpc-transport/tests/verbs_device/main.rs", "plays the user of a device"),
    ("rpc-transport/tests/verbs_peer.rs", "plays the user of a device"),
    ("rpc-transport/tests/verbs_removal.rs", "plays the user of a device"),
    ("tests/kit/src/hostile/shm.rs", "plays a hostile peer"),
    ("tests/tests/allocations.rs", "counts allocations"),
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All source files below a folder of the workspace, by their path in it, with their texts.
fn sources(folder: &str) -> BTreeMap<String, String> {
    let root = workspace();
    let mut folders = vec![root.join(folder)];
    let mut found = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the workspace") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with('.') || path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                // What was built, what others wrote, and further checkouts.
                let others = ["CACHEDIR.TAG", ".cargo-checksum.json", ".git"];
                if name != "target" && !others.iter().any(|name| path.join(name).exists()) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source file");
                let path = path.strip_prefix(&root).expect("it is below").display().to_string();
                found.insert(path, text);
            }
        }
    }
    found
}

/// Whether the lint against unsafe code, which the workspace denies, is milder somewhere.
fn allows_unsafe(text: &str) -> bool {
    let attributes =
        ["allow(", "expect(", "warn("].iter().flat_map(|word| text.split(word).skip(1));
    let lints = attributes.filter_map(|rest| rest.split(')').next());
    lints.flat_map(|lints| lints.split(',')).any(|lint| lint.trim() == "unsafe_code")
}

#[test]
fn every_way_to_allow_unsafe_code_is_seen() {
    // Not written as one, so that this file is not taken for one that has some.
    let attribute = |word: &str| format!("#![{word}(dead_code, unsafe_code, reason = \"\")]");
    assert!(["allow", "expect", "warn"].iter().all(|word| allows_unsafe(&attribute(word))));
    assert!(!allows_unsafe(&attribute("deny")));
}

#[test]
fn unsafe_code_stays_behind_the_fence() {
    let all = sources(".");
    let found = all.iter().filter(|(_, text)| allows_unsafe(text)).map(|(path, _)| path.as_str());
    let found: BTreeSet<&str> =
        found.filter(|path| !FENCE.iter().any(|folder| path.starts_with(folder))).collect();
    let known: BTreeSet<&str> = BEYOND.iter().map(|(path, _)| *path).collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(new.is_empty(), "unsafe code in files where nobody looks for it: {new:#?}");
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(gone.is_empty(), "they have none any more, or are elsewhere: {gone:#?}");
}

/// The module that a file is, as the names that lead to it.
fn module_of(path: &str) -> Vec<String> {
    let path = path.split_once("/src/").expect("a source of a library").1;
    let mut names: Vec<String> =
        path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if names.last().is_some_and(|name| name == "mod" || name == "lib") {
        names.pop();
    }
    names
}

/// Without comments, and without the tests at the end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// All paths of a tree of imports, and the names that they get: `a::{b, c::{d, e as f}}` is three.
fn expand(tree: &str, into: &mut Vec<Import>) {
    let tree = tree.trim();
    let Some((prefix, branches)) = tree.split_once('{') else {
        let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
        let path = path.trim().trim_end_matches("::self").to_owned();
        let last = path.rsplit("::").next().unwrap_or_default();
        let name = if alias.is_empty() { last } else { alias.trim() }.to_owned();
        into.push(Import { name, path });
        return;
    };
    let branches = branches.trim_end();
    let branches = branches.strip_suffix('}').unwrap_or(branches);
    let (mut depth, mut from) = (0, 0);
    for (at, c) in branches.char_indices().chain([(branches.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let branch = branches[from..at].trim();
                if !branch.is_empty() {
                    expand(&format!("{prefix}{branch}"), into);
                }
                from = at + 1;
            }
            _ => {}
        }
    }
}

/// What an import brings into a module: a path, under a name.
struct Import {
    name: String,
    path: String,
}

/// A module: what it imports for itself, what it passes on, and the paths that its code names.
#[derive(Default)]
struct Module {
    imports: Vec<Import>,
    passes_on: Vec<Import>,
    named: Vec<String>,
}

impl Module {
    fn read(code: &str) -> Self {
        let mut module = Self::default();
        let mut rest = String::new();
        for statement in code.split_inclusive(';') {
            match statement.trim_end_matches(';').rsplit_once("use ") {
                Some((before, tree)) if before.trim_end().is_empty() || before.ends_with('\n') => {
                    expand(tree, &mut module.imports);
                }
                Some((before, tree))
                    if before.trim_end().ends_with("pub")
                        || before.trim_end().ends_with(')') && before.contains("pub(") =>
                {
                    let known = module.passes_on.len();
                    expand(tree, &mut module.passes_on);
                    let unseen = module.passes_on[known..].iter().find(|new| new.name == "*");
                    assert!(unseen.is_none(), "what is behind {tree} is not seen: name it");
                }
                _ => rest.push_str(statement),
            }
        }
        for word in rest.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')) {
            if word.starts_with("crate::") || word.starts_with("super::") {
                module.named.push(word.to_owned());
            }
            // What it passes on, it may use, too.
            let first = word.split("::").next().unwrap_or_default();
            if let Some(import) = module.passes_on.iter().find(|import| import.name == first) {
                module.named.push(import.path.clone());
            }
        }
        module
    }
}

type Modules = BTreeMap<Vec<String>, Module>;

/// Where a path that a module names leads to, from the root.
fn absolute(module: &[String], path: &str) -> Vec<String> {
    let names: Vec<&str> = path.split("::").map(str::trim).collect();
    let ups = names.iter().take_while(|name| **name == "super").count();
    let base = match names.first().copied().unwrap_or_default() {
        "crate" => Vec::new(),
        "super" => module[..module.len().saturating_sub(ups)].to_vec(),
        _ => module.to_vec(),
    };
    let names = names.into_iter().filter(|name| !["crate", "super", "self", ""].contains(name));
    base.into_iter().chain(names.map(str::to_owned)).collect()
}

/// The file that has what a path from the root leads to: not one that only passes it on. Children see
/// what their parents import for themselves, too. (`depth` ends what leads to itself.)
fn home(path: &[String], modules: &Modules, depth: usize) -> Option<Vec<String>> {
    let length = (0..=path.len()).rev().find(|length| modules.contains_key(&path[..*length]))?;
    let (file, names) = path.split_at(length);
    let Some((first, further)) = names.split_first().filter(|_| depth > 0) else {
        return Some(file.to_vec());
    };
    let module = &modules[file];
    let imports = || module.passes_on.iter().chain(&module.imports);
    let on = |import: &Import, further: &[String]| {
        let mut path = absolute(file, &import.path);
        path.extend_from_slice(further);
        // What is of another library is at home where it comes in.
        let inside = modules.contains_key(&path[..1.min(path.len())]) && path != *file;
        inside.then(|| home(&path, modules, depth - 1)).flatten()
    };
    if let Some(import) = imports().find(|import| import.name == *first) {
        return on(import, further).or_else(|| Some(file.to_vec()));
    }
    Some(file.to_vec())
}

/// The modules that a module uses, but for those that it is a part of.
fn uses(path: &[String], module: &Module, modules: &Modules) -> BTreeSet<Vec<String>> {
    let imports = module.imports.iter().map(|import| &import.path);
    let used = imports
        .chain(&module.named)
        .filter_map(|named| home(&absolute(path, named.trim_end_matches("::*")), modules, 8));
    used.filter(|used| !path.starts_with(used)).collect()
}

/// What is left of a library when all modules are taken away that use none, or that none uses.
fn circles(sources: &BTreeMap<String, String>) -> (usize, Vec<String>) {
    let read = |text: &String| Module::read(&code(text));
    let modules: Modules =
        sources.iter().map(|(path, text)| (module_of(path), read(text))).collect();
    let mut edges: BTreeMap<&Vec<String>, BTreeSet<Vec<String>>> =
        modules.iter().map(|(path, module)| (path, uses(path, module, &modules))).collect();
    // The root only says what there is.
    edges.retain(|module, _| !module.is_empty());
    let count = edges.values().map(BTreeSet::len).sum();
    loop {
        let left: BTreeSet<Vec<String>> = edges.keys().map(|module| (*module).clone()).collect();
        let used: BTreeSet<Vec<String>> = edges.values().flatten().cloned().collect();
        edges.values_mut().for_each(|used| used.retain(|module| left.contains(module)));
        edges.retain(|module, uses| !uses.is_empty() && used.contains(*module));
        if edges.len() == left.len() {
            break;
        }
    }
    let name = |module: &Vec<String>| module.join("/");
    let text = |(module, uses): (&&Vec<String>, &BTreeSet<Vec<String>>)| {
        format!("{} -> {}", name(module), uses.iter().map(name).collect::<Vec<_>>().join(" "))
    };
    (count, edges.iter().map(text).collect())
}

#[test]
fn a_circle_is_seen_through_what_a_parent_passes_on() {
    let files = |parent: &str| {
        let files = [
            ("x/src/lib.rs", "mod a;"),
            ("x/src/a/mod.rs", parent),
            ("x/src/a/b.rs", "use super::c::Kind;\npub struct Frame(Kind);"),
            ("x/src/a/c.rs", "use super::Frame;\npub struct Kind(Option<Box<Frame>>);"),
        ];
        files.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect()
    };
    for passes_on in
        ["pub use self::b::Frame", "pub(crate) use b::{Frame}", "use crate::a::b::Frame"]
    {
        let (_, circles) = circles(&files(&format!("mod b;\nmod c;\n\n{passes_on};\n")));
        assert_eq!(circles, ["a/b -> a/c", "a/c -> a/b"], "{passes_on}");
    }
    // A file that is no parent passes on what another one has, and uses it.
    let mut passing: BTreeMap<String, String> = files("mod b;\nmod c;\n");
    let c = "pub use super::b::Frame;\npub struct Kind(Option<Box<Frame>>);";
    passing.insert("x/src/a/c.rs".to_owned(), c.to_owned());
    assert_eq!(circles(&passing).1, ["a/b -> a/c", "a/c -> a/b"]);
    // The whole that they are parts of may have what both use.
    let (_, circles) = circles(&files("mod b;\nmod c;\n\npub struct Frame;\n"));
    assert!(circles.is_empty(), "{circles:?}");
}

#[test]
#[should_panic(expected = "is not seen: name it")]
fn what_is_passed_on_without_a_name_is_refused_wherever_it_stands() {
    Module::read("pub use self::{a::B, c::{D, *}};");
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let mut all = Vec::new();
    for (folder, least) in
        [("rpc-transport/src", 500), ("rpc-core/src", 500), ("rpc-macros/src", 20)]
    {
        let (count, circles) = circles(&sources(folder));
        assert!(count > least, "{folder}: this test reads it no more, only {count} uses are found");
        all.extend(circles.into_iter().map(|circle| format!("{folder}: {circle}")));
    }
    assert!(all.is_empty(), "{all:#?}");
}
