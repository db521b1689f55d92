//! Every row is measured once, with next to no time: servers start, bytes come back as they were sent, and
//! every column that the row has is there.

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
    assert_eq!(rows.len(), 5, "{:?}", rows.keys());
    for row in rows.values() {
        has(row, &[SMALL, LARGE].concat());
    }
}

#[test]
fn tarpc() {
    complete("tarpc", &["tcp", "unix"]);
}

#[test]
fn tonic() {
    complete("tonic", &["tcp", "unix"]);
}

#[test]
fn capnp() {
    complete("capnp-rpc", &["tcp", "unix"]);
}

#[test]
fn ruapc() {
    complete("ruapc", &["tcp"]);
}

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
fn a_row_that_is_not_there_is_named_with_those_that_are() {
    let output = peers(&["--only", "corba"]);
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("--only corba") && said.contains("tarpc/unix"), "{said}");
}
