//! The shared receive queue of a CQ: RECVs that its QPs take as messages begin to arrive (contract
//! rule 22).
//!
//! Owns posted RECVs until a QP takes one, and the count of those whose completions were not
//! polled. Never knows which QPs use it, only how many.

use std::collections::VecDeque;

use crate::device::RecvWr;

use super::posted::Posted;

#[derive(Debug)]
pub(super) struct Srq {
    pub(super) domain: u64,
    pub(super) max_wr: u32,
    waiting: VecDeque<Posted>,
    /// Slots in use: RECVs that were posted, and whose completions were not polled.
    used: u32,
    /// QPs that use it.
    pub(super) users: u32,
}

impl Srq {
    pub(super) fn new(domain: u64, max_wr: u32) -> Self {
        Self { domain, max_wr, waiting: VecDeque::new(), used: 0, users: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.used >= self.max_wr
    }

    /// Accepts a RECV, or hands it back when the queue is full.
    pub(super) fn post(&mut self, wr: RecvWr) -> Result<(), (u32, RecvWr)> {
        if self.is_full() {
            return Err((self.max_wr, wr));
        }
        self.used += 1;
        self.waiting.push_back(Posted::new(wr, self.domain));
        Ok(())
    }

    /// The first RECV, for a QP to fill. Its completion frees the slot ([`Srq::polled`]).
    pub(super) fn take(&mut self) -> Option<Posted> {
        self.waiting.pop_front()
    }

    /// A completion was polled.
    pub(super) fn polled(&mut self) {
        self.used -= 1;
    }
}
