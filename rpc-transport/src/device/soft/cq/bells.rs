//! The doorbells of a batch: which peers are told at its end, and what may wait for more.
//!
//! Invariants:
//! 1. A QP is listed once at most.
//! 2. What stays listed is told by the poll that finds nothing, by arming, and by the last of
//!    [`MOST_HOLDING_POLLS`] polls in a row at the latest: where others keep all polls busy, too, no peer
//!    waits for long.

use std::sync::atomic::{Ordering, fence};

use super::super::queue_pair::QueuePair;
use super::{MOST_HELD_BELLS, MOST_HOLDING_POLLS, SoftCompletionQueue, notify};

impl SoftCompletionQueue {
    /// Rings the doorbells of all peers that were sent something and have armed (invariant 3 of the CQ), but for
    /// those that are only to be told what was accepted.
    #[inline]
    pub(super) fn ring_bells(&mut self) {
        if !self.bells.is_empty() {
            self.ring_listed(QueuePair::may_hold_bell);
        }
    }

    /// The same as a poll begins: now and then for all of them.
    #[inline]
    pub(super) fn ring_bells_in_poll(&mut self) {
        if self.bells.is_empty() {
            self.holding_polls = 0;
            return;
        }
        self.holding_polls += 1;
        if self.holding_polls < MOST_HOLDING_POLLS {
            self.ring_listed(QueuePair::may_hold_bell);
        } else {
            self.ring_all_bells();
        }
    }

    /// The same for all of them: the owner may sleep now, or the QPs end.
    #[inline]
    pub(super) fn ring_all_bells(&mut self) {
        self.holding_polls = 0;
        if !self.bells.is_empty() {
            self.ring_listed(|_| false);
        }
    }

    /// The same as [`SoftCompletionQueue::ring_bells`], but for what may wait until the next poll.
    #[inline]
    pub(super) fn ring_bells_soon(&mut self) {
        let may_wait = |index: &u32| {
            let qp = self.entries[*index as usize].qp.as_deref();
            qp.is_some_and(|qp| qp.may_wait() || qp.may_hold_bell())
        };
        // Held ones are looked at for each post, so they are few.
        if self.bells.len() > MOST_HELD_BELLS || !self.bells.iter().all(may_wait) {
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

    use super::super::MOST_HOLDING_POLLS;
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

    /// How many packets the peer has got so far, how many of its own it knows to be accepted, and how many
    /// bytes it has read.
    fn heard(world: &mut World, taker: &mut Taker) -> (usize, u64, u64) {
        let wire = &mut world.peers[0].1;
        wire.receive(taker).unwrap();
        (taker.packets, wire.feedback().unwrap().accepted, wire.traffic().received)
    }

    /// Over tcp each acknowledgement was a system call of its own, though the answer behind it was one, too.
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
        assert_eq!(
            heard(&mut world, &mut taker),
            (1, 1, bytes),
            "there was nothing left to be told"
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri knows no epoll of this kind")]
    fn without_an_answer_it_leaves_when_a_poll_finds_nothing_or_who_polls_goes_to_sleep() {
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

    /// A peer that waits for nothing else, such as one whose bulk window is used up, waited for as long as
    /// others kept all polls busy.
    #[test]
    #[cfg_attr(miri, ignore = "miri knows no epoll of this kind")]
    fn an_acknowledgement_does_not_wait_for_long_where_polls_keep_finding_something() {
        let (mut world, mut taker) = (World::new(2), Taker { to: [0; 64], packets: 0 });
        world.send_signaled(0);
        assert_eq!(world.poll(), 1);
        let mut polls = 0;
        while heard(&mut world, &mut taker).1 == 0 {
            world.send(1);
            assert_eq!(world.poll(), 1);
            polls += 1;
            assert!(polls <= MOST_HOLDING_POLLS, "it was told nothing in {polls} polls");
        }
    }
}
