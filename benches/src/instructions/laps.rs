//! Instructions of a lone call in busy mode, by layer.
//!
//! A busy end polls in vain until something arrives, and the number of polls depends on the time.
//! So the run is cut into laps of [`CALLS_PER_LAP`] calls. Of each lap callgrind reports the
//! instructions and the polls in vain: all polls of the completion queue, except those after which
//! completions were handled. The instructions of laps over their polls in vain form a straight
//! line, and its value at no poll in vain is the call. The other end is a process that is not
//! counted. It takes longer in some laps than in others, but always some polls: so each message is
//! awaited, as between two equally fast ends, and work done while nothing has arrived yet is part
//! of the count. Work less frequent than once in a lap, such as the turn that a caller gives other
//! tasks once in 128 calls, is left out. The client's and the server's share are counted one after
//! the other, and added.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::process::Stdio;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};

use super::{Figures, TOTAL, by_layer, callgrind};
use crate::busy::CALLS_PER_LAP;

/// Calls of a run.
const CALLS: u32 = 4_800;
/// Laps for a line, and the most runs to collect them.
const LAPS: usize = 100;
const MOST_RUNS: usize = 20;
/// Polls in vain per call, on average of its lap: with fewer, some calls may not have waited; with
/// more, one of them had to wait for a thread that did not run.
pub(super) const IN_VAIN: Range<f64> = 3.0..24.0;
/// The function that polls, and the function that handles what was found.
const POLL: &str = "CompletionQueue>::poll";
const FOUND: &str = "::on_completions";
/// The wait of a caller that no longer polls for its own answer, since one call of the lap took too
/// long.
const WAITS: &str = "RawCall>::poll_outcome";

/// Most distance of a lap from the line, relative to its start. A lap beyond it contains unrelated
/// work, such as a timer's. It is left out and the line is fitted again, up to `ROUNDS` times.
const MOST_OFF: f64 = 0.02;
const ROUNDS: usize = 6;

/// The values of a lap, per call.
pub(super) struct Lap {
    pub(super) in_vain: f64,
    pub(super) waits: f64,
    layers: Figures,
}

impl Lap {
    fn figure(&self, layer: &str) -> f64 {
        self.layers.get(layer).copied().unwrap_or_default()
    }
}

/// Instructions of a call, both ends.
pub(super) fn count() -> Result<Figures> {
    let mut call = Figures::new();
    for end in ["client", "server"] {
        let share = without_vain(&laps(end)?);
        let is_found = share.get(TOTAL).is_some_and(|count| count.is_finite());
        ensure!(is_found, "the laps of the {end} are on no line: the two ends need a core each");
        for (layer, count) in share {
            *call.entry(layer).or_default() += count;
        }
    }
    Ok(call)
}

/// Enough laps of this end.
fn laps(end: &str) -> Result<Vec<Lap>> {
    let mut laps = Vec::new();
    for _ in 0..MOST_RUNS {
        let folder = env::temp_dir().join(format!("callgrind.{}.{end}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let found = run(end, &folder);
        fs::remove_dir_all(&folder)?;
        let is_usable = |lap: &Lap| lap.waits == 0.0 && IN_VAIN.contains(&lap.in_vain);
        laps.extend(found?.into_iter().filter(is_usable));
        if laps.len() >= LAPS {
            return Ok(laps);
        }
    }
    bail!("{} laps of the {end} can be used: the two ends need a core each", laps.len())
}

fn run(end: &str, folder: &Path) -> Result<Vec<Lap>> {
    profiles(end, folder, &[])?.iter().map(|profile| lap(profile)).collect()
}

/// Callgrind's profile of each lap of one run.
pub(super) fn profiles(end: &str, folder: &Path, options: &[&str]) -> Result<Vec<String>> {
    let done = callgrind(&folder.join("lap"))
        .arg("--dump-before=bench::busy::lap")
        .args(options)
        .arg(env::current_exe()?)
        .args(["count", "--calls", &CALLS.to_string(), "--busy", end])
        .stdin(Stdio::null())
        .output()
        .context("valgrind does not start")?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    // The first part is the set-up; the part after the last lap belongs to no lap.
    (2..=CALLS / CALLS_PER_LAP)
        .map(|number| Ok(fs::read_to_string(folder.join(format!("lap.{number}")))?))
        .collect()
}

pub(super) fn lap(profile: &str) -> Result<Lap> {
    let [polls, found, waits] = [POLL, FOUND, WAITS].map(|name| calls_of(profile, name));
    ensure!(polls >= found && found > 0.0, "{polls} calls of {POLL}, {found} of {FOUND}");
    let per_call = |count: f64| count / f64::from(CALLS_PER_LAP);
    let layers = by_layer(profile).into_iter().map(|(layer, count)| (layer, per_call(count)));
    Ok(Lap { in_vain: per_call(polls - found), waits, layers: layers.collect() })
}

/// Number of calls of functions whose names end with `name`.
fn calls_of(profile: &str, name: &str) -> f64 {
    let (mut is_named, mut calls) = (false, 0.0);
    for line in profile.lines() {
        if let Some(callee) = line.strip_prefix("cfn=") {
            is_named = callee.ends_with(name);
        } else if let Some((count, _)) =
            line.strip_prefix("calls=").and_then(|calls| calls.split_once(' '))
            && is_named
        {
            calls += count.parse().unwrap_or(0.0);
        }
    }
    calls
}

/// The line's value at no polls in vain, for each layer.
fn without_vain(laps: &[Lap]) -> Figures {
    let mut laps: Vec<&Lap> = laps.iter().collect();
    for _ in 0..ROUNDS {
        let (start, slope) = line(&laps, TOTAL);
        let off = |lap: &Lap| (lap.figure(TOTAL) - start - slope * lap.in_vain).abs();
        laps.retain(|lap| off(lap) <= start * MOST_OFF);
    }
    let layers: BTreeSet<_> = laps.iter().flat_map(|lap| lap.layers.keys()).collect();
    layers.into_iter().map(|layer| (layer.clone(), line(&laps, layer).0)).collect()
}

/// The line through the laps of a layer: its start, and its slope.
#[allow(clippy::cast_precision_loss, reason = "there are hundreds of laps")]
fn line(laps: &[&Lap], layer: &str) -> (f64, f64) {
    let mean =
        |of: &dyn Fn(&Lap) -> f64| laps.iter().map(|lap| of(lap)).sum::<f64>() / laps.len() as f64;
    let (in_vain, count) = (mean(&|lap| lap.in_vain), mean(&|lap| lap.figure(layer)));
    let spread = mean(&|lap| (lap.in_vain - in_vain).powi(2));
    let both = mean(&|lap| (lap.in_vain - in_vain) * (lap.figure(layer) - count));
    let slope = both / spread;
    (count - slope * in_vain, slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_cost_excludes_fruitless_polls_and_other_work() {
        let lap = |in_vain: f64, more: f64| {
            let shard = 3000.0 + 200.0 * in_vain + more;
            let layers = [("shard", shard), ("std", 50.0), (TOTAL, shard + 50.0)];
            let layers = layers.map(|(layer, count)| (layer.to_owned(), count)).into();
            Lap { in_vain, waits: 0.0, layers }
        };
        let mut laps: Vec<_> = (3..24).map(|polls| lap(f64::from(polls), 0.0)).collect();
        laps.extend([lap(5.0, 500.0), lap(20.0, 900.0)]);
        let call = without_vain(&laps);
        let near = |layer: &str, count: f64| (call[layer] - count).abs() < 0.1;
        assert!(near("shard", 3000.0) && near("std", 50.0) && near(TOTAL, 3050.0), "{call:?}");
    }

    #[test]
    fn fruitless_polls_handled_nothing() {
        let calls = |name: &str, count: u32| format!("cfn={name}\ncalls={count} 7\n10 900\n");
        let of = |name: &str, count| calls(&format!("<Soft as device::{name}"), count);
        let profile = of("CompletionQueue>::poll", 40)
            + &of("CompletionQueue>::poll", 8)
            + &of("CompletionQueue>::poll_event", 5)
            + &calls("State<P>>::on_completions", 16);
        assert!((lap(&profile).expect("a lap").in_vain - 2.0).abs() < f64::EPSILON);
        assert!(lap("fn=main\n1 5\n").is_err());
    }
}
