//! Contract rules 16 and 18, and the other duties of connections when they begin and end.

use rpc_transport::device::connection_error::ConnectError;
use rpc_transport::device::{
    Listener, ProviderError, QpCapacity, QpHandle, QpState, REJ_PRIVATE_DATA_BYTES,
    REP_PRIVATE_DATA_BYTES, REQ_PRIVATE_DATA_BYTES, RecvWr, Status,
};

use crate::fixture::*;

pub(crate) fn rule16_disconnect_when_the_peer_is_destroyed(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    for wr_id in 0..3 {
        pair.client.send(wr_id, b"before the end");
    }
    for _ in 0..3 {
        pair.next_sent(Client);
    }
    let qp = pair.client.qp;
    pair.client.cq.destroy_qp(qp).unwrap();
    pair.wait("the disconnect", |pair| pair.server.is_disconnected());
    assert_eq!(pair.server.events.len(), 1, "{:?}", pair.server.events);
    // Earlier arrivals stay pollable.
    for wr_id in 0..3 {
        let received = pair.next_recv(Server);
        assert_eq!((received.wr_id, payload(&received)), (wr_id, &b"before the end"[..]));
    }
    // The rest is flushed once this side gives up too.
    let qp = pair.server.qp;
    pair.server.cq.modify_to_error(qp).unwrap();
    for wr_id in 3..8 {
        let flushed = pair.next(Server);
        assert_eq!((flushed.wr_id, flushed.status), (wr_id, Status::FlushError));
    }
    pair.pump();
    assert_eq!(pair.server.events.len(), 1, "one disconnect, one event");
}

pub(crate) fn rule16_disconnect_when_the_peer_goes_to_error(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let qp = pair.server.qp;
    pair.server.cq.modify_to_error(qp).unwrap();
    pair.wait("the disconnect", |pair| pair.client.is_disconnected());
    // A SEND to a missing peer fails; it does not hang.
    if pair.client.state() == QpState::ReadyToSend {
        pair.client.send(1, b"anybody?");
        let failed = pair.next_of(Client, false);
        assert_eq!(failed.wr_id, 1);
        let gone = failed.status == Status::RetryExceeded;
        assert!(gone || pair.client.is_cut_off(failed.status), "{:?}", failed.status);
    }
}

pub(crate) fn rule16_disconnect_wakes_an_armed_cq(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    pair.pump();
    pair.server.cq.clear_events().unwrap();
    pair.server.cq.arm().unwrap();
    pair.server.pump();
    assert!(pair.server.events.is_empty());
    let qp = pair.client.qp;
    pair.client.cq.destroy_qp(qp).unwrap();
    while !pair.server.is_disconnected() {
        assert!(pair.server.is_woken(PATIENCE), "no event for the disconnect");
        pair.server.cq.clear_events().unwrap();
        pair.server.pump();
        pair.server.cq.arm().unwrap();
        pair.server.pump();
    }
}

pub(crate) fn rule16_outstanding_sends_fail_with_the_peer(fixture: &dyn Fixture) {
    let mut pair = Pair::with(fixture, Options { posted: 8, ..Options::default() });
    let source = pair.client.filled(&[1; 4096]);
    let qp = pair.server.qp;
    // The peer dies before its engine has seen the message, or just after.
    pair.client.post(&mut [send(1, true, source)]).unwrap();
    pair.server.cq.destroy_qp(qp).unwrap();
    let completion = pair.next_of(Client, false);
    assert_eq!(completion.wr_id, 1);
    let possible = [Status::Success, Status::RetryExceeded].contains(&completion.status);
    assert!(possible || pair.client.is_cut_off(completion.status), "{:?}", completion.status);
    pair.wait("the disconnect", |pair| pair.client.is_disconnected());
}

/// Two ends that have not asked or answered yet.
async fn meet(
    fixture: &dyn Fixture,
    listener: &mut Box<dyn Listener>,
    request: &[u8],
    answer: impl AsyncFnOnce(Box<dyn rpc_transport::device::Incoming>),
) -> Result<rpc_transport::device::Established, ConnectError> {
    let options = Options::default();
    let mut outgoing = resolve(fixture, &listener.local_address()).await;
    let mut objects = End::objects(outgoing.device(), &options);
    let capacity = End::capacity(&options);
    outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
    let server = async { answer(listener.incoming().await.unwrap()).await };
    let (established, ()) = tokio::join!(outgoing.connect(request), server);
    established
}

pub(crate) fn rule18_private_data_travels_and_is_padded(fixture: &dyn Fixture) {
    runtime().block_on(async {
        let mut listener = fixture.listen();
        for len in [0, 1, 55, REQ_PRIVATE_DATA_BYTES] {
            let request = pattern(1, len);
            let reply = pattern(2, REP_PRIVATE_DATA_BYTES.min(len * 4));
            let options = Options::default();
            let (mut kept, asked) = (None, request.clone());
            let established = meet(fixture, &mut listener, &request, async |mut incoming| {
                let mut padded = asked;
                padded.resize(REQ_PRIVATE_DATA_BYTES, 0);
                assert_eq!(incoming.private_data(), padded);
                let mut objects = End::objects(incoming.device(), &options);
                let capacity = End::capacity(&options);
                incoming.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
                let established = incoming.accept(&reply).await.unwrap();
                assert_eq!(established.private_data, b"");
                kept = Some((objects, established));
            })
            .await
            .unwrap();
            let mut padded = reply.clone();
            padded.resize(REP_PRIVATE_DATA_BYTES, 0);
            assert_eq!(established.private_data, padded);
        }
    });
}

pub(crate) fn rule18_too_much_private_data_is_refused_locally(fixture: &dyn Fixture) {
    runtime().block_on(async {
        let mut listener = fixture.listen();
        let address = listener.local_address();
        let options = Options::default();
        let mut outgoing = resolve(fixture, &address).await;
        let mut objects = End::objects(outgoing.device(), &options);
        let capacity = End::capacity(&options);
        outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
        let error = outgoing.connect(&[0; REQ_PRIVATE_DATA_BYTES + 1]).await.unwrap_err();
        assert!(matches!(error, ConnectError::Provider(ProviderError::Limit { .. })), "{error}");

        let answered = meet(fixture, &mut listener, b"", async |mut incoming| {
            let mut objects = End::objects(incoming.device(), &options);
            incoming.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
            let error = incoming.accept(&[0; REP_PRIVATE_DATA_BYTES + 1]).await.unwrap_err();
            let limit = matches!(error, ConnectError::Provider(ProviderError::Limit { .. }));
            assert!(limit, "{error}");
        });
        answered.await.unwrap_err();
    });
}

pub(crate) fn rule18_rejection_carries_its_reason(fixture: &dyn Fixture) {
    runtime().block_on(async {
        let mut listener = fixture.listen();
        for len in [0, 1, REJ_PRIVATE_DATA_BYTES] {
            let reason = pattern(3, len);
            let error = meet(fixture, &mut listener, b"hello", async |incoming| {
                incoming.reject(&reason).await;
            })
            .await
            .unwrap_err();
            let ConnectError::Rejected { private_data, .. } = &error else { panic!("{error}") };
            let mut padded = reason.clone();
            padded.resize(REJ_PRIVATE_DATA_BYTES, 0);
            assert_eq!(*private_data, padded);
        }
        // A request dropped unanswered refuses as well.
        let error = meet(fixture, &mut listener, b"", async |incoming| drop(incoming)).await;
        let error = error.unwrap_err();
        assert!(matches!(error, ConnectError::Rejected { .. }), "{error}");
    });
}

pub(crate) fn rule18_s03_recvs_precede_the_peers_sends(fixture: &dyn Fixture) {
    for _ in 0..20 {
        let mut pair = Pair::with(fixture, Options { posted: 1, ..Options::default() });
        pair.client.send(1, b"first thing");
        assert_eq!(payload(&pair.next_recv(Server)), b"first thing");
        assert_eq!(pair.next_sent(Client).status, Status::Success);
    }
}

/// Polls that take one completion at a time stop in the middle of the QPs.
pub(crate) fn rule15_queue_pairs_may_go_between_polls(fixture: &dyn Fixture) {
    const COUNT: usize = 12;
    let options = Options { sends: 4, recvs: 4, posted: 2, ..Options::default() };
    runtime().block_on(async {
        let mut listener = fixture.listen();
        let address = listener.local_address();
        for taken in 0..=COUNT {
            let (mut server, mut clients, mut qps) = (None, Vec::new(), Vec::new());
            for _ in 0..COUNT {
                let accepting = accept_into(&mut listener, &mut server, &options);
                let (client, qp) = tokio::join!(connect(fixture, &address, &options), accepting);
                clients.push(client);
                qps.push(qp);
            }
            let mut server: Objects = server.unwrap();
            for client in &mut clients {
                client.send(0, b"x");
            }
            let mut completions = Vec::new();
            while completions.len() < taken {
                server.cq.poll(&mut completions, 1).unwrap();
            }
            // The last ones first, so that the place where the next poll begins is gone.
            for qp in qps.drain(1..) {
                server.cq.destroy_qp(qp).unwrap();
            }
            // A message to the remaining QP may still be on its way.
            while !completions.iter().any(|completion| completion.qp == qps[0]) {
                server.cq.poll(&mut completions, 1).unwrap();
            }
        }
    });
}

pub(crate) fn rule18_other_or_abandoned_queue_pair_is_unused(fixture: &dyn Fixture) {
    let options = Options::default();
    runtime().block_on(async {
        let mut listener = fixture.listen();
        let address = listener.local_address();
        let mut given_up = resolve(fixture, &address).await;
        // Room for one QP.
        let mut objects = End::objects(given_up.device(), &options);
        let (cq, capacity) = (objects.cq.for_setup(), End::capacity(&options));
        given_up.prepare_qp(&cq, &objects.pd, capacity).await.unwrap();
        drop(given_up);
        let mut outgoing = resolve(fixture, &address).await;
        let less = QpCapacity { max_send_wr: 1, max_recv_wr: 1, ..capacity };
        outgoing.prepare_qp(&cq, &objects.pd, less).await.unwrap();
        let connecting = async {
            let qp = outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
            let mut end = objects.into_end(qp, &options);
            let established = outgoing.connect(b"").await.unwrap();
            established.attach.run(&mut *end.cq).unwrap();
            end
        };
        let (mut client, mut server) = tokio::join!(connecting, accept(&mut listener, &options));
        // It has the capacity that was requested last.
        for wr_id in 0..3 {
            client.send(wr_id, b"one of three");
        }
        while client.got.len() < 3 || server.got.len() < 3 {
            client.pump();
            server.pump();
        }
        let all = client.got.iter().chain(&server.got);
        assert!(all.into_iter().all(|completion| completion.status == Status::Success));
    });
}

/// Several listeners of one process: each receives its own requests (S8: that of a request begins
/// with its listener's context), and each client is answered by the listener that it asked.
pub(crate) fn rule18_s08_requests_reach_their_own_listener(fixture: &dyn Fixture) {
    let options = Options::default();
    runtime().block_on(async {
        let mut listeners = [fixture.listen(), fixture.listen()];
        let addresses = listeners.each_ref().map(|listener| listener.local_address());
        let ask = async |at: usize| {
            let mut outgoing = resolve(fixture, &addresses[at]).await;
            let mut objects = End::objects(outgoing.device(), &options);
            let capacity = End::capacity(&options);
            let qp = outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
            let mut end = objects.into_end(qp, &options);
            let established = outgoing.connect(&[at as u8 + 1]).await.unwrap();
            assert_eq!(usize::from(established.private_data[0]), at + 1, "the other has answered");
            established.attach.run(&mut *end.cq).unwrap();
            end
        };
        let answer = async |listeners: &mut [Box<dyn Listener>; 2], at: usize| {
            let mut incoming = listeners[at].incoming().await.unwrap();
            assert_eq!(usize::from(incoming.private_data()[0]), at + 1, "the other's request");
            let mut objects = End::objects(incoming.device(), &options);
            let capacity = End::capacity(&options);
            let qp = incoming.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
            let mut end = objects.into_end(qp, &options);
            let established = incoming.accept(&[at as u8 + 1]).await.unwrap();
            established.attach.run(&mut *end.cq).unwrap();
            end
        };
        // Asked in one order and answered in the other.
        let answers = async {
            let first = answer(&mut listeners, 0).await;
            let others = [answer(&mut listeners, 1).await, answer(&mut listeners, 1).await];
            (first, others)
        };
        let asked = async { tokio::join!(ask(1), ask(1), ask(0)) };
        let ((_one, _two, mut client), (mut server, _others)) = tokio::join!(asked, answers);
        client.send(1, b"to the first");
        while server.got.is_empty() {
            client.pump();
            server.pump();
        }
        assert_eq!(payload(&server.got[0]), b"to the first");
    });
}

pub(crate) fn rule18_nobody_listens(fixture: &dyn Fixture) {
    runtime().block_on(async {
        let listener = fixture.listen();
        let address = listener.local_address();
        drop(listener);
        let resolved = fixture.connector().resolve(&address).await;
        let error = match resolved {
            Err(error) => error,
            Ok(mut outgoing) => {
                let options = Options::default();
                let mut objects = End::objects(outgoing.device(), &options);
                let capacity = End::capacity(&options);
                outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
                outgoing.connect(b"").await.unwrap_err()
            }
        };
        assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    });
}

pub(crate) fn rule03_connection_established_after_arming_wakes(fixture: &dyn Fixture) {
    let options = Options::default();
    let runtime = runtime();
    runtime.block_on(async {
        let mut listener = fixture.listen();
        let address = listener.local_address();
        let accepting = async {
            let mut incoming = listener.incoming().await.unwrap();
            let mut objects = End::objects(incoming.device(), &options);
            let capacity = End::capacity(&options);
            let qp = incoming.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
            let wr = RecvWr { wr_id: 7, buffer: objects.recv_pool.take().unwrap() };
            objects.cq.post_recv(qp, wr).unwrap();
            (objects, incoming.accept(b"").await.unwrap())
        };
        let connecting = connect(fixture, &address, &options);
        let (mut client, (mut server, established)) = tokio::join!(connecting, accepting);
        // Each of these may come first: the message, the arming, the end of the set-up.
        client.send(0, b"early");
        server.cq.arm().unwrap();
        let mut completions = Vec::new();
        // A device may receive before the last step of set-up; then there is nothing to wait for.
        server.cq.poll(&mut completions, 8).unwrap();
        established.attach.run(&mut *server.cq).unwrap();
        while completions.is_empty() {
            assert!(
                readable(&[server.cq.event_fd()], PATIENCE),
                "the queue does not report the message"
            );
            server.cq.clear_events().unwrap();
            if server.cq.poll(&mut completions, 8).unwrap() == 0 {
                // The event was spurious, which is legal; arming is one-shot.
                server.cq.arm().unwrap();
                server.cq.poll(&mut completions, 8).unwrap();
            }
        }
        assert_eq!(payload(&completions[0]), b"early");
        drop(client);
    });
}

/// Accepts a connection on the CQ of earlier ones.
async fn accept_into(
    listener: &mut Box<dyn Listener>,
    server: &mut Option<Objects>,
    options: &Options,
) -> QpHandle {
    let mut incoming = listener.incoming().await.unwrap();
    let wide = Options { sends: 64, recvs: 64, ..options.clone() };
    let objects = server.get_or_insert_with(|| End::objects(incoming.device(), &wide));
    let capacity = End::capacity(options);
    let qp = incoming.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
    for wr_id in 0..u64::from(options.posted) {
        let buffer = objects.recv_pool.take().unwrap();
        objects.cq.post_recv(qp, RecvWr { wr_id, buffer }).unwrap();
    }
    let established = incoming.accept(b"").await.unwrap();
    established.attach.run(&mut *objects.cq).unwrap();
    qp
}

pub(crate) fn rule18_many_connections_share_a_cq(fixture: &dyn Fixture) {
    let options = Options { sends: 4, recvs: 4, posted: 2, ..Options::default() };
    let runtime = runtime();
    runtime.block_on(async {
        let mut listener = fixture.listen();
        let address = listener.local_address();
        let mut server: Option<Objects> = None;
        let (mut clients, mut qps) = (Vec::new(), Vec::new());
        for _ in 0..10 {
            let accepting = accept_into(&mut listener, &mut server, &options);
            let (client, qp) = tokio::join!(connect(fixture, &address, &options), accepting);
            clients.push(client);
            qps.push(qp);
        }
        let mut server = server.unwrap();
        for (i, client) in clients.iter_mut().enumerate() {
            client.send(0, &[i as u8; 3]);
        }
        let mut completions = Vec::new();
        while completions.len() < 10 {
            if server.cq.poll(&mut completions, 3).unwrap() == 0 {
                server.cq.arm().unwrap();
                if server.cq.poll(&mut completions, 3).unwrap() == 0 {
                    assert!(readable(&[server.cq.event_fd()], PATIENCE));
                    server.cq.clear_events().unwrap();
                }
            }
        }
        for completion in completions {
            let from = usize::from(payload(&completion)[0]);
            assert_eq!(completion.qp, qps[from], "completions name their QP");
        }
    });
}
