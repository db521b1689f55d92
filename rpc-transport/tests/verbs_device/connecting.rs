//! Addresses, listeners, and connections that come up or fail.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::*;

#[test]
fn s18_port_without_listener_is_refused_at_once() {
    shared!(s18_port_without_listener_is_refused_at_once);
    runtime().block_on(async {
        let error = connect_error(&VerbsConnector::default(), &here(1)).await;
        assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
    });
}

#[test]
fn s22_port_0_reports_the_chosen_port() {
    shared!(s22_port_0_reports_the_chosen_port);
    let listener = listen_at("0.0.0.0", 0, SetupOptions::default());
    let port = port_of(&listener.local_address());
    assert_ne!(port, 0);
    runtime().block_on(async {
        let error = listen(&at("0.0.0.0", port), SetupOptions::default()).await.unwrap_err();
        assert!(matches!(error, ListenError::InUse { .. }), "{error}");
        let error = listen(&at("192.0.2.1", 0), SetupOptions::default()).await.unwrap_err();
        assert!(matches!(error, ListenError::Failed { .. }), "{error}");
        assert!(error.to_string().contains("192.0.2.1"), "{error}");
    });
}

/// Wildcard and specific, IPv4 and IPv6; `[::]` takes both, except over iWARP (S25).
#[test]
fn s25_listeners_hear_what_they_are_bound_to() {
    shared!(s25_listeners_hear_what_they_are_bound_to);
    let (v4, v6) = (local_ip().to_string(), local_ipv6().to_string());
    let cases = [("0.0.0.0", &v4), (&*v4, &v4), ("::", &v6), ("::", &v4), (&*v6, &v6)];
    runtime().block_on(async {
        for (bound, asked) in cases {
            let mut listener = listen_at(bound, 0, SetupOptions::default());
            let address = at(asked, port_of(&listener.local_address()));
            if bound == "::" && asked == &v4 && is_iwarp() {
                let error = connect_error(&VerbsConnector::default(), &address).await;
                assert!(matches!(error, ConnectError::Rejected { .. }), "{error}");
                continue;
            }
            let options = Options::default();
            let client = connect(&Verbs, &address, &options);
            let server = async {
                let mut incoming = listener.incoming().await.unwrap();
                let PeerIdentity::Network(peer) = incoming.peer() else { panic!() };
                assert_eq!(peer.ip().to_canonical().to_string(), *asked, "{bound}");
                let mut objects = End::objects(incoming.device(), &options);
                let capacity = End::capacity(&options);
                let qp = incoming.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
                let established = incoming.accept(b"").await.unwrap();
                established.attach.run(&mut *objects.cq).unwrap();
                (objects, qp)
            };
            let (client, (server, qp)) = tokio::join!(client, server);
            assert_eq!(client.state(), QpState::ReadyToSend, "{bound} {asked}");
            assert_eq!(server.cq.state(qp), Some(QpState::ReadyToSend));
        }
    });
}

/// `?dev=` and `&src=`, at both ends.
#[test]
fn an_address_chooses_the_device_and_the_source() {
    shared!(an_address_chooses_the_device_and_the_source);
    let name = local_device().attributes().name.clone();
    let parsed = |text: String| text.parse::<Address>().unwrap();
    runtime().block_on(async {
        for (host, ip) in [
            ("0.0.0.0", local_ip().to_string()),
            ("[::]", local_ip().to_string()),
            ("[::]", format!("[{}]", local_ipv6())),
        ] {
            let at = parsed(format!("rdma://{host}:0?dev={name}"));
            let mut listener = listen(&at, SetupOptions::default()).await.unwrap();
            let port = port_of(&listener.local_address());
            let source = ip.trim_matches(['[', ']']);
            for local in [format!("dev={name}"), format!("src={source}&dev={name}")] {
                let to = parsed(format!("rdma://{ip}:{port}?{local}"));
                let options = Options::default();
                let (_client, server) =
                    tokio::join!(connect(&Verbs, &to, &options), accept(&mut listener, &options));
                assert_eq!(server.state(), QpState::ReadyToSend);
            }
        }
    });
}

#[test]
fn missing_device_or_source_lists_the_valid_ones() {
    shared!(missing_device_or_source_lists_the_valid_ones);
    let name = local_device().attributes().name.clone();
    let own = local_ip().to_string();
    runtime().block_on(async {
        for wrong in [
            "dev=mlx5_9".to_owned(),
            format!("dev={name}&src=192.0.2.1"),
            "src=192.0.2.1".to_owned(),
        ] {
            let to: Address = format!("rdma://{own}:7471?{wrong}").parse().unwrap();
            let error = connect_error(&VerbsConnector::default(), &to).await.to_string();
            let what = wrong.rsplit('=').next().unwrap();
            for part in [what, &*name, &*own, &*wrong] {
                assert!(error.contains(part), "{part}: {error}");
            }
            let listening = listen(&to, SetupOptions::default()).await.map(|_| ());
            assert!(listening.unwrap_err().to_string().contains(what));
        }
    });
}

#[test]
fn an_address_that_nobody_has_is_unreachable() {
    shared!(an_address_that_nobody_has_is_unreachable);
    runtime().block_on(async {
        let connector = VerbsConnector::default();
        for host in ["192.0.2.1", "no-such-host.invalid"] {
            let error = connect_error(&connector, &at(host, 7471)).await;
            assert!(matches!(error, ConnectError::Unreachable { .. }), "{host}: {error}");
            assert!(error.to_string().contains(host), "{error}");
        }
        // An absent neighbour: where addresses are resolved on the wire, nobody answers for it;
        // where they are not (a dummy network device), nobody answers the request.
        let mut options = quick();
        options.resolve_timeout = Duration::from_millis(500);
        let IpAddr::V4(own) = local_ip() else { unreachable!() };
        let [a, b, c, _] = own.octets();
        let neighbour = at(&format!("{a}.{b}.{c}.250"), 7471);
        let error = connect_error(&VerbsConnector::new(options), &neighbour).await;
        let nobody = |error: &ConnectError| {
            matches!(error, ConnectError::Unreachable { .. } | ConnectError::TimedOut { .. })
        };
        assert!(nobody(&error), "{error}");
    });
}

/// If connecting waits for the peer in the call (siw), other connections continue.
#[test]
fn absent_host_delays_no_other_connection() {
    shared!(absent_host_delays_no_other_connection);
    let IpAddr::V4(own) = local_ip() else { unreachable!() };
    let [a, b, c, _] = own.octets();
    let mut options = SetupOptions::default();
    options.resolve_timeout = Duration::from_millis(500);
    options.connect_timeout = Duration::from_secs(600);
    runtime().block_on(async {
        let connector = VerbsConnector::new(options);
        let nobody = connector.resolve(&at(&format!("{a}.{b}.{c}.251"), 7471)).await;
        // Where addresses are resolved on the wire it ends here.
        let mut nobody = nobody.ok();
        let _objects = nobody.as_mut().map(with_qp);
        let attempt = async {
            match nobody {
                Some(nobody) => nobody.connect(b"").await.map(drop).unwrap_err(),
                None => std::future::pending().await,
            }
        };
        let other = async {
            let mut listener = Verbs.listen();
            let (to, options) = (listener.local_address(), Options::default());
            tokio::join!(connect(&Verbs, &to, &options), accept(&mut listener, &options))
        };
        // The first is asked to connect before the second begins.
        tokio::select! {
            biased;
            error = attempt => panic!("it ended first: {error}"),
            (_client, server) = other => assert_eq!(server.state(), QpState::ReadyToSend),
        }
    });
}

/// Over iWARP the kernel blocks the thread that destroys the id of an attempt, until its peer
/// answers (siw: or 10 s have passed).
#[test]
fn abandoned_attempt_delays_no_other_connection() {
    alone!(abandoned_attempt_delays_no_other_connection);
    assert!(wait_for_teardown(PATIENCE), "something of other tests is not destroyed");
    let silent = std::net::TcpListener::bind((local_ip(), 0)).unwrap();
    runtime().block_on(async {
        let connector = VerbsConnector::new(quick());
        let to = here(silent.local_addr().unwrap().port());
        let mut outgoing = connector.resolve(&to).await.unwrap();
        // They stay alive: destroying a queue pair ends the wait.
        let _objects = with_qp(&mut outgoing);
        let error = outgoing.connect(b"").await.unwrap_err();
        let is_tcp = matches!(error, ConnectError::TimedOut { .. });
        assert!(is_tcp || matches!(error, ConnectError::Refused { .. }), "{error}");
        let mut listener = Verbs.listen();
        let (to, options) = (listener.local_address(), Options::default());
        let (_client, server) =
            tokio::join!(connect(&Verbs, &to, &options), accept(&mut listener, &options));
        assert_eq!(server.state(), QpState::ReadyToSend);
        let is_gone = || wait_for_teardown(Duration::from_millis(100));
        assert!(!is_tcp || !is_gone(), "it is to be there still");
        // The peer hangs up.
        drop(silent);
        assert!(wait_for_teardown(PATIENCE), "it is not destroyed");
    });
}

/// Each takes a thread for as long as the kernel waits for its peer, or a place in the queue.
#[test]
fn too_many_abandoned_attempts_stop_new_requests() {
    alone!(too_many_abandoned_attempts_stop_new_requests);
    if !is_iwarp() {
        return println!("not for this device: ids are destroyed at once");
    }
    // As many as have threads, as many as may wait in the queue, and some more.
    const ATTEMPTS: usize = 64 + 256 + 40;
    assert!(wait_for_teardown(PATIENCE), "something of other tests is not destroyed");
    let silent = std::net::TcpListener::bind((local_ip(), 0)).unwrap();
    let to = here(silent.local_addr().unwrap().port());
    let peers = std::thread::spawn(move || {
        (0..ATTEMPTS).map(|_| silent.accept().unwrap().0).collect::<Vec<_>>()
    });
    runtime().block_on(async {
        let mut listener = Verbs.listen();
        let (served, own) = (listener.local_address(), Options::default());
        let mut options = SetupOptions::default();
        options.connect_timeout = PATIENCE;
        let connector = VerbsConnector::new(options);
        // They stay alive: destroying a queue pair ends the wait. One completion queue serves all,
        // since each is a file.
        let room = 4 * u32::try_from(ATTEMPTS).unwrap();
        let all = Options { sends: room, recvs: 1, buffer_bytes: 64, ..own };
        let one = End::capacity(&Options { sends: 1, recvs: 1, ..own });
        let mut objects = End::objects(connector.resolve(&to).await.unwrap().device(), &all);
        let mut prepared = Vec::new();
        for _ in 0..ATTEMPTS {
            let mut outgoing = connector.resolve(&to).await.unwrap();
            outgoing.create_qp(&mut *objects.cq, &objects.pd, one).unwrap();
            prepared.push(outgoing);
        }
        let attempt = |outgoing: Box<dyn Outgoing>| async move { outgoing.connect(b"").await };
        let mut attempts: tokio::task::JoinSet<_> = prepared.into_iter().map(attempt).collect();
        // siw gives a peer 10 s: the attempts are given up as soon as all have begun.
        let peers = tokio::task::spawn_blocking(move || peers.join().unwrap());
        let peers = tokio::select! {
            biased;
            ended = attempts.join_next() => panic!("one has ended before all were asked for: {ended:?}"),
            peers = peers => peers.unwrap(),
        };
        attempts.abort_all();
        while let Some(ended) = attempts.join_next().await {
            assert!(ended.unwrap_err().is_cancelled());
        }
        let error = connect_error(&connector, &served).await;
        assert!(matches!(error, ConnectError::Rejected { .. }), "{error}");
        // The peers hang up.
        drop(peers);
        assert!(wait_for_teardown(PATIENCE), "they are not destroyed");
        let (_client, server) =
            tokio::join!(connect(&Verbs, &served, &own), accept(&mut listener, &own));
        assert_eq!(server.state(), QpState::ReadyToSend);
    });
}

/// A regression: rdma_cm chose a port at which TCP had a listener. One attempt of 360 failed, and
/// its test waited for its peer for ever.
#[test]
fn ports_at_which_tcp_listens_are_not_chosen() {
    alone!(ports_at_which_tcp_listens_are_not_chosen);
    if !is_iwarp() {
        return println!("not for this device: its ports are not TCP's");
    }
    // One in four or five.
    const LISTENERS: u64 = 6_000;
    let old = getrlimit(Resource::Nofile);
    let files = Some(LISTENERS + 1_000);
    setrlimit(Resource::Nofile, Rlimit { current: files, maximum: old.maximum.max(files) })
        .unwrap();
    let bind = |_| std::net::TcpListener::bind((local_ip(), 0)).unwrap();
    let taken: Vec<_> = (0..LISTENERS).map(bind).collect();
    runtime().block_on(async {
        for _ in 0..40 {
            let (mut listener, options) = (Verbs.listen(), Options::default());
            let to = listener.local_address();
            let (_client, server) =
                tokio::join!(connect(&Verbs, &to, &options), accept(&mut listener, &options));
            assert_eq!(server.state(), QpState::ReadyToSend);
        }
    });
    drop(taken);
    assert!(wait_for_teardown(PATIENCE), "something is not destroyed");
    setrlimit(Resource::Nofile, old).unwrap();
}

/// rdma_cm has no time limit of its own for a peer that does not answer.
#[test]
fn a_listener_that_never_answers_is_given_up() {
    shared!(a_listener_that_never_answers_is_given_up);
    runtime().block_on(async {
        let mut listener = Verbs.listen();
        let connector = VerbsConnector::new(quick());
        let mut outgoing = connector.resolve(&listener.local_address()).await.unwrap();
        let objects = with_qp(&mut outgoing);
        let (error, incoming) = tokio::join!(outgoing.connect(b""), listener.incoming());
        let error = error.unwrap_err();
        assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
        drop(objects);
        // The client is gone by now: accepting fails, and reports that in time. Over iWARP the
        // kernel may not have noticed yet.
        let mut incoming = incoming.unwrap();
        let options = Options::default();
        let mut objects = End::objects(incoming.device(), &options);
        let capacity = End::capacity(&options);
        let qp = incoming.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
        match incoming.accept(b"").await {
            Err(error) => assert!(!error.to_string().is_empty()),
            Ok(established) => {
                let mut server = objects.into_end(qp, &options);
                established.attach.run(&mut *server.cq).unwrap();
                while !server.is_disconnected() {
                    server.pump();
                }
            }
        }
    });
}

#[test]
fn requests_beyond_the_backlog_are_refused() {
    shared!(requests_beyond_the_backlog_are_refused);
    runtime().block_on(async {
        let mut options = SetupOptions::default();
        options.backlog = 2;
        let mut listener = listen_at(&local_ip().to_string(), 0, options);
        let address = listener.local_address();
        let connector = VerbsConnector::new(quick());
        let mut refused = 0;
        for _ in 0..6 {
            // The first two wait until their own time limit.
            let error = connect_error(&connector, &address).await;
            refused += u32::from(matches!(error, ConnectError::Rejected { .. }));
        }
        assert_eq!(refused, 4);
        assert_eq!(listener.incoming().await.unwrap().private_data().len(), 56);
    });
}

/// The peer's end may be up, and send, before this one's owner knows of the connection.
#[test]
fn early_messages_wait_for_the_connect() {
    shared!(early_messages_wait_for_the_connect);
    for fails in [false, true] {
        let options = Options { posted: 4, ..Options::default() };
        let mut listener = Verbs.listen();
        let (mut client, mut server, established) = runtime().block_on(async {
            let mut outgoing = resolve(&Verbs, &listener.local_address()).await;
            let mut objects = End::objects(outgoing.device(), &options);
            let capacity = End::capacity(&options);
            let qp = outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
            let end = objects.into_end(qp, &options);
            let (established, server) =
                tokio::join!(outgoing.connect(b""), accept(&mut listener, &options));
            (end, server, established.unwrap())
        });
        client.cq.arm().unwrap();
        for wr_id in 0..3 {
            server.post(&mut [send(wr_id, true, Source::Inline(&[wr_id as u8]))]).unwrap();
        }
        // Acknowledged, so they are in the client's queue.
        while server.got.len() < 3 {
            server.pump();
        }
        client.pump();
        assert!(client.got.is_empty(), "{:?}", client.got);
        client.cq.clear_events().unwrap();
        client.cq.arm().unwrap();
        if fails {
            client.cq.modify_to_error(client.qp).unwrap();
        } else {
            established.attach.run(&mut *client.cq).unwrap();
        }
        assert!(client.is_woken(PATIENCE), "nobody says that there is something to poll");
        while client.got.len() < if fails { 4 } else { 3 } {
            client.pump();
        }
        let got: Vec<_> = client.got.iter().map(|got| (got.wr_id, got.status)).collect();
        // Over iWARP a SEND completes before its message is there.
        let arrived = if fails && is_iwarp() {
            got.iter().filter(|(_, status)| *status == Status::Success).count()
        } else {
            3
        };
        let all = (0..4).map(|wr_id| match wr_id < arrived as u64 {
            true => (wr_id, Status::Success),
            false => (wr_id, Status::FlushError),
        });
        let all: Vec<_> = all.collect();
        assert_eq!(got, all[..got.len()]);
    }
}

/// A reply may be here before the passive side learns that the connection is established.
#[test]
fn first_message_may_precede_the_accepts_return() {
    shared!(first_message_may_precede_the_accepts_return);
    for _ in 0..20 {
        let mut pair = Pair::with(&Verbs, Options { posted: 1, ..Options::default() });
        pair.client.send(7, b"first");
        let received = pair.next_recv(Server);
        assert_eq!((payload(&received), received.kind), (&b"first"[..], CompletionKind::Recv));
        pair.server.post(&mut [send(8, true, Source::Inline(b"answer"))]).unwrap();
        assert_eq!(payload(&pair.next_recv(Client)), b"answer");
    }
}
