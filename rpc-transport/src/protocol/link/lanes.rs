//! Lanes: what waits to be sent, and which goes next.
//!
//! Owns the three queues. Never spends a credit; whether bulk may go at all it is told.
//!
//! Invariants:
//! 1. A lane is first in, first out; lanes order only between calls.
//! 2. Urgent goes first, then small, then bulk; but a bulk frame that may go waits for at most
//!    [`BULK_TURN`] small ones, so that a flood of small messages cannot starve it.

use std::collections::VecDeque;

use super::Lane;
use crate::message::outgoing::OutBuf;

/// Small messages that may overtake a bulk frame which could leave.
const BULK_TURN: u8 = 16;

/// A message that waits.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) tag: u64,
    pub(super) message: OutBuf,
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    queues: [VecDeque<Queued>; 3],
    /// Of what each queue holds.
    bytes: [u64; 3],
    /// Small messages sent since a bulk frame could leave and did not.
    overtaken: u8,
}

impl Lanes {
    #[inline]
    pub(super) fn push(&mut self, lane: Lane, queued: Queued) {
        self.bytes[lane as usize] += queued.message.total_len();
        self.queues[lane as usize].push_back(queued);
    }

    /// The lane that goes next; `bulk` says whether a bulk frame could leave, and is asked only
    /// when it matters.
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
        self.bytes[lane as usize] -= queued.message.total_len();
        Some(queued)
    }

    /// Bytes of the messages that wait in a lane.
    pub(super) fn bytes(&self, lane: Lane) -> u64 {
        self.bytes[lane as usize]
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
        std::mem::take(&mut self.queues).into_iter().flatten().map(|queued| queued.message)
    }

    /// Takes a message out of its queue. Linear in what waits before it, and the oldest are
    /// revoked first when many time out.
    pub(super) fn remove(&mut self, tag: u64) -> Option<OutBuf> {
        self.queues.iter_mut().zip(&mut self.bytes).find_map(|(queue, bytes)| {
            let at = queue.iter().position(|queued| queued.tag == tag)?;
            let message = queue.remove(at)?.message;
            *bytes -= message.total_len();
            Some(message)
        })
    }
}
