//! Instructions of a call and of a stream's item, by layer.
//!
//! Owns the recorded counts in `benches/instructions.txt`: a figure that grows by more than
//! [`SLACK`] fails, until the baseline is rewritten (`--write`) and the change is visible in
//! review. Callgrind counts a child that makes calls with both ends on one thread, over memory,
//! without spinning; `laps` describes how a lone call in busy mode is counted. Two runs are
//! subtracted, so neither set-up nor end counts. A line of this workspace counts for its own file,
//! wherever it was inlined; a line of the standard library counts for the function that it was
//! inlined into.

mod laps;
pub(crate) mod walk;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};

/// How much a figure may grow.
const SLACK: f64 = 0.03;
/// Layers that grow by less than this part of a whole call are left alone: a few instructions are
/// 3 % of the small ones.
const WHOLE_SLACK: f64 = 0.005;
/// Calls, or items, of the two runs.
const RUNS: [u32; 2] = [1_600, 4_800];
/// The counted rows, by name: arguments of `count`.
const WAYS: [(&str, [&str; 2]); 7] = [
    ("1 in flight", ["--in-flight", "1"]),
    ("32 in flight", ["--in-flight", "32"]),
    ("32 tasks", ["--tasks", "--in-flight=32"]),
    ("item of arguments", ["--items", "arguments"]),
    ("item of results", ["--items", "results"]),
    // With 32 in flight.
    ("interceptor at the server", ["--interceptor", "server"]),
    ("interceptor at the client", ["--interceptor", "client"]),
];
/// A lone call in busy mode, which is counted differently and takes longer.
const BUSY: &str = "busy, 1 in flight";
/// The call to compare those with an interceptor to, and the most that an interceptor may add to
/// it: a difference of two counts, each of which varies by a dozen from run to run.
const WITHOUT: &str = "32 in flight";
const INTERCEPTOR: &str = "interceptor";
const MOST_OF_INTERCEPTOR: f64 = 310.0;
/// Number of counts, of which the best one counts: timers run on real time, so a busy machine
/// inflates a count.
const COUNTS: usize = 3;
/// The name of the sum.
const TOTAL: &str = "in all";
/// The name of the C library.
const LIBC: &str = "libc";

/// Instructions per call or item, by name: row, and layer.
type Figures = BTreeMap<String, f64>;

/// The rows to count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// All but [`BUSY`].
    OfOneProcess,
    Busy,
    All,
}

impl Rows {
    /// Whether a figure of this name is of such a row.
    fn has(self, name: &str) -> bool {
        self == Self::All || name.starts_with(BUSY) == (self == Self::Busy)
    }
}

fn figures(rows: Rows) -> Result<Figures> {
    let mut now = match rows {
        Rows::Busy => Figures::new(),
        Rows::OfOneProcess | Rows::All => of_one_process()?,
    };
    if rows != Rows::OfOneProcess {
        let busy = laps::count()?.into_iter().filter(|(_, count)| *count >= 1.0);
        now.extend(busy.map(|(layer, count)| (format!("{BUSY}: {layer}"), count)));
    }
    Ok(now)
}

/// Counts each of [`WAYS`].
fn of_one_process() -> Result<Figures> {
    let mut now = Figures::new();
    for (name, way) in WAYS {
        // Each has one thread, and other load does not change its count.
        let [few, many] = std::thread::scope(|scope| {
            let runs = RUNS.map(|calls| scope.spawn(move || count(calls, way)));
            runs.map(|run| run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let (few, many) = (few?, many?);
        for (layer, count) in many {
            let before = few.get(&layer).copied().unwrap_or_default();
            let per_call = (count - before) / f64::from(RUNS[1] - RUNS[0]);
            if per_call >= 1.0 {
                now.insert(format!("{name}: {layer}"), per_call);
            }
        }
    }
    Ok(now)
}

/// Counts, prints, and compares with the baseline or writes it.
pub(crate) fn run(write: bool, busy: bool) -> Result<()> {
    let rows = match (write, busy) {
        (true, _) => Rows::All,
        (false, true) => Rows::Busy,
        (false, false) => Rows::OfOneProcess,
    };
    for _ in 1..COUNTS {
        let Err(error) = judge(&figures(rows)?, rows, write) else { return Ok(()) };
        println!("counted again, as other work of the machine can add to a count: {error:#}");
    }
    judge(&figures(rows)?, rows, write)
}

/// Compares with the baseline, or writes it.
fn judge(now: &Figures, rows: Rows, write: bool) -> Result<()> {
    let dear = dear_interceptors(now);
    let baseline = Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.txt");
    if write {
        fs::write(&baseline, text(now)?)?;
        println!("{}\n\nwritten to {}", text(now)?, baseline.display());
        return Ok(());
    }
    let kept = fs::read_to_string(&baseline)
        .with_context(|| format!("{}: write it with --write", baseline.display()))?;
    let (of, here) = (kept.lines().next().unwrap_or_default(), format!("# {}", compiler()?));
    if of != here {
        println!("{}", text(now)?);
        println!("NOT COMPARED: the baseline is of another compiler ({of})");
        return Ok(());
    }
    let mut kept = parse(&kept)?;
    kept.retain(|name, _| rows.has(name));
    let grown = compare(now, &kept);
    ensure!(
        dear.is_empty(),
        "an interceptor costs more than {MOST_OF_INTERCEPTOR} instructions a call: {dear:?}"
    );
    if grown > 0 {
        bail!(
            "{grown} figures grew by more than {:.0} %. If the change is worth it, write the baseline \
             with --write and say why in the commit.",
            SLACK * 100.0
        );
    }
    Ok(())
}

/// The ends at which an interceptor that counts calls costs too much, and its cost.
fn dear_interceptors(now: &Figures) -> Vec<(&str, f64)> {
    let Some(without) = now.get(&format!("{WITHOUT}: {TOTAL}")) else { return Vec::new() };
    let costs = now.iter().filter_map(|(name, whole)| {
        let (way, layer) = name.split_once(": ")?;
        (way.starts_with(INTERCEPTOR) && layer == TOTAL).then_some((way, whole - without))
    });
    costs.filter(|(_, cost)| *cost > MOST_OF_INTERCEPTOR).collect()
}

/// Prints both, and returns how many figures have grown too much.
fn compare(now: &Figures, kept: &Figures) -> usize {
    let mut grown = 0;
    for name in now.keys().chain(kept.keys().filter(|name| !now.contains_key(*name))) {
        let (way, layer) = name.split_once(": ").unwrap_or_default();
        let figure = |of: &Figures, layer: &str| {
            of.get(&format!("{way}: {layer}")).copied().unwrap_or_default()
        };
        let [now_libc, then_libc] = [now, kept].map(|of| figure(of, LIBC));
        let whole = figure(kept, TOTAL);
        let [now, then] = [now, kept].map(|of| figure(of, layer));
        let more = now - then;
        let is_grown = match layer {
            LIBC => false,
            TOTAL => more - (now_libc - then_libc) > (then - then_libc) * SLACK,
            _ => more > (then * SLACK).max(whole * WHOLE_SLACK),
        };
        grown += usize::from(is_grown);
        let change = if then > 0.0 { (now / then - 1.0) * 100.0 } else { 100.0 };
        let verdict = if is_grown { "  GREW" } else { "" };
        println!("{name:<48} {then:>8.0} -> {now:>8.0}  {change:>+6.1} %{verdict}");
    }
    grown
}

/// The compiler's description of itself.
fn compiler() -> Result<String> {
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = Command::new(rustc).arg("--version").stdin(Stdio::null()).output()?;
    Ok(String::from_utf8_lossy(&version.stdout).trim_end().to_owned())
}

fn text(figures: &Figures) -> Result<String> {
    let mut text = format!("# {}\n", compiler()?);
    text += "# Instructions per 64-byte echo or item, both ends: `cargo run --profile counted -p benches -- \
             instructions --write`\n";
    for (name, figure) in figures {
        writeln!(text, "{name} = {figure:.0}")?;
    }
    Ok(text)
}

fn parse(text: &str) -> Result<Figures> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (name, figure) = line.rsplit_once(" = ").with_context(|| line.to_owned())?;
            Ok((name.to_owned(), figure.parse()?))
        })
        .collect()
}

/// Valgrind, to count what it is given.
fn callgrind(out: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no"]);
    command.arg(format!("--callgrind-out-file={}", out.display()));
    command
}

/// Instructions of a child that makes calls, by layer.
fn count(calls: u32, way: [&str; 2]) -> Result<Figures> {
    let out = env::temp_dir().join(format!("callgrind.{}.{calls}", std::process::id()));
    let done = callgrind(&out)
        .arg(env::current_exe()?)
        .args(["count", "--calls", &calls.to_string()])
        .args(way)
        .stdin(Stdio::null())
        .output()
        .context("valgrind does not start: install it (Debian: apt-get install valgrind)")?;
    let counted = fs::read_to_string(&out);
    let _ = fs::remove_file(&out);
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Ok(by_layer(&counted?))
}

/// Adds a callgrind profile up by layer.
fn by_layer(profile: &str) -> Figures {
    let mut layers = Figures::new();
    let (mut object, mut function_file, mut file) = ("", "", "");
    let mut is_callee = false;
    for line in profile.lines() {
        if let Some((key, value)) = line.split_once('=') {
            match key {
                "ob" => object = value,
                "fl" => (function_file, file) = (value, value),
                "fi" | "fe" if is_std(value) => file = function_file,
                "fi" | "fe" => file = value,
                // The cost of a callee follows, which is counted at the callee.
                "calls" => is_callee = true,
                _ => {}
            }
            continue;
        }
        let mut numbers = line.split_whitespace();
        let (Some(_), Some(cost)) = (numbers.next(), numbers.next()) else { continue };
        let is_cost = line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c));
        if !is_cost || std::mem::take(&mut is_callee) {
            continue;
        }
        let Ok(cost) = cost.parse::<f64>() else { continue };
        *layers.entry(layer(object, file)).or_default() += cost;
        *layers.entry(TOTAL.to_owned()).or_default() += cost;
    }
    layers
}

fn is_std(file: &str) -> bool {
    file.contains("/library/") || file.contains("/rustc/")
}

/// The layer of a source file: the folder below `src` for this workspace's packages, the name of a
/// dependency.
fn layer(object: &str, file: &str) -> String {
    for package in ["rpc-core", "rpc-transport"] {
        if let Some((_, inside)) = file.split_once(&format!("{package}/src/")) {
            let folders: Vec<_> = inside.split('/').collect();
            // A device is a layer of its own, and so is each part of the protocol.
            let depth = if package == "rpc-transport" { 2 } else { 1 };
            let name = folders[..folders.len().min(depth)].join("/");
            return format!("{package} {}", name.trim_end_matches(".rs"));
        }
    }
    if is_std(file) {
        return "std".to_owned();
    }
    if let Some((_, inside)) = file.split_once("/registry/src/") {
        let package = inside.split('/').nth(1).unwrap_or_default();
        let name = package.rsplit_once('-').map_or(package, |(name, _)| name);
        return name.to_owned();
    }
    if file.contains("benches/src/") {
        return "the program".to_owned();
    }
    if object.contains("/libc") || object.contains("/ld-") { LIBC } else { "other" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_sums_self_cost_by_layer() {
        let profile = "events: Ir\n\nob=/bin/bench\nfl=/x/rpc-core/src/wire/plain.rs\nfn=parse\n\
                       10 5\n+1 6\nfi=/rustc/library/core/src/slice.rs\n7 100\nfe=/x/rpc-core/src/wire/plain.rs\n\
                       cob=/lib/libc.so.6\ncfi=???\ncfn=malloc\ncalls=3 0\n12 900\n\nob=/lib/libc.so.6\nfl=???\n\
                       fn=malloc\n0 900\nfl=/y/registry/src/index-1/tokio-1.54.1/src/lib.rs\n3 1\n\
                       fl=rpc-transport/src/device/soft/cq.rs\n4 2\nfl=/rustc/library/alloc/src/vec.rs\n9 3\n";
        let layers = by_layer(profile);
        let expected = [
            ("in all", 1017.0),
            ("libc", 900.0),
            ("rpc-core wire", 111.0),
            ("rpc-transport device/soft", 2.0),
            ("std", 3.0),
            ("tokio", 1.0),
        ];
        let expected: Figures = expected.map(|(name, count)| (name.to_owned(), count)).into();
        assert_eq!(layers, expected);
        assert_eq!(parse(&text(&layers).expect("a compiler")).expect("figures"), expected);
    }

    #[test]
    fn only_considerable_growth_is_reported() {
        let figures = |whole: f64, layer: f64| -> Figures {
            let of = |name: &str| format!("1 in flight: {name}");
            [(of(TOTAL), whole), (of("tokio"), layer)].into()
        };
        assert_eq!(compare(&figures(1029.0, 100.0), &figures(1000.0, 100.0)), 0);
        assert_eq!(compare(&figures(1031.0, 100.0), &figures(1000.0, 100.0)), 1);
        assert_eq!(compare(&figures(1000.0, 104.9), &figures(1000.0, 100.0)), 0);
        assert_eq!(compare(&figures(1000.0, 106.0), &figures(1000.0, 100.0)), 1);
        assert_eq!(compare(&figures(900.0, 90.0), &figures(1000.0, 100.0)), 0);
    }

    #[test]
    fn interceptor_cost_is_bounded() {
        let figures = |cost: f64| -> Figures {
            let of = |name: &str, whole: f64| (format!("{name}: {TOTAL}"), whole);
            [of(WAYS[1].0, 1000.0), of(WAYS[4].0, 1000.0), of(WAYS[5].0, 1000.0 + cost)].into()
        };
        assert_eq!(dear_interceptors(&figures(MOST_OF_INTERCEPTOR)), []);
        let more = MOST_OF_INTERCEPTOR + 1.0;
        assert_eq!(dear_interceptors(&figures(more)), [(WAYS[5].0, more)]);
    }

    #[test]
    fn libc_is_exempt_new_symbols_are_not() {
        let figures = |whole: f64, layers: &[(&str, f64)]| -> Figures {
            let of = |name: &str| format!("1 in flight: {name}");
            let layers = layers.iter().map(|&(name, figure)| (of(name), figure));
            layers.chain([(of(TOTAL), whole)]).collect()
        };
        let kept = figures(1000.0, &[(LIBC, 100.0)]);
        assert_eq!(compare(&figures(1300.0, &[(LIBC, 400.0)]), &kept), 0);
        // A reduction of libc does not hide growth elsewhere: in the sum and in the layer.
        assert_eq!(compare(&figures(1000.0, &[(LIBC, 50.0), ("tokio", 50.0)]), &kept), 2);
    }
}
