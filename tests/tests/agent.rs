//! The agent that runs programs for tests of two machines, here on a single one.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;
use tests::agent::Remote;
use tests::limit;
use tests::process::{Child, READY};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

async fn agent() -> (Child, SocketAddr) {
    let mut agent = Child::start(env!("CARGO_BIN_EXE_probe_agent"), [] as [&str; 0]);
    let address = agent.expect(READY).await.parse().expect("an address");
    (agent, address)
}

fn start(agent: SocketAddr, words: &[&str]) -> (Remote, tokio::net::TcpStream) {
    let arguments: Vec<_> = words[1..].iter().map(|word| (*word).to_owned()).collect();
    Remote::start(agent, words[0], &arguments).expect("it can be started")
}

#[test]
fn a_program_talks_and_reports_its_status() {
    limit::run(async {
        let (_agent, address) = agent().await;
        let script = "echo \"$0\"; read line; echo \"$line\" again; exit 7";
        let (remote, stream) = start(address, &["sh", "-c", script, "an argument"]);
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).await.expect("read");
        assert_eq!(line, "an argument\n");
        stream.write_all(b"a command\n").await.expect("written");
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.expect("read");
        assert_eq!(rest, "a command again\n");
        assert_eq!(remote.wait().await.expect("a status").code(), Some(7));
    });
}

#[test]
fn a_program_is_stopped_resumed_and_killed() {
    limit::run(async {
        let (_agent, address) = agent().await;
        let (remote, stream) = start(address, &["cat"]);
        remote.signal(Signal::STOP).expect("it lives");
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", remote.pid)).expect("it lives");
        assert!(stat.contains(") T "), "{stat}");
        remote.signal(Signal::CONT).expect("it lives");
        let mut stream = BufReader::new(stream);
        stream.write_all(b"back\n").await.expect("written");
        let mut line = String::new();
        stream.read_line(&mut line).await.expect("read");
        assert_eq!(line, "back\n");
        remote.signal(Signal::KILL).expect("it lives");
        assert_eq!(remote.wait().await.expect("a status").signal(), Some(9));
        assert!(remote.signal(Signal::CONT).is_err(), "it is gone");
    });
}

#[test]
fn a_program_dies_with_its_connection() {
    limit::run(async {
        let (_agent, address) = agent().await;
        // It ignores its stdin.
        let (remote, stream) = start(address, &["sleep", "1000"]);
        drop(stream);
        assert_eq!(remote.wait().await.expect("a status").signal(), Some(9));
    });
}

#[test]
fn a_missing_program_is_an_error() {
    limit::run(async {
        let (_agent, address) = agent().await;
        let error = Remote::start(address, "/nowhere", &[]).expect_err("nothing is there");
        assert!(error.to_string().contains("/nowhere"), "{error}");
        let (remote, _stream) = start(address, &["true"]);
        assert!(remote.wait().await.expect("the agent goes on").success());
    });
}
