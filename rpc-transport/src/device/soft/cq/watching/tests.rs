//! Which arrivals the event fd reports, and when.

use rustix::event::epoll;

use crate::device::{CompletionQueue, QpEvent, QpState, Status};

use super::super::testing::World;
use super::super::{EVENTS_EVERY, QUIET_VISITS, find};

#[test]
#[cfg_attr(miri, ignore = "miri knows no epoll of this kind")]
fn arrivals_wake_nobody_while_they_are_polled_for() {
    let mut world = World::new(1);
    world.stay_awake(&[0]);
    // Clears the events of the last change.
    world.cq.clear_events().unwrap();
    world.send(0);
    assert!(!world.is_woken());
    assert_eq!(world.poll(), 1);
}

#[test]
#[cfg_attr(miri, ignore = "miri knows no epoll of this kind")]
fn arming_finds_pending_packets_and_later_ones_wake() {
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
fn occasional_sleep_mutes_no_queue_pair() {
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
fn muted_queue_pair_without_visits_is_reported_again() {
    let mut world = World::new(2);
    world.stay_awake(&[0, 1]);
    assert_eq!(world.cq.muted, 2);
    // The other QP stays in use.
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
    // Destroying works whether they are muted or not.
    for (qp, _) in std::mem::take(&mut world.peers) {
        world.cq.destroy_qp(qp).unwrap();
    }
    assert_eq!(world.cq.muted, 0);
}

/// A regression: all queue pairs of the CQ ended, since its driver treated the error as the end of
/// the CQ.
#[test]
#[cfg_attr(miri, ignore = "miri knows no epoll of this kind")]
fn a_socket_that_cannot_be_watched_ends_alone() {
    let mut world = World::new(2);
    world.stay_awake(&[0, 1]);
    let [lost, other] = [0, 1].map(|peer: usize| world.peers[peer].0);
    let fd = find(&mut world.cq.entries, lost).unwrap().wire().watched().unwrap().0;
    epoll::delete(&world.cq.epoll, fd).unwrap();
    world.cq.arm().unwrap();
    assert_eq!(world.cq.state(lost), Some(QpState::Error));
    assert!(matches!(world.cq.poll_event(), Some(QpEvent::Fatal(qp, _)) if qp == lost));
    assert_eq!((world.cq.state(other), world.cq.muted), (Some(QpState::ReadyToSend), 0));
    let mut flushed = Vec::new();
    world.cq.poll(&mut flushed, 64).unwrap();
    assert!(flushed.iter().all(|it| it.qp == lost && it.status == Status::FlushError));
    world.cq.arm().unwrap();
    world.send(1);
    assert!(world.is_woken());
}
