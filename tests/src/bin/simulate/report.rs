//! What a world's process says to the one that started it: lines of text.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use crate::ledger::ledger;
use crate::plan::Plan;
use crate::rules::Finding;
use crate::{clock, trace};

/// What came of a world.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    pub(crate) calls: u64,
    /// Calls whose values were compared, and right.
    pub(crate) right: u64,
    pub(crate) virtual_ms: u64,
    /// Of the whole trace.
    pub(crate) hash: u64,
    pub(crate) plan: String,
    pub(crate) features: String,
    pub(crate) findings: Vec<Finding>,
    /// Of the first finding.
    pub(crate) timeline: String,
}

impl Report {
    /// The report of the world of this process.
    pub(crate) fn of(plan: &Plan) -> Self {
        let ledger = ledger();
        let ((calls, right), findings) = (ledger.counts(), ledger.findings());
        let timeline = findings.first().map(|it| trace::timeline(it.call, it.at_us));
        Self {
            calls: calls as u64,
            right,
            virtual_ms: clock::elapsed_us() / 1000,
            hash: trace::hash(),
            plan: plan.to_string(),
            features: plan.features(),
            findings,
            timeline: timeline.unwrap_or_default(),
        }
    }

    /// The report of a world whose process failed.
    pub(crate) fn of_failure(finding: Finding) -> Self {
        Self { findings: vec![finding], ..Self::default() }
    }

    /// The rule that was broken first, with what the world had.
    pub(crate) fn fingerprint(&self) -> Option<String> {
        self.findings.first().map(|finding| format!("{}/{}", finding.rule, self.features))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, right, virtual_ms, hash, .. } = self;
        writeln!(f, "numbers {calls} {right} {virtual_ms} {hash}")?;
        writeln!(f, "plan {}", self.plan)?;
        writeln!(f, "features {}", self.features)?;
        for Finding { rule, count, call, at_us, text } in &self.findings {
            writeln!(f, "broken {rule} {count} {call} {at_us} {}", text.replace('\n', " "))?;
        }
        self.timeline.lines().try_for_each(|line| writeln!(f, "| {line}"))
    }
}

impl FromStr for Report {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut report = Self::default();
        let mut has_numbers = false;
        for line in text.lines() {
            let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
            match kind {
                "numbers" => {
                    let numbers: Vec<u64> =
                        rest.split(' ').filter_map(|number| number.parse().ok()).collect();
                    let [calls, right, virtual_ms, hash] = numbers[..] else {
                        return Err(format!("not four numbers: {rest}"));
                    };
                    (report.calls, report.right) = (calls, right);
                    (report.virtual_ms, report.hash) = (virtual_ms, hash);
                    has_numbers = true;
                }
                "plan" => rest.clone_into(&mut report.plan),
                "features" => rest.clone_into(&mut report.features),
                "broken" => report.findings.push(finding(rest)?),
                "|" => writeln!(report.timeline, "{rest}").expect("text takes more"),
                _ => return Err(format!("not a line of a report: {line}")),
            }
        }
        if has_numbers { Ok(report) } else { Err("the report is empty".to_owned()) }
    }
}

fn finding(line: &str) -> Result<Finding, String> {
    let parts: Vec<&str> = line.splitn(5, ' ').collect();
    let [rule, count, call, at_us, text] = parts[..] else {
        return Err(format!("not a finding: {line}"));
    };
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
    let call = call.parse().map_err(|error| format!("{call}: {error}"))?;
    let (count, at_us) = (number(count)?, number(at_us)?);
    Ok(Finding { rule: rule.parse()?, count, call, at_us, text: text.to_owned() })
}
