//! Programs that find each other in etcd: `apt-get install etcd-server etcd-client`.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "../../rpc-discovery/tests/etcd/process.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod process;

use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use test_kit::Watchdog;
use tests::example::{Serving, command, run};
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
