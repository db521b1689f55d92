//! Private copies that a decoded value may borrow from.
//!
//! Owns them for as long as the message's owner lives. Grows under a shared borrow, so that the
//! value can be decoded piece by piece while it borrows from copies made earlier.
//!
//! Invariant: a copy never moves; there are at most [`MAX_COPIES`] + 1 copies, and the tail.

use std::sync::OnceLock;

use rpc_transport::message::payload::Payload;

/// Maximum number of copies of single parts. A value that borrows more gets one copy of everything.
pub(super) const MAX_COPIES: usize = 16;

/// Private copies of parts of a message.
#[derive(Debug, Default)]
pub struct Scratch(OnceLock<Box<Node>>);

#[derive(Debug)]
enum Kept {
    Copy(Vec<u8>),
    Tail(Payload),
}

#[derive(Debug)]
struct Node {
    kept: Kept,
    next: Scratch,
}

impl Scratch {
    /// Creates an empty scratch.
    #[must_use]
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Keeps a copy.
    pub(super) fn keep(&self, bytes: Vec<u8>) -> &[u8] {
        match self.push(Kept::Copy(bytes)) {
            Kept::Copy(bytes) => bytes,
            Kept::Tail(_) => &[],
        }
    }

    /// Keeps the message's tail for values that borrow from it in place.
    pub(super) fn keep_tail(&self, tail: Payload) -> Option<&Payload> {
        match self.push(Kept::Tail(tail)) {
            Kept::Tail(tail) => Some(tail),
            Kept::Copy(_) => None,
        }
    }

    fn push(&self, kept: Kept) -> &Kept {
        let mut last = self;
        while let Some(node) = last.0.get() {
            last = &node.next;
        }
        &last.0.get_or_init(|| Box::new(Node { kept, next: Self::new() })).kept
    }
}
