//! The server's process in a run without arguments.
//!
//! Owns the child from its start to its end. Never leaves it behind: it ends when its stdin does,
//! which the system closes even if this process is killed.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use examples::options::word;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::error::EchoError;
use super::options::RunOptions;

/// Longest time from the start to `READY`.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest time from closing stdin to the end.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// A server process that is ready.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    child: Child,
    /// Closing it orders the process to end. Not left in `child`, whose `wait` would close it.
    stdin: Option<ChildStdin>,
    address: String,
}

impl ServerProcess {
    /// Starts this program once more, as a server, and waits until it accepts.
    pub(crate) async fn start(options: &RunOptions) -> Result<Self, EchoError> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("server")
            .arg(options.address.to_string())
            .args(["--poll", &word(options.calls.poll), "--until-stdin-closes"])
            .args(options.calls.tls.of_server().arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let ready = tokio::time::timeout(START_TIMEOUT, read_ready(stdout));
        match ready.await {
            Ok(Ok(Some(address))) => Ok(Self { child, stdin, address }),
            Ok(Ok(None)) => Err(EchoError::NotStarted(child.wait().await?)),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(EchoError::StartTimeout(START_TIMEOUT)),
        }
    }

    /// Where it listens, with the real port.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Its process id, while it runs.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until it ends on its own.
    pub(crate) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Its exit status, if it has ended or ends at once: its connections may be seen to end first.
    pub(crate) async fn just_ended(&mut self) -> Option<ExitStatus> {
        tokio::time::timeout(Duration::from_secs(1), self.child.wait()).await.ok()?.ok()
    }

    /// Ends it in order, or else by force.
    pub(crate) async fn stop(mut self) -> io::Result<()> {
        drop(self.stdin.take());
        match tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await {
            Ok(status) => status.map(drop),
            Err(_) => self.child.kill().await,
        }
    }
}

/// The address that follows `READY`; `None` if the stream ends without it.
async fn read_ready(stdout: Option<ChildStdout>) -> io::Result<Option<String>> {
    let Some(stdout) = stdout else { return Ok(None) };
    let mut lines = BufReader::new(stdout).lines();
    while let Some(line) = lines.next_line().await? {
        if let Some(address) = line.strip_prefix("READY ") {
            return Ok(Some(address.to_owned()));
        }
    }
    Ok(None)
}
