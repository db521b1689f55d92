//! A server in a process of its own: this binary, started again.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

/// A running server; killed on drop.
pub(crate) struct ServerProcess {
    child: Child,
    address: String,
}

impl ServerProcess {
    /// Starts `bench serve WHO ADDRESS MODE` and waits until it accepts.
    ///
    /// # Errors
    /// When the process cannot be started or ends early.
    pub(crate) fn start(who: &str, address: &str, mode: &str) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", who, address])
            .args((!mode.is_empty()).then_some(mode))
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the server process")?;
        let stdout = child.stdout.take().context("the server's output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let Some(address) = line.trim().strip_prefix("READY ").map(str::to_owned) else {
            let _ = child.kill();
            bail!("the server process did not come up");
        };
        Ok(Self { child, address })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
