//! etcd as a process, with a port and a directory of its own.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rpc_core::client::resolve::Resolve;
use rpc_discovery::Etcd;
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::process::{Child, Command};

use super::Outcome;
use super::member::PATIENCE;

const INSTALL: &str = "the program etcd is not in PATH; install it with `apt-get install \
                       etcd-server` (or etcd), or from https://etcd.io";
/// Pause before it is asked again whether it serves.
const RETRY: Duration = Duration::from_millis(50);
/// Somebody else may take a free port before etcd does.
const TRIES: u32 = 20;

/// A running etcd. It ends with this process.
pub(crate) struct Registry {
    child: Child,
    directory: PathBuf,
    port: u16,
    pub(crate) is_up: bool,
}

impl Registry {
    /// Starts one, and waits until it serves.
    pub(crate) async fn start(directory: &Path) -> Outcome<Self> {
        let found = std::process::Command::new("etcd").arg("--version").output();
        if found.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return Err(INSTALL.into());
        }
        let mut last = None;
        for _ in 0..TRIES {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            match launch(directory, port).await {
                Ok(child) => {
                    return Ok(Self { child, directory: directory.into(), port, is_up: true });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| INSTALL.into()))
    }

    /// The name of the servers in it.
    pub(crate) fn name(&self) -> String {
        name(self.port)
    }

    /// SIGKILL.
    pub(crate) async fn kill(&mut self) -> Outcome<()> {
        self.child.kill().await?;
        self.is_up = false;
        Ok(())
    }

    /// Removes all that it has stored, after [`Registry::kill`].
    pub(crate) fn wipe(&self) -> io::Result<()> {
        std::fs::remove_dir_all(self.directory.join("etcd"))
    }

    /// Starts it again at its port, after [`Registry::kill`].
    pub(crate) async fn restart(&mut self) -> Outcome<()> {
        self.child = launch(&self.directory, self.port).await?;
        self.is_up = true;
        Ok(())
    }

    /// The number of servers that it knows.
    pub(crate) async fn registered(&self) -> Outcome<usize> {
        Ok(self.name().parse::<Etcd>()?.resolve().await?.len())
    }
}

fn name(port: u16) -> String {
    format!("etcd://127.0.0.1:{port}/rpc/fleet")
}

async fn launch(directory: &Path, port: u16) -> Outcome<Child> {
    let client = format!("http://127.0.0.1:{port}");
    // No other member will join: the system chooses the port for them.
    let peer = "http://127.0.0.1:0";
    let log = directory.join("etcd.log");
    let mut child = Command::new(std::env::current_exe()?)
        .args(["etcd", "--", "--data-dir"])
        .arg(directory.join("etcd"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
        .args(["--initial-cluster", &format!("default={peer}"), "--unsafe-no-fsync"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log)?)
        .kill_on_drop(true)
        .spawn()?;
    let etcd: Etcd = name(port).parse()?;
    let (etcd, begin) = (etcd.request_timeout(Duration::from_secs(1)), Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            let told = std::fs::read_to_string(&log).unwrap_or_default();
            let last = told.lines().last().unwrap_or_default();
            return Err(format!("etcd has ended ({status}): {last}").into());
        }
        match etcd.resolve().await {
            Ok(_) => return Ok(child),
            Err(error) if begin.elapsed() > PATIENCE => return Err(error.into()),
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

/// Turns this process into etcd. Returns only if that fails.
pub(crate) fn become_etcd(arguments: &[String]) -> Box<dyn Error + Send + Sync> {
    match set_parent_process_death_signal(Some(Signal::KILL)) {
        Ok(()) => std::process::Command::new("etcd").args(arguments).exec().into(),
        Err(error) => error.into(),
    }
}
