//! `cargo run --example doctor`: the transports that work on this machine, and what the others
//! lack.
//!
//! `trial.rs` makes a call over each scheme, `rdma.rs` shows the RDMA devices, `limits.rs` the
//! relevant limits, and `need.rs` how much locked memory a configuration needs. Nothing on the
//! machine is changed.

mod limits;
mod need;
mod options;
mod rdma;
mod trial;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use rpc_transport::device::memlock;
use rpc_transport::protocol::config::LinkConfig;

use self::need::Wanted;
use self::options::Options;
use self::trial::Trial;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    examples::logging::init();
    let options = Options::parse();
    let schemes = options.schemes();
    let config = match options.wanted.config() {
        Ok(config) => config,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let mut trials = Vec::new();
    for &scheme in &schemes.tried {
        trials.push(Trial::of(scheme).await);
    }
    match print(&trials, &options.wanted, &config, &mut io::stdout().lock()) {
        // The reader has seen enough (`doctor | head`).
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
        Ok(()) => {}
    }
    let missing = trials.iter().any(|trial| schemes.needed && !trial.works());
    ExitCode::from(u8::from(missing))
}

fn print(
    trials: &[Trial],
    wanted: &Wanted,
    config: &LinkConfig,
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(out, "schemes: a call from this process to itself")?;
    for trial in trials {
        writeln!(out, "  {trial}")?;
    }
    writeln!(out, "\nlimits of this process")?;
    limits::print(out)?;
    writeln!(out, "\nRDMA")?;
    let nics = rdma::print(out)?;
    writeln!(out, "\nlocked memory for RDMA")?;
    need::print(wanted, config, &nics, memlock::limit_bytes(), out)
}
