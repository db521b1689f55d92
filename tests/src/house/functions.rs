//! Private functions that only one place names.

use std::collections::{BTreeMap, BTreeSet};

use super::code;

/// A function, as its line declares it.
struct Function<'a> {
    name: &'a str,
    is_private: bool,
    /// It is kept apart from its caller for speed.
    is_slow_path: bool,
}

/// The function that a line declares; `before` are the lines above it.
fn function<'a>(line: &'a str, before: &[&str]) -> Option<Function<'a>> {
    let (head, rest) = line.split_once("fn ")?;
    let is_head = |word: &str| {
        let word = word.split('(').next().unwrap_or_default();
        ["pub", "const", "async", "unsafe", "extern"].contains(&word)
    };
    if !head.split_whitespace().all(is_head) {
        return None;
    }
    let name = rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    let mut attributes = before.iter().rev().take_while(|line| line.trim().starts_with("#["));
    let is_slow_path =
        attributes.any(|line| line.contains("cold") || line.contains("inline(never)"));
    Some(Function { name, is_private: !head.contains("pub"), is_slow_path })
}

/// The number of private functions, and those that only one place names. Slow paths are left out,
/// and names that several functions have.
pub(super) fn called_once(sources: &BTreeMap<String, String>) -> (usize, BTreeSet<String>) {
    let texts: Vec<String> = sources
        .iter()
        .filter(|(path, _)| !path.ends_with("tests.rs"))
        .map(|(_, text)| code(text))
        .collect();
    let mut words: BTreeMap<&str, usize> = BTreeMap::new();
    let mut private = Vec::new();
    for text in &texts {
        for word in text.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
            *words.entry(word).or_default() += 1;
        }
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            private.extend(function(line, &lines[..at]).filter(|function| function.is_private));
        }
    }
    let once =
        private.iter().filter(|function| !function.is_slow_path && words[function.name] == 2);
    let once = once.map(|function| function.name.to_owned()).collect();
    (private.len(), once)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_called_once_are_found() {
        let text =
            "pub fn f() { g(); h(); h(); slow() }\n fn g() {}\nfn h() {}\n#[cold]\nfn slow() {}";
        let sources = BTreeMap::from([("x/src/lib.rs".to_owned(), text.to_owned())]);
        assert_eq!(called_once(&sources), (3, BTreeSet::from(["g".to_owned()])));
    }
}
