//! Private copies that a decoded value may borrow from.
//!
//! Owns them for as long as the message's owner lives. Grows under a shared borrow, so that the
//! value can be decoded piece by piece while it borrows from what is here already.
//!
//! Invariant: a copy never moves once it is here; there are at most [`MAX_COPIES`] and one.

use std::sync::OnceLock;

/// Copies of single parts. A value that borrows more gets all in one.
pub(super) const MAX_COPIES: usize = 16;

/// Private copies of parts of a message.
#[derive(Debug, Default)]
pub struct Scratch(OnceLock<Box<Node>>);

#[derive(Debug)]
struct Node {
    bytes: Vec<u8>,
    next: Scratch,
}

impl Scratch {
    /// With no copies yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Whether there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.get().is_none()
    }

    /// Keeps a copy.
    pub(super) fn keep(&self, bytes: Vec<u8>) -> &[u8] {
        let mut last = self;
        while let Some(node) = last.0.get() {
            last = &node.next;
        }
        &last.0.get_or_init(|| Box::new(Node { bytes, next: Self::new() })).bytes
    }
}
