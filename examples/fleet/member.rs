//! A server of the fleet, as the parent sees it.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rpc_core::Address;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use super::Outcome;
use super::service::{COUNTS, HEAL, POISON, READY};

/// Longest time until a process is ready, and until it has ended on request.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What the parent has done to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    Draining,
    Stopped,
    Ill,
    /// Its process has ended.
    Gone,
}

impl State {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
            Self::Ill => "ill",
            Self::Gone => "gone",
        }
    }
}

/// Calls of a server, as it counts them.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) done: AtomicU64,
    pub(crate) failed: AtomicU64,
}

/// A process that serves. It ends with this one.
pub(crate) struct Member {
    /// Unique in this run.
    pub(crate) number: usize,
    pub(crate) address: String,
    pub(crate) state: State,
    pub(crate) counts: Arc<Counts>,
    child: Child,
    stdin: ChildStdin,
}

impl Member {
    /// Starts one, and waits until it serves.
    pub(crate) async fn start(
        number: usize,
        listen: &Address,
        registry: &str,
        directory: &Path,
    ) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["member", "--listen", &listen.to_string(), "--register", registry, "--journal"])
            .arg(directory.join(format!("journal-{number}")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdin = child.stdin.take().ok_or("it is piped")?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("it is piped")?).lines();
        let line = timeout(PATIENCE, lines.next_line()).await;
        let line = line.map_err(|_| format!("server {number} does not become ready"))??;
        let address = line.as_deref().and_then(|it| it.strip_prefix(READY));
        let address = address.ok_or_else(|| format!("server {number} has not started"))?;
        let (address, counts) = (address.trim().to_owned(), Arc::<Counts>::default());
        let counted = Arc::clone(&counts);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let mut words = line.split(' ');
                if words.next() != Some(COUNTS) {
                    continue;
                }
                for (place, word) in [&counted.done, &counted.failed].into_iter().zip(words) {
                    place.store(word.parse().unwrap_or(0), Ordering::Relaxed);
                }
            }
        });
        Ok(Self { number, address, state: State::Ready, counts, child, stdin })
    }

    pub(crate) fn done(&self) -> u64 {
        self.counts.done.load(Ordering::Relaxed)
    }

    /// SIGTERM; waits until it has drained and ended.
    pub(crate) async fn ended(&mut self) -> Outcome<()> {
        let ended = timeout(PATIENCE, self.child.wait()).await;
        let status = ended.map_err(|_| format!("server {} does not drain", self.number))??;
        self.state = State::Gone;
        match status.success() {
            true => Ok(()),
            false => Err(format!("server {} has not drained: {status}", self.number).into()),
        }
    }

    pub(crate) fn drain(&mut self) -> Outcome<()> {
        self.state = State::Draining;
        self.signal(Signal::TERM)
    }

    /// SIGKILL.
    pub(crate) async fn kill(&mut self) -> Outcome<()> {
        self.child.kill().await?;
        self.state = State::Gone;
        Ok(())
    }

    /// SIGSTOP: its connections stay open, and nobody answers.
    pub(crate) fn stop(&mut self) -> Outcome<()> {
        self.state = State::Stopped;
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    pub(crate) fn resume(&mut self) -> Outcome<()> {
        self.state = State::Ready;
        self.signal(Signal::CONT)
    }

    /// From now on it answers with errors.
    pub(crate) async fn poison(&mut self) -> Outcome<()> {
        self.state = State::Ill;
        Ok(self.stdin.write_all(format!("{POISON}\n").as_bytes()).await?)
    }

    /// It works again.
    pub(crate) async fn heal(&mut self) -> Outcome<()> {
        self.state = State::Ready;
        Ok(self.stdin.write_all(format!("{HEAL}\n").as_bytes()).await?)
    }

    fn signal(&self, signal: Signal) -> Outcome<()> {
        let id = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        Ok(kill_process(id.ok_or_else(|| format!("server {} has ended", self.number))?, signal)?)
    }
}
