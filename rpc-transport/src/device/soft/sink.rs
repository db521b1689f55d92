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
    /// Its RECV was the SRQ's: it frees a slot there, and none of its QP.
    pub(super) is_shared: bool,
}

/// Queues that the QPs of a CQ add to or take from.
#[derive(Debug, Default)]
pub(super) struct CqQueues {
    pub(super) completions: VecDeque<Queued>,
    pub(super) srq: Option<Srq>,
}

/// Receives the completions of one QP.
pub(super) struct Sink<'a> {
    /// While a poll runs: the caller's list.
    polled: Option<&'a mut Vec<Completion>>,
    /// How many more completions that list accepts. 0 while completions are queued, since those
    /// come first.
    room: usize,
    /// The CQ's queues.
    queues: &'a mut CqQueues,
}

impl<'a> Sink<'a> {
    /// For a poll whose caller accepts `room` more completions in its list, while none are queued.
    #[inline]
    pub(super) fn polled(
        list: &'a mut Vec<Completion>,
        room: usize,
        queues: &'a mut CqQueues,
    ) -> Self {
        debug_assert!(queues.completions.is_empty(), "queued completions come first");
        Self { polled: Some(list), room, queues }
    }

    /// For everything that happens between polls.
    #[inline]
    pub(super) fn queued(queues: &'a mut CqQueues) -> Self {
        Self { polled: None, room: 0, queues }
    }
}

#[cold]
#[inline(never)]
fn push_to_full(list: &mut Vec<Completion>, completion: Completion) {
    list.push(completion);
}

impl Sink<'_> {
    /// Whether the poll's caller accepts more completions.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.room > 0
    }

    /// Delivers the completion that `make` creates; `used` are the occupied slots of its QP.
    // Always inlined, and a closure, so that it is built where it is stored.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        make: impl FnOnce() -> Completion,
        frees: Slots,
        used: &mut Slots,
    ) {
        match &mut self.polled {
            Some(list) if self.room > 0 => {
                self.room -= 1;
                used.free(frees);
                if list.len() < list.capacity() {
                    // There is room, so the completion is created in its place.
                    list.push(make());
                } else {
                    push_to_full(list, make());
                }
            }
            _ => self.enqueue(Queued { completion: make(), frees, is_shared: false }),
        }
    }

    #[cold]
    fn enqueue(&mut self, queued: Queued) {
        self.room = 0;
        self.queues.completions.push_back(queued);
    }

    /// The first RECV of the SRQ.
    pub(super) fn take_shared(&mut self) -> Option<Posted> {
        self.queues.srq.as_mut()?.take()
    }

    /// Delivers the completion of a RECV of the SRQ.
    pub(super) fn push_shared(&mut self, completion: Completion) {
        match &mut self.polled {
            Some(list) if self.room > 0 => {
                self.room -= 1;
                list.push(completion);
                if let Some(srq) = &mut self.queues.srq {
                    srq.polled();
                }
            }
            _ => self.enqueue(Queued { completion, frees: Slots::default(), is_shared: true }),
        }
    }
}
