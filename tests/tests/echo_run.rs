//! The `echo` example as a person runs it.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::fs;
use std::process::Stdio;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tests::example::{Ended, LIMIT, Serving, command, run};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Child;

async fn echo(arguments: &str) -> Ended {
    run(command("echo", arguments.split_whitespace())).await
}

/// The rows of the table: calls in flight, and calls per second as a number.
fn rows(text: &str) -> Vec<(u32, u64)> {
    let table = text.lines().skip_while(|line| !line.contains("calls/s")).skip(1);
    table
        .map(|line| {
            let mut words = line.split_whitespace();
            let mut number = || words.next().unwrap().replace(',', "").parse::<u64>().unwrap();
            (u32::try_from(number()).unwrap(), number())
        })
        .collect()
}

/// The process id in the line `server  auto://..., process 17`.
fn server_process(line: &str) -> Pid {
    let (_, pid) = line.rsplit_once(", process ").expect("the server's process is named");
    pid.trim().parse().ok().and_then(Pid::from_raw).expect("a process id")
}

fn is_running(pid: Pid) -> bool {
    fs::exists(format!("/proc/{pid}")).unwrap()
}

#[tokio::test]
async fn the_default_run_takes_the_best_path() {
    let ended = echo("--calls 500").await.with_code(0);
    let text = ended.text();
    assert!(text.contains("\npath    shm://") && text.contains(" on soft-shm ("), "{ended:?}");
    assert_eq!(rows(&text).iter().map(|row| row.0).collect::<Vec<_>>(), [1, 32], "{ended:?}");
    assert!(rows(&text).iter().all(|row| row.1 > 0), "{ended:?}");
    assert_eq!(ended.stderr, "");
    assert!(!is_running(server_process(text.lines().next().unwrap())));
}

#[tokio::test]
async fn every_option_is_accepted() {
    for options in [
        "--address tcp://127.0.0.1:0",
        "--poll event --codec postcard",
        "--poll busy",
        "--size 0 --in-flight 3",
        "--size 1M --in-flight 2,5",
    ] {
        let ended = echo(&format!("--calls 20 {options}")).await.with_code(0);
        assert!(!rows(&ended.text()).is_empty(), "{options}: {ended:?}");
    }
}

#[tokio::test]
async fn the_two_ends_by_hand() {
    let server = Serving::start(command("echo", ["server", "tcp://127.0.0.1:0"]), 1).await;
    let ended = echo(&format!("client {} --calls 50", server.addresses()[0])).await.with_code(0);
    assert_eq!(rows(&ended.text()).len(), 2, "{ended:?}");
    let pid = i32::try_from(server.id()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let (status, stderr) = server.ended().await;
    assert!(status.success() && stderr.is_empty(), "{status} {stderr}");
    let gone = echo("client shm://echo-run-nobody").await.with_code(1);
    assert!(
        gone.stderr.ends_with("; start the server there, or correct the address\n"),
        "{gone:?}"
    );
}

/// An endless run, the process of its server, and the rest of its stdout.
async fn endless() -> (Child, Pid) {
    let mut run = command("echo", ["--calls", "1000000000"]);
    run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = run.spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.as_mut().unwrap());
    let mut line = String::new();
    let lines = async {
        stdout.read_line(&mut line).await.unwrap();
        let mut heading = String::new();
        while !heading.contains("calls/s") {
            heading.clear();
            assert_ne!(stdout.read_line(&mut heading).await.unwrap(), 0, "it ended");
        }
    };
    tokio::time::timeout(LIMIT, lines).await.expect("the calls begin");
    (child, server_process(&line))
}

async fn end(child: &mut Child) -> (Option<i32>, String) {
    let mut stderr = String::new();
    let mut pipe = child.stderr.take().unwrap();
    let ending = async {
        pipe.read_to_string(&mut stderr).await.unwrap();
        child.wait().await.unwrap().code()
    };
    let code = tokio::time::timeout(LIMIT, ending).await.expect("it ends");
    (code, stderr)
}

#[tokio::test]
async fn a_server_that_dies_is_named() {
    let (mut child, server) = endless().await;
    kill_process(server, Signal::KILL).unwrap();
    let (code, stderr) = end(&mut child).await;
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.starts_with("error: the server process ended during the run"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[tokio::test]
async fn ctrl_c_ends_both_processes() {
    let (mut child, server) = endless().await;
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw).unwrap();
    // A terminal sends it to both processes.
    kill_process(server, Signal::INT).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(end(&mut child).await, (Some(130), "error: interrupted\n".to_owned()));
    assert!(!is_running(server));
}

#[tokio::test]
async fn a_client_that_is_killed_leaves_no_server() {
    let (mut child, server) = endless().await;
    let server = pidfd_open(server, PidfdFlags::empty()).unwrap();
    child.kill().await.unwrap();
    // A process file descriptor is readable once the process has ended.
    let mut ended = [PollFd::new(&server, PollFlags::IN)];
    let limit = Timespec::try_from(LIMIT).unwrap();
    assert_eq!(poll(&mut ended, Some(&limit)).unwrap(), 1, "the server did not end by itself");
}

/// Calls in flight are answered, later ones are refused, and both ends report it.
async fn a_terminated_server_ends_regularly(address: &str) {
    let server = Serving::start(command("echo", ["server", address]), 1).await;
    let mut client = command("echo", ["client", &server.addresses()[0], "--calls", "1000000000"]);
    let mut client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    while !lines.next_line().await.unwrap().expect("it goes on").contains("calls/s") {}
    let pid = i32::try_from(server.id()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let (code, stderr) = end(&mut client).await;
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("shutting down"), "{stderr}");
    let (status, stderr) = server.ended().await;
    assert!(status.success() && stderr.is_empty(), "{status} {stderr}");
}

#[tokio::test]
async fn a_terminated_server_ends_regularly_over_shm() {
    let address = format!("shm://echo-run-drain-{}", std::process::id());
    a_terminated_server_ends_regularly(&address).await;
}

#[tokio::test]
async fn a_terminated_server_ends_regularly_over_tcp() {
    a_terminated_server_ends_regularly("tcp://127.0.0.1:0").await;
}
