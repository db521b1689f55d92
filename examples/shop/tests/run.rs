//! The shop as a person runs it: two kills and a drain while it sells.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use test_kit::Watchdog;

/// The example, which is built together with this test.
fn program() -> PathBuf {
    let mut path = std::env::current_exe().expect("this test");
    path.pop();
    path.pop();
    path.join("examples/shop")
}

fn run(arguments: &str) -> Output {
    Command::new(program()).args(arguments.split(' ')).output().expect("the example is built")
}

/// The number in the row that begins with `row`.
fn count(text: &str, row: &str) -> u64 {
    let found = text.lines().find_map(|line| line.strip_prefix(row));
    let found = found.unwrap_or_else(|| panic!("{row}: {text}"));
    let number = found.split_whitespace().next().expect(row).replace(',', "");
    number.parse().expect(row)
}

fn nothing_is_lost(over: &str) {
    let _watchdog = Watchdog::within(Duration::from_secs(160));
    let ended = run(&format!("--over {over} --orders 400 --buyers 8"));
    let text = String::from_utf8(ended.stdout).expect("text");
    let errors = String::from_utf8(ended.stderr).expect("text");
    assert!(ended.status.success(), "{text}\n{errors}");
    assert!(count(&text, "orders answered") >= 400, "{text}");
    let answered = count(&text, "orders answered");
    assert_eq!(count(&text, "orders in the journal"), answered, "{text}");
    for nothing in ["  lost", "  not ordered", "  number used twice"] {
        assert_eq!(count(&text, nothing), 0, "{text}");
    }
    assert_eq!(count(&text, "pieces taken"), 2 * answered, "{text}");
    assert!(count(&text, "orders sent twice on purpose") > 0, "{text}");
    assert!(count(&text, "buyers that hung up") >= 8, "{text}");
    for event in ["inventory is killed", "orders is killed", "orders is drained"] {
        assert!(text.contains(event), "{text}");
    }
    assert!(text.contains("health     serving"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.ends_with("Nothing was lost, and nothing was done twice.\n"), "{text}");
}

#[test]
fn killed_servers_lose_nothing_over_shm() {
    nothing_is_lost("shm");
}

#[test]
fn killed_servers_lose_nothing_over_tcp() {
    nothing_is_lost("tcp");
}

/// A server's answer to Prometheus.
fn metrics(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

#[test]
fn a_shop_tells_prometheus_what_its_servers_do() {
    let _watchdog = Watchdog::within(Duration::from_secs(160));
    let mut shop = Command::new(program())
        .args("--orders 40 --buyers 2 --stay --metrics 127.0.0.1:0".split(' '))
        .stdout(Stdio::piped())
        .spawn()
        .expect("the example is built");
    let lines = BufReader::new(shop.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    // Once it stays, everything is counted, and each server has been started a second time.
    let lines: Vec<String> = lines.take_while(|line| !line.contains("stays open")).collect();
    let texts = ["orders", "inventory"].map(|role| {
        let end = format!("/metrics   of {role}");
        let address = lines.iter().find_map(|line| {
            line.strip_prefix("metrics    http://").and_then(|line| line.strip_suffix(&end))
        });
        address.map(metrics)
    });
    shop.kill().expect("it stays");
    shop.wait().expect("it is ours");
    let called = texts[0].as_deref().unwrap_or_default();
    assert!(
        called.contains("rpc_client_connections{to=\"upstream\"} 1"),
        "of its channel: {called}"
    );
    for (text, method) in texts.into_iter().zip(["Orders.all", "Inventory.count_shelves"]) {
        let text = text.unwrap_or_else(|| panic!("{lines:?}"));
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        assert!(text.lines().any(|line| line.contains(method)), "{method}: {text}");
    }
}

#[test]
fn what_cannot_be_run_is_said() {
    let _watchdog = Watchdog::within(Duration::from_secs(60));
    let ended = run("--orders 0");
    assert!(!ended.status.success());
    assert!(String::from_utf8_lossy(&ended.stderr).contains("--orders <N>"), "{ended:?}");
}
