//! Programs that find each other in etcd: `apt-get install etcd-server etcd-client`.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "../../rpc-discovery/tests/etcd/process.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod process;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use test_kit::Watchdog;
use tests::example::{Scratch, Serving, command, run};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

/// `rpcctl`, which `cargo build -p rpcctl` builds.
fn rpcctl(arguments: &[&str]) -> Command {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(Path::parent).unwrap().join("rpcctl");
    assert!(program.exists(), "{} is not there: cargo build -p rpcctl", program.display());
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    command
}

#[tokio::test]
async fn programs_find_servers_by_name() {
    let _watchdog = Watchdog::start("programs and a registry");
    let etcd = process::Etcd::start();
    let name = etcd.name("rpc/kv");
    let nobody = run(command("kv", ["list", &name])).await.with_code(1);
    assert!(nobody.stderr.contains("no server is registered"), "{nobody:?}");
    let wildcard = ["serve", "tcp://0.0.0.0:0", "--register", &name];
    let refused = run(command("kv", wildcard)).await.with_code(1);
    assert!(refused.stderr.contains("wildcard address"), "{refused:?}");

    let mut watching = rpcctl(&["resolve", &name, "--watch"]);
    let mut watching = watching.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "0 servers:");
    let serving = ["--register", &name, "--advertise", "tcp://127.0.0.1:0", "--zone", "a"];
    let serving = ["serve", "tcp://0.0.0.0:0"].into_iter().chain(serving);
    let server = Serving::start(command("kv", serving), 1).await;
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "1 server:");
    let (_, port) = server.addresses()[0].rsplit_once(':').unwrap();
    let line = format!("tcp://127.0.0.1:{port}  ready  weight 100  priority 0  zone a  for 0 s");
    assert_eq!(lines.next_line().await.unwrap().unwrap(), line);

    run(command("kv", ["put", &name, "greeting", "hello"])).await.with_code(0);
    let value = run(command("kv", ["get", &name, "greeting"])).await.with_code(0);
    assert_eq!(value.text(), "hello");
    assert_eq!(run(command("kv", ["list", &name])).await.with_code(0).text(), "greeting\n");
    let services = rpcctl(&["list", &name]).output().await.unwrap();
    assert!(String::from_utf8(services.stdout).unwrap().contains("Kv"));

    kill_process(Pid::from_raw(server.id().cast_signed()).unwrap(), Signal::TERM).unwrap();
    server.ended().await;
    loop {
        let line = lines.next_line().await.unwrap().unwrap();
        if line == "0 servers:" {
            break;
        }
    }
}

#[tokio::test]
async fn a_fleet_loses_no_call() {
    let _watchdog = Watchdog::start("a fleet under load");
    let scratch = Scratch::new();
    let plot = scratch.path().join("fleet.svg");
    let plot = plot.to_str().unwrap();
    let arguments = ["--seconds", "1", "--servers", "3", "--clients", "2", "--plot", plot];
    let ended = run(command("fleet", arguments)).await.with_code(0);
    let text = ended.text();
    for part in [
        "server 5 starts",
        "server 5 has ended",
        "is killed",
        "is given up by all clients",
        "is ejected by all clients",
        "etcd is killed",
        "all servers are registered again",
        "lost     0 that were",
        "twice    0 ",
        "missing  0 ",
    ] {
        assert!(text.contains(part), "{part}: {ended:?}");
    }
    let drawn = std::fs::read_to_string(plot).unwrap();
    assert!(drawn.contains("SIGSTOP") && drawn.ends_with("</svg>\n"), "{drawn}");
}

/// `RPC_SOAK_SECONDS=600` is the whole test.
#[tokio::test]
async fn calls_survive_a_server_killed_every_moment() {
    let seconds = test_kit::variable("RPC_SOAK_SECONDS").unwrap_or(32);
    let _watchdog = Watchdog::within(Duration::from_secs(seconds + 300));
    let mut fleet = command("fleet", ["--soak", "--seconds", &seconds.to_string()]);
    // The limit of a program is too short for the whole test.
    let ended = fleet.stdout(Stdio::piped()).stderr(Stdio::piped()).output().await.unwrap();
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{text}{}", String::from_utf8_lossy(&ended.stderr));
    assert!(text.matches("is killed").count() as u64 == seconds / 2, "{text}");
    assert!(text.contains("lost     0 that were"), "{text}");
}

#[tokio::test]
async fn a_killed_fleet_leaves_no_process() {
    let _watchdog = Watchdog::start("a fleet that is killed");
    let mut fleet = command("fleet", ["--servers", "3"]);
    let mut fleet = fleet.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(fleet.stdout.take().unwrap()).lines();
    while !lines.next_line().await.unwrap().unwrap().contains("server 4 starts") {}
    let children = format!("/proc/{0}/task/{0}/children", fleet.id().unwrap());
    let children = std::fs::read_to_string(children).unwrap();
    let children: Vec<_> =
        children.split_whitespace().map(|id| Pid::from_raw(id.parse().unwrap()).unwrap()).collect();
    assert_eq!(children.len(), 5, "etcd and four servers");
    // One is stopped, and cannot see its stdin end.
    kill_process(children[1], Signal::STOP).unwrap();
    fleet.kill().await.unwrap();
    for child in children {
        // One that nobody has waited for yet has ended all the same.
        let status = format!("/proc/{}/status", child.as_raw_nonzero());
        while std::fs::read_to_string(&status).is_ok_and(|it| !it.contains("State:\tZ")) {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_fleet_without_etcd_says_so() {
    let _watchdog = Watchdog::start("a fleet without etcd");
    let mut fleet = command("fleet", ["--seconds", "1"]);
    fleet.env("PATH", "/nowhere");
    let ended = run(fleet).await.with_code(1);
    assert!(ended.stderr.contains("apt-get install etcd-server"), "{ended:?}");
}
