//! The house style, as far as a program can check it: the width of comments and the names of tests.
//! `CONTRIBUTING.md` has the rest.

/// Columns of a comment, and of a line of prose in a document.
const MAX_COLUMNS: usize = 100;
/// Words in the name of a test.
const MAX_WORDS: usize = 8;

pub(super) fn wide_comments(text: &str) -> Vec<(usize, String)> {
    let is_comment = |line: &str| line.trim_start().starts_with("//") || line.contains(" // ");
    wide(text.lines().enumerate().filter(|(_, line)| is_comment(line)))
}

/// Tables and lines with a link may be longer, and so may code.
pub(super) fn wide_prose(text: &str) -> Vec<(usize, String)> {
    let mut is_code = false;
    wide(text.lines().enumerate().filter(|(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !line.trim_start().starts_with('|') && !line.contains("](")
    }))
}

fn wide<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<(usize, String)> {
    let widths = lines.map(|(index, line)| (index + 1, line.chars().count()));
    let wide = widths.filter(|(_, width)| *width > MAX_COLUMNS);
    wide.map(|(line, width)| (line, format!("{width} columns"))).collect()
}

/// The number of tests in a file.
pub(super) fn tests_in(text: &str) -> usize {
    ["#[test]", "::test]", "::test("].iter().map(|word| text.matches(word).count()).sum()
}

pub(super) fn long_names(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_test = false;
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if line.starts_with("#[") {
            is_test |= ["#[test]", "::test]", "::test("].iter().any(|word| line.contains(word));
        } else if let Some((_, name)) = line.split_once("fn ").filter(|_| is_test) {
            let name = name.split(['(', '<']).next().unwrap_or_default();
            let words = name.split('_').count();
            if words > MAX_WORDS {
                found.push((index + 1, format!("{words} words: {name}")));
            }
            is_test = false;
        } else if !line.starts_with("//") {
            is_test = false;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_finds_what_breaks_it() {
        let wide = "x".repeat(MAX_COLUMNS);
        assert_eq!(wide_comments(&format!("{wide};\n// {wide}\n")).len(), 1);
        assert_eq!(
            wide_prose(&format!("{wide}y\n| {wide}\n```\n{wide}y\n```\n{wide}y\n")).len(),
            2
        );
        let name = "a_b_c_d_e_f_g_h";
        let test = |name: &str| format!("#[tokio::test(x)]\n#[cfg(unix)]\nasync fn {name}() {{\n");
        assert_eq!(long_names(&test(name)).len(), 0);
        assert_eq!(long_names(&test(&format!("{name}_i")))[0].0, 3);
        assert_eq!(long_names(&format!("fn {name}_i() {{")).len(), 0);
    }
}
