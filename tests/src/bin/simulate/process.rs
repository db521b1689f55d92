//! A process for each world, as caches and counters of a process outlive a world.

use std::path::Path;
use std::process::{Command, Output};

use crate::plan::Cut;
use crate::report::Report;
use crate::rules::{Finding, Rule};

/// A world, and what was taken out of it.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) cuts: Vec<Cut>,
}

impl World {
    /// The options that run it again.
    pub(crate) fn options(&self) -> String {
        let cuts = self.cuts.iter().map(|cut| format!(" --without {cut}"));
        format!("--seed {}{}", self.seed, cuts.collect::<String>())
    }

    /// Runs it. The whole trace goes into a file, if one is named.
    pub(crate) fn run(&self, trace: Option<&Path>) -> Report {
        let program = std::env::current_exe().expect("a program has a path");
        let mut command = Command::new(program);
        command.arg("--in-this-process").args(self.options().split(' '));
        if let Some(trace) = trace {
            command.arg("--trace").arg(trace);
        }
        match command.output() {
            Ok(output) => of(&output),
            Err(error) => failed(format!("the process cannot be started: {error}")),
        }
    }
}

fn of(output: &Output) -> Report {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return failed(format!("{}: {}", output.status, stderr.trim()));
    }
    stdout.parse().unwrap_or_else(|error| failed(format!("{error}: {stdout}{stderr}")))
}

fn failed(text: String) -> Report {
    Report::of_failure(Finding { rule: Rule::Survives, count: 1, call: 0, at_us: 0, text })
}
