//! An etcd of a test.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use test_kit::daemon::{Daemon, Recipe};

const INSTALL: &str = "etcd-server and etcd-client (or etcd)";
const RECIPE: Recipe = Recipe {
    program: "etcd",
    install: INSTALL,
    ready: "ready to serve client requests",
    arguments: |dir, port| {
        let client = format!("{}://127.0.0.1:{port}", scheme(dir));
        let arguments = [
            ["--data-dir", &dir.join(DATA).display().to_string()],
            ["--listen-client-urls", &client],
            ["--advertise-client-urls", &client],
            ["--listen-peer-urls", PEER],
            ["--initial-advertise-peer-urls", PEER],
            ["--initial-cluster", &format!("default={PEER}")],
        ];
        let arguments = arguments.into_iter().flatten().chain(["--unsafe-no-fsync"]);
        let arguments = arguments.map(str::to_owned);
        if scheme(dir) == "http" {
            return arguments.collect();
        }
        let secure = [("cert-file", "cert.pem"), ("key-file", "key.pem"), ("trusted-ca-file", CA)];
        let secure = secure.map(|(name, file)| format!("--{name}={}", dir.join(file).display()));
        arguments.chain(secure).chain(["--client-cert-auth".to_owned()]).collect()
    },
};
/// What it stores, in its directory.
const DATA: &str = "data";
/// The peers' port is nobody's business: the system chooses it.
const PEER: &str = "http://127.0.0.1:0";

/// It is there if clients must use TLS.
const CA: &str = "ca.pem";

fn scheme(dir: &Path) -> &'static str {
    if dir.join(CA).exists() { "https" } else { "http" }
}

/// A running etcd.
pub(crate) struct Etcd(Daemon);

impl Etcd {
    /// Starts one and waits until it serves.
    pub(crate) fn start() -> Self {
        Self(Daemon::start(RECIPE, |_| {}))
    }

    /// Starts one that speaks TLS only, with these authorities, and with one certificate for all.
    pub(crate) fn start_secure(authorities: &str, cert: &str, key: &str) -> Self {
        Self(Daemon::start(RECIPE, |dir| {
            for (file, text) in [(CA, authorities), ("cert.pem", cert), ("key.pem", key)] {
                std::fs::write(dir.join(file), text).unwrap();
            }
        }))
    }

    /// The name of a prefix in it.
    pub(crate) fn name(&self, prefix: &str) -> String {
        format!("etcd://127.0.0.1:{}/{prefix}", self.port())
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.port()
    }

    /// Runs etcdctl; gives what it prints.
    #[track_caller]
    pub(crate) fn ctl(&self, arguments: &[&str]) -> String {
        let dir = self.0.dir();
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3");
        if scheme(dir) == "https" {
            for (name, file) in [("cert", "cert.pem"), ("key", "key.pem"), ("cacert", CA)] {
                command.arg(format!("--{name}={}", dir.join(file).display()));
            }
        }
        let output = command
            .arg(format!("--endpoints={}://127.0.0.1:{}", scheme(dir), self.port()))
            .args(arguments)
            .output()
            .unwrap_or_else(|error| panic!("etcdctl: {error}; install {INSTALL}"));
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
        self.0.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.0.signal(Signal::CONT);
    }

    /// Ends it like `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.0.kill();
    }

    /// Removes all that it has stored. Only after [`Etcd::kill`].
    pub(crate) fn wipe(&self) {
        std::fs::remove_dir_all(self.0.dir().join(DATA)).unwrap();
    }

    /// Replaces what it has stored by a snapshot. Only after [`Etcd::kill`].
    pub(crate) fn restore(&self, snapshot: &str) {
        self.wipe();
        let data = self.0.dir().join(DATA);
        self.ctl(&[
            "snapshot",
            "restore",
            snapshot,
            "--data-dir",
            data.to_str().unwrap(),
            "--initial-cluster",
            &format!("default={PEER}"),
            "--initial-advertise-peer-urls",
            PEER,
        ]);
        std::fs::remove_file(snapshot).unwrap();
    }

    /// Starts it again at its port, after [`Etcd::kill`].
    pub(crate) fn restart(&mut self) {
        self.0.restart();
    }
}
