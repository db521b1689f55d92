//! An etcd of a test: a process with a port and a directory of its own, gone with the test.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, kill_process};

const INSTALL: &str = "the tests of etcd need the programs etcd and etcdctl: \
                       apt-get install etcd-server etcd-client (or etcd)";

/// A running etcd.
pub(crate) struct Etcd {
    child: Child,
    port: u16,
    dir: PathBuf,
}

impl Etcd {
    /// Starts one and waits until it serves.
    pub(crate) fn start() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rpc-discovery-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        // Somebody else may take a free port before etcd does.
        for _ in 0..20 {
            let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            if let Some(child) = serving(&dir, free) {
                return Self { child, port: free, dir };
            }
        }
        panic!("etcd does not start in {}", dir.display());
    }

    /// The name of a prefix in it.
    pub(crate) fn name(&self, prefix: &str) -> String {
        format!("etcd://127.0.0.1:{}/{prefix}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Runs etcdctl; gives what it prints.
    #[track_caller]
    pub(crate) fn ctl(&self, arguments: &[&str]) -> String {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints=http://127.0.0.1:{}", self.port))
            .args(arguments)
            .output()
            .unwrap_or_else(|error| panic!("etcdctl: {error}; {INSTALL}"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "etcdctl {arguments:?}: {stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Registers a server by hand.
    #[track_caller]
    pub(crate) fn put(&self, id: &str, address: &str) {
        let value = format!(r#"{{"v":1,"address":"{address}"}}"#);
        self.ctl(&["put", &format!("/rpc/kv/{id}"), &value]);
    }

    #[track_caller]
    pub(crate) fn delete(&self, id: &str) {
        self.ctl(&["del", &format!("/rpc/kv/{id}")]);
    }

    /// The revision of now.
    #[track_caller]
    pub(crate) fn revision(&self) -> i64 {
        let status = self.ctl(&["get", "/none", "-w", "json"]);
        let (_, rest) = status.split_once("\"revision\":").unwrap();
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    }

    /// Stops all of its threads.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Ends it like `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Removes all that it has stored. Only after [`Etcd::kill`].
    pub(crate) fn wipe(&self) {
        std::fs::remove_dir_all(&self.dir).unwrap();
    }

    /// Replaces what it has stored by a snapshot. Only after [`Etcd::kill`].
    pub(crate) fn restore(&self, snapshot: &str) {
        self.wipe();
        let peer = "http://127.0.0.1:0";
        let dir = self.dir.to_str().unwrap();
        self.ctl(&[
            "snapshot",
            "restore",
            snapshot,
            "--data-dir",
            dir,
            "--initial-cluster",
            &format!("default={peer}"),
            "--initial-advertise-peer-urls",
            peer,
        ]);
        std::fs::remove_file(snapshot).unwrap();
    }

    /// Starts it again at its port, after [`Etcd::kill`].
    pub(crate) fn restart(&mut self) {
        self.child = serving(&self.dir, self.port).expect("etcd starts again");
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A process that serves at this port; `None`: it has ended, as the port is in use.
fn serving(dir: &Path, port: u16) -> Option<Child> {
    let client = format!("http://127.0.0.1:{port}");
    // The peers' port is nobody's business: the system chooses it.
    let peer = "http://127.0.0.1:0";
    // It ends with the thread of the test, however that ends.
    let spawned = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "etcd", "--data-dir"])
        .arg(dir)
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
        .args(["--initial-cluster", &format!("default={peer}"), "--unsafe-no-fsync"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.unwrap_or_else(|error| panic!("setpriv: {error}; {INSTALL}"));
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let (told, ready) = mpsc::channel();
    std::thread::spawn(move || {
        let mut first = String::new();
        for line in stderr.lines().map_while(Result::ok) {
            if line.contains("ready to serve client requests") {
                let _ = told.send(Ok(()));
            }
            if first.len() < 4000 {
                first.push_str(&line);
                first.push('\n');
            }
        }
        let _ = told.send(Err(first));
    });
    match ready.recv().unwrap() {
        Ok(()) => Some(child),
        Err(text) => {
            let _ = child.wait();
            assert!(text.contains("address already in use"), "etcd: {text}; {INSTALL}");
            None
        }
    }
}
