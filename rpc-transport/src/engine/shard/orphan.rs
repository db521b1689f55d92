//! The CQ of a shard that a child of `fork(2)` has inherited: none.
//!
//! Owns nothing of the parent's, and never has a QP.

use std::io::{Stdin, stdin};
use std::os::fd::{AsFd, BorrowedFd};

use crate::device::{
    Completion, CompletionQueue, PostError, PostErrorKind, ProviderError, QpEvent, QpHandle,
    QpState, RecvWr, SendWr,
};

const NO_QP: PostError = PostError { posted: 0, kind: PostErrorKind::UnknownQp };

/// A CQ that has nothing.
#[derive(Debug)]
pub(super) struct NoQueue(Stdin);

impl Default for NoQueue {
    fn default() -> Self {
        Self(stdin())
    }
}

impl CompletionQueue for NoQueue {
    fn capacity(&self) -> u32 {
        0
    }

    fn poll(&mut self, _: &mut Vec<Completion>, _: usize) -> Result<usize, ProviderError> {
        Ok(0)
    }

    fn arm(&mut self) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Nothing waits for it, as no driver begins on a shard that has ended.
    fn event_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn clear_events(&mut self) -> Result<(), ProviderError> {
        Ok(())
    }

    fn poll_event(&mut self) -> Option<QpEvent> {
        None
    }

    fn post_send(&mut self, _: QpHandle, _: &mut [SendWr<'_>]) -> Result<(), PostError> {
        Err(NO_QP)
    }

    fn post_recv(&mut self, _: QpHandle, wr: RecvWr) -> Result<(), (PostError, RecvWr)> {
        Err((NO_QP, wr))
    }

    fn flush(&mut self) {}

    fn state(&self, _: QpHandle) -> Option<QpState> {
        None
    }

    fn max_inline_bytes(&self, _: QpHandle) -> u32 {
        0
    }

    fn modify_to_error(&mut self, _: QpHandle) -> Result<(), ProviderError> {
        Err(ProviderError::UnknownQp)
    }

    fn destroy_qp(&mut self, _: QpHandle) -> Result<(), ProviderError> {
        Err(ProviderError::UnknownQp)
    }
}
