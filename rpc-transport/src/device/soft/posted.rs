//! A posted RECV.
#![allow(unsafe_code, reason = "names bytes of registered memory")]

use std::ptr::NonNull;

use crate::device::RecvWr;

/// A posted RECV, with its buffer's address looked up at post time rather than when a message
/// arrives.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) wr: RecvWr,
    pub(super) at: NonNull<u8>,
    pub(super) len: usize,
    /// The buffer belongs to another protection domain.
    pub(super) foreign: bool,
}

// SAFETY: `at` points into `wr.buffer`, which is owned here and Send.
unsafe impl Send for Posted {}

impl Posted {
    /// A RECV for a queue whose memory is that of `domain`.
    #[inline]
    pub(super) fn new(wr: RecvWr, domain: u64) -> Self {
        let (at, len) = (wr.buffer.as_ptr(), wr.buffer.len());
        let foreign = wr.buffer.region().domain() != domain;
        Self { wr, at, len, foreign }
    }
}
