//! Texts for the peer, of limited length.

/// The longest prefix of at most `max` bytes that ends between characters.
pub(crate) fn truncated(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
