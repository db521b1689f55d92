//! Many worlds: which seeds, how many at once, and what is printed of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use parking_lot::Mutex;

use crate::minimize::minimize;
use crate::plan::Cut;
use crate::process::World;
use crate::report::Report;
use crate::rules::Rule;
use crate::twice::run_twice;

/// The exit code if two runs of a seed differ.
const DIFFER: u8 = 3;

/// How worlds are run.
#[derive(Debug)]
pub(crate) struct Seeds {
    pub(crate) jobs: usize,
    pub(crate) twice: bool,
    pub(crate) minimize: bool,
    /// Ends with the first that breaks a rule.
    pub(crate) first: bool,
    pub(crate) cuts: Vec<Cut>,
    pub(crate) known: Vec<Known>,
}

/// A fault that does not count: a rule, in worlds that have all of these features.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    rule: Rule,
    features: Vec<String>,
}

/// What was seen in all worlds.
#[derive(Debug, Default)]
struct Sum {
    worlds: u64,
    calls: u64,
    right: u64,
    virtual_ms: u64,
    differ: u64,
    known: u64,
    /// For each fingerprint the first seed, and how many had it.
    broken: BTreeMap<String, (u64, u64)>,
    /// Rules of which a timeline was shown.
    shown: Vec<Rule>,
}

impl Seeds {
    /// Runs one world. What the program ends with.
    pub(crate) fn one(&self, seed: u64, trace: Option<&Path>) -> ExitCode {
        let sum = Mutex::new(Sum::default());
        self.world(seed, trace, &sum, &ProgressBar::hidden());
        sum.into_inner().print()
    }

    /// Runs worlds from a seed on: a number of them, or for a time. What the program
    /// ends with.
    pub(crate) fn all(&self, from: u64, count: Option<u64>, time: Option<Duration>) -> ExitCode {
        let (began, next, sum) = (Instant::now(), AtomicU64::new(0), Mutex::new(Sum::default()));
        let bar = count.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let style =
            ProgressStyle::with_template("[{elapsed_precise}] {wide_bar} {pos}/{len} worlds {msg}");
        bar.set_style(style.expect("a fixed template").progress_chars("=> "));
        thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let is_late = time.is_some_and(|time| began.elapsed() >= time);
                        let has_ended = is_late || self.first && !sum.lock().broken.is_empty();
                        if has_ended || count.is_some_and(|count| at >= count) {
                            return;
                        }
                        self.world(from + at, None, &sum, &bar);
                        bar.inc(1);
                    }
                });
            }
        });
        bar.finish_and_clear();
        sum.into_inner().print()
    }

    fn world(&self, seed: u64, trace: Option<&Path>, sum: &Mutex<Sum>, bar: &ProgressBar) {
        let world = World { seed, cuts: self.cuts.clone() };
        let (report, differs) =
            if self.twice { run_twice(&world) } else { (world.run(trace), None) };
        {
            let mut sum = sum.lock();
            sum.worlds += 1;
            sum.calls += report.calls;
            sum.right += report.right;
            sum.virtual_ms += report.virtual_ms;
            if let Some(difference) = &differs {
                sum.differ += 1;
                bar.suspend(|| println!("seed {seed}: TWO RUNS DIFFER\n{difference}"));
            }
        }
        let mut report = report;
        report.findings.retain(|finding| {
            let is_known = self.known.iter().any(|it| it.is(finding.rule, &report.features));
            sum.lock().known += u64::from(is_known);
            !is_known
        });
        if report.findings.is_empty() {
            return;
        }
        let (world, report) = if self.minimize { minimize(world, report) } else { (world, report) };
        let mut sum = sum.lock();
        let text = sum.add(&world, &report);
        bar.suspend(|| print!("{text}"));
    }
}

impl Sum {
    /// A world that breaks rules: what to print of it.
    fn add(&mut self, world: &World, report: &Report) -> String {
        let fingerprint = report.fingerprint().unwrap_or_default();
        let entry = self.broken.entry(fingerprint.clone()).or_insert((world.seed, 0));
        *entry = (entry.0.min(world.seed), entry.1 + 1);
        let mut text = format!("seed {}: {fingerprint}\n", world.seed);
        for finding in &report.findings {
            let (rule, count) = (finding.rule, finding.count);
            let first = finding.text.chars().take(400).collect::<String>();
            text += &format!("  {rule}: {} ({count} times): {first}\n", rule.meaning());
        }
        text += &format!("  again: simulate {}\n", world.options());
        let rule = report.findings.first().map(|finding| finding.rule);
        if let Some(rule) = rule.filter(|rule| !self.shown.contains(rule)) {
            self.shown.push(rule);
            text += &format!("  {}\n", report.plan);
            text.extend(report.timeline.lines().map(|line| format!("  {line}\n")));
        }
        text
    }

    /// Prints the end. What the program ends with.
    fn print(&self) -> ExitCode {
        for (fingerprint, (first, count)) in &self.broken {
            println!("{count} of {} worlds: {fingerprint}, first seed {first}", self.worlds);
        }
        let (calls, right) = (HumanCount(self.calls), HumanCount(self.right));
        let seconds = self.virtual_ms / 1000;
        println!(
            "{} worlds, {seconds} s, {calls} calls of which {right} were compared and right; \
             known faults {}, runs that differ {}",
            self.worlds, self.known, self.differ
        );
        match self.differ {
            0 if self.broken.is_empty() && self.right > 0 => ExitCode::SUCCESS,
            0 => ExitCode::FAILURE,
            _ => ExitCode::from(DIFFER),
        }
    }
}

impl Known {
    fn is(&self, rule: Rule, features: &str) -> bool {
        let has = |name: &String| features.split('+').any(|feature| feature == name);
        self.rule == rule && self.features.iter().all(has)
    }
}

impl FromStr for Known {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (rule, features) = text.split_once('/').unwrap_or((text, ""));
        let features = features.split('+').filter(|name| !name.is_empty());
        Ok(Self { rule: rule.parse()?, features: features.map(str::to_owned).collect() })
    }
}
