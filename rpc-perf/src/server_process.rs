//! A server in a process of its own: this program, started again.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

/// A running server; killed on drop. Its stdin ends with this process, however that ends.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    address: String,
}

impl ServerProcess {
    /// Starts this program with these arguments and waits until it has printed `READY <address>`.
    ///
    /// # Errors
    /// When the process cannot be started or ends early; it has said why on stderr.
    pub fn start<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the server process")?;
        let mut server = Self { child, address: String::new() };
        let stdout = server.child.stdout.take().context("the server's output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let Some(address) = line.trim().strip_prefix("READY ") else {
            bail!("the server process did not come up");
        };
        server.address = address.to_owned();
        Ok(server)
    }

    /// Where it listens, with the real port.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// The system's.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
