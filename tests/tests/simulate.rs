//! The simulator repeats itself: without that, a seed that it prints is of no use.

use std::process::Command;

/// The exit code if two runs of a seed differ.
const DIFFER: i32 = 3;

/// Whether the worlds break rules is for `.ci/run`, with more of them.
#[test]
fn two_runs_of_a_seed_are_equal() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_simulate"));
    command.args(["--twice", "--from", "1", "--seeds", "3", "--jobs", "2"]);
    // A crowd takes long without optimization.
    command.args(["--without", "crowds"]);
    let output = command.output().expect("the simulator starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_ne!(output.status.code(), Some(DIFFER), "{text}");
    assert!(text.contains("3 worlds, "), "it ran others: {text}");
    assert!(text.trim_end().ends_with("runs that differ 0"), "{text}");
    assert!(!text.contains("survives/"), "{text}");
}
