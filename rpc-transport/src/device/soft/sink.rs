//! Where completions go: straight to the caller of a poll, or to the queue of the CQ.
//!
//! Owns the accounting of queue slots, which a WR keeps until its completion has been polled
//! (contract rules 4 and 12). Never drops a completion.

use std::collections::VecDeque;

use crate::device::Completion;

/// Slots of a QP's queues that are taken.
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

/// A completion not polled yet, and the slots that it frees.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) completion: Completion,
    pub(super) frees: Slots,
}

/// Takes the completions of one QP.
pub(super) struct Sink<'a> {
    /// The caller's list and how many it still takes, while a poll runs.
    pub(super) polled: Option<(&'a mut Vec<Completion>, usize)>,
    /// The CQ's queue.
    pub(super) queue: &'a mut VecDeque<Queued>,
}

impl Sink<'_> {
    /// Whether the caller of the poll takes more.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        matches!(self.polled, Some((_, room)) if room > 0)
    }

    /// Delivers a completion; `used` are the slots of its QP.
    // Inlined always, so that a completion is built where it ends up.
    #[inline(always)]
    pub(super) fn push(&mut self, completion: Completion, frees: Slots, used: &mut Slots) {
        match &mut self.polled {
            // Nothing may overtake what is queued.
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
