//! Of whose arrivals the event fd tells, and when.

use crate::device::CompletionQueue;

use super::super::testing::World;
use super::super::{EVENTS_EVERY, QUIET_VISITS};

#[test]
#[cfg_attr(miri, ignore = "miri knows no epoll of this kind")]
fn arrivals_wake_nobody_while_they_are_polled_for() {
    let mut world = World::new(1);
    world.stay_awake(&[0]);
    // What the set had found as it was last told.
    world.cq.clear_events().unwrap();
    world.send(0);
    assert!(!world.is_woken());
    assert_eq!(world.poll(), 1);
}

#[test]
#[cfg_attr(miri, ignore = "miri knows no epoll of this kind")]
fn who_goes_to_sleep_finds_what_has_come_and_is_woken_by_what_comes() {
    let mut world = World::new(2);
    for round in 0..3 {
        world.stay_awake(&[0, 1]);
        if round > 0 {
            world.send(1);
        }
        assert_eq!(world.arm(), usize::from(round > 0));
        assert!(!world.is_woken(), "neither by that nor by room to write");
        assert_eq!(world.arm(), 0);
        world.send(0);
        assert!(world.is_woken());
        world.cq.clear_events().unwrap();
        assert_eq!(world.poll(), 1);
    }
}

#[test]
#[cfg_attr(miri, ignore = "miri knows no epoll of this kind")]
fn who_sleeps_now_and_then_has_no_queue_pair_muted() {
    let mut world = World::new(1);
    for round in 0..4 * EVENTS_EVERY {
        world.send(0);
        assert_eq!(world.poll(), 1);
        if round % (EVENTS_EVERY / 2) == 0 {
            assert_eq!(world.arm(), 0);
        }
        assert_eq!(world.cq.muted, 0);
    }
}

#[test]
#[cfg_attr(miri, ignore = "miri knows no epoll of this kind")]
fn a_muted_queue_pair_that_nobody_visits_any_more_is_told_of_again() {
    let mut world = World::new(2);
    world.stay_awake(&[0, 1]);
    assert_eq!(world.cq.muted, 2);
    // The other one goes on.
    for _ in 0..QUIET_VISITS {
        world.send(0);
        assert_eq!(world.poll(), 1);
        if world.cq.hot.len() == 1 {
            break;
        }
    }
    assert_eq!((world.cq.hot.len(), world.cq.muted), (1, 1));
    world.send(1);
    assert!((0..=EVENTS_EVERY).any(|_| world.poll() == 1));
    world.stay_awake(&[0, 1]);
    assert_eq!(world.cq.muted, 2);
    // Muted or not, they end.
    for (qp, _) in std::mem::take(&mut world.peers) {
        world.cq.destroy_qp(qp).unwrap();
    }
    assert_eq!(world.cq.muted, 0);
}
