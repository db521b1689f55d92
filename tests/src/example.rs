//! The example programs, run as processes.
//!
//! `cargo test --workspace` builds them. For one test of this crate alone, first run `cargo build
//! --workspace --examples`.
//!
//! Invariants:
//! 1. No program outlives its test: dropping its handle kills it.
//! 2. A program that does not end within [`LIMIT`] fails its test.

use std::ffi::OsStr;
use std::fmt;
use std::future::Future;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

pub use examples::testing::Scratch;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

/// Longest time for one program, or for one of its steps. Only a program that hangs reaches it.
pub const LIMIT: Duration = Duration::from_secs(120);

/// An example with arguments.
///
/// # Panics
/// When the example has not been built.
pub fn command<S: AsRef<OsStr>>(example: &str, arguments: impl IntoIterator<Item = S>) -> Command {
    let test = std::env::current_exe().expect("the test knows where it is");
    let profile = test.parent().and_then(Path::parent).expect("target/<profile>/deps/<test>");
    let program = profile.join("examples").join(example);
    let hint = "build it with `cargo build --workspace --examples`";
    assert!(program.exists(), "{} is not there; {hint}", program.display());
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true).env_remove("RUST_LOG");
    command
}

/// The output of a program that has ended.
pub struct Ended {
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Its stdout.
    pub stdout: Vec<u8>,
    /// Its stderr.
    pub stderr: String,
}

impl Ended {
    /// Stdout as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// `self`, if the exit code is `code`.
    ///
    /// # Panics
    /// When it is another one.
    #[track_caller]
    pub fn with_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}

impl fmt::Debug for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "exit code {:?}, stdout:\n{}stderr:\n{}", self.code, self.text(), self.stderr)
    }
}

/// Runs a program to its end.
///
/// # Panics
/// When it cannot be started, or does not end in time.
pub async fn run(mut command: Command) -> Ended {
    let output = within_limit(command.output()).await.expect("the example can be started");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Ended { code: output.status.code(), stdout: output.stdout, stderr }
}

/// A program that serves.
#[derive(Debug)]
pub struct Serving {
    child: Child,
    addresses: Vec<String>,
}

impl Serving {
    /// Starts it and waits until it has printed `READY` for each of `addresses` addresses.
    ///
    /// # Panics
    /// When it prints something else, or ends.
    pub async fn start(mut command: Command, addresses: usize) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the example can be started");
        let mut lines = BufReader::new(child.stdout.as_mut().expect("it is a pipe")).lines();
        let mut ready = Vec::new();
        while ready.len() < addresses {
            let line = within_limit(lines.next_line()).await.expect("its stdout can be read");
            let Some(line) = line else {
                let (_, stderr) = Self { child, addresses: ready }.ended().await;
                panic!("the server has ended: {stderr}");
            };
            ready.push(line.strip_prefix("READY ").expect("READY comes first").to_owned());
        }
        Self { child, addresses: ready }
    }

    /// The addresses that it listens at, with real ports.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Its process id.
    ///
    /// # Panics
    /// When it has ended.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Waits for its end; returns its exit status and its stderr.
    ///
    /// # Panics
    /// When it does not end in time.
    pub async fn ended(mut self) -> (ExitStatus, String) {
        let mut stderr = String::new();
        let mut pipe = self.child.stderr.take().expect("it is a pipe");
        within_limit(pipe.read_to_string(&mut stderr)).await.expect("its stderr can be read");
        (within_limit(self.child.wait()).await.expect("it is our child"), stderr)
    }
}

async fn within_limit<F: Future>(work: F) -> F::Output {
    tokio::time::timeout(LIMIT, work).await.expect("the example is stuck")
}
