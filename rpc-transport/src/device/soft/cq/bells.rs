//! The doorbells of a batch: which peers are notified at its end, and which notifications may wait
//! for more.
//!
//! Invariants:
//! 1. A QP is listed at most once.
//! 2. The peer of a listed QP is notified at the latest by the poll that finds nothing, by arming,
//!    or by the last of [`MAX_HOLDING_POLLS`] polls in a row: no peer waits for long, even where
//!    other QPs keep every poll busy.

use std::sync::atomic::{Ordering, fence};

use super::super::queue_pair::QueuePair;
use super::{MAX_HELD_BELLS, MAX_HOLDING_POLLS, SoftCompletionQueue, notify};

impl SoftCompletionQueue {
    /// Rings the doorbells of all peers that were sent something and have armed (invariant 3 of the
    /// CQ), except those that only await an acknowledgement.
    #[inline]
    pub(super) fn ring_bells(&mut self) {
        if !self.bells.is_empty() {
            self.ring_listed(QueuePair::may_hold_bell);
        }
    }

    /// Like [`SoftCompletionQueue::ring_bells`], as a poll begins: now and then it rings all of
    /// them.
    #[inline]
    pub(super) fn ring_bells_in_poll(&mut self) {
        if self.bells.is_empty() {
            self.holding_polls = 0;
            return;
        }
        self.holding_polls += 1;
        if self.holding_polls < MAX_HOLDING_POLLS {
            self.ring_listed(QueuePair::may_hold_bell);
        } else {
            self.ring_all_bells();
        }
    }

    /// Rings all pending doorbells: the owner may sleep now, or the QPs end.
    #[inline]
    pub(super) fn ring_all_bells(&mut self) {
        self.holding_polls = 0;
        if !self.bells.is_empty() {
            self.ring_listed(|_| false);
        }
    }

    /// Like [`SoftCompletionQueue::ring_bells`], except for doorbells that may wait until the next
    /// poll.
    #[inline]
    pub(super) fn ring_bells_soon(&mut self) {
        let may_wait = |index: &u32| {
            let qp = self.entries[*index as usize].qp.as_deref();
            qp.is_some_and(|qp| qp.may_wait() || qp.may_hold_bell())
        };
        // Each post looks at the held ones, so they are kept few.
        if self.bells.len() > MAX_HELD_BELLS || !self.bells.iter().all(may_wait) {
            self.ring_bells();
        }
    }

    #[inline(never)]
    fn ring_listed(&mut self, is_held: fn(&QueuePair) -> bool) {
        fence(Ordering::SeqCst);
        let Self { bells, entries, hot, .. } = self;
        bells.retain(|index| {
            let Some(qp) = entries[*index as usize].qp.as_deref_mut() else { return false };
            if is_held(qp) {
                return true;
            }
            qp.notify_listed = false;
            notify(qp, hot);
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use crate::device::soft::landing::{Landing, Refusal, TakePackets};
    use crate::device::soft::packet::{Extension, Head};
    use crate::device::{CompletionQueue, Ring};

    use super::super::MAX_HOLDING_POLLS;
    use super::super::testing::World;

    /// Counts packets, and throws them away.
    struct Taker {
        to: [u8; 64],
        packets: usize,
    }

    impl TakePackets for Taker {
        fn has_room(&self) -> bool {
            true
        }

        fn begin(&mut self, _: Head, _: Extension) -> Result<Landing, Refusal> {
            Ok(NonNull::from(&mut self.to[..]).cast())
        }

        fn finish(&mut self, _: Head, _: Extension) -> Result<(), Refusal> {
            self.packets += 1;
            Ok(())
        }
    }

    /// The number of packets that the peer has received so far, of its own packets that it knows to
    /// be accepted, and of bytes that it has read.
    fn heard(world: &mut World, taker: &mut Taker) -> (usize, u64, u64) {
        let wire = &mut world.peers[0].1;
        wire.receive(taker).unwrap();
        (taker.packets, wire.feedback().unwrap().accepted, wire.traffic().received)
    }

    /// A regression: over tcp each acknowledgement was a system call of its own, although the
    /// answer after it was one too.
    #[test]
    #[cfg_attr(miri, ignore = "miri knows no epoll of this kind")]
    fn an_acknowledgement_goes_with_the_answer() {
        let (mut world, mut taker) = (World::new(1), Taker { to: [0; 64], packets: 0 });
        world.send_signaled(0);
        assert_eq!(world.poll(), 1);
        world.cq.flush();
        world.cq.flush_soon();
        assert_eq!(heard(&mut world, &mut taker), (0, 0, 0));
        let qp = world.peers[0].0;
        world.cq.post_send_inline(qp, 1, false, &[5; 8], Ring::Now).unwrap();
        let (packets, accepted, bytes) = heard(&mut world, &mut taker);
        assert_eq!((packets, accepted), (1, 1));
        assert_eq!(bytes, 8 + 8, "one frame, with eight bytes in front");
        assert_eq!(world.poll(), 0);
        assert_eq!(heard(&mut world, &mut taker), (1, 1, bytes), "nothing was left to send");
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri knows no epoll of this kind")]
    fn held_doorbell_rings_on_empty_poll_or_sleep() {
        let (mut world, mut taker) = (World::new(1), Taker { to: [0; 64], packets: 0 });
        world.send_signaled(0);
        assert_eq!(world.poll(), 1);
        assert_eq!(heard(&mut world, &mut taker).1, 0);
        assert_eq!(world.poll(), 0);
        assert_eq!(heard(&mut world, &mut taker).1, 1);
        world.send_signaled(0);
        assert_eq!(world.poll(), 1);
        world.cq.arm().unwrap();
        assert_eq!(heard(&mut world, &mut taker).1, 2);
    }

    /// A regression: a peer that waits for nothing else, for example because its bulk window is
    /// used up, waited for as long as others kept all polls busy.
    #[test]
    #[cfg_attr(miri, ignore = "miri knows no epoll of this kind")]
    fn held_ack_leaves_soon_under_constant_load() {
        let (mut world, mut taker) = (World::new(2), Taker { to: [0; 64], packets: 0 });
        world.send_signaled(0);
        assert_eq!(world.poll(), 1);
        let mut polls = 0;
        while heard(&mut world, &mut taker).1 == 0 {
            world.send(1);
            assert_eq!(world.poll(), 1);
            polls += 1;
            assert!(polls <= MAX_HOLDING_POLLS, "no ack in {polls} polls");
        }
    }
}
