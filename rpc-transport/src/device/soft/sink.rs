//! Where completions go: straight to the caller of a poll, or to the queue of the CQ.
//!
//! Owns the accounting of queue slots, which a WR keeps until its completion has been polled
//! (contract rules 4 and 12). Never drops a completion.

use std::collections::VecDeque;

use crate::device::Completion;

/// Number of occupied slots in a QP's SQ and RQ.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slots {
    pub(super) sends: u32,
    pub(super) recvs: u32,
}

impl Slots {
    pub(super) const ONE_RECV: Self = Self { sends: 0, recvs: 1 };

    pub(super) fn sends(sends: u32) -> Self {
        Self { sends, recvs: 0 }
    }

    pub(super) fn free(&mut self, freed: Self) {
        self.sends -= freed.sends;
        self.recvs -= freed.recvs;
    }
}

/// A completion not polled yet, and the slots that polling it frees.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) completion: Completion,
    pub(super) frees: Slots,
}

/// Receives the completions of one QP.
pub(super) struct Sink<'a> {
    /// While a poll runs: the caller's list, and how many more it accepts.
    pub(super) polled: Option<(&'a mut Vec<Completion>, usize)>,
    /// The CQ's queue.
    pub(super) queue: &'a mut VecDeque<Queued>,
}

impl Sink<'_> {
    /// Whether the poll's caller accepts more completions.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        matches!(self.polled, Some((_, room)) if room > 0)
    }

    /// Delivers a completion; `used` are the occupied slots of its QP.
    // Always inlined, so that a completion is built in its final place.
    #[inline]
    pub(super) fn push(&mut self, completion: Completion, frees: Slots, used: &mut Slots) {
        match &mut self.polled {
            // Queued completions come first, so this one goes to the list only if none are queued.
            Some((list, room)) if *room > 0 && self.queue.is_empty() => {
                *room -= 1;
                used.free(frees);
                list.push(completion);
            }
            _ => self.enqueue(completion, frees),
        }
    }

    #[cold]
    fn enqueue(&mut self, completion: Completion, frees: Slots) {
        self.queue.push_back(Queued { completion, frees });
    }
}
