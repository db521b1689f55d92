//! Claims of the RDMA literature that the device contract can express, each a test named after its
//! number in the project's notes; those about memory are in `remote`.
//!
//! Some claims equal rules of the contract, and their tests carry both numbers. About rdma_cm or
//! verbs alone, so not expressible here: S1, S2, S4 to S7, S9 to S27, S29 to S32, S35, S36, S38,
//! S42, S44, S55 to S58, S63 to S67, S70, S72, S78, S80, S81. S85 to S93 concern the credits above
//! the device.

use std::collections::VecDeque;
use std::time::Duration;

use rpc_transport::device::{CompletionKind, PostErrorKind, QpCapacity, QpState, Source, Status};
use test_kit::Rng;

use crate::fixture::*;

/// Numbers of queue pairs are reused; handles never are.
pub(crate) fn s34_new_queue_pair_is_never_mistaken(fixture: &dyn Fixture) {
    runtime().block_on(async {
        let listener = fixture.listen();
        let address = listener.local_address();
        let first = resolve(fixture, &address).await;
        let device = first.device().clone();
        let (pd, mut cq) = (device.allocate_pd().unwrap(), device.create_cq(100).unwrap());
        let capacity =
            QpCapacity { max_send_wr: 4, max_recv_wr: 4, max_inline_bytes: 0, uses_srq: false };
        let mut outgoing = Some(first);
        let mut seen = Vec::new();
        for _ in 0..8 {
            let mut next = match outgoing.take() {
                Some(first) => first,
                None => resolve(fixture, &address).await,
            };
            let qp = next.create_qp(&mut *cq, &pd, capacity).unwrap();
            for old in &seen {
                assert_ne!(qp, *old);
                assert_eq!(cq.state(*old), None, "{old:?} is gone");
            }
            assert_eq!(cq.state(qp), Some(QpState::Init));
            drop(next);
            cq.destroy_qp(qp).unwrap();
            seen.push(qp);
        }
    });
}

pub(crate) fn s39_recvs_are_independent_and_their_ids_free(fixture: &dyn Fixture) {
    let mut pair = Pair::with(fixture, Options { posted: 0, ..Options::default() });
    let ids = [u64::MAX, 0, 7, 7];
    for wr_id in ids {
        pair.server.post_recv(wr_id);
    }
    for _ in ids {
        pair.client.send(3, b"x");
    }
    for wr_id in ids {
        assert_eq!(pair.next_recv(Server).wr_id, wr_id);
    }
}

pub(crate) fn s43_unsignaled_keeps_slot(fixture: &dyn Fixture) {
    let mut pair = Pair::with(fixture, Options { sends: 8, ..Options::default() });
    // Signaled in the middle: frees itself and the WRs before it, not those after it.
    for wr_id in 0..8 {
        let signaled = wr_id == 4;
        pair.client.post(&mut [send(wr_id, signaled, Source::Inline(b"x"))]).unwrap();
    }
    for wr_id in 0..8 {
        pair.next_recv(Server);
        pair.server.post_recv(wr_id);
    }
    assert_eq!(pair.next_sent(Client).wr_id, 4);
    for wr_id in 10..15 {
        pair.client.post(&mut [send(wr_id, false, Source::Inline(b"x"))]).unwrap();
    }
    let error = pair.client.post(&mut [send(15, true, Source::Inline(b"x"))]).unwrap_err();
    assert_eq!(error.kind, PostErrorKind::QueueFull(8));
}

pub(crate) fn s46_send_takes_the_head_of_the_rq(fixture: &dyn Fixture) {
    let options = Options { posted: 0, buffer_bytes: 16 * 1024, ..Options::default() };
    let mut pair = Pair::with(fixture, options);
    for wr_id in [11, 12, 13] {
        pair.server.post_recv(wr_id);
    }
    // A message as large as its RECV fits; a shorter one leaves the rest of the buffer alone.
    for (wr_id, len) in [(11, 16 * 1024), (12, 1), (13, 10_000)] {
        let bytes = pattern(wr_id, len);
        let source = pair.client.filled(&bytes);
        pair.client.post(&mut [send(wr_id, true, source)]).unwrap();
        let received = pair.next_recv(Server);
        assert_eq!((received.wr_id, received.byte_len as usize), (wr_id, len));
        assert!(payload(&received) == bytes);
        pair.next_sent(Client);
    }
}

pub(crate) fn s51_arming_is_idempotent(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    pair.pump();
    for _ in 0..3 {
        pair.server.cq.clear_events().unwrap();
        for _ in 0..5 {
            pair.server.cq.arm().unwrap();
        }
        pair.server.pump();
        assert!(pair.server.got.is_empty());
        pair.client.send(1, b"x");
        assert!(pair.server.is_woken(PATIENCE));
        // Five armings act as one: there is one event.
        pair.server.cq.clear_events().unwrap();
        pair.client.send(2, b"y");
        if fixture.is_silent_unarmed() {
            assert!(!pair.server.is_woken(Duration::ZERO), "one arming, two events");
        }
        for expected in [b"x", b"y"] {
            assert_eq!(payload(&pair.next_recv(Server)), expected);
            pair.next_sent(Client);
        }
    }
}

/// One event stands for all completions until the CQ is armed again (S69): an event only means that
/// a poll is worthwhile, once.
pub(crate) fn s53_s69_an_event_says_only_look(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    pair.pump();
    pair.server.cq.clear_events().unwrap();
    pair.server.cq.arm().unwrap();
    pair.server.pump();
    assert!(pair.server.got.is_empty());
    pair.client.send(0, b"x");
    assert!(pair.server.is_woken(PATIENCE));
    pair.server.cq.clear_events().unwrap();
    // The arming is spent: neither a second completion nor a poll makes another event.
    let assert_silent = |pair: &Pair, what| {
        let is_silent = !fixture.is_silent_unarmed() || !pair.server.is_woken(Duration::ZERO);
        assert!(is_silent, "{what} made an event that nobody has asked for");
    };
    pair.client.send(1, b"x");
    assert_silent(&pair, "a completion");
    if fixture.has_precise_events() {
        while pair.server.pump() {}
        assert_eq!(pair.server.got.len(), 2, "one look gives what one event stood for");
    }
    pair.spin(|pair| pair.server.got.len() == 2);
    assert_silent(&pair, "a look");
    for wr_id in 2..4 {
        pair.client.send(wr_id, b"x");
        pair.spin(|pair| pair.server.got.len() == wr_id as usize + 1);
        assert_silent(&pair, "a completion after a look");
    }
    pair.spin(|pair| pair.client.got.len() == 4);
    assert!(pair.server.got.drain(..).all(|completion| payload(&completion) == b"x"));
    // And again, with nothing left over.
    pair.server.cq.arm().unwrap();
    pair.server.pump();
    assert_silent(&pair, "arming alone");
    pair.client.send(5, b"y");
    assert!(pair.server.is_woken(PATIENCE));
    // A poll before the event was taken does not arm either.
    pair.spin(|pair| pair.server.got.len() == 1);
    pair.server.cq.clear_events().unwrap();
    pair.client.send(6, b"y");
    assert_silent(&pair, "a look at what an event has told");
    pair.spin(|pair| pair.server.got.len() == 2);
    assert!(pair.server.got.drain(..).all(|completion| payload(&completion) == b"y"));
}

/// Unread events do not pile up: one clearing takes all.
pub(crate) fn s71_clearing_takes_all_events(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    pair.pump();
    pair.server.cq.clear_events().unwrap();
    for wr_id in 0..3 {
        pair.server.cq.arm().unwrap();
        pair.server.pump();
        pair.client.send(wr_id, b"x");
        assert!(pair.server.is_woken(PATIENCE));
        pair.spin(|pair| pair.server.got.len() == wr_id as usize + 1);
    }
    pair.server.cq.clear_events().unwrap();
    // A NIC may report the last one only now.
    if fixture.has_precise_events() {
        assert!(!pair.server.is_woken(Duration::ZERO), "an event is left");
    }
    pair.server.cq.arm().unwrap();
    pair.server.pump();
    pair.client.send(3, b"x");
    assert!(pair.server.is_woken(PATIENCE), "the next one is reported");
    for wr_id in 0..4 {
        assert_eq!(pair.next_recv(Server).wr_id, wr_id);
    }
}

pub(crate) fn s54_poll_takes_at_most_what_was_asked(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    for wr_id in 0..6 {
        pair.client.send(wr_id, b"x");
        // If posts arrive at once they stay in the server's CQ; otherwise once the send has
        // completed.
        if !fixture.has_precise_events() {
            pair.next_sent(Client);
        }
    }
    let mut polled: Vec<_> = pair.server.got.drain(..).collect();
    for max in [0, 1, 2] {
        let before = polled.len();
        let count = pair.server.cq.poll(&mut polled, max).unwrap();
        assert_eq!(count, polled.len() - before);
        assert!(count <= max);
    }
    // Until it is empty: an empty poll has left no completion behind.
    if fixture.has_precise_events() {
        while pair.server.cq.poll(&mut polled, 2).unwrap() > 0 {}
        assert_eq!(polled.len(), 6, "a poll ended early");
    }
    while polled.len() < 6 {
        polled.push(pair.next_recv(Server));
    }
    let ids: Vec<_> = polled.iter().map(|completion| completion.wr_id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
}

pub(crate) fn s62_a_send_queue_full_of_unsignaled_refuses(fixture: &dyn Fixture) {
    let mut pair = Pair::with(fixture, Options { sends: 3, ..Options::default() });
    let mut wrs: Vec<_> = (0..5).map(|i| send(i, false, Source::Inline(b"x"))).collect();
    let error = pair.client.post(&mut wrs).unwrap_err();
    assert_eq!((error.posted, error.kind), (3, PostErrorKind::QueueFull(3)));
    for _ in 0..3 {
        pair.next_recv(Server);
    }
    assert!(pair.server.got.is_empty(), "what was refused was not sent");
}

/// In order, exactly once, whatever the sizes, queue depths and directions (S74, S76).
pub(crate) fn s74_in_order_exactly_once(fixture: &dyn Fixture) {
    const SEED: u64 = 0x5_74;
    println!("seed {SEED:#x}");
    let mut random = Rng::new(SEED);
    let mut next = move |below: u64| random.below(below);
    let mut pair = Pair::new(fixture);
    // Per direction: sent and not received, RECVs posted, sends not completed.
    let mut sent = [VecDeque::new(), VecDeque::new()];
    let (mut posted, mut outstanding) = ([8_u64; 2], [VecDeque::new(), VecDeque::new()]);
    let mut received = [0_u64; 2];
    for step in 0..4000_u64 {
        let (from, to, side) = if next(2) == 0 { (0, 1, Client) } else { (1, 0, Server) };
        if posted[to] > 0 && outstanding[from].len() < 12 {
            let len = match next(4) {
                0 => next(4097),
                1 => next(600),
                _ => next(100) + 1,
            };
            let bytes = pattern(step, usize::try_from(len.max(1)).unwrap());
            let source = if bytes.len() <= 128 {
                Source::Inline(&bytes)
            } else {
                pair.end(side).filled(&bytes)
            };
            pair.end(side).post(&mut [send(step, true, source)]).unwrap();
            outstanding[from].push_back(step);
            sent[from].push_back(bytes);
            posted[to] -= 1;
        } else {
            // The event that unblocks this direction is on its way. A single poll here would make
            // the progress of 4,000 steps depend on the speed of the device.
            pair.wait("what blocks this direction", |pair| {
                !pair.client.got.is_empty() || !pair.server.got.is_empty()
            });
        }
        for (me, side) in [(0, Client), (1, Server)] {
            let peer = 1 - me;
            while let Some(completion) = pair.end(side).got.pop_front() {
                assert_eq!(completion.status, Status::Success, "seed {SEED:#x}, step {step}");
                if completion.kind == CompletionKind::Send {
                    assert_eq!(outstanding[me].pop_front(), Some(completion.wr_id));
                } else {
                    let expected = sent[peer].pop_front().expect("something was sent");
                    assert!(payload(&completion) == expected, "seed {SEED:#x}, step {step}");
                    received[me] += 1;
                    drop(completion);
                    pair.end(side).post_recv(step);
                    posted[me] += 1;
                }
            }
        }
    }
    for (me, side) in [(0, Client), (1, Server)] {
        while let Some(expected) = sent[1 - me].pop_front() {
            assert!(payload(&pair.next_recv(side)) == expected);
            received[me] += 1;
        }
        while let Some(wr_id) = outstanding[me].pop_front() {
            assert_eq!(pair.next_sent(side).wr_id, wr_id);
        }
    }
    assert!(received.iter().all(|count| *count > 200), "{received:?}");
}

pub(crate) fn s76_completions_of_each_queue_are_in_order(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    for wr_id in 0..8 {
        pair.client.send(wr_id, b"there");
        pair.server.send(wr_id, b"back");
    }
    for side in [Client, Server] {
        for wr_id in 0..8 {
            assert_eq!(pair.next_sent(side).wr_id, wr_id);
            assert_eq!(pair.next_recv(side).wr_id, wr_id);
        }
    }
}
