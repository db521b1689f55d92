//! Runs programs of the tests on another machine, for tests that need a wire between client and
//! server.
//!
//! `probe_agent` runs there and listens on TCP; the variable [`AGENT`] gives the tests its address.
//! A connection's first line is its request:
//!
//! | line | answer |
//! |---|---|
//! | `start PROGRAM\tARGUMENT...` | the process id, then the program's stdin and stdout |
//! | `signal PID stop\|cont\|kill` | `ok`, once the signal is sent, or the process has stopped |
//! | `wait PID` | its status as of `waitpid`, once it has ended |
//!
//! Never used beyond a test network: anybody who reaches the agent can run programs.
//!
//! Invariants:
//! 1. A program is killed when the connection that started it ends, so none outlives its test.
//! 2. All output of a program arrives before the end of its connection.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream as BlockingStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::watch;

/// The variable that names the agent's address.
pub const AGENT: &str = "RPC_TEST_AGENT";
/// Longest wait for an answer that should come at once.
const PATIENCE: Duration = Duration::from_secs(60);
/// The signals that tests send.
const SIGNALS: [(&str, Signal); 5] = [
    ("stop", Signal::STOP),
    ("cont", Signal::CONT),
    ("term", Signal::TERM),
    ("int", Signal::INT),
    ("kill", Signal::KILL),
];

/// The agent on the peer's machine, if the tests have one.
///
/// # Panics
/// When [`AGENT`] is not an address.
#[must_use]
pub fn of_the_peer() -> Option<SocketAddr> {
    static PEER: OnceLock<Option<SocketAddr>> = OnceLock::new();
    let parse = || {
        let text = std::env::var(AGENT).ok()?;
        Some(text.parse().unwrap_or_else(|_| panic!("{AGENT} is no address with a port: {text}")))
    };
    *PEER.get_or_init(parse)
}

/// Sends a signal to a process, and waits until a stopped one has stopped.
///
/// # Errors
/// There is no such process, or it ended instead of being stopped.
pub fn send_signal(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
    kill_process(pid, signal)?;
    if signal != Signal::STOP {
        return Ok(());
    }
    // The signal takes time; this returns when the last thread has stopped.
    match waitpid(Some(pid), WaitOptions::UNTRACED)? {
        Some((_, status)) if status.stopped() => Ok(()),
        _ => Err(io::Error::other("it ended instead of stopping")),
    }
}

/// A program that the peer's agent runs for this process.
#[derive(Debug)]
pub struct Remote {
    agent: SocketAddr,
    /// Its process id there.
    pub pid: u32,
}

impl Remote {
    /// Starts the program; also returns the connection that is its stdin and stdout.
    ///
    /// # Errors
    /// The agent cannot be reached, or cannot start it.
    pub fn start(
        agent: SocketAddr,
        program: &str,
        arguments: &[String],
    ) -> io::Result<(Self, TcpStream)> {
        let words: Vec<&str> =
            std::iter::once(program).chain(arguments.iter().map(String::as_str)).collect();
        let (answer, stream) = ask(agent, &format!("start {}", words.join("\t")))?;
        let pid = answer.parse().map_err(|_| io::Error::other(answer))?;
        stream.set_read_timeout(None)?;
        stream.set_nonblocking(true)?;
        Ok((Self { agent, pid }, TcpStream::from_std(stream)?))
    }

    /// Sends a signal, like [`send_signal`].
    ///
    /// # Errors
    /// Those of [`send_signal`], or the agent cannot be reached.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let known = SIGNALS.iter().find(|(_, known)| *known == signal);
        let (name, _) = known.ok_or(io::ErrorKind::InvalidInput)?;
        match ask(self.agent, &format!("signal {} {name}", self.pid))?.0.as_str() {
            "ok" => Ok(()),
            error => Err(io::Error::other(error.to_owned())),
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The agent cannot be reached.
    pub async fn wait(&self) -> io::Result<ExitStatus> {
        let mut stream = TcpStream::connect(self.agent).await?;
        stream.write_all(format!("wait {}\n", self.pid).as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let status = answer.trim().parse().map_err(|_| io::Error::other(answer))?;
        Ok(ExitStatus::from_raw(status))
    }
}

/// Asks the agent, and blocks until it has answered with a line.
fn ask(agent: SocketAddr, request: &str) -> io::Result<(String, BlockingStream)> {
    let mut stream = BlockingStream::connect_timeout(&agent, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    // Byte by byte: the bytes after the line are the program's own.
    let mut line = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte)? == 1 && byte != *b"\n" {
        line.push(byte[0]);
    }
    Ok((String::from_utf8_lossy(&line).into_owned(), stream))
}

/// The exit status of each program of this agent that has ended.
type Endings = Arc<Mutex<HashMap<u32, watch::Receiver<Option<i32>>>>>;

/// Runs an agent.
///
/// # Errors
/// The listener dies.
pub async fn serve(listener: TcpListener) -> io::Result<()> {
    let endings = Endings::default();
    loop {
        let (stream, _) = listener.accept().await?;
        let endings = Arc::clone(&endings);
        tokio::spawn(async move {
            if let Err(error) = answer(stream, &endings).await {
                eprintln!("probe_agent: {error}");
            }
        });
    }
}

async fn answer(stream: TcpStream, endings: &Endings) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut request = String::new();
    stream.read_line(&mut request).await?;
    let outcome = match request.trim_end().split_once(' ') {
        Some(("start", command)) => match start(command) {
            Ok(child) => return run(stream, child, endings).await,
            Err(error) => Err(io::Error::other(format!("{command}: {error}"))),
        },
        Some(("signal", words)) => signal(words.to_owned()).await,
        Some(("wait", pid)) => ending(pid, endings).await,
        _ => Err(io::Error::other(format!("no such request: {request}"))),
    };
    let text = outcome.unwrap_or_else(|error| error.to_string());
    stream.write_all(format!("{text}\n").as_bytes()).await
}

fn start(command: &str) -> io::Result<tokio::process::Child> {
    let mut words = command.split('\t');
    let mut command = Command::new(words.next().ok_or(io::ErrorKind::InvalidInput)?);
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()
}

/// Carries a program's stdin and stdout until both it and its output have ended.
async fn run(
    mut stream: BufReader<TcpStream>,
    mut child: tokio::process::Child,
    endings: &Endings,
) -> io::Result<()> {
    let gone = || io::Error::other("it was taken from us");
    let pid = child.id().ok_or_else(gone)?;
    let (ended, ending) = watch::channel(None);
    endings.lock().insert(pid, ending);
    stream.write_all(format!("{pid}\n").as_bytes()).await?;
    let mut stdin = child.stdin.take().ok_or_else(gone)?;
    let mut stdout = child.stdout.take().ok_or_else(gone)?;
    let (mut commands, mut lines) = tokio::io::split(stream);
    let output = async {
        // Fails once nobody listens any more, which ends the program below.
        let _ = tokio::io::copy(&mut stdout, &mut lines).await;
        let _ = lines.shutdown().await;
    };
    let life = async {
        let fed = tokio::select! {
            status = child.wait() => Err(status),
            fed = tokio::io::copy(&mut commands, &mut stdin) => Ok(fed),
        };
        let status = match fed {
            Err(status) => status?,
            Ok(fed) => {
                // No error means that the caller has hung up; an error means that the program takes
                // no commands.
                if fed.is_ok() {
                    child.start_kill()?;
                }
                child.wait().await?
            }
        };
        ended.send_replace(Some(status.into_raw()));
        io::Result::Ok(())
    };
    let ((), outcome) = tokio::join!(output, life);
    outcome
}

async fn signal(words: String) -> io::Result<String> {
    let (pid, name) = words.split_once(' ').ok_or(io::ErrorKind::InvalidInput)?;
    let pid = pid.parse().map_err(io::Error::other)?;
    let known = SIGNALS.iter().find(|(known, _)| *known == name);
    let (_, signal) = *known.ok_or(io::ErrorKind::InvalidInput)?;
    let sent = tokio::task::spawn_blocking(move || send_signal(pid, signal));
    sent.await.map_err(io::Error::other)??;
    Ok("ok".to_owned())
}

async fn ending(pid: &str, endings: &Endings) -> io::Result<String> {
    let pid: u32 = pid.parse().map_err(io::Error::other)?;
    let ending = endings.lock().get(&pid).cloned();
    let mut ending = ending.ok_or_else(|| io::Error::other(format!("no program {pid}")))?;
    let status = ending.wait_for(Option::is_some).await.map_err(io::Error::other)?;
    Ok(status.unwrap_or_default().to_string())
}
