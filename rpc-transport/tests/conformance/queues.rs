//! Contract rules 1 to 14, 20 and 21, as far as they concern queues and completions.

use rpc_transport::device::{
    Capabilities, CompletionKind, PostErrorKind, ProviderError, QpCapacity, QpState, RecvWr, Ring,
    Source, Status, Traffic,
};
use rpc_transport::memory::region::Access;

use crate::fixture::*;

pub(crate) fn rule01_order(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let mut expected = 0;
    for round in 0..20_u64 {
        let sizes = [1, 100, 4096, 64, 2000, 7];
        let messages: Vec<_> = (0..6).map(|i| pattern(round * 6 + i, sizes[i as usize])).collect();
        for (i, message) in messages.iter().enumerate() {
            let wr_id = round * 6 + i as u64;
            let source = if message.len() <= 100 {
                Source::Inline(message)
            } else {
                pair.client.filled(message)
            };
            pair.client.post(&mut [send(wr_id, true, source)]).unwrap();
        }
        for message in &messages {
            let received = pair.next_recv(Server);
            assert_eq!(received.wr_id, expected % 8, "RECVs are consumed in post order");
            assert_eq!(payload(&received), message);
            drop(received);
            pair.server.post_recv(expected % 8);
            assert_eq!(pair.next_sent(Client).wr_id, expected);
            expected += 1;
        }
    }
}

pub(crate) fn rule04_unsignaled(fixture: &dyn Fixture) {
    let mut pair = Pair::with(fixture, Options { sends: 4, ..Options::default() });
    for wr_id in 0..4 {
        pair.client.post(&mut [send(wr_id, false, Source::Inline(b"u"))]).unwrap();
    }
    for _ in 0..4 {
        pair.next_recv(Server);
    }
    // All four have been accepted, and still hold their slots.
    pair.pump();
    let error = pair.client.post(&mut [send(9, true, Source::Inline(b"u"))]).unwrap_err();
    assert_eq!((error.posted, error.kind), (0, PostErrorKind::QueueFull(4)));
    assert!(pair.client.got.is_empty(), "{:?}", pair.client.got);
}

pub(crate) fn rule04_signaled_frees_the_unsignaled_before(fixture: &dyn Fixture) {
    let mut pair = Pair::with(fixture, Options { sends: 4, ..Options::default() });
    for round in 0..5_u64 {
        for wr_id in 0..4 {
            let signaled = wr_id == 3;
            pair.client.post(&mut [send(wr_id, signaled, Source::Inline(b"u"))]).unwrap();
        }
        for wr_id in 0..4 {
            pair.next_recv(Server);
            pair.server.post_recv(wr_id);
        }
        // The completion exists, but only polling it frees the slots.
        if round == 0 && pair.client.got.is_empty() {
            let error = pair.client.post(&mut [send(9, true, Source::Inline(b"u"))]);
            assert_eq!(error.unwrap_err().kind, PostErrorKind::QueueFull(4));
        }
        let completion = pair.next_sent(Client);
        assert_eq!(completion.wr_id, 3);
        assert!(pair.client.got.is_empty(), "unsignaled WRs give no completion");
    }
}

pub(crate) fn rule05_queues_are_unordered(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let (mut sent, mut inverted) = (0_u64, 0);
    for round in 0..100_u64 {
        pair.client.send(round, b"request");
        drop(pair.next_recv(Server));
        pair.server.post_recv(0);
        pair.server.post(&mut [send(round, true, Source::Inline(b"reply"))]).unwrap();
        // Either may come first; each queue for itself is in order.
        let (mut replied, mut completed) = (false, false);
        while !(replied && completed) {
            let completion = pair.next(Client);
            assert_eq!(completion.status, Status::Success);
            if completion.kind == CompletionKind::Send {
                assert_eq!(completion.wr_id, sent);
                sent += 1;
                completed = true;
            } else {
                inverted += u32::from(!completed);
                replied = true;
            }
        }
        pair.client.post_recv(0);
        pair.next_sent(Server);
    }
    if fixture.reorders_queues() {
        assert!(inverted > 0, "no reply ever came before the completion of its request");
    }
}

pub(crate) fn rule06_s60_accepted_messages_outlive_the_sender(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    pair.client.send(1, b"last words");
    if fixture.completes_alone() {
        // The peer's device has it (S60); its owner has not polled.
        while pair.client.got.is_empty() {
            pair.client.pump();
        }
        assert!(pair.server.got.is_empty());
    }
    pair.wait("the send", |pair| !pair.client.got.is_empty());
    assert_eq!(pair.client.got[0].status, Status::Success);
    let qp = pair.client.qp;
    pair.client.cq.destroy_qp(qp).unwrap();
    assert_eq!(payload(&pair.next_recv(Server)), b"last words");
}

pub(crate) fn rule07_s73_states(fixture: &dyn Fixture) {
    let options = Options { posted: 0, ..Options::default() };
    let runtime = runtime();
    runtime.block_on(async {
        let listener = fixture.listen();
        let mut outgoing = resolve(fixture, &listener.local_address()).await;
        let mut objects = End::objects(outgoing.device(), &options);
        let capacity = End::capacity(&options);
        let qp = outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
        assert_eq!(objects.cq.state(qp), Some(QpState::Init));
        let error = objects.cq.post_send(qp, &mut [send(1, true, Source::Inline(b"x"))]);
        assert_eq!(error.unwrap_err().kind, PostErrorKind::InvalidState(QpState::Init));
        let error = objects.cq.post_send_inline(qp, 1, true, b"x", Ring::Now);
        assert_eq!(error.unwrap_err().kind, PostErrorKind::InvalidState(QpState::Init));
        let buffer = objects.recv_pool.take().unwrap();
        objects.cq.post_recv(qp, RecvWr { wr_id: 7, buffer }).unwrap();
        // Any state may go to ERR, which flushes.
        objects.cq.modify_to_error(qp).unwrap();
        assert_eq!(objects.cq.state(qp), Some(QpState::Error));
        let mut completions = Vec::new();
        while completions.is_empty() {
            objects.cq.poll(&mut completions, 4).unwrap();
        }
        assert_eq!((completions[0].wr_id, completions[0].status), (7, Status::FlushError));
        drop(outgoing);
        objects.cq.destroy_qp(qp).unwrap();
        assert_eq!(objects.cq.state(qp), None);
    });
    let mut pair = Pair::new(fixture);
    assert_eq!(pair.client.state(), QpState::ReadyToSend);
    assert_eq!(pair.server.state(), QpState::ReadyToSend);
    let qp = pair.client.qp;
    pair.client.cq.destroy_qp(qp).unwrap();
    assert_eq!(pair.client.cq.state(qp), None);
    let unknown = pair.client.cq.post_send(qp, &mut [send(1, true, Source::Inline(b"x"))]);
    assert_eq!(unknown.unwrap_err().kind, PostErrorKind::UnknownQp);
    let unknown = pair.client.cq.post_send_inline(qp, 1, true, b"x", Ring::Now);
    assert_eq!(unknown.unwrap_err().kind, PostErrorKind::UnknownQp);
    let buffer = pair.client.recv_pool.take().unwrap();
    let (error, wr) = pair.client.cq.post_recv(qp, RecvWr { wr_id: 3, buffer }).unwrap_err();
    assert_eq!((error.kind, wr.wr_id), (PostErrorKind::UnknownQp, 3));
    assert!(matches!(pair.client.cq.modify_to_error(qp), Err(ProviderError::UnknownQp)));
    assert!(matches!(pair.client.cq.destroy_qp(qp), Err(ProviderError::UnknownQp)));
}

pub(crate) fn rule08_s28_flush(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let qp = pair.client.qp;
    pair.client.cq.modify_to_error(qp).unwrap();
    assert_eq!(pair.client.state(), QpState::Error);
    for wr_id in 0..8 {
        let flushed = pair.next(Client);
        assert_eq!((flushed.wr_id, flushed.status), (wr_id, Status::FlushError));
        assert_eq!(flushed.kind, CompletionKind::Recv);
        assert!(flushed.buffer.is_some(), "a flushed RECV brings its buffer back");
    }
    // Posted in ERR: SENDs are flushed too, unsignaled ones included.
    let source = pair.client.filled(b"late");
    let mut late = [send(20, true, source), send(21, false, Source::Inline(b"late"))];
    let posted = pair.client.post(&mut late);
    drop(late);
    if pair.client.has(Capabilities::FLUSHES_LATE_SENDS) {
        posted.unwrap();
        for wr_id in [20, 21] {
            let flushed = pair.next(Client);
            assert_eq!((flushed.wr_id, flushed.status), (wr_id, Status::FlushError));
            assert_eq!(flushed.kind, CompletionKind::Send);
        }
    } else {
        let error = posted.unwrap_err();
        assert_eq!((error.posted, error.kind), (0, PostErrorKind::InvalidState(QpState::Error)));
    }
    pair.client.post_recv(30);
    if pair.client.has(Capabilities::FLUSHES_LATE_RECEIVES) {
        let flushed = pair.next(Client);
        assert_eq!((flushed.wr_id, flushed.status), (30, Status::FlushError));
    }
    pair.client.cq.destroy_qp(qp).unwrap();
    fixture.settle();
    assert_eq!(pair.client.recv_pool.free_count(), pair.client.recv_pool.count() as usize);
    assert_eq!(pair.client.send_pool.free_count(), pair.client.send_pool.count() as usize);
}

pub(crate) fn rule08_the_failed_wr_has_its_own_status(fixture: &dyn Fixture) {
    let mut pair = Pair::with(fixture, Options { posted: 2, ..Options::default() });
    // Two RECVs, five SENDs: the third fails, the others after it are flushed, unsignaled or not.
    let mut wrs: Vec<_> = (0..5).map(|i| send(i, i == 4, Source::Inline(b"x"))).collect();
    pair.client.post(&mut wrs).unwrap();
    if pair.client.has(Capabilities::REMOTE_ERRORS) {
        let failed = pair.next_of(Client, false);
        assert_eq!((failed.wr_id, failed.status), (2, Status::RnrRetryExceeded));
        for wr_id in [3, 4] {
            let flushed = pair.next_of(Client, false);
            assert_eq!((flushed.wr_id, flushed.status), (wr_id, Status::FlushError));
        }
    } else {
        // Only the last one reports: either all had left, or the rest is flushed.
        pair.wait("the end of the connection", |pair| pair.client.is_disconnected());
        pair.client.cq.modify_to_error(pair.client.qp).unwrap();
        while pair.next_of(Client, false).wr_id != 4 {}
    }
    for _ in 0..2 {
        assert_eq!(pair.next_of(Client, true).status, Status::FlushError);
        pair.next_recv(Server);
    }
    assert!(pair.client.got.is_empty());
}

pub(crate) fn rule09_s61_s84_rnr(fixture: &dyn Fixture) {
    let mut pair = Pair::with(fixture, Options { posted: 0, ..Options::default() });
    pair.client.send(5, b"nobody listens");
    pair.wait_refused(5, |status| status == Status::RnrRetryExceeded);
    assert_eq!(pair.client.state(), QpState::Error);
    assert!(pair.server.got.is_empty());
}

pub(crate) fn rule10_too_long(fixture: &dyn Fixture) {
    for len in [65, 128, 4096, 16 * 1024] {
        let mut pair =
            Pair::with(fixture, Options { buffer_bytes: 16 * 1024, ..Options::default() });
        // Two RECVs of 64 bytes behind the eight long ones, which are used up first.
        let small =
            rpc_transport::memory::region::BufferPool::allocate(&pair.server.pd, 64, 2).unwrap();
        for _ in 0..8 {
            pair.client.send(0, b"x");
            pair.next_recv(Server);
            pair.next_sent(Client);
        }
        for wr_id in [50, 51] {
            let buffer = small.take().unwrap();
            let qp = pair.server.qp;
            pair.server.cq.post_recv(qp, RecvWr { wr_id, buffer }).unwrap();
        }
        let source = pair.client.filled(&vec![1; len]);
        pair.client.post(&mut [send(1, true, source)]).unwrap();
        let refused = [Status::RemoteInvalidRequest, Status::RemoteOperation];
        pair.wait_refused(1, |status| refused.contains(&status));
        let short = pair.next_of(Server, true);
        assert_eq!(short.wr_id, 50);
        let statuses = [Status::LocalLength, Status::LocalQpOperation];
        assert!(statuses.contains(&short.status), "{:?}", short.status);
        let flushed = pair.next_of(Server, true);
        assert_eq!((flushed.wr_id, flushed.status), (51, Status::FlushError));
        pair.wait_error(Client);
        pair.wait_error(Server);
    }
}

pub(crate) fn rule12_bounded_queues(fixture: &dyn Fixture) {
    let options = Options { sends: 4, recvs: 3, posted: 3, ..Options::default() };
    let mut pair = Pair::with(fixture, options);
    let mut wrs: Vec<_> = (0..6)
        .map(|i| {
            let source = pair.client.filled(&[i as u8]);
            send(i, true, source)
        })
        .collect();
    let free = pair.client.send_pool.free_count();
    let error = pair.client.post(&mut wrs).unwrap_err();
    assert_eq!((error.posted, error.kind), (4, PostErrorKind::QueueFull(4)));
    assert!(wrs[..4].iter().all(|wr| matches!(wr.source, Source::Empty)));
    assert!(wrs[4..].iter().all(|wr| matches!(wr.source, Source::Buffer { .. })));
    drop(wrs);
    assert_eq!(pair.client.send_pool.free_count(), free + 2, "what was refused came back");

    let buffer = pair.client.recv_pool.take().unwrap();
    let qp = pair.client.qp;
    let (error, wr) = pair.client.cq.post_recv(qp, RecvWr { wr_id: 9, buffer }).unwrap_err();
    assert_eq!((error.posted, error.kind, wr.wr_id), (0, PostErrorKind::QueueFull(3), 9));
}

pub(crate) fn rule12_recvs_that_do_not_fit_stay(fixture: &dyn Fixture) {
    let mut pair = Pair::with(fixture, Options { recvs: 5, posted: 2, ..Options::default() });
    let taken = std::iter::from_fn(|| pair.server.recv_pool.take());
    let mut wrs: Vec<_> =
        (2..7).zip(taken).map(|(wr_id, buffer)| RecvWr { wr_id, buffer }).collect();
    let (qp, free) = (pair.server.qp, pair.server.recv_pool.free_count());
    let error = pair.server.cq.post_recvs(qp, &mut wrs).unwrap_err();
    assert_eq!((error.posted, error.kind), (3, PostErrorKind::QueueFull(5)));
    assert_eq!(wrs.iter().map(|wr| wr.wr_id).collect::<Vec<_>>(), [5, 6]);
    // The ones before it are posted, in order and after the earlier ones.
    for wr_id in 0..5 {
        pair.client.send(wr_id, &[wr_id as u8; 9]);
        let received = pair.next_recv(Server);
        assert_eq!((received.wr_id, payload(&received)), (wr_id, &[wr_id as u8; 9][..]));
    }
    pair.server.cq.post_recvs(qp, &mut wrs).unwrap();
    assert!(wrs.is_empty());
    assert_eq!(pair.server.recv_pool.free_count(), free + 5, "what is posted is kept");
    pair.client.send(9, b"once more");
    assert_eq!(pair.next_recv(Server).wr_id, 5);
}

pub(crate) fn rule12_s33_what_does_not_fit_is_refused(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let qp = pair.client.qp;
    let granted = pair.client.cq.max_inline_bytes(qp);
    let most = pair.client.device.attributes().max_inline_bytes;
    assert!(granted >= most.min(128), "inline bytes asked for were not granted: {granted}");
    let long = vec![0; granted.max(128) as usize + 1];
    let error = pair.client.post(&mut [send(0, true, Source::Inline(&long))]).unwrap_err();
    let len = long.len();
    assert_eq!(error.kind, PostErrorKind::InlineTooLong { len, max: granted });
    let (a, b) = long.split_at(10);
    let error = pair.client.post(&mut [send(0, true, Source::InlineGather(a, b))]).unwrap_err();
    assert_eq!(error.kind, PostErrorKind::InlineTooLong { len, max: granted });

    let buffer = pair.client.send_pool.take().unwrap();
    let (start, len) = (4000, 97);
    let mut wrs = [send(0, true, Source::Buffer { buffer, start, len })];
    let error = pair.client.post(&mut wrs).unwrap_err();
    let kind = PostErrorKind::OutOfBounds { start: 4000, len: 97, size: 4096 };
    assert_eq!((error.posted, error.kind), (0, kind));
    assert!(matches!(wrs[0].source, Source::Buffer { .. }), "a refused buffer stays");

    let region = region(&pair.client.pd, 100, Access::LOCAL, 0);
    for (start, len) in [(0, 101), (100, 1), (1, u64::MAX), (u64::MAX, 1)] {
        let source = Source::Region { region: region.clone(), start, len };
        let error = pair.client.post(&mut [send(0, true, source)]).unwrap_err();
        assert_eq!(error.kind, PostErrorKind::OutOfBounds { start, len, size: 100 });
    }
    assert_eq!(pair.client.cq.max_inline_bytes(qp), granted);
    pair.client.cq.destroy_qp(qp).unwrap();
    assert_eq!(pair.client.cq.max_inline_bytes(qp), 0);
}

pub(crate) fn rule13_s37_bounded_cq(fixture: &dyn Fixture) {
    let runtime = runtime();
    runtime.block_on(async {
        let listener = fixture.listen();
        let address = listener.local_address();
        let mut first = resolve(fixture, &address).await;
        let mut second = resolve(fixture, &address).await;
        let device = first.device().clone();
        let (pd, mut cq) = (device.allocate_pd().unwrap(), device.create_cq(100).unwrap());
        let rest = cq.capacity() - 60;
        let capacity = |max_send_wr, max_recv_wr| QpCapacity {
            max_send_wr,
            max_recv_wr,
            max_inline_bytes: 0,
            uses_srq: false,
        };
        let qp = first.create_qp(&mut *cq, &pd, capacity(30, 30)).unwrap();
        let error = second.create_qp(&mut *cq, &pd, capacity(rest, 1)).unwrap_err();
        assert!(matches!(error, ProviderError::CompletionQueueFull { .. }), "{error}");
        // A destroyed QP gives its share back.
        drop(first);
        cq.destroy_qp(qp).unwrap();
        let mut third = resolve(fixture, &address).await;
        third.create_qp(&mut *cq, &pd, capacity(rest, 1)).unwrap();
        let attributes = device.attributes();
        let error = device.create_cq(attributes.max_cqe.saturating_add(1)).unwrap_err();
        assert!(
            matches!(error, ProviderError::Limit { .. } | ProviderError::Resources { .. }),
            "{error}"
        );
    });
}

pub(crate) fn rule14_buffers_come_back(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let free = pair.client.send_pool.free_count();
    let (a, b) = (pair.client.filled(b"unsignaled"), pair.client.filled(b"signaled"));
    pair.client.post(&mut [send(1, false, a), send(2, true, b)]).unwrap();
    let completion = pair.next_sent(Client);
    assert_eq!(completion.wr_id, 2);
    let buffer = completion.buffer.expect("a signaled SEND brings its buffer back");
    assert_eq!(&buffer[..8], b"signaled");
    assert_eq!(pair.client.send_pool.free_count(), free - 1, "the unsignaled one is home");
    drop(buffer);
    assert_eq!(pair.client.send_pool.free_count(), free);
    for expected in [&b"unsignaled"[..], b"signaled"] {
        assert_eq!(payload(&pair.next_recv(Server)), expected);
    }
}

pub(crate) fn rule14_s45_s82_post_gathers_inline_bytes(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    for round in 0..8_u8 {
        let (mut a, mut b) = ([round; 50], [round + 1; 30]);
        pair.client.post(&mut [send(1, true, Source::InlineGather(&a, &b))]).unwrap();
        a.fill(0xee);
        b.fill(0xee);
        let received = pair.next_recv(Server);
        assert_eq!(payload(&received), [[round; 50].as_slice(), &[round + 1; 30]].concat());
        assert!(a.iter().chain(&b).all(|byte| *byte == 0xee));
        pair.next_sent(Client);
    }
}

pub(crate) fn rule20_zero_length(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let target = pair.server_region(64, Access::REMOTE_WRITE, 7);
    pair.client.post(&mut [write(1, remote(&target, 0), Source::Empty)]).unwrap();
    assert_eq!(pair.next_sent(Client).wr_id, 1);
    assert_eq!(contents(&target), [7; 64]);
    if pair.client.has(Capabilities::EMPTY_SEND) {
        pair.client.post(&mut [send(2, true, Source::Empty)]).unwrap();
        let received = pair.next_recv(Server);
        assert_eq!((received.wr_id, received.byte_len), (0, 0));
        assert_eq!(pair.next_sent(Client).wr_id, 2);
    }
}

/// A device that reports traffic has counted all of a message by its completion, and its counts
/// never decrease.
pub(crate) fn rule21_traffic(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let ask = |pair: &mut Pair| {
        [Client, Server].map(|side| {
            let end = pair.end(side);
            end.cq.traffic(end.qp)
        })
    };
    let [Some(mut client), Some(mut server)] = ask(&mut pair) else {
        assert_eq!(ask(&mut pair), [None, None], "one that cannot tell says so at both ends");
        return;
    };
    for wr_id in 0..20 {
        let source = pair.client.filled(&pattern(wr_id, 2000));
        pair.client.post(&mut [send(wr_id, true, source)]).unwrap();
        let [Some(posted), _] = ask(&mut pair) else { panic!("it could tell before") };
        let ends = |traffic: Traffic| traffic.accepted.saturating_add(traffic.pending);
        assert!(ends(posted) > client.accepted, "what is posted is pending: {posted:?}");
        pair.next_recv(Server);
        pair.server.post_recv(wr_id);
        pair.next_sent(Client);
        let [Some(sent), Some(received)] = ask(&mut pair) else { panic!("it could tell before") };
        assert!(sent.accepted > client.accepted && sent.accepted >= posted.accepted, "{sent:?}");
        assert!(received.received > server.received, "{received:?}");
        assert!(sent.received >= client.received && received.accepted >= server.accepted);
        (client, server) = (sent, received);
    }
    let qp = pair.client.qp;
    pair.client.cq.destroy_qp(qp).unwrap();
    assert_eq!(pair.client.cq.traffic(qp), None);
}
