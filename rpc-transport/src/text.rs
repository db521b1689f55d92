//! Texts from peers, made safe to log, print and show.
//!
//! Owns the one rule for it. A peer chooses its texts: the reason of a refusal, the message of a
//! status, the names and the documentation of its services. Shown raw, they can move the cursor of
//! a terminal, hide or reorder the text around them (U+202E), or begin a line of a log.
//!
//! Invariants of the text that [`Printable`] shows:
//! 1. It is one line, without control, format, unassigned, private or invisible characters: each is
//!    written as an escape, such as `\n` or `\u{1b}`.
//! 2. It is bounded: at most [`MAX_SHOWN_BYTES`] of the text are shown, unless the caller asks for
//!    another bound.
//! 3. Without [`Printable::exact`], escaping is idempotent: a text that is escaped twice looks as
//!    if it had been escaped once.

use std::fmt::{self, Write};

/// How much of a text is shown by default, bytes. A longer text ends with `...`.
pub const MAX_SHOWN_BYTES: usize = 4 * 1024;

/// A foreign text in a form that may be logged and printed: see [`text`](self).
///
/// ```
/// use rpc_transport::text::printable;
///
/// let sent = "done\u{1b}[2J\nERROR: forged \u{202e}";
/// assert_eq!(printable(sent).to_string(), r"done\u{1b}[2J\nERROR: forged \u{202e}");
/// assert_eq!(printable("\"grün\" und C:\\").to_string(), "\"grün\" und C:\\");
/// assert_eq!(printable("0123456789").at_most(4).to_string(), "0123...");
/// ```
#[derive(Clone, Copy)]
pub struct Printable<'a> {
    text: &'a [u8],
    most_bytes: usize,
    is_exact: bool,
}

/// A text in its printable form.
#[must_use]
pub fn printable(text: &str) -> Printable<'_> {
    printable_bytes(text.as_bytes())
}

/// Bytes that should be text, in their printable form. Bytes that are not UTF-8 are shown as
/// `\xff`.
#[must_use]
pub fn printable_bytes(text: &[u8]) -> Printable<'_> {
    Printable { text, most_bytes: MAX_SHOWN_BYTES, is_exact: false }
}

/// Whether [`printable`] shows a text unchanged, apart from its length limit.
#[must_use]
pub fn is_printable(text: &str) -> bool {
    text.chars().all(is_shown)
}

impl Printable<'_> {
    /// Shows at most this many bytes of the text, instead of [`MAX_SHOWN_BYTES`]. An escaped byte
    /// may be shown as up to six. `usize::MAX` shows everything.
    #[must_use]
    pub fn at_most(mut self, bytes: usize) -> Self {
        self.most_bytes = bytes;
        self
    }

    /// Escapes backslashes too, so that no two texts look alike: for names that people type again.
    #[must_use]
    pub fn exact(mut self) -> Self {
        self.is_exact = true;
        self
    }
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut room = self.most_bytes;
        for chunk in self.text.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.len_utf8() > room {
                    return f.write_str("...");
                }
                room -= c.len_utf8();
                if is_shown(c) && !(self.is_exact && c == '\\') {
                    f.write_char(c)?;
                } else {
                    write!(f, "{}", c.escape_default())?;
                }
            }
            for byte in chunk.invalid() {
                if room == 0 {
                    return f.write_str("...");
                }
                room -= 1;
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// In quotes, for a list or a struct.
impl fmt::Debug for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Whether a character is visible, takes its own place, and has no effect on others.
fn is_shown(c: char) -> bool {
    match c {
        ' '..='~' => true,
        // The standard library's table counts these spaces as not printable; people write them.
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => true,
        // Letters and marks that are printable by their category but invisible: the rest of
        // Unicode's `Default_Ignorable_Code_Point`, which the table lacks.
        '\u{34f}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{17b4}'
        | '\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{ffa0}'
        | '\u{e0100}'..='\u{e01ef}' => false,
        // After another character, `str::escape_debug` escapes exactly the unprintable ones:
        // categories Cc, Cf, Cn, Co, Zl, Zp and Zs.
        c => {
            let mut pair = [b'a'; 5];
            let end = 1 + c.encode_utf8(&mut pair[1..]).len();
            let pair = str::from_utf8(&pair[..end]).unwrap_or_default();
            pair.escape_debug().nth(1) == Some(c)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> String {
        printable(text).to_string()
    }

    #[test]
    fn texts_of_people_stand_as_they_are() {
        for text in [
            "no key \"a\" in 'C:\\x'",
            "größer als 3\u{a0}€, 日本語\u{3000}です",
            "Привет, שלום, مرحبا, हिन्दी",
            "e\u{301} and ✓ 🎉",
        ] {
            assert_eq!(shown(text), text);
        }
    }

    #[test]
    fn control_format_and_invisible_characters_are_escaped() {
        for (text, expected) in [
            ("a\nb\rc\td\0", r"a\nb\rc\td\u{0}"),
            ("\u{1b}[2J\u{9b}2J\u{7f}\u{85}", r"\u{1b}[2J\u{9b}2J\u{7f}\u{85}"),
            ("\u{202e}\u{2066}\u{200f}\u{61c}", r"\u{202e}\u{2066}\u{200f}\u{61c}"),
            ("\u{200b}\u{200d}\u{feff}\u{ad}", r"\u{200b}\u{200d}\u{feff}\u{ad}"),
            ("\u{2028}\u{2029}", r"\u{2028}\u{2029}"),
            ("\u{3164}\u{fe0f}\u{e0041}\u{e0100}", r"\u{3164}\u{fe0f}\u{e0041}\u{e0100}"),
            ("\u{e000}\u{378}\u{10ffff}", r"\u{e000}\u{378}\u{10ffff}"),
        ] {
            assert_eq!(shown(text), expected);
        }
    }

    #[test]
    fn nothing_else_is_shown_raw() {
        let all: String = ('\0'..=char::MAX).collect();
        let whole = printable(&all).at_most(usize::MAX).to_string();
        assert!(!whole.chars().any(char::is_control));
        // `str::escape_debug` also escapes spaces, quotes and backslashes; this type does not.
        for c in whole.chars().filter(|c| !"'\"\\".contains(*c) && !c.is_whitespace()) {
            let mut behind = String::from("a");
            behind.push(c);
            assert_eq!(behind.escape_debug().to_string(), behind);
        }
    }

    proptest! {
        #[test]
        fn whatever_is_sent_is_one_printable_line(text in "\\PC*|(?s:.)*") {
            let once = shown(&text);
            prop_assert!(is_printable(&once), "{once:?}");
            prop_assert_eq!(is_printable(&text), once == text);
            prop_assert_eq!(shown(&once), once.clone());
            prop_assert!(is_printable(&printable(&text).exact().to_string()));
        }

        #[test]
        fn whatever_bytes_are_sent_are_printable(bytes: Vec<u8>, most in 0_usize..64) {
            let shown = printable_bytes(&bytes).at_most(most).to_string();
            prop_assert!(is_printable(&shown), "{shown:?}");
            prop_assert!(shown.len() <= 10 * most + 3, "{shown:?}");
        }
    }

    #[test]
    fn exact_texts_never_look_alike() {
        let exact = |text| printable(text).exact().to_string();
        assert_eq!(exact("a\n"), r"a\n");
        assert_eq!(exact(r"a\n"), r"a\\n");
    }

    #[test]
    fn bytes_that_are_no_text_are_shown() {
        assert_eq!(printable_bytes(b"a\xff\xc3\n\xe2\x80").to_string(), r"a\xff\xc3\n\xe2\x80");
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        assert_eq!(printable("äää").at_most(3).to_string(), "ä...");
        assert_eq!(printable("äää").at_most(6).to_string(), "äää");
        assert_eq!(printable_bytes(b"\xff\xff").at_most(1).to_string(), r"\xff...");
        let long = shown(&"\u{1b}".repeat(1 << 20));
        assert!(long.len() <= 6 * MAX_SHOWN_BYTES + 3, "{}", long.len());
        assert_eq!(format!("{:?}", printable("a\n")), r#""a\n""#);
    }
}
