//! Which modules of a library use each other. An item imported through a re-export counts as the
//! original file's.

use std::collections::{BTreeMap, BTreeSet};

use super::code;

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

/// All paths of a tree of imports, and their local names: `a::{b, c::{d, e as f}}` is three.
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

/// An import: a path, under a local name.
struct Import {
    name: String,
    path: String,
}

/// A module: its private imports, its re-exports, and the paths that its code names.
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
            // A module may use its own re-exports.
            let first = word.split("::").next().unwrap_or_default();
            if let Some(import) = module.passes_on.iter().find(|import| import.name == first) {
                module.named.push(import.path.clone());
            }
        }
        module
    }
}

type Modules = BTreeMap<Vec<String>, Module>;

/// The names that a file re-exports for all the world to see.
pub(super) fn root_names(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let text = code(text);
    for statement in text.split(';').filter(|statement| !statement.contains("doc(hidden)")) {
        if let Some((_, tree)) = statement.rsplit_once("pub use ") {
            expand(tree, &mut names);
        }
    }
    names.into_iter().map(|import| import.name).collect()
}

/// The absolute path that a path in a module leads to, from the root.
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

/// The file that defines the item of an absolute path: not one that only re-exports it. Children
/// see their parents' private imports. (`depth` stops paths that lead to themselves.)
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
        // An item of another library belongs to the file that imports it.
        let inside = modules.contains_key(&path[..1.min(path.len())]) && path != *file;
        inside.then(|| home(&path, modules, depth - 1)).flatten()
    };
    if let Some(import) = imports().find(|import| import.name == *first) {
        return on(import, further).or_else(|| Some(file.to_vec()));
    }
    Some(file.to_vec())
}

/// The modules that a module uses, except its own ancestors.
fn uses(path: &[String], module: &Module, modules: &Modules) -> BTreeSet<Vec<String>> {
    let imports = module.imports.iter().map(|import| &import.path);
    let used = imports
        .chain(&module.named)
        .filter_map(|named| home(&absolute(path, named.trim_end_matches("::*")), modules, 8));
    used.filter(|used| !path.starts_with(used)).collect()
}

/// The modules of a library that are left when modules without imports, and modules without
/// importers, are removed repeatedly.
pub(super) fn circles(sources: &BTreeMap<String, String>) -> (usize, Vec<String>) {
    let read = |text: &String| Module::read(&code(text));
    let modules: Modules =
        sources.iter().map(|(path, text)| (module_of(path), read(text))).collect();
    let mut edges: BTreeMap<&Vec<String>, BTreeSet<Vec<String>>> =
        modules.iter().map(|(path, module)| (path, uses(path, module, &modules))).collect();
    // The root only declares modules.
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

/// The uses between the parts of each folder, from one file or folder to another, each with an
/// example. Tests do not count: they stand above what they test.
fn uses_in_folders(modules: &Modules) -> BTreeMap<Vec<String>, BTreeMap<[String; 2], String>> {
    let is_test = |path: &[String]| path.iter().any(|n| n == "tests" || n.ends_with("_tests"));
    let mut found: BTreeMap<Vec<String>, BTreeMap<[String; 2], String>> = BTreeMap::new();
    for (path, module) in modules.iter().filter(|(path, _)| !is_test(path)) {
        for used in uses(path, module, modules).into_iter().filter(|used| !is_test(used)) {
            let shared = path.iter().zip(&used).take_while(|(a, b)| a == b).count();
            if let (Some(part), Some(other)) = (path.get(shared), used.get(shared)) {
                let example = format!("{} -> {}", path.join("/"), used.join("/"));
                let parts = found.entry(path[..shared].to_vec()).or_default();
                parts.entry([part.clone(), other.clone()]).or_insert(example);
            }
        }
    }
    found
}

/// The uses that are part of a circle of files or folders which lie in one folder.
pub(super) fn folder_circles(sources: &BTreeMap<String, String>) -> Vec<String> {
    let read = |text: &String| Module::read(&code(text));
    let modules: Modules =
        sources.iter().map(|(path, text)| (module_of(path), read(text))).collect();
    let mut circles = Vec::new();
    for edges in uses_in_folders(&modules).into_values() {
        let mut reached: BTreeSet<[String; 2]> = edges.keys().cloned().collect();
        loop {
            let next = |[from, via]: &[String; 2]| {
                let on = edges.keys().filter(move |[start, _]| start == via);
                on.map(|[_, end]| [from.clone(), end.clone()]).collect::<Vec<_>>()
            };
            let further: Vec<_> = reached.iter().flat_map(next).collect();
            let before = reached.len();
            reached.extend(further);
            if reached.len() == before {
                break;
            }
        }
        let is_in_circle = |[from, to]: &[String; 2]| reached.contains(&[to.clone(), from.clone()]);
        circles
            .extend(edges.iter().filter(|(edge, _)| is_in_circle(edge)).map(|(_, it)| it.clone()));
    }
    circles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_found_through_reexports() {
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
        // A file that is not a parent and re-exports another one's item uses that file.
        let mut passing: BTreeMap<String, String> = files("mod b;\nmod c;\n");
        let c = "pub use super::b::Frame;\npub struct Kind(Option<Box<Frame>>);";
        passing.insert("x/src/a/c.rs".to_owned(), c.to_owned());
        assert_eq!(circles(&passing).1, ["a/b -> a/c", "a/c -> a/b"]);
        // A parent may define items that both of its children use.
        let (_, circles) = circles(&files("mod b;\nmod c;\n\npub struct Frame;\n"));
        assert!(circles.is_empty(), "{circles:?}");
    }

    #[test]
    fn root_names_are_those_that_users_see() {
        let text =
            "pub mod a;\n#[doc(hidden)]\npub use b::C;\n\npub use d::{E, F as G};\nuse h::I;";
        assert_eq!(root_names(text), ["E", "G"]);
    }

    #[test]
    #[should_panic(expected = "is not seen: name it")]
    fn glob_reexports_are_refused_everywhere() {
        Module::read("pub use self::{a::B, c::{D, *}};");
    }

    #[test]
    fn a_circle_of_folders_is_found() {
        let files = [
            ("x/src/lib.rs", "mod a;\nmod b;"),
            ("x/src/a/mod.rs", "mod one;\nmod two;"),
            ("x/src/a/one.rs", "use crate::b::three::Three;"),
            ("x/src/a/two.rs", "pub struct Two;"),
            ("x/src/b/mod.rs", "mod three;\nmod four;"),
            ("x/src/b/three.rs", "pub struct Three;"),
            ("x/src/b/four.rs", "use crate::a::two::Two;"),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        assert!(circles(&files).1.is_empty(), "no files use each other");
        assert_eq!(folder_circles(&files), ["a/one -> b/three", "b/four -> a/two"]);
    }
}
