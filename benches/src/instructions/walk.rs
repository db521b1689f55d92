//! The way of one call: the files and functions of ours that a small call enters at the client.
//!
//! Callgrind counts a lone call over shared memory, address by address, as `laps` does. An address
//! that runs for each call of each lap is on the way, and the debug information names all functions
//! that it stands in, those that were inlined, too. So the count does not depend on what the
//! compiler inlines. A closure counts for the function that it is written in, a function with type
//! parameters counts once.

use std::collections::{BTreeMap, BTreeSet};
use std::{env, fs};

use anyhow::{Result, anyhow, ensure};

use super::laps::{IN_VAIN, lap};
use crate::busy::CALLS_PER_LAP;

/// The most files that a small call may enter at the client.
const MOST_FILES: usize = 95;
/// The most functions.
const MOST_FUNCTIONS: usize = 300;
/// Laps that have to agree.
const LAPS: usize = 5;
/// Where position-independent programs can lie under valgrind.
const BASES: std::ops::Range<u64> = 0..0x0100_0000;
const PAGE: usize = 0x1000;

/// A function of ours: the file, and the name without type parameters.
type Function = (String, String);

/// Counts, prints the way, and fails if it is too long.
pub(crate) fn run() -> Result<()> {
    let functions = functions(&addresses()?)?;
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (file, name) in &functions {
        files.entry(file).or_default().push(name);
    }
    for (file, names) in &files {
        println!("{file}: {}", names.join(", "));
    }
    println!("\na small call enters {} files and {} functions", files.len(), functions.len());
    ensure!(
        files.len() <= MOST_FILES && functions.len() <= MOST_FUNCTIONS,
        "that is more than {MOST_FILES} files and {MOST_FUNCTIONS} functions"
    );
    Ok(())
}

/// The code that every call runs, and the functions with their first addresses.
struct Way {
    every_call: BTreeSet<u64>,
    entries: BTreeMap<String, u64>,
}

fn addresses() -> Result<Way> {
    let folder = env::temp_dir().join(format!("callgrind.{}.walk", std::process::id()));
    fs::create_dir_all(&folder)?;
    let profiles = super::laps::profiles("client", &folder, &["--dump-instr=yes"]);
    fs::remove_dir_all(&folder)?;
    let mut way: Option<Way> = None;
    let mut laps = 0;
    for profile in profiles? {
        let found = lap(&profile)?;
        if found.waits > 0.0 || !IN_VAIN.contains(&found.in_vain) {
            continue;
        }
        laps += 1;
        let now = read(&profile);
        match &mut way {
            None => way = Some(now),
            Some(way) => {
                way.every_call.retain(|address| now.every_call.contains(address));
                way.entries.extend(now.entries);
            }
        }
    }
    ensure!(laps >= LAPS, "{laps} laps can be used: the two ends need a core each");
    way.ok_or_else(|| anyhow!("there is no lap"))
}

/// Reads a profile with a line for each instruction: its address, the line of source, the count.
fn read(profile: &str) -> Way {
    let mut way = Way { every_call: BTreeSet::new(), entries: BTreeMap::new() };
    let (mut function, mut is_program, mut is_callee) = ("", false, false);
    let program = env::current_exe().map(|path| path.display().to_string()).unwrap_or_default();
    for line in profile.lines() {
        if let Some((key, value)) = line.split_once('=') {
            match key {
                "ob" => is_program = value == program,
                "fn" => function = value,
                "calls" => is_callee = true,
                _ => {}
            }
            continue;
        }
        let Some(rest) = line.strip_prefix("0x") else { continue };
        if std::mem::take(&mut is_callee) || !is_program {
            continue;
        }
        let mut words = rest.split_whitespace();
        let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
        let count = words.nth(1).and_then(|word| word.parse::<u32>().ok());
        let (Some(address), Some(count)) = (address, count) else { continue };
        let entry = way.entries.entry(function.to_owned()).or_insert(address);
        *entry = address.min(*entry);
        if count >= CALLS_PER_LAP {
            way.every_call.insert(address);
        }
    }
    way
}

/// The functions of ours at these addresses.
fn functions(way: &Way) -> Result<BTreeSet<Function>> {
    let loader = addr2line::Loader::new(env::current_exe()?).map_err(|error| anyhow!("{error}"))?;
    let is_at = |base: u64, (name, address): (&String, &u64)| {
        let symbol = address.checked_sub(base).and_then(|address| loader.find_symbol(address));
        symbol.is_some_and(|symbol| addr2line::demangle_auto(symbol.into(), None) == name.as_str())
    };
    let sample = || way.entries.iter().step_by(way.entries.len() / 50 + 1);
    let fits = |base: &u64| sample().filter(|entry| is_at(*base, *entry)).count();
    let base = BASES.step_by(PAGE).max_by_key(fits).unwrap_or_default();
    ensure!(fits(&base) > 0, "no function is where callgrind says: was this program built anew?");
    let mut found = BTreeSet::new();
    for address in &way.every_call {
        let mut frames = loader.find_frames(address - base).map_err(|error| anyhow!("{error}"))?;
        while let Some(frame) = frames.next()? {
            let file = frame.location.and_then(|location| location.file).unwrap_or_default();
            let ours = ["rpc-core/src/", "rpc-transport/src/"];
            let at = ours.iter().find_map(|folder| file.find(folder));
            let (Some(at), Some(function)) = (at, frame.function) else { continue };
            let name = function.demangle()?;
            found.insert((file[at..].to_owned(), plain(&name)));
        }
    }
    Ok(found)
}

/// The last name of a path, without type parameters and closures.
fn plain(name: &str) -> String {
    let (mut depth, mut plain) = (0_u32, String::new());
    for c in name.chars() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    let names = plain.split("::").filter(|name| !name.is_empty() && !name.starts_with('{'));
    names.last().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_parameters_and_closures() {
        assert_eq!(plain("<rpc_core::Call<T> as Future>::poll"), "poll");
        assert_eq!(plain("rpc_core::client::start::<A, B>::{closure#0}"), "start");
        assert_eq!(plain("rpc_core::client::start::{{closure}}"), "start");
    }

    #[test]
    fn code_of_each_call_is_found() {
        let program = env::current_exe().expect("a path").display().to_string();
        let profile = format!(
            "positions: instr line\nob={program}\nfn=a::once\n0x10 1 1\nfn=a::each\n0x24 7 16\n\
             0x20 6 16\ncalls=16 0x40 0\n0x28 7 900\nob=/lib/libc.so.6\nfn=malloc\n0x90 0 99\n"
        );
        let way = read(&profile);
        assert_eq!(way.every_call, BTreeSet::from([0x20, 0x24]));
        assert_eq!(way.entries["a::each"], 0x20);
    }
}
