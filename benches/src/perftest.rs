//! The floor on an RDMA device: `ib_send_lat`, `ib_send_bw` and `ib_write_bw` of perftest, each end
//! pinned like this framework's.

use std::net::IpAddr;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// Seconds after which a run of perftest counts as hung: both ends have hung before.
const LIMIT_SECONDS: &str = "60";
/// Time between two tries of a client whose server does not listen yet.
const RETRY: Duration = Duration::from_millis(50);

/// Round trip of a message each way, nanoseconds: the typical (median) one. perftest prints half.
pub(crate) fn round_trip(address: IpAddr, size: usize, iterations: u32) -> Result<f64> {
    let columns = run("ib_send_lat", address, size, iterations)?;
    // Bytes, iterations, minimum, maximum, typical, average, ...
    Ok(2.0 * 1000.0 * column(&columns, 4)?)
}

/// Messages per second in one direction, many in flight at once.
pub(crate) fn message_rate(address: IpAddr, size: usize, iterations: u32) -> Result<f64> {
    let columns = run("ib_send_bw", address, size, iterations)?;
    // Bytes, iterations, peak and average bandwidth, million messages per second.
    Ok(1e6 * column(&columns, 4)?)
}

/// Bytes per second by one-sided WRITEs of `size` bytes, many in flight at once: the average.
pub(crate) fn write_rate(address: IpAddr, size: usize, iterations: u32) -> Result<f64> {
    let columns = run("ib_write_bw", address, size, iterations)?;
    // perftest's MB are MiB.
    Ok(f64::from(1 << 20) * column(&columns, 3)?)
}

fn column(columns: &[String], at: usize) -> Result<f64> {
    let text = columns.get(at).with_context(|| format!("perftest printed only {columns:?}"))?;
    Ok(text.parse()?)
}

/// Runs both ends; returns the columns of the client's result.
fn run(program: &str, address: IpAddr, size: usize, iterations: u32) -> Result<Vec<String>> {
    let mut server = Killed(end(program, 1, size, iterations).stdout(Stdio::null()).spawn()?);
    let output = loop {
        let output = end(program, 0, size, iterations).arg(address.to_string()).output()?;
        if output.status.success() {
            break output;
        }
        if let Some(status) = server.0.try_wait()? {
            bail!("{program}: the server ended with {status}, the client said {output:?}");
        }
        ensure!(refused(&output), "{program}: {output:?}");
        std::thread::sleep(RETRY);
    };
    server.0.wait()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect());
    let size = size.to_string();
    let mut rows = lines.filter(|line: &Vec<String>| line.first() == Some(&size));
    rows.next().with_context(|| format!("{program} printed no result:\n{text}"))
}

fn refused(output: &Output) -> bool {
    let said = [&*output.stdout, &*output.stderr].concat();
    String::from_utf8_lossy(&said).to_lowercase().contains("connect")
}

fn end(program: &str, core: u32, size: usize, iterations: u32) -> Command {
    let mut command = Command::new("timeout");
    command.args([LIMIT_SECONDS, "taskset", "-c", &core.to_string(), program, "-F"]);
    command.args(["-s", &size.to_string(), "-n", &iterations.to_string()]);
    command.stderr(Stdio::piped());
    command
}

/// A process that does not outlive its owner.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
