//! A process of the shop: started, killed, and restarted at the same address.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use examples::tls::ClientTls;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

/// Longest time until it is ready, and until it has ended on request.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest time until its addresses are free again, and time between two tries.
const FREED: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(200);

/// A process that is ready. It ends with this one.
pub(crate) struct Process {
    child: Child,
    /// The process ends with it. Not left in `child`, whose `wait` would close it.
    stdin: Option<ChildStdin>,
    role: &'static str,
    arguments: Vec<OsString>,
    /// Where it listens.
    pub(crate) address: String,
    /// Where its admin page is.
    pub(crate) admin: String,
    /// The address of its metrics, if it has one.
    pub(crate) metrics: Option<String>,
}

/// The addresses of a process, as it reports them.
struct Ready {
    address: String,
    admin: String,
    metrics: Option<String>,
}

impl Process {
    pub(crate) async fn start(
        role: &'static str,
        listen: &str,
        metrics: Option<SocketAddr>,
        tls: &ClientTls,
        more: &[&str],
    ) -> Result<Self> {
        let mut arguments = tls.arguments();
        arguments.extend(more.iter().map(Into::into));
        let metrics = metrics.map(|address| address.to_string());
        let launched = launch(role, &arguments, listen, "127.0.0.1:0", metrics.as_deref()).await?;
        let (mut child, Ready { address, admin, metrics }) = launched;
        let stdin = child.stdin.take();
        Ok(Self { child, stdin, role, arguments, address, admin, metrics })
    }

    /// SIGKILL, and a restart at the same addresses.
    pub(crate) async fn kill_and_restart(&mut self) -> Result<()> {
        self.child.kill().await?;
        self.restart().await
    }

    /// SIGTERM: it drains. Then a restart at the same addresses.
    pub(crate) async fn drain_and_restart(&mut self) -> Result<()> {
        let id = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        kill_process(id.context("it ended on its own")?, Signal::TERM)?;
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        let status = ended.with_context(|| format!("{} does not drain", self.role))??;
        if !status.success() {
            bail!("{} has not drained: {status}", self.role);
        }
        self.restart().await
    }

    async fn restart(&mut self) -> Result<()> {
        // Its ports may be held for a moment, by connections or by another program.
        let begin = Instant::now();
        let (mut child, ..) = loop {
            let metrics = self.metrics.as_deref();
            match launch(self.role, &self.arguments, &self.address, &self.admin, metrics).await {
                Ok(launched) => break launched,
                Err(error) if begin.elapsed() > FREED => return Err(error),
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        };
        self.stdin = child.stdin.take();
        self.child = child;
        Ok(())
    }
}

async fn launch(
    role: &str,
    arguments: &[OsString],
    listen: &str,
    admin: &str,
    metrics: Option<&str>,
) -> Result<(Child, Ready)> {
    let admin = if admin == "-" { "127.0.0.1:0" } else { admin };
    let mut child = Command::new(std::env::current_exe()?)
        .arg(role)
        .args(arguments)
        .args(["--listen", listen, "--admin", admin])
        .args(metrics.iter().flat_map(|address| ["--metrics", *address]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("it is piped")?).lines();
    let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
    let line = line.with_context(|| format!("{role} did not become ready"))??;
    let line = line.with_context(|| format!("{role} ended before it was ready"))?;
    let mut words = line.split(' ').skip(1).map(str::to_owned);
    let (Some(address), Some(admin), Some(metrics)) = (words.next(), words.next(), words.next())
    else {
        bail!("expected READY from {role}, got {line:?}");
    };
    Ok((child, Ready { address, admin, metrics: Some(metrics).filter(|metrics| metrics != "-") }))
}
