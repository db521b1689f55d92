//! Runs a world twice, and compares the two traces.

use std::path::PathBuf;

use crate::process::World;
use crate::report::Report;

/// Lines before the first that differs.
const BEFORE: usize = 3;

/// The report of the first run, and the first lines that differ.
pub(crate) fn run_twice(world: &World) -> (Report, Option<String>) {
    let file = |run: u32| -> PathBuf {
        let name = format!("simulate-{}-{}-{run}", std::process::id(), world.seed);
        std::env::temp_dir().join(name)
    };
    let [(first, one), (second, two)] = [1, 2].map(|run| {
        let report = world.run(Some(&file(run)));
        let text = std::fs::read_to_string(file(run)).unwrap_or_default();
        let _ = std::fs::remove_file(file(run));
        (report, text)
    });
    let differs = (first.hash != second.hash || one != two).then(|| difference(&one, &two));
    (first, differs)
}

fn difference(one: &str, two: &str) -> String {
    let (one, two): (Vec<_>, Vec<_>) = (one.lines().collect(), two.lines().collect());
    let same = one.iter().zip(&two).take_while(|(one, two)| one == two).count();
    let before = one[same.saturating_sub(BEFORE)..same].iter().map(|line| format!("  {line}\n"));
    let end = "(the trace has ended)";
    let line = |lines: &[&str]| lines.get(same).copied().unwrap_or(end).to_owned();
    format!("{}1 {}\n2 {}", before.collect::<String>(), line(&one), line(&two))
}
