//! Programs of the system that tests start: each with a port and a directory of its own, gone with
//! the test.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, kill_process};

/// Somebody else may take a free port before the program does.
const TRIES: u32 = 20;
/// Bytes that are kept of what it says before it serves.
const MAX_TOLD: usize = 4000;

/// Which program, and how.
#[derive(Debug)]
pub struct Recipe {
    /// Its name in PATH.
    pub program: &'static str,
    /// Which packages have it.
    pub install: &'static str,
    /// Part of the line on its stderr that says that it serves.
    pub ready: &'static str,
    /// Its arguments, from its directory and its port. May write files there.
    pub arguments: fn(&Path, u16) -> Vec<String>,
}

/// A program that serves.
#[derive(Debug)]
pub struct Daemon {
    recipe: Recipe,
    child: Child,
    port: u16,
    dir: PathBuf,
}

impl Daemon {
    /// Starts one and waits until it serves. `prepare` may write files into its directory.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(recipe: Recipe, prepare: impl FnOnce(&Path)) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test-{}-{}-{number}", recipe.program, std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).expect("a directory for a test");
        prepare(&dir);
        for _ in 0..TRIES {
            let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = free.local_addr().expect("it is bound").port();
            if UdpSocket::bind(("127.0.0.1", port)).is_err() {
                continue;
            }
            drop(free);
            if let Some(child) = recipe.launch(&dir, port) {
                return Self { recipe, child, port, dir };
            }
        }
        panic!("{} does not start in {}", recipe.program, dir.display());
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// When it has ended.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it has not ended");
    }

    /// Ends it like `kill -9`.
    ///
    /// # Panics
    /// When it cannot be waited for.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is our child");
        self.child.wait().expect("it is our child");
    }

    /// Starts it again at its port, after [`Daemon::kill`].
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart(&mut self) {
        self.child = self.recipe.launch(&self.dir, self.port).expect("it starts again");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Recipe {
    /// A process that serves at this port; `None`: it has ended, as the port is in use.
    fn launch(&self, dir: &Path, port: u16) -> Option<Child> {
        let Self { program, install, ready, arguments } = self;
        // It ends with the thread of the test, however that ends.
        let spawned = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", program])
            .args(arguments(dir, port))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = spawned.unwrap_or_else(|error| panic!("setpriv: {error}"));
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let (told, is_ready) = mpsc::channel();
        let ready = *ready;
        std::thread::spawn(move || {
            let mut text = String::new();
            for line in stderr.lines().map_while(Result::ok) {
                if line.contains(ready) {
                    let _ = told.send(Ok(()));
                }
                if text.len() < MAX_TOLD {
                    text.push_str(&line);
                    text.push('\n');
                }
            }
            let _ = told.send(Err(text));
        });
        match is_ready.recv().expect("the thread reports") {
            Ok(()) => Some(child),
            Err(text) => {
                let _ = child.wait();
                assert!(text.contains("in use"), "{program}: {text}; install {install}");
                None
            }
        }
    }
}
