//! Colours and weights. The output code drops them unless it writes to a terminal.

pub(crate) const BOLD: &str = "1";
pub(crate) const DIM: &str = "2";
pub(crate) const GREEN: &str = "32";
pub(crate) const RED: &str = "31";

/// Text in a style, by its number in ECMA-48 (SGR).
pub(crate) fn paint(style: &str, text: &str) -> String {
    format!("\u{1b}[{style}m{text}\u{1b}[0m")
}
