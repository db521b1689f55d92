//! Documents name files and tests: they must exist.

use tests::workspace::{files, root};

/// Folders at which a path of a document may start.
const ROOTS: [&str; 4] = ["", "rpc-core/src", "rpc-transport/src", "rpc-discovery/src"];
/// Folders whose files a document may name without the folder.
const ROOMS: [&str; 5] = [
    "rpc-transport/src/protocol",
    "rpc-transport/src/protocol/link",
    "rpc-transport/src/device",
    "rpc-transport/src/device/verbs",
    "rpc-transport/src/device/soft",
];

/// Words of `text` that look like source files.
fn source_files(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || "_-./".contains(c)))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| word.ends_with(".rs") && word.len() > 3)
}

fn missing(document: &str, rooms: &[&str]) -> (usize, Vec<String>) {
    let text = std::fs::read_to_string(root().join(document)).expect(document);
    let mut count = 0;
    let mut missing = Vec::new();
    for file in source_files(&text) {
        count += 1;
        let found = ROOTS.iter().chain(rooms).any(|start| root().join(start).join(file).is_file());
        if !found {
            missing.push(format!("{document}: {file}"));
        }
    }
    (count, missing)
}

#[test]
fn the_documented_call_path_files_exist() {
    let (count, missing) = missing("docs/design.md", &ROOMS);
    assert!(count > 25, "the walk is gone, or this test no longer reads it: {count} files");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn the_other_documents_name_files_that_exist() {
    for document in [
        "README.md",
        "SECURITY.md",
        "docs/calls.md",
        "docs/changing-types.md",
        "docs/limits.md",
        "docs/wire-format.md",
        "docs/verbs.md",
        "docs/performance.md",
        "docs/performance-details.md",
        "docs/rpcctl.md",
        "docs/security.md",
        "docs/simulator.md",
        "docs/metrics.md",
    ] {
        let (_, missing) = missing(document, &ROOMS);
        assert!(missing.is_empty(), "{missing:#?}");
    }
}

/// Examples that are not compiled break unnoticed.
#[test]
fn the_rust_of_the_documents_is_compiled() {
    let library = std::fs::read_to_string(root().join("rpc-core/src/lib.rs")).expect("it");
    for document in ["README.md", "docs/changing-types.md"] {
        let text = std::fs::read_to_string(root().join(document)).expect(document);
        assert!(library.contains(&format!("include_str!(\"../../{document}\")")), "{document}");
        // Every other fence begins a block.
        let fences = text.lines().filter_map(|line| line.strip_prefix("```")).step_by(2);
        let mut rust = 0;
        for language in fences {
            assert!(["rust", "sh", "text"].contains(&language), "{document}: ```{language}");
            rust += u32::from(language == "rust");
        }
        assert!(rust > 0, "{document}");
    }
}

/// Rows of a table below a heading: the cells of each.
fn rows_below<'a>(document: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let (_, section) = document.split_once(heading).expect("the heading");
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// All sources below these folders, as one text.
fn sources(folders: &[&str]) -> String {
    folders.iter().flat_map(|folder| files(folder, "rs").into_values()).collect()
}

#[test]
fn every_queue_has_a_test_that_exists() {
    let limits = std::fs::read_to_string(root().join("docs/limits.md")).expect("the limits");
    let rows = rows_below(&limits, "# Limits");
    assert!(rows.len() > 25, "the table is gone, or this test no longer reads it: {}", rows.len());
    let code = sources(&[
        "rpc-core",
        "rpc-transport",
        "rpc-admin",
        "rpc-discovery",
        "rpcctl",
        "tests",
        "models",
    ]);
    for row in rows {
        let &[queue, bound, enforcer, test] = &*row else { panic!("not four cells: {row:?}") };
        assert!(!bound.is_empty() && !enforcer.is_empty(), "{queue}");
        // Code in the last cell is the name of a test, the start of one, or a file.
        let named: Vec<_> = test.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "no test for: {queue}");
        for name in named {
            let is_there = if name.ends_with(".rs") {
                root().join(name).is_file()
            } else if let Some(beginning) = name.strip_suffix("..") {
                code.contains(&format!("fn {beginning}"))
            } else {
                code.contains(&format!("fn {name}("))
            };
            assert!(is_there, "{queue}: there is no test {name}");
        }
    }
}

/// A filter that matches no test runs nothing and passes, on a machine where nobody looks.
#[test]
fn filters_of_the_lab_match_tests() {
    let script = std::fs::read_to_string(root().join("tests/e2e_in_lab")).expect("the script");
    let mut filters = Vec::new();
    for list in ["local=\"", "alone=\"", "beyond=\"", "lacking=\""] {
        let (_, list) = script.split_once(list).expect("the list");
        filters.extend(list.split('"').next().expect("its end").split_whitespace());
    }
    let single = script.split(" rdma::").skip(1).filter_map(|rest| rest.split_whitespace().next());
    filters.extend(single);
    assert!(filters.len() > 15, "this test no longer reads the script: {filters:?}");
    let code = sources(&["tests/tests/e2e"]);
    for filter in filters {
        let is_there = match filter.strip_suffix("::") {
            Some(module) => code.contains(&format!("mod {module};")),
            None => code.contains(&format!("fn {}", filter.trim_end_matches("_over_rdma"))),
        };
        assert!(is_there, "tests/e2e_in_lab names {filter}, which matches no test");
    }
}

#[test]
fn verbs_claims_have_tests_or_corrections() {
    let document = std::fs::read_to_string(root().join("docs/verbs.md")).expect("it");
    let rows = rows_below(&document, "\n## Claims about verbs");
    let code = sources(&["rpc-transport", "tests"]);
    assert_eq!(rows.len(), 93);
    for (index, row) in rows.into_iter().enumerate() {
        let &[number, claim, verdict, shown] = &*row else { panic!("not four cells: {row:?}") };
        assert_eq!(number, format!("S{}", index + 1));
        assert!(!claim.is_empty() && shown.len() > 10, "{number}");
        let words = shown.split('`').skip(1).step_by(2);
        let tests: Vec<_> = words.filter(|word| !word.contains(['.', '*'])).collect();
        match verdict {
            "right" => assert!(!tests.is_empty(), "{number}: no test shows it"),
            "corrected" | "not used" => {}
            other => panic!("{number}: {other}?"),
        }
        for test in tests {
            assert!(code.contains(&format!("fn {test}(")), "{number}: there is no test {test}");
        }
    }
}

/// Each promise of the guide about servers and registries that fail is tested.
#[test]
fn what_happens_when_is_tested() {
    let tables = ["What happens when", "With DNS", "With Kubernetes"];
    let folders = ["rpc-discovery", "rpc-core", "tests"];
    assert_tested("docs/guide/src/discovery.md", &tables, &folders, 20);
}

#[test]
fn each_attack_has_a_test_that_exists() {
    let tables = [
        "Before a peer is known",
        "Who a peer is",
        "On a connection that is up",
        "While certificates change",
    ];
    let folders = ["rpc-core", "rpc-transport", "models"];
    assert_tested("docs/security-tests.md", &tables, &folders, 35);
}

/// Each row of these tables names tests in its third cell, and all of them exist.
fn assert_tested(document: &str, tables: &[&str], folders: &[&str], least: usize) {
    let text = std::fs::read_to_string(root().join(document)).expect("the document");
    let rows = tables.iter().flat_map(|table| rows_below(&text, &format!("\n## {table}\n")));
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() > least, "a table is gone, or this test no longer reads it");
    let code = sources(folders);
    for row in rows {
        let &[event, promise, tests] = &*row else { panic!("not three cells: {row:?}") };
        assert!(!promise.is_empty(), "{event}");
        let named: Vec<_> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "no test for: {event}");
        for name in named {
            assert!(code.contains(&format!("fn {name}(")), "{event}: there is no test {name}");
        }
    }
}
