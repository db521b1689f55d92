//! Contract rules 3 and 17: when a completion queue wakes, and when posts ring the doorbell.

use std::time::Duration;

use rpc_transport::device::{Ring, SendOp, SendWr, Source};
use rpc_transport::memory::region::Access;

use crate::fixture::*;

pub(crate) fn rule03_arming(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    // Each arming wakes once for a later completion.
    for round in 0..5_u64 {
        settle(&mut pair);
        pair.server.cq.arm().unwrap();
        pair.server.pump();
        assert!(pair.server.got.is_empty());
        pair.client.send(round, b"wake up");
        assert!(pair.server.is_woken(PATIENCE), "round {round}");
        pair.server.cq.clear_events().unwrap();
        assert_eq!(payload(&pair.next_recv(Server)), b"wake up");
        pair.next_sent(Client);
    }
    // So does a send completion.
    settle(&mut pair);
    pair.client.send(9, b"x");
    pair.client.cq.arm().unwrap();
    if pair.client.got.is_empty() {
        pair.next_recv(Server);
        pair.server.cq.flush();
        pair.server.pump();
        pair.client.pump();
        if pair.client.got.is_empty() {
            assert!(pair.client.is_woken(PATIENCE));
        }
    }
    pair.next_sent(Client);
    // So do completions that this side causes without the peer.
    pair.server.cq.arm().unwrap();
    pair.server.pump();
    assert!(pair.server.got.is_empty());
    let qp = pair.server.qp;
    pair.server.cq.modify_to_error(qp).unwrap();
    assert!(pair.server.is_woken(PATIENCE));
}

/// Takes all pending events and completions.
fn settle(pair: &mut Pair) {
    pair.client.cq.clear_events().unwrap();
    pair.server.cq.clear_events().unwrap();
    pair.pump();
    pair.pump();
}

/// S52 as well: completions queued before arming fire nothing, and polling after arming finds them.
pub(crate) fn rule03_s52_queued_completions_fire_nothing(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    settle(&mut pair);
    pair.client.send(1, b"first");
    // Once the send has completed, the server's completion is queued at its device.
    pair.wait("the send", |pair| !pair.client.got.is_empty());
    pair.server.cq.clear_events().unwrap();
    pair.server.cq.arm().unwrap();
    if fixture.has_precise_events() {
        assert!(!pair.server.is_woken(Duration::ZERO));
    }
    assert_eq!(payload(&pair.next_recv(Server)), b"first");
}

/// Traffic that gives no completion, and polls that find none, do not spend the arming.
pub(crate) fn rule03_silent_traffic_does_not_spend_the_arming(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    for round in 0..6_u64 {
        settle(&mut pair);
        pair.server.cq.arm().unwrap();
        let target = pair.server_region(4096, Access::REMOTE_WRITE, 0);
        for _ in 0..4 {
            let source = pair.client.filled(&[1; 4096]);
            pair.client.post(&mut [write(0, remote(&target, 0), source)]).unwrap();
            while pair.client.got.is_empty() {
                pair.pump();
            }
            pair.next_sent(Client);
        }
        for _ in 0..200 {
            pair.server.pump();
        }
        assert!(pair.server.got.is_empty());
        pair.client.send(round, b"wake up");
        assert!(pair.server.is_woken(PATIENCE), "round {round}");
        assert_eq!(payload(&pair.next_recv(Server)), b"wake up");
        pair.server.post_recv(0);
        pair.next_sent(Client);
    }
}

/// A driver polls once more after arming, then sleeps. The peer must be woken for anything that
/// this poll sends.
pub(crate) fn rule03_sends_of_the_last_poll_wake(fixture: &dyn Fixture) {
    const LEN: usize = 300_000;
    let options = Options { buffer_bytes: LEN as u32, posted: 1, ..Options::default() };
    let mut pair = Pair::with(fixture, options);
    let bytes = pattern(3, LEN);
    let source = pair.client.filled(&bytes);
    // Unsignaled: the sender waits for nothing.
    pair.client.post(&mut [send(1, false, source)]).unwrap();
    while pair.server.got.is_empty() {
        // Everything that has arrived is received and acknowledged, to a sender that has not armed.
        for _ in 0..16 {
            pair.server.pump();
        }
        for end in [&mut pair.server, &mut pair.client] {
            end.cq.arm().unwrap();
            end.pump();
        }
        if pair.server.got.is_empty() {
            let fds = [pair.server.cq.event_fd(), pair.client.cq.event_fd()];
            assert!(readable(&fds, PATIENCE), "both sleep");
            pair.server.cq.clear_events().unwrap();
            pair.client.cq.clear_events().unwrap();
        }
    }
    assert!(payload(&pair.server.got[0]) == bytes);
}

pub(crate) fn rule17_linked_posts(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let target = pair.server_region(4096, Access::REMOTE_WRITE, 0);
    let bytes = pattern(3, 4096);
    let source = pair.client.filled(&bytes);
    let (small, tail) = (pair.client.filled(b"two"), Source::Inline(b"three"));
    let mut list = [
        SendWr { wr_id: 1, op: SendOp::Write(remote(&target, 0)), signaled: false, source },
        send(2, false, small),
        send(3, true, tail),
    ];
    let qp = pair.client.qp;
    pair.client.copy_what_is_not_granted(&mut list);
    pair.client.cq.post_send(qp, &mut list).unwrap();
    assert!(list.iter().all(|wr| matches!(wr.source, Source::Empty)));
    // A poll rings a pending doorbell as a flush does.
    assert_eq!(payload(&pair.next_recv(Server)), b"two");
    assert_eq!(contents(&target), bytes);
    assert_eq!(payload(&pair.next_recv(Server)), b"three");
    assert_eq!(pair.next_sent(Client).wr_id, 3);
}

/// The sender neither flushes nor polls.
pub(crate) fn rule17_a_last_inline_post_rings(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let (qp, server) = (pair.client.qp, &mut pair.server);
    if pair.client.cq.max_inline_bytes(qp) < 8 {
        return;
    }
    for posts in [&["alone"][..], &["one", "two", "three"]] {
        server.cq.arm().unwrap();
        assert!(!server.pump(), "something came before the posts");
        for (wr_id, bytes) in (1..).zip(posts) {
            let more = wr_id < posts.len() as u64;
            let ring = if more { Ring::WithNext } else { Ring::Now };
            pair.client.cq.post_send_inline(qp, wr_id, !more, bytes.as_bytes(), ring).unwrap();
        }
        while server.got.len() < posts.len() {
            assert!(server.is_woken(PATIENCE), "nobody rang for {posts:?}");
            server.cq.clear_events().unwrap();
            server.pump();
            server.cq.arm().unwrap();
            // Earlier arrivals wake nobody.
            server.pump();
        }
        let got: Vec<_> = server.got.drain(..).collect();
        let got: Vec<_> = got.iter().map(payload).collect();
        assert_eq!(got, posts.iter().map(|bytes| bytes.as_bytes()).collect::<Vec<_>>());
    }
}

/// Each of these operations rings a held doorbell, and the sender does nothing more.
pub(crate) fn rule17_held_doorbell_rings_by_poll_flush_arm(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let qp = pair.client.qp;
    if pair.client.cq.max_inline_bytes(qp) < 8 {
        return;
    }
    let mut number = 0_u64;
    for next in ["poll", "flush", "arm", "another post"] {
        let first = number;
        for _ in 0..3 {
            let bytes = number.to_le_bytes();
            pair.client.cq.post_send_inline(qp, number, true, &bytes, Ring::Soon).unwrap();
            number += 1;
        }
        match next {
            "poll" => drop(pair.client.pump()),
            "flush" => pair.client.cq.flush(),
            "arm" => pair.client.cq.arm().unwrap(),
            _ => {
                let bytes = number.to_le_bytes();
                pair.client.cq.post_send_inline(qp, number, true, &bytes, Ring::Now).unwrap();
                number += 1;
            }
        }
        for expected in first..number {
            // Polls the server alone: the client has done its part.
            let server = &mut pair.server;
            while server.got.is_empty() {
                server.pump();
            }
            let got = server.got.pop_front().unwrap();
            assert_eq!(payload(&got), expected.to_le_bytes(), "after {next}");
            server.post_recv(number);
        }
    }
    for wr_id in 0..number {
        assert_eq!(pair.next_sent(Client).wr_id, wr_id);
    }
}
