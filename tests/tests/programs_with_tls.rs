//! `--tls` of the examples, as a person runs them: who connects, and what is seen on the wire.

#![cfg(feature = "tls")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use test_kit::certificates::Authority;
use tests::example::{Ended, Scratch, Serving, command, run};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A directory as `rpcctl cert dev` writes it.
fn certificates() -> Scratch {
    let (directory, authority) = (Scratch::new(), Authority::new("ca"));
    let write = |name: &str, content: &str| fs::write(directory.path().join(name), content);
    write("ca.pem", &authority.pem()).unwrap();
    for role in ["server", "client"] {
        let leaf = authority.issue(&[&format!("spiffe://dev.local/{role}")]);
        write(&format!("{role}.pem"), &leaf.cert).unwrap();
        write(&format!("{role}-key.pem"), &leaf.key).unwrap();
    }
    directory
}

/// The words of `line`, and `--tls` with its directory.
async fn program(name: &str, line: &str, tls: Option<&Path>) -> Ended {
    run(with_tls(name, line, tls)).await
}

fn with_tls(name: &str, line: &str, tls: Option<&Path>) -> tokio::process::Command {
    let mut command = command(name, line.split_whitespace());
    if let Some(directory) = tls {
        command.arg("--tls").arg(directory);
    }
    command
}

async fn serve(name: &str, line: &str, tls: Option<&Path>) -> (Serving, String) {
    let server = Serving::start(with_tls(name, line, tls), 1).await;
    let address = server.addresses()[0].clone();
    (server, address)
}

/// A server lets in its own clients, and neither a stranger nor a client without TLS. `{}` in
/// `call` is its address.
async fn only_friends_call(name: &str, serve_line: &str, call: &str) {
    let (own, other) = (certificates(), certificates());
    let (_server, address) = serve(name, serve_line, Some(own.path())).await;
    let call = call.replace("{}", &address);
    program(name, &call, Some(own.path())).await.with_code(0);
    for (directory, part) in [(None, "TLS"), (Some(other.path()), "ca.pem")] {
        let refused = program(name, &call, directory).await.with_code(1);
        assert!(refused.stderr.contains(part), "{refused:?}");
    }
}

#[tokio::test]
async fn kv_lets_in_its_own_clients() {
    only_friends_call("kv", "serve tcp://127.0.0.1:0", "put {} key value").await;
}

#[tokio::test]
async fn transfer_lets_in_its_own_clients() {
    let (served, sent) = (Scratch::new(), Scratch::new());
    fs::write(sent.path().join("file"), "content").unwrap();
    let [served_path, sent_path] = [&served, &sent].map(|it| it.path().display());
    let serve = format!("serve tcp://127.0.0.1:0 {served_path}");
    only_friends_call("transfer", &serve, &format!("send {{}} {sent_path}/file")).await;
    assert_eq!(fs::read_to_string(served.path().join("file")).unwrap(), "content");
}

#[tokio::test]
async fn echo_lets_in_its_own_clients() {
    only_friends_call("echo", "server tcp://127.0.0.1:0", "client {} --calls 20").await;
}

#[tokio::test]
async fn echo_gives_both_ends_certificates() {
    let own = certificates();
    let line = "--address tcp://127.0.0.1:0 --calls 20";
    let ended = program("echo", line, Some(own.path())).await.with_code(0);
    assert!(ended.text().contains("Encrypt"), "{ended:?}");
    let other = format!("{line} --expect-peer spiffe://dev.local/other");
    let refused = program("echo", &other, Some(own.path())).await.with_code(1);
    assert!(refused.stderr.contains("spiffe://dev.local/server"), "{refused:?}");
}

#[tokio::test]
async fn killed_shop_loses_nothing_with_tls() {
    let own = certificates();
    let line = "--over tcp --orders 80 --buyers 4";
    let ended = program("shop", line, Some(own.path())).await.with_code(0);
    let last = "\nNothing was lost, and nothing was done twice.\n";
    assert!(ended.text().ends_with(last), "{ended:?}");
}

/// Keeps what passes.
async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, kept: Recording) {
    let mut part = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut part).await {
        kept.lock().extend_from_slice(&part[..count]);
        if to.write_all(&part[..count]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}

type Recording = Arc<Mutex<Vec<u8>>>;

/// A proxy to `server`: its address, and what passes through it.
async fn recorded(server: &str) -> (String, Recording) {
    let server = server.strip_prefix("tcp://").unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let recording = Recording::default();
    let kept = Arc::clone(&recording);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (client_in, client_out) = client.into_split();
            let (server_in, server_out) = TcpStream::connect(&server).await.unwrap().into_split();
            tokio::spawn(pass(client_in, server_out, Arc::clone(&kept)));
            tokio::spawn(pass(server_in, client_out, Arc::clone(&kept)));
        }
    });
    (address, recording)
}

/// Whether the wire shows the key, a small value and a part of a large one, that are put and read
/// back.
async fn wire_shows(tls: Option<&Path>) -> [bool; 3] {
    const KEY: &str = "the-key-on-the-wire";
    const SMALL: &str = "the-value-on-the-wire";
    const LARGE: &str = "one-line-of-a-large-value\n";
    let (_server, address) = serve("kv", "serve tcp://127.0.0.1:0", tls).await;
    let (address, recording) = recorded(&address).await;
    let scratch = Scratch::new();
    let (file, back) = (scratch.path().join("large"), scratch.path().join("back"));
    fs::write(&file, LARGE.repeat(40_000)).unwrap();
    for line in [
        format!("put {address} {KEY} {SMALL}"),
        format!("get {address} {KEY}"),
        format!("put {address} large --file {}", file.display()),
        format!("get {address} large --output {}", back.display()),
    ] {
        program("kv", &line, tls).await.with_code(0);
    }
    assert_eq!(fs::read(&back).unwrap(), fs::read(&file).unwrap());
    let seen = recording.lock();
    assert!(seen.len() > 2 * 40_000 * LARGE.len(), "{} bytes went through", seen.len());
    [KEY, SMALL, LARGE].map(|text| seen.windows(text.len()).any(|window| window == text.as_bytes()))
}

#[tokio::test]
async fn wire_with_tls_shows_no_values() {
    let own = certificates();
    assert_eq!(wire_shows(Some(own.path())).await, [false; 3]);
    assert_eq!(wire_shows(None).await, [true; 3]);
}
