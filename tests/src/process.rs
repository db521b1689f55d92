//! Server and client processes of a test.
//!
//! A child says what it has to say in lines on its stdout, each a word and perhaps a text; it takes
//! commands as lines on its stdin.
//!
//! Invariants:
//! 1. A child ends when its stdin does, so none outlives the test process, however that ends.
//! 2. Dropping a [`Child`] kills it.

use std::ffi::OsStr;
use std::io::BufRead;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

/// The word with which a child says that it is up.
pub const READY: &str = "READY";
/// The word with which a server says that `serve` has returned.
pub const STOPPED: &str = "STOPPED";
/// The command that starts an orderly shutdown.
pub const SHUTDOWN: &str = "shutdown";
/// The command that opens a gate; its number follows.
pub const OPEN: &str = "open";

/// A process of a test.
#[derive(Debug)]
pub struct Child {
    process: tokio::process::Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    pid: u32,
}

impl Child {
    /// Starts a program of this package.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start<S: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) -> Self {
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("a program of this package can be started");
        let stdin = process.stdin.take();
        let stdout = process.stdout.take().expect("it is a pipe");
        let pid = process.id().expect("it has not been waited for");
        Self { process, stdin, lines: BufReader::new(stdout).lines(), pid }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for a line that starts with `word`; gives the rest of it.
    ///
    /// # Panics
    /// When the child says something else, or ends.
    pub async fn expect(&mut self, word: &str) -> String {
        let line = self.lines.next_line().await.expect("its stdout can be read");
        let line = line.unwrap_or_else(|| panic!("the child ended without {word}"));
        let text = line.strip_prefix(word);
        text.unwrap_or_else(|| panic!("{word} was due, not `{line}`")).trim().to_owned()
    }

    /// Gives a command.
    ///
    /// # Panics
    /// When the child has ended.
    pub async fn command(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("its stdin is open");
        stdin.write_all(format!("{line}\n").as_bytes()).await.expect("the child listens");
    }

    /// Stops all of its threads.
    ///
    /// # Panics
    /// When the child has ended.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        // The signal takes its time; this comes back when the last thread has stopped.
        let stopped =
            waitpid(Some(self.raw_pid()), WaitOptions::UNTRACED).expect("it is our child");
        assert!(stopped.is_some_and(|(_, status)| status.stopped()), "the child lives");
    }

    /// Lets it go on.
    ///
    /// # Panics
    /// When the child has ended.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.raw_pid(), signal).expect("the child lives");
    }

    fn raw_pid(&self) -> Pid {
        i32::try_from(self.pid).ok().and_then(Pid::from_raw).expect("a process id")
    }

    /// Ends it as `kill -9` does, and waits until the kernel has taken it down.
    ///
    /// # Panics
    /// When the child has ended before.
    pub async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait().await;
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it cannot be waited for.
    pub async fn wait(&mut self) -> ExitStatus {
        self.process.wait().await.expect("it is our child")
    }
}

/// In a child: ends the process when stdin does, and hands each line to `on_command` until then.
///
/// # Panics
/// When no thread can be started.
pub fn obey(mut on_command: impl FnMut(&str) + Send + 'static) {
    let listen = move || {
        for line in std::io::stdin().lock().lines() {
            match line {
                Ok(line) => on_command(&line),
                Err(_) => break,
            }
        }
        std::process::exit(0);
    };
    std::thread::Builder::new().name("commands".to_owned()).spawn(listen).expect("a thread");
}

/// In a child: says a line.
pub fn say(word: &str, text: impl std::fmt::Display) {
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
    // A parent that has gone ends this process anyhow.
    let _ = writeln!(stdout, "{word} {text}").and_then(|()| stdout.flush());
}

/// In a child: logs to stderr what `RUST_LOG` asks for.
pub fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}
