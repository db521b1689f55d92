//! Server and client processes of a test.
//!
//! A child prints lines on its stdout, each a word and perhaps a text; it takes commands as lines
//! on its stdin. It runs on this machine, or on the peer's machine if the tests have one
//! ([`crate::agent`]): servers run there, so that there is a wire between them and the test.
//!
//! Invariants:
//! 1. A child ends when its stdin does, so none outlives the test process, however that ends.
//! 2. Dropping a [`Child`] kills it, and removes the socket file that it listened at.

use std::fmt;
use std::io::BufRead;
use std::process::{ExitStatus, Stdio};

use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::process::Command;

use crate::agent::{self, Remote, send_signal};
use crate::socket_file::SocketFile;

/// The word that a child prints when it is up.
pub const READY: &str = "READY";
/// The word that a server prints when `serve` has returned.
pub const STOPPED: &str = "STOPPED";
/// The command that starts an orderly shutdown.
pub const SHUTDOWN: &str = "shutdown";
/// The command that makes a client call.
pub const CALL: &str = "call";
/// The command for a client under load to make some more calls, and its answer.
pub const ADVANCE: &str = "advance";
/// See [`ADVANCE`].
pub const ADVANCED: &str = "ADVANCED";
/// The command that ends a client's load.
pub const STOP: &str = "stop";
/// A client's output at the end of its load: the number of failed calls, and the booked ids.
pub const BOOKED: &str = "BOOKED";
/// The command that opens a gate; its number follows.
pub const OPEN: &str = "open";

/// A process of a test.
pub struct Child {
    place: Place,
    stdin: Box<dyn AsyncWrite + Send + Sync + Unpin>,
    stdout: BufReader<Box<dyn AsyncRead + Send + Sync + Unpin>>,
    pid: u32,
    socket_file: Option<SocketFile>,
}

/// Where a child runs.
#[derive(Debug)]
enum Place {
    Here(tokio::process::Child),
    There(Remote),
}

impl Child {
    /// Starts a program of this package on this machine.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start<S: AsRef<str>>(program: &str, arguments: impl IntoIterator<Item = S>) -> Self {
        let mut command = Command::new(program);
        for argument in arguments {
            command.arg(argument.as_ref());
        }
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = piped.spawn().expect("a program of this package can be started");
        let stdin = process.stdin.take().expect("it is a pipe");
        let stdout = process.stdout.take().expect("it is a pipe");
        let pid = process.id().expect("it has not been waited for");
        let stdout = BufReader::new(Box::new(stdout) as Box<_>);
        let stdin = Box::new(stdin);
        Self { place: Place::Here(process), stdin, stdout, pid, socket_file: None }
    }

    /// Starts a program on the peer's machine, or on this one if the tests have no other.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start_there<S: AsRef<str>>(
        program: &str,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        let Some(peer) = agent::of_the_peer() else { return Self::start(program, arguments) };
        let arguments: Vec<_> =
            arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
        let (remote, stream) = Remote::start(peer, program, &arguments)
            .unwrap_or_else(|error| panic!("{program} cannot be started there: {error}"));
        let pid = remote.pid;
        let (stdout, stdin) = tokio::io::split(stream);
        let stdout = BufReader::new(Box::new(stdout) as Box<_>);
        let stdin = Box::new(stdin);
        Self { place: Place::There(remote), stdin, stdout, pid, socket_file: None }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Records that it is a server, which listens at this address now.
    pub(crate) fn listens_at(&mut self, address: &str) {
        self.socket_file = SocketFile::at(address);
    }

    /// Waits for a line that starts with `word`; returns the rest of it.
    ///
    /// # Panics
    /// When the child prints something else, or ends.
    pub async fn expect(&mut self, word: &str) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).await.expect("its stdout can be read");
        assert!(!line.is_empty(), "the child ended without {word}");
        let text = line.strip_prefix(word);
        text.unwrap_or_else(|| panic!("{word} was due, not `{line}`")).trim().to_owned()
    }

    /// All of its output until it ends.
    ///
    /// # Panics
    /// When the output is not UTF-8.
    pub async fn output(&mut self) -> String {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).await.expect("its stdout can be read");
        text
    }

    /// Gives a command.
    ///
    /// # Panics
    /// When the child has ended.
    pub async fn command(&mut self, line: &str) {
        self.stdin.write_all(format!("{line}\n").as_bytes()).await.expect("the child listens");
        self.stdin.flush().await.expect("the child listens");
    }

    /// Stops all of its threads.
    ///
    /// # Panics
    /// When the child has ended.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues it.
    ///
    /// # Panics
    /// When the child has ended.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to end, by SIGTERM.
    ///
    /// # Panics
    /// When the child has ended.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Interrupts it by SIGINT, like Ctrl-C.
    ///
    /// # Panics
    /// When the child has ended.
    pub fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    fn signal(&self, signal: Signal) {
        let sent = match &self.place {
            Place::Here(_) => send_signal(self.pid, signal),
            Place::There(remote) => remote.signal(signal),
        };
        sent.expect("the child lives");
    }

    /// Ends it like `kill -9`, and waits until the kernel has removed it.
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
        let status = match &mut self.place {
            Place::Here(process) => process.wait().await,
            Place::There(remote) => remote.wait().await,
        };
        status.expect("it is our child")
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child").field("place", &self.place).field("pid", &self.pid).finish()
    }
}

/// The output of a program on the server's machine: [`Child::start_there`], to its end.
///
/// # Panics
/// When it cannot be started, or fails.
pub async fn output_there(program: &str, arguments: &[&str]) -> String {
    let mut child = Child::start_there(program, arguments);
    let output = child.output().await;
    let status = child.wait().await;
    assert!(status.success(), "{program} {arguments:?}: {status}");
    output
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

/// In a child: prints a line.
pub fn say(word: &str, text: impl std::fmt::Display) {
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
    // If the parent is gone, this process ends anyway.
    let _ = writeln!(stdout, "{word} {text}").and_then(|()| stdout.flush());
}

/// In a child: logs to stderr as `RUST_LOG` configures, by default errors.
///
/// # Panics
///
/// If `RUST_LOG` cannot be parsed.
pub fn log_to_stderr() {
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;
    let said = std::env::var("RUST_LOG").unwrap_or_else(|_| "error".to_owned());
    let filter: tracing_subscriber::filter::Targets = said.parse().expect("RUST_LOG");
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let _ = tracing_subscriber::registry().with(lines).with(filter).try_init();
}
