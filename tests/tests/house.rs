//! Rules for the sources: where `unsafe` may be, which mutexes are used, and the numbers of
//! `tests::house`: files and folders do not import each other in circles, and the style is kept.

use std::collections::BTreeSet;

use tests::house::{Number, code, numbers};
use tests::workspace::files;

/// Folders whose files may have unsafe code: memory, and devices that read and write it.
const FENCE: [&str; 3] = [
    "rpc-transport/src/device/soft/",
    "rpc-transport/src/device/verbs/",
    "rpc-transport/src/memory/",
];

/// Files outside the fence with unsafe code, and the reason.
const BEYOND: [(&str, &str); 22] = [
    ("models/src/link/end.rs", "writes as a peer does"),
    ("rpc-core/src/bulk/tests.rs", "maps a file"),
    ("rpc-core/src/service/pooled_future.rs", "futures of handlers in memory that is used again"),
    ("rpc-core/tests/fork.rs", "forks"),
    ("rpc-perf/src/floor.rs", "measures raw shared memory"),
    ("rpc-perf/src/floor/large.rs", "measures raw copies"),
    ("rpc-transport/benches/large.rs", "measures raw copies"),
    ("rpc-transport/benches/soft.rs", "measures raw shared memory"),
    ("rpc-transport/examples/toy_device/main.rs", "a device that reads and writes memory"),
    ("rpc-transport/src/message/trusted.rs", "a payload as a slice, for who trusts the peer"),
    ("rpc-transport/tests/conformance/main.rs", "plays the user of a device"),
    ("rpc-transport/tests/faults.rs", "plays the user of a device"),
    ("rpc-transport/tests/hostile_soft/main.rs", "plays a hostile peer"),
    ("rpc-transport/tests/soft_leaks.rs", "plays the user of a device"),
    ("rpc-transport/tests/soft_processes.rs", "plays the user of a device"),
    ("rpc-transport/tests/verbs_device/main.rs", "plays the user of a device"),
    ("rpc-transport/tests/verbs_peer.rs", "plays the user of a device"),
    ("rpc-transport/tests/verbs_removal.rs", "plays the user of a device"),
    ("tests/kit/src/hostile/shm.rs", "plays a hostile peer"),
    ("tests/kit/src/sandbox.rs", "refuses system calls"),
    ("tests/src/bin/simulate/interpose.rs", "replaces functions of the C library"),
    ("tests/tests/allocations.rs", "counts allocations"),
];

/// Whether a file relaxes the lint against unsafe code, which the workspace denies.
fn allows_unsafe(text: &str) -> bool {
    let attributes =
        ["allow(", "expect(", "warn("].iter().flat_map(|word| text.split(word).skip(1));
    let lints = attributes.filter_map(|rest| rest.split(')').next());
    lints.flat_map(|lints| lints.split(',')).any(|lint| lint.trim() == "unsafe_code")
}

#[test]
fn every_way_to_allow_unsafe_code_is_seen() {
    // Assembled at run time, so that this file does not count as one with unsafe code.
    let attribute = |word: &str| format!("#![{word}(dead_code, unsafe_code, reason = \"\")]");
    assert!(["allow", "expect", "warn"].iter().all(|word| allows_unsafe(&attribute(word))));
    assert!(!allows_unsafe(&attribute("deny")));
}

#[test]
fn unsafe_code_stays_behind_the_fence() {
    let all = files(".", "rs");
    let found = all.iter().filter(|(_, text)| allows_unsafe(text)).map(|(path, _)| path.as_str());
    let found: BTreeSet<&str> =
        found.filter(|path| !FENCE.iter().any(|folder| path.starts_with(folder))).collect();
    let known: BTreeSet<&str> = BEYOND.iter().map(|(path, _)| *path).collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(new.is_empty(), "unsafe code in files that are not listed: {new:#?}");
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(gone.is_empty(), "listed files without unsafe code, remove or rename them: {gone:#?}");
}

/// In debug builds this crate's own mutex detects user code that runs under it.
#[test]
fn every_mutex_of_the_core_is_watched() {
    // The caller provides it.
    let allowed = ["rpc-core/src/client/blocking.rs"];
    let is_other = |line: &str| {
        let others = ["parking_lot", "RwLock", "tokio::sync::watch", "Notify"];
        others.iter().any(|other| line.contains(other))
            || line.contains("std::sync::") && line.contains("Mutex")
    };
    let mut found = Vec::new();
    for (path, text) in files("rpc-core/src", "rs") {
        if !path.ends_with("tests.rs") && !allowed.contains(&path.as_str()) {
            let text = code(&text);
            let lines = text.lines().filter(|line| is_other(line));
            found.extend(lines.map(|line| format!("{path}: {line}")));
        }
    }
    assert!(found.is_empty(), "use `rpc_transport::lock` and `runtime::watched`: {found:#?}");
}

/// `cargo run -p tests --bin house` prints all numbers.
#[test]
fn numbers_of_the_house_stay_within_bounds() {
    for Number { name, now, most, places, .. } in numbers() {
        assert!(now <= most, "{now} {name}, {most} at most: {places:#?}");
    }
}
