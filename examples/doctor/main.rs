//! `cargo run --example doctor`: which ways to call this machine has, and what the others lack.
//!
//! `trial.rs` makes a call over each scheme, `rdma.rs` says what there is for RDMA, and `limits.rs`
//! which limits count. Nothing on the machine is changed.

mod limits;
mod options;
mod rdma;
mod trial;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use self::options::Options;
use self::trial::Trial;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    examples::logging::init();
    let schemes = Options::parse().schemes();
    let mut trials = Vec::new();
    for &scheme in &schemes.tried {
        trials.push(Trial::of(scheme).await);
    }
    if let Err(error) = print(&trials, &mut io::stdout().lock()) {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    let missing = trials.iter().any(|trial| schemes.needed && !trial.works());
    ExitCode::from(u8::from(missing))
}

fn print(trials: &[Trial], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "schemes: one call of this process to itself")?;
    for trial in trials {
        writeln!(out, "  {trial}")?;
    }
    writeln!(out, "\nlimits of this process")?;
    limits::print(out)?;
    writeln!(out, "\nRDMA")?;
    rdma::print(out)
}
