//! Configuration mistakes: each error names the mistake, its place, and the remedy.

use std::time::Duration;

use rpc_core::{Channel, ConnectError, LinkConfig, ListenError, PollMode, Server};
use tests::limit;
use tests::probe::ProbeServer;
use tests::scheme::Scheme;
use tests::service::ProbeService;
use tests::world::World;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::SERVER;

on_every_scheme! {
    an_address_in_use_is_named,
    nothing_listening_is_named,
}

between_processes! {
    an_address_in_use_elsewhere_is_named,
    a_full_server_says_so,
}

fn check(error: &dyn std::fmt::Display, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "`{text}` lacks `{word}`");
    }
    let first = text.chars().next().expect("a text");
    assert!(!first.is_uppercase(), "`{text}` starts with a capital");
    assert!(!text.contains("  "), "`{text}` has gaps");
}

async fn bind(address: &str) -> Result<Server, ListenError> {
    let service = ProbeServer::new(ProbeService::default());
    tests::device::server().add_service(service).poll_mode(PollMode::Event).bind(address).await
}

fn bad_links() -> Vec<(LinkConfig, &'static [&'static str])> {
    let base = LinkConfig::default;
    vec![
        (base().data_credits(0), &["data_credits is 0", "1 to 4095", "receive buffer"]),
        (base().data_credits(5000), &["data_credits is 5000", "1 to 4095"]),
        (base().ack_credits(1), &["ack_credits is 1", "2 to 4095", "default of 2"]),
        (base().ack_credits(0), &["ack_credits is 0", "2 to 4095"]),
        (base().receive_buffer_bytes(16), &["receive_buffer_bytes is 16", "256 to 16777216"]),
        (base().receive_buffer_bytes(1 << 30), &["receive_buffer_bytes is 1073741824"]),
        (base().max_message_bytes(1), &["max_message_bytes is 1", "stream"]),
        (base().max_message_bytes(u64::MAX), &["max_message_bytes is 18446744073709551615"]),
        (base().send_queue_slots(0), &["send_queue_slots is 0", "1 to 4095"]),
        (base().keep_alive(Some(Duration::ZERO)), &["keep_alive is 0ns", "None"]),
    ]
}

#[test]
fn both_ends_name_bad_link_settings() {
    limit::run(async {
        let world = World::start(SERVER, Scheme::Mem).await;
        for (link, words) in bad_links() {
            let connecting =
                tests::device::channel().link(link.clone()).connect(&world.address).await;
            let error = connecting.expect_err("the configuration is bad");
            assert!(matches!(error, ConnectError::Config(_)), "{error:?}");
            check(&error, words);
            let binding =
                tests::device::server().link(link).bind(Scheme::Mem.fresh_address()).await;
            let error = binding.expect_err("the configuration is bad");
            assert!(matches!(error, ListenError::Config(_)), "{error:?}");
            check(&error, words);
        }
    });
}

#[test]
fn bad_server_configurations_are_named() {
    limit::run(async {
        let address = Scheme::Mem.fresh_address();
        let twice = tests::device::server()
            .add_service(ProbeServer::new(ProbeService::default()))
            .add_service(ProbeServer::new(ProbeService::default()))
            .bind(&address)
            .await;
        check(&twice.expect_err("two of one name"), &["Probe.", "once", "#[rpc(name"]);
        // The failed attempts opened nothing.
        drop(bind(&address).await.expect("the address is free"));
    });
}

#[test]
fn bad_addresses_are_named_with_advice() {
    limit::run(async {
        let long = format!("shm://{}", "x".repeat(200));
        let cases: [(&str, &[&str]); 9] = [
            ("localhost:7471", &["scheme is missing", "tcp://host:port"]),
            ("", &["scheme is missing"]),
            ("ftp://host:1", &["unknown scheme `ftp`", "auto", "rdma", "tcp", "shm", "mem"]),
            ("tcp://localhost", &["port is missing", "host:port"]),
            ("tcp://:80", &["host is missing"]),
            ("tcp://localhost:99999", &["99999"]),
            ("tcp://[::1:80", &["`[`"]),
            ("shm://", &["shm://"]),
            (&long, &["90"]),
        ];
        for (address, words) in cases {
            let error = Channel::connect(address).await.expect_err("no address");
            assert!(matches!(error, ConnectError::Address(_)), "{error:?}");
            check(&error, words);
            check(&error, &["bad address", address]);
            let error = bind(address).await.expect_err("no address");
            assert!(matches!(error, ListenError::Address(_)), "{error:?}");
            check(&error, words);
        }
    });
}

async fn an_address_in_use_is_named(scheme: Scheme) {
    let first = bind(&scheme.fresh_address()).await.expect("it is free");
    let address = first.local_address().to_string();
    let error = bind(&address).await.expect_err("it is taken");
    assert!(matches!(error, ListenError::InUse { .. }), "{error:?}");
    check(&error, &[&address, "in use"]);
    drop(first);
    drop(bind(&address).await.expect("it is free again"));
}

async fn an_address_in_use_elsewhere_is_named(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let error = bind(&world.address).await.expect_err("it is taken");
    assert!(matches!(error, ListenError::InUse { .. }), "{error:?}");
    check(&error, &[&world.address, "in use"]);
    // The attempt has not disturbed the existing server.
    assert_eq!(world.client().await.add(1, 1).await, Ok(2));
}

async fn nothing_listening_is_named(scheme: Scheme) {
    let server = bind(&scheme.fresh_address()).await.expect("it is free");
    let address = server.local_address().to_string();
    drop(server);
    let error = Channel::connect(&address).await.expect_err("nobody is there");
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    check(&error, &["nothing is listening", &address]);
}

#[test]
fn places_where_no_server_can_be_are_named() {
    limit::run(async {
        let missing = "shm:///nonexistent-directory/socket";
        check(&bind(missing).await.expect_err("no directory"), &[missing]);
        check(&Channel::connect(missing).await.expect_err("no directory"), &[missing]);
        // A file that is not a socket belongs to somebody, and stays.
        let path = std::env::temp_dir().join(format!("rpc-e2e-file-{}", std::process::id()));
        std::fs::write(&path, "mine").expect("a file");
        let address = format!("shm://{}", path.display());
        let error = bind(&address).await.expect_err("a file of somebody else");
        check(&error, &[&address]);
        check(&Channel::connect(&address).await.expect_err("no socket"), &[&address]);
        assert_eq!(std::fs::read_to_string(&path).expect("it is still there"), "mine");
        std::fs::remove_file(&path).expect("removed");
        // A host that cannot exist.
        let nowhere = "tcp://no-such-host.invalid:1";
        check(&Channel::connect(nowhere).await.expect_err("no such host"), &[nowhere]);
        let not_here = "tcp://192.0.2.1:7471";
        check(&bind(not_here).await.expect_err("not our address"), &[not_here]);
    });
}

#[cfg(feature = "verbs")]
#[test]
fn impossible_rdma_addresses_are_named() {
    limit::run(async {
        let not_ours = "rdma://192.0.2.1:7471";
        check(&bind(not_ours).await.expect_err("not our address"), &[not_ours]);
        // No route, name or device leads there.
        for nowhere in [not_ours, "rdma://no-such-host.invalid:7471", "rdma://127.0.0.1:7471"] {
            let error = Channel::connect(nowhere).await.expect_err("nobody is there");
            assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
            check(&error, &[nowhere]);
        }
    });
}

#[cfg(not(feature = "verbs"))]
#[test]
fn rdma_without_the_feature_gives_advice() {
    limit::run(async {
        let words = ["rdma://", "not available", "--features verbs", "libibverbs-dev", "tcp://"];
        let error = Channel::connect("rdma://127.0.0.1:7471").await.expect_err("no verbs");
        assert!(matches!(error, ConnectError::Unavailable { scheme: "rdma", .. }), "{error:?}");
        check(&error, &words);
        let error = bind("rdma://0.0.0.0:7471").await.expect_err("no verbs");
        assert!(matches!(error, ListenError::Unavailable { scheme: "rdma", .. }), "{error:?}");
        check(&error, &words);
    });
}

async fn a_full_server_says_so(scheme: Scheme) {
    let world = World::start_with(SERVER, scheme, &["--max-connections", "2"]).await;
    let clients = [world.client().await, world.client().await];
    let error = Channel::connect(&world.address).await.expect_err("it is full");
    assert!(matches!(error, ConnectError::Rejected { .. }), "{error:?}");
    check(&error, &["busy", "limit of 2 connections"]);
    for client in &clients {
        assert_eq!(client.add(1, 1).await, Ok(2));
    }
    // A place becomes free at a time that the server decides.
    drop(clients);
    let again = loop {
        match Channel::connect(&world.address).await {
            Ok(channel) => break channel,
            Err(error) => check(&error, &["busy"]),
        }
    };
    drop(again);
}

#[test]
fn a_port_that_speaks_something_else_is_named() {
    limit::run(async {
        for scheme in ["tcp", "auto"] {
            let port = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = format!("{scheme}://{}", port.local_addr().expect("its address"));
            let answer = async {
                let (mut stream, _) = port.accept().await.expect("a client");
                let mut request = [0; 16];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
                stream
            };
            let (connected, _stream) = tokio::join!(Channel::connect(&address), answer);
            let error = connected.expect_err("it is no server of ours");
            check(&error, &[&address]);
            assert!(matches!(error, ConnectError::Protocol { .. }), "{error:?}");
        }
    });
}

#[test]
fn a_silent_port_times_out() {
    limit::run(async {
        for scheme in ["tcp", "auto"] {
            let port = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = format!("{scheme}://{}", port.local_addr().expect("its address"));
            let timeout = Duration::from_millis(200);
            let error = tests::device::channel().connect_timeout(timeout).connect(&address).await;
            let error = error.expect_err("nobody answers");
            assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
            check(&error, &[&address, "200ms"]);
        }
    });
}
