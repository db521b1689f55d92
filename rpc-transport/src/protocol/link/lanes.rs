//! Lanes: the three queues of messages that wait to be sent, and the choice of the next one.
//!
//! Never spends a credit. The caller decides whether a bulk frame may be sent at all.
//!
//! Invariants:
//! 1. A lane is first in, first out; there is no order between messages of different lanes.
//! 2. Urgent goes first, then small, then bulk. But a bulk frame that may be sent waits for at most
//!    [`BULK_TURN`] small messages, so that a flood of them cannot starve it.

use std::collections::VecDeque;

use crate::message::outgoing::OutBuf;

/// A queue of messages. Order is kept within a lane only: messages that must arrive in order have
/// to take the same lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Control messages of the session; sent before the other lanes.
    Urgent,
    /// Messages that fit one frame.
    Small,
    /// Messages of any size, sent one at a time; holds at most about half of the credits.
    Bulk,
}

/// Longest message that no reservation of a memory budget is made for, bytes. All that wait are
/// charged together: see [`Waiting::together_bytes`].
pub const TOGETHER_BYTES: u64 = 16 * 1024;

/// Messages that wait to be sent on a connection, by the memory that they hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waiting {
    /// Small messages, bytes.
    pub small_bytes: u64,
    /// Large messages, bytes. Each counts in full until its last byte has been posted.
    pub large_bytes: u64,
    /// Those of them, small or large, that are not longer than [`TOGETHER_BYTES`].
    pub together_bytes: u64,
    /// The longest message that counts as small, bytes.
    pub longest_small: usize,
}

impl Waiting {
    /// Small and large messages together, bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.small_bytes.saturating_add(self.large_bytes)
    }
}

/// How many small messages may overtake a bulk frame that could be sent.
const BULK_TURN: u8 = 16;

/// A message that waits.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) tag: u64,
    pub(super) message: OutBuf,
}

impl Queued {
    /// Memory that it holds while it waits, bytes.
    fn held_bytes(&self) -> u64 {
        size_of::<Self>() as u64 + self.message.held_bytes()
    }

    fn is_charged_together(&self) -> bool {
        self.message.total_len() <= TOGETHER_BYTES
    }
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    queues: [VecDeque<Queued>; 3],
    /// Memory that the messages in each queue hold, bytes.
    bytes: [u64; 3],
    /// See [`Waiting::together_bytes`].
    together_bytes: u64,
    /// Small messages sent while a bulk frame could have been sent.
    overtaken: u8,
}

impl Lanes {
    #[inline]
    pub(super) fn push(&mut self, lane: Lane, queued: Queued) {
        let bytes = queued.held_bytes();
        self.bytes[lane as usize] += bytes;
        self.together_bytes += if queued.is_charged_together() { bytes } else { 0 };
        self.queues[lane as usize].push_back(queued);
    }

    /// The lane to send from next. `bulk` says whether a bulk frame could be sent; it is called
    /// only when that matters.
    #[inline]
    pub(super) fn choose(&mut self, bulk: impl FnOnce(&Self) -> bool) -> Option<Lane> {
        if !self.is_empty_lane(Lane::Urgent) {
            return Some(Lane::Urgent);
        }
        let bulk = bulk(self);
        if !self.is_empty_lane(Lane::Small) {
            if !bulk {
                return Some(Lane::Small);
            }
            if self.overtaken < BULK_TURN {
                self.overtaken += 1;
                return Some(Lane::Small);
            }
        }
        self.overtaken = 0;
        bulk.then_some(Lane::Bulk)
    }

    #[inline]
    pub(super) fn pop(&mut self, lane: Lane) -> Option<Queued> {
        let queued = self.queues[lane as usize].pop_front()?;
        self.on_taken(lane as usize, &queued);
        Some(queued)
    }

    fn on_taken(&mut self, queue: usize, queued: &Queued) {
        let bytes = queued.held_bytes();
        self.bytes[queue] -= bytes;
        self.together_bytes -= if queued.is_charged_together() { bytes } else { 0 };
    }

    /// Memory that the messages of a lane hold, bytes.
    pub(super) fn bytes(&self, lane: Lane) -> u64 {
        self.bytes[lane as usize]
    }

    /// See [`Waiting::together_bytes`].
    pub(super) fn together_bytes(&self) -> u64 {
        self.together_bytes
    }

    #[inline]
    pub(super) fn is_empty_lane(&self, lane: Lane) -> bool {
        self.queues[lane as usize].is_empty()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }

    pub(super) fn count(&self, lane: Lane) -> usize {
        self.queues[lane as usize].len()
    }

    /// Takes all messages.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = OutBuf> + use<> {
        self.bytes = [0; 3];
        self.together_bytes = 0;
        std::mem::take(&mut self.queues).into_iter().flatten().map(|queued| queued.message)
    }

    /// Takes a message out of its queue. Linear in the messages before it; when many calls time
    /// out, the oldest are revoked first, so that is short.
    pub(super) fn remove(&mut self, tag: u64) -> Option<OutBuf> {
        let found = self.queues.iter_mut().enumerate().find_map(|(index, queue)| {
            let at = queue.iter().position(|queued| queued.tag == tag)?;
            Some((index, queue.remove(at)?))
        });
        let (index, queued) = found?;
        self.on_taken(index, &queued);
        Some(queued.message)
    }
}
