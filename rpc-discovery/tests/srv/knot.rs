//! A name server of a test, with the one zone `kv.example`.

use std::path::Path;

use rustix::process::Signal;
use test_kit::daemon::{Daemon, Recipe};

const RECIPE: Recipe =
    Recipe { program: "knotd", install: "knot", ready: "server started", arguments };

/// A running name server.
pub(crate) struct Knot {
    daemon: Daemon,
    serial: u32,
}

impl Knot {
    /// Starts one with these records, and waits until it serves.
    pub(crate) fn start(records: &str) -> Self {
        let daemon = Daemon::start(RECIPE, |dir| write_zone(dir, 1, records));
        Self { daemon, serial: 1 }
    }

    pub(crate) fn port(&self) -> u16 {
        self.daemon.port()
    }

    /// Replaces the records.
    pub(crate) fn change(&mut self, records: &str) {
        self.serial += 1;
        write_zone(self.daemon.dir(), self.serial, records);
        self.daemon.signal(Signal::HUP);
    }

    pub(crate) fn kill(&mut self) {
        self.daemon.kill();
    }
}

fn write_zone(dir: &Path, serial: u32, records: &str) {
    let zone = format!(
        "$ORIGIN kv.example.\n$TTL 5\n@ SOA ns admin {serial} 60 60 60 60\n@ NS ns\nns A 127.0.0.1\n\
         {records}"
    );
    std::fs::write(dir.join("kv.example.zone"), zone).unwrap();
}

fn arguments(dir: &Path, port: u16) -> Vec<String> {
    let shown = dir.display();
    let config = format!(
        "server:\n  listen: 127.0.0.1@{port}\n  rundir: {shown}\ndatabase:\n  storage: {shown}\n\
         control:\n  listen: {shown}/control\nlog:\n  - target: stderr\n    any: info\n\
         template:\n  - id: default\n    storage: {shown}\n    zonefile-sync: -1\n\
         \u{20}   journal-content: none\n\
         zone:\n  - domain: kv.example\n"
    );
    let file = dir.join("knot.conf");
    std::fs::write(&file, config).unwrap();
    vec!["-c".to_owned(), file.display().to_string()]
}
