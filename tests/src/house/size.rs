//! How many lines of production code there are, and how many `docs/size.md` accounts for.

use super::{Files, Number, line_count, without_tests};
use crate::workspace::root;

/// Lines that may be missing in the table, either way: small changes need no row.
const SLACK: usize = 100;

/// The folders of the packages that are published, in the order of the workspace.
pub(super) fn published_crates() -> Vec<String> {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect("a file");
    let workspace = read("Cargo.toml");
    let members = workspace.split_once("members = [").expect("members").1;
    let members = members.split_once(']').expect("their end").0;
    let members = members.split(',').map(|member| member.trim().trim_matches('"').to_owned());
    let is_published = |member: &String| {
        let manifest = read(&format!("{member}/Cargo.toml"));
        !manifest.lines().any(|line| line.starts_with("publish = false"))
    };
    let published: Vec<String> = members.filter(is_published).collect();
    assert!(published.len() >= 10, "this no longer reads them: {published:?}");
    published
}

/// The lines of the published packages, without tests, benches and examples, and how many the table
/// accounts for.
pub(super) fn production_lines(rust: &Files, published: &[String]) -> Number {
    let is_production = |file: &str| {
        published.iter().any(|folder| file.starts_with(&format!("{folder}/")))
            && !["test", "benches/", "examples/"].iter().any(|word| file.contains(word))
    };
    let production = rust.iter().filter(|(file, _)| is_production(file));
    let now = production.map(|(_, text)| line_count(without_tests(text))).sum();
    let text = std::fs::read_to_string(root().join("docs/size.md")).expect("docs/size.md");
    let most = accounted(&text);
    assert!(
        now + SLACK >= most,
        "there are {now} production lines, and docs/size.md accounts for {most}: give what was \
         deleted a row"
    );
    Number::new("production lines, by docs/size.md", now, most + SLACK)
}

/// The sum of the first column of the table. Each row has a reason.
fn accounted(text: &str) -> usize {
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.trim_end_matches('|').split('|');
        let lines = cells.next()?.trim().replace(',', "");
        let lines: isize = lines.parse().ok()?;
        let reason = cells.next().unwrap_or_default().trim();
        assert!(reason.split(' ').count() >= 4, "no reason in this row: {line}");
        Some(lines)
    });
    let rows: Vec<isize> = rows.collect();
    assert!(!rows.is_empty(), "this no longer reads the table");
    usize::try_from(rows.iter().sum::<isize>()).expect("not below 0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_added_up() {
        let table = "| lines | for what |\n|---|---|\n| 1,000 | what was there at first |\n\
                     | +20 | a feature that users want |\n| -5 | a file that nobody used |\n";
        assert_eq!(accounted(table), 1015);
    }

    #[test]
    #[should_panic(expected = "no reason")]
    fn a_row_needs_a_reason() {
        accounted("| 1,000 | what was there at first |\n| +20 | more |\n");
    }
}
