//! The streaming commands of the `kv` example as a person runs them.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::ffi::OsStr;
use std::fs;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tests::example::{Ended, Scratch, Serving, command, run};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWriteExt, BufReader};

async fn serve(name: &str) -> Serving {
    let address = format!("shm://kv-streams-{name}-{}", std::process::id());
    Serving::start(command("kv", ["serve", &address]), 1).await
}

fn terminate(server: &Serving) {
    let pid = i32::try_from(server.id()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
}

async fn kv(arguments: &[&dyn AsRef<OsStr>]) -> Ended {
    run(command("kv", arguments.iter().map(|argument| argument.as_ref()))).await
}

#[test]
fn a_table_loads_and_a_directory_syncs() {
    tests::limit::run(async {
        let server = serve("sync").await;
        let address = &server.addresses()[0];
        let scratch = Scratch::new();
        let (table, dir) = (scratch.path().join("table.tsv"), scratch.path().join("copy"));
        let lines: String = (0..1000).map(|number| format!("t/{number:03}\t{number}\n")).collect();
        fs::write(&table, lines).unwrap();
        let loaded = kv(&[&"load", address, &table]).await.with_code(0).text();
        assert!(loaded.contains("loaded 1,000 keys"), "{loaded}");
        let synced = kv(&[&"sync", address, &dir, &"--prefix", &"t/"]).await.with_code(0).text();
        assert!(synced.ends_with("wrote 1,000 files, 0 not in the store\n"), "{synced}");
        assert_eq!(fs::read_to_string(dir.join("999")).unwrap(), "999");
        // Only the differences.
        kv(&[&"put", address, &"t/500", &"changed"]).await.with_code(0);
        fs::write(dir.join("extra"), "mine").unwrap();
        let synced = kv(&[&"sync", address, &dir, &"--prefix", &"t/"]).await.with_code(0).text();
        let expected =
            "written t/500\nnot in the store t/extra\nwrote 1 file, 1 not in the store\n";
        assert_eq!(synced, expected);
        assert_eq!(fs::read_to_string(dir.join("500")).unwrap(), "changed");
        fs::write(&table, "no tab\n").unwrap();
        let refused = kv(&[&"load", address, &table]).await;
        assert!(refused.stderr.contains("line 1 has no tab"), "{}", refused.stderr);
        let onto_a_file = kv(&[&"sync", address, &table]).await.with_code(1);
        assert!(onto_a_file.stderr.contains("pass a directory, not a file"), "{onto_a_file:?}");
    });
}

#[test]
fn changes_are_watched() {
    tests::limit::run(async {
        let server = serve("watch").await;
        let address = server.addresses()[0].clone();
        let watch = command("kv", ["watch", &address, "w/", "-n", "3"]);
        let watched = tokio::spawn(run(watch));
        let mut number = 0;
        while !watched.is_finished() {
            kv(&[&"put", &address, &"other", &"x"]).await;
            kv(&[&"put", &address, &"w/key", &number.to_string()]).await;
            number += 1;
        }
        let lines = watched.await.unwrap().with_code(0).text();
        assert_eq!(lines.lines().count(), 3, "{lines}");
        assert!(lines.lines().all(|line| line.starts_with("set ") && line.ends_with(" w/key")));
    });
}

#[test]
fn a_command_waits_for_its_server() {
    tests::limit::run(async {
        let server = Serving::start(command("kv", ["serve", "tcp://127.0.0.1:0"]), 1).await;
        let tcp = server.addresses()[0].clone();
        let shm = format!("shm://kv-streams-wait-{}", std::process::id());
        let refused = kv(&[&"stats", &shm]).await.with_code(1);
        assert!(refused.stderr.contains("start the server there"), "{refused:?}");
        // Another program may take a free port, so it is taken again at once.
        terminate(&server);
        server.ended().await;
        for address in [&tcp, &shm] {
            let put = tokio::spawn(run(command("kv", ["put", address, "key", "1", "--wait"])));
            let server = Serving::start(command("kv", ["serve", address]), 1).await;
            put.await.unwrap().with_code(0);
            assert_eq!(kv(&[&"get", address, &"key", &"--wait"]).await.with_code(0).text(), "1");
            terminate(&server);
            server.ended().await;
        }
    });
}

/// The next line that a program says.
async fn line(pipe: &mut (impl AsyncBufRead + Unpin)) -> String {
    let mut line = String::new();
    pipe.read_line(&mut line).await.unwrap();
    line
}

/// A watch has no end of its own: it ends as the server begins to shut down. A load in progress
/// completes, and then the server ends, long before the end of grace.
fn a_terminated_server_ends_streams(address: &str) {
    tests::limit::run(async {
        let serve = command("kv", ["serve", address, "--grace", "86400"]);
        let server = Serving::start(serve, 1).await;
        let address = &*server.addresses()[0].clone();
        let mut watch = command("kv", ["watch", address, "w/"]);
        let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(watch.stderr.take().unwrap());
        let mut changes = BufReader::new(watch.stdout.take().unwrap());
        assert_eq!(line(&mut errors).await, "watching\n");
        let mut load = command("kv", ["load", address, "-"]);
        let mut load = load.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut pairs = load.stdin.take().unwrap();
        pairs.write_all(b"w/a\t1\n").await.unwrap();
        let changed = line(&mut changes).await;
        assert!(changed.starts_with("set ") && changed.ends_with(" w/a\n"), "{changed}");

        terminate(&server);
        let told = line(&mut errors).await;
        assert!(told.contains("shutting down"), "{told}");
        assert!(told.ends_with("; check that the server is running, and try again\n"), "{told}");
        assert_eq!(watch.wait().await.unwrap().code(), Some(1));
        pairs.write_all(b"w/b\t2\n").await.unwrap();
        drop(pairs);
        let loaded = load.wait_with_output().await.unwrap();
        assert!(loaded.status.success(), "{loaded:?}");
        assert_eq!(String::from_utf8_lossy(&loaded.stdout), "loaded 2 keys (8 B)\n");
        let (status, stderr) = server.ended().await;
        assert!(status.success() && stderr.contains("with 2 keys"), "{status} {stderr}");
    });
}

#[test]
fn a_terminated_server_ends_streams_over_shm() {
    let address = format!("shm://kv-streams-drain-{}", std::process::id());
    a_terminated_server_ends_streams(&address);
}

#[test]
fn a_terminated_server_ends_streams_over_tcp() {
    a_terminated_server_ends_streams("tcp://127.0.0.1:0");
}
