//! Strangers at the port, and peers that break the set-up.

use super::*;

/// Runs the listener in the background while `act` speaks to it.
fn while_listening(victim: &mut Victim, act: impl FnOnce() + Send) {
    let Victim { runtime, listener, .. } = victim;
    std::thread::scope(|scope| {
        let (done, ended) = tokio::sync::oneshot::channel();
        scope.spawn(move || {
            act();
            let _ = done.send(());
        });
        runtime.block_on(async {
            tokio::select! {
                _ = ended => {}
                _ = async { loop { drop(listener.incoming().await) } } => {}
            }
        });
    });
}

#[test]
fn garbage_at_the_port_is_refused() {
    let _watchdog = Watchdog::start("garbage at the port");
    let mut victim = victim();
    let mut bad_version = message(REQUEST, &[0; 56]);
    bad_version[8] = 9;
    let garbage: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        vec![0; 1000],
        vec![0xff; 100_000],
        bad_version,
        message(77, b""),
        message(REPLY, &[0; 196]),
        message(REQUEST, &[0; 57]),
        message(PROBE, &[0; 4097]),
        frame(0, SEND, WHOLE, b"too early"),
        message(PROBE, b"x").repeat(10),
    ];
    for bytes in garbage {
        let mut stream = dial(&victim);
        while_listening(&mut victim, move || {
            let _ = stream.write_all(&bytes);
            assert!(is_closed(&mut stream), "{:?} is still served", &bytes[..bytes.len().min(30)]);
        });
    }
    // The peer learns the version.
    let mut stream = dial(&victim);
    while_listening(&mut victim, move || {
        let mut bad_version = message(REQUEST, b"");
        bad_version[8] = 9;
        stream.write_all(&bad_version).unwrap();
        let (kind, text) = read_message(&mut stream).unwrap();
        assert_eq!(kind, REFUSE);
        assert!(String::from_utf8_lossy(&text).contains("versions 9"));
    });
    victim.assert_unharmed();
    victim.assert_listening(&soft::TcpConnector);
}

#[test]
fn peers_that_stall_do_not_keep_others_out() {
    let _watchdog = Watchdog::start("stalling peers");
    let mut victim = victim();
    let mut stalled = Vec::new();
    for i in 0..400 {
        let address = victim.listener.local_address();
        while_listening(&mut victim, || {
            let mut stream = dial_to(&address);
            // Some say nothing, some half a request.
            let _ = stream.write_all(&message(REQUEST, &[0; 56])[..i % 60]);
            stalled.push(stream);
        });
    }
    victim.assert_listening(&soft::TcpConnector);
    victim.assert_unharmed();
}

#[test]
fn probe_is_answered_and_the_connection_continues() {
    let runtime = runtime();
    let mut victim = victim();
    let Address::Tcp(at) = victim.listener.local_address() else { panic!("not tcp") };
    let client = std::thread::spawn(move || {
        runtime.block_on(async {
            let (answer, mut outgoing) = soft::TcpConnector.probe(&at, b"hello").await.unwrap();
            assert_eq!(answer, b"you said hello");
            let options = Options::default();
            let mut objects = End::objects(outgoing.device(), &options);
            let capacity = End::capacity(&options);
            outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
            outgoing.connect(b"").await.map(drop).unwrap();
            let long = soft::TcpConnector.probe(&at, &[0; 4097]).await.unwrap_err();
            assert!(matches!(long, ConnectError::Config(_)), "{long}");
        });
    });
    victim.accept();
    client.join().unwrap();
}

#[test]
fn a_server_that_speaks_something_else_is_named() {
    let _watchdog = Watchdog::start("a foreign server");
    for (answer, expected) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            "this is HTTP, from a web server or a metrics port; correct the port",
        ),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "this is SSH"),
        (b"\x15\x03\x01\x00\x02\x02\x46 and more", "this is TLS"),
        (b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x7f", "this is HTTP/2 (such as gRPC)"),
        (b"* OK", "speaks another protocol"),
        (b"softrdma\x01\x04\x08\x00no\x1b[2J\n!", r"no\u{1b}[2J\n!"),
        (b"* OK IMAP4 ready\r\n", "magic number"),
        (b"", "speaks another protocol"),
        (b"softrdma\x07\x02\x00\x00", "versions 7"),
        (b"softrdma\x01\x2a\x00\x00", "kind 42"),
        (b"softrdma\x01\x02\xff\xff", "too long"),
    ] {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(server.local_addr().unwrap().into());
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            read_message(&mut stream).unwrap();
            stream.write_all(answer).unwrap();
        });
        let error = runtime().block_on(async {
            let mut outgoing = soft::TcpConnector.resolve(&address).await.unwrap();
            let options = Options::default();
            let mut objects = End::objects(outgoing.device(), &options);
            let capacity = End::capacity(&options);
            outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
            outgoing.connect(b"").await.unwrap_err()
        });
        let error = error.to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains(&address.to_string()), "{error}");
        thread.join().unwrap();
    }
}

/// A regression: a TLS server sends 7 bytes and then waits; the client also waited, for 10 s.
#[test]
fn a_short_word_of_a_stranger_names_it() {
    let _watchdog = Watchdog::start("a short word of a stranger");
    for (answer, expected) in [
        (&b"\x15\x03\x03\x00\x02\x02\x46"[..], "this is TLS"),
        (b"SSH-2.0", "this is SSH"),
        (b"\0\0\0\x04\0\0\0\0\0", "this is HTTP/2 (such as gRPC)"),
    ] {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(server.local_addr().unwrap().into());
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            stream.write_all(answer).unwrap();
            stream
        });
        let Address::Tcp(at) = &address else { panic!("not tcp") };
        let error = runtime().block_on(async {
            // No time passes while this runs.
            let (still, ended) = std::sync::mpsc::channel::<()>();
            tokio::time::pause();
            let stopped = tokio::task::spawn_blocking(move || ended.recv().is_ok());
            let error = soft::TcpConnector.probe(at, b"").await.map(drop).unwrap_err();
            drop(still);
            stopped.await.unwrap();
            error.to_string()
        });
        assert!(error.contains(expected), "{error}");
        drop(thread.join().unwrap());
    }
}

#[test]
fn a_grpc_client_at_the_port_is_named() {
    let _watchdog = Watchdog::start("a gRPC client at the port");
    let mut victim = victim();
    for (preface, expected) in [
        (&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], "this is HTTP/2 (such as gRPC)"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00", "this is TLS"),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 9 10\r\n", "this is the PROXY protocol"),
    ] {
        let mut stream = dial(&victim);
        while_listening(&mut victim, move || {
            stream.write_all(preface).unwrap();
            let (kind, text) = read_message(&mut stream).unwrap();
            let text = String::from_utf8_lossy(&text).into_owned();
            assert_eq!(kind, REFUSE, "{text}");
            assert!(text.contains(expected), "{text}");
        });
    }
    victim.assert_unharmed();
}
