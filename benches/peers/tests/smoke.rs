//! Every row is measured once, with almost no time: servers start, bytes come back unchanged, and
//! every column of the row is there.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

const SMALL: [&str; 4] = ["p50_us", "mean_us", "p999_us", "kilo_calls_per_second"];
const LARGE: [&str; 4] =
    ["up_1_gb_per_second", "up_4_gb_per_second", "down_1_gb_per_second", "down_4_gb_per_second"];

fn peers(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_peers")).args(arguments).output().unwrap()
}

/// One round of the rows that match, by name.
fn round(only: &str) -> BTreeMap<String, Value> {
    let json = std::env::temp_dir().join(format!(
        "peers-smoke-{}-{}.json",
        std::process::id(),
        only.replace('/', "-")
    ));
    let path = json.to_str().unwrap();
    let output = peers(&["--rounds", "1", "--duration", "2", "--only", only, "--json", path]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let measured: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
    serde_json::from_value(measured["rounds"][0]["rows"].clone()).unwrap()
}

fn has(row: &Value, columns: &[&str]) {
    for column in columns {
        assert!(row[column].as_f64().is_some_and(|value| value > 0.0), "{column}: {row}");
    }
    assert_eq!(row.as_object().unwrap().len(), columns.len(), "{row}");
}

/// Rows of one peer that have all columns.
fn complete(peer: &str, overs: &[&str]) {
    let rows = round(peer);
    for over in overs {
        has(&rows[&format!("{peer}/{over}")], &[SMALL, LARGE].concat());
    }
    assert_eq!(rows.len(), overs.len(), "{:?}", rows.keys());
}

#[test]
fn ours() {
    let mut rows = round("rpc-over-rdma/");
    has(&rows.remove("rpc-over-rdma/shm-bulk").unwrap(), &LARGE);
    assert_eq!(rows.len(), 6, "{:?}", rows.keys());
    for row in rows.values() {
        has(row, &[SMALL, LARGE].concat());
    }
}

#[test]
fn connections_are_measured_with_and_without_tls() {
    let output = peers(&["--connections", "--duration", "50"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for part in ["TLS takes ", "plain: ", "TLS: ", " new connections/s"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_picture_of_the_rows_can_be_had() {
    let path = std::env::temp_dir().join(format!("peers-smoke-{}.svg", std::process::id()));
    let arguments = ["--rounds", "3", "--duration", "2", "--only", "floor/message", "--plot"];
    let output = peers(&[&arguments[..], &[path.to_str().unwrap()]].concat());
    // The host may move the CPUs in every round.
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("nothing to draw"), "{said}");
        return;
    }
    let picture = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("floor/message"), "{picture}");
}

#[cfg(feature = "tarpc")]
#[test]
fn tarpc() {
    complete("tarpc", &["tcp", "unix"]);
}

#[cfg(feature = "tonic")]
#[test]
fn tonic() {
    complete("tonic", &["tcp", "tcp-tls", "unix"]);
}

#[cfg(feature = "capnp")]
#[test]
fn capnp() {
    complete("capnp-rpc", &["tcp", "unix"]);
}

#[test]
fn ruapc() {
    complete("ruapc", &["tcp"]);
}

#[cfg(feature = "iceoryx2")]
#[test]
fn iceoryx2() {
    complete("iceoryx2", &["event", "poll"]);
}

#[test]
fn floors() {
    let rows = round("floor/");
    for (over, columns) in [
        ("message", &SMALL[..1]),
        ("eventfd", &SMALL[..1]),
        ("unix", &SMALL[..3]),
        ("tcp", &SMALL[..3]),
        ("one-copy", &[LARGE[0], LARGE[2]]),
        ("two-copies", &[LARGE[1], LARGE[3]]),
    ] {
        has(&rows[&format!("floor/{over}")], columns);
    }
    assert_eq!(rows.len(), 6, "{:?}", rows.keys());
}

#[test]
fn unknown_row_lists_the_valid_ones() {
    let output = peers(&["--only", "corba"]);
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("--only corba") && said.contains("ruapc/tcp"), "{said}");
}

#[test]
fn the_goals_are_looked_at_column_by_column() {
    let rows = "rpc-over-rdma/tcp,ruapc/tcp";
    let output = peers(&["--goals", "--duration", "2", "--only", rows]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("rpc-over-rdma/tcp, speed of ruapc/tcp's"), "{said}");
    for column in
        ["p50 us", "mean us", "p99.9 us", "k/s @32", "up x1", "up x4", "down x1", "down x4"]
    {
        assert_eq!(said.matches(&format!("  {column}")).count(), 1, "{column}: {said}");
    }
}

#[test]
fn rows_without_a_goal_are_refused() {
    let output = peers(&["--goals", "--only", "floor/"]);
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("no goal has both of its rows"), "{said}");
}
