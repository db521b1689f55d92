//! The manifests for Kubernetes fit the program that they start.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use test_kit::Watchdog;
use tests::example::command;
use tests::workspace::root;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// The items of the list below this key, with free ports.
fn list(manifest: &str, key: &str) -> Vec<String> {
    let (_, rest) = manifest.split_once(&format!(" {key}:\n")).unwrap();
    let items = rest.lines().map_while(|line| line.trim_start().strip_prefix("- "));
    let free = |item: &str| match item.rsplit_once(':') {
        Some((host, "7471" | "9100")) => format!("{host}:0"),
        _ => item.trim_matches('"').to_owned(),
    };
    items.map(free).collect()
}

/// The paths of probes.
fn paths(manifest: &str) -> Vec<&str> {
    manifest.lines().filter_map(|line| line.trim_start().strip_prefix("path: ")).collect()
}

async fn status_of(admin: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(admin).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: 10.0.0.5:9100\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().to_owned()
}

#[tokio::test]
async fn probes_follow_a_server_until_it_drains() {
    let _watchdog = Watchdog::start("the probes of a manifest");
    let manifest = root().join("examples/fleet/kubernetes/server.yaml");
    let manifest = std::fs::read_to_string(manifest).unwrap();
    let arguments = list(&manifest, "args");
    assert!(arguments.len() > 6, "{arguments:?}");
    let mut server = command("kv", arguments).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(server.stderr.take().unwrap()).lines();
    let told = told.next_line().await.unwrap().unwrap();
    let (_, port) = told.split_once("http://0.0.0.0:").unwrap();
    let admin = format!("127.0.0.1:{}", port.split('/').next().unwrap());
    assert_eq!(paths(&manifest), ["/livez", "/livez", "/readyz"]);
    for path in ["/livez", "/readyz"] {
        assert_eq!(status_of(&admin, path).await, "200", "{path}");
    }
    let id = Pid::from_raw(server.id().unwrap().cast_signed()).unwrap();
    kill_process(id, Signal::TERM).unwrap();
    while status_of(&admin, "/readyz").await != "503" {}
    assert_eq!(status_of(&admin, "/livez").await, "200", "nobody restarts it for that");
}
