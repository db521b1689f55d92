//! A name server of a test, with the one zone `kv.example`.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

const INSTALL: &str = "the tests of SRV records need the program knotd: apt-get install knot";

/// A running name server.
pub(crate) struct Knot {
    child: Child,
    port: u16,
    dir: PathBuf,
    serial: u32,
}

impl Knot {
    /// Starts one with these records, and waits until it serves.
    pub(crate) fn start(records: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("rpc-srv-{}-{number}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        write_zone(&dir, 1, records);
        // Somebody else may take a free port before it does.
        for _ in 0..20 {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = free.local_addr().unwrap().port();
            if UdpSocket::bind(("127.0.0.1", port)).is_err() {
                continue;
            }
            drop(free);
            if let Some(child) = serving(&dir, port) {
                return Self { child, port, dir, serial: 1 };
            }
        }
        panic!("knotd does not start in {}", dir.display());
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Replaces the records.
    pub(crate) fn change(&mut self, records: &str) {
        self.serial += 1;
        write_zone(&self.dir, self.serial, records);
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Knot {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn write_zone(dir: &Path, serial: u32, records: &str) {
    let zone = format!(
        "$ORIGIN kv.example.\n$TTL 5\n@ SOA ns admin {serial} 60 60 60 60\n@ NS ns\nns A 127.0.0.1\n\
         {records}"
    );
    std::fs::write(dir.join("kv.example.zone"), zone).unwrap();
}

/// A process that serves at this port; `None`: it has ended, as the port is in use.
fn serving(dir: &Path, port: u16) -> Option<Child> {
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
    // It ends with the thread of the test, however that ends.
    let spawned = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "knotd", "-c"])
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.unwrap_or_else(|error| panic!("setpriv: {error}; {INSTALL}"));
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let (told, ready) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        for line in stderr.lines().map_while(Result::ok) {
            if line.contains("server started") {
                let _ = told.send(Ok(()));
            }
            if text.len() < 4000 {
                text.push_str(&line);
                text.push('\n');
            }
        }
        let _ = told.send(Err(text));
    });
    match ready.recv().unwrap() {
        Ok(()) => Some(child),
        Err(text) => {
            let _ = child.wait();
            assert!(text.contains("in use"), "knotd: {text}; {INSTALL}");
            None
        }
    }
}
