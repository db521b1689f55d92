//! Where completions go: straight to the caller of a poll, or to the queue of the CQ.
//!
//! Owns the accounting of queue slots, which a WR keeps until its completion has been polled
//! (contract rules 4 and 12). Never drops a completion.

use std::collections::VecDeque;

use crate::device::Completion;

use super::posted::Posted;
use super::srq::Srq;

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
    /// Its RECV was the SRQ's: it frees a slot there, and none of its QP, which it outlives.
    pub(super) is_shared: bool,
}

/// What the QPs of a CQ add to, or take from.
#[derive(Debug, Default)]
pub(super) struct CqQueues {
    pub(super) completions: VecDeque<Queued>,
    pub(super) srq: Option<Srq>,
}

/// Receives the completions of one QP.
pub(super) struct Sink<'a> {
    /// While a poll runs: the caller's list, and how many more it accepts.
    pub(super) polled: Option<(&'a mut Vec<Completion>, usize)>,
    /// The CQ's queues.
    pub(super) queues: &'a mut CqQueues,
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
            Some((list, room)) if *room > 0 && self.queues.completions.is_empty() => {
                *room -= 1;
                used.free(frees);
                list.push(completion);
            }
            _ => self.enqueue(completion, frees),
        }
    }

    #[cold]
    fn enqueue(&mut self, completion: Completion, frees: Slots) {
        self.queues.completions.push_back(Queued { completion, frees, is_shared: false });
    }

    /// The first RECV of the SRQ.
    pub(super) fn take_shared(&mut self) -> Option<Posted> {
        self.queues.srq.as_mut()?.take()
    }

    /// Delivers the completion of a RECV of the SRQ.
    pub(super) fn push_shared(&mut self, completion: Completion) {
        match &mut self.polled {
            Some((list, room)) if *room > 0 && self.queues.completions.is_empty() => {
                *room -= 1;
                list.push(completion);
                if let Some(srq) = &mut self.queues.srq {
                    srq.polled();
                }
            }
            _ => {
                let frees = Slots::default();
                self.queues.completions.push_back(Queued { completion, frees, is_shared: true });
            }
        }
    }
}
