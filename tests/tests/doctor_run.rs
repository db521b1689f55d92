//! The `doctor` example as a person runs it.

use tests::example::{Ended, command, run};

async fn doctor(arguments: &str) -> Ended {
    run(command("doctor", arguments.split_whitespace())).await
}

/// The line of a scheme.
fn line<'a>(text: &'a str, scheme: &str) -> &'a str {
    let found = text.lines().find(|line| line.trim_start().starts_with(scheme));
    found.unwrap_or_else(|| panic!("no line for {scheme} in:\n{text}"))
}

#[tokio::test]
async fn everything_is_tried_and_said() {
    let ended = doctor("").await.with_code(0);
    let text = ended.text();
    for (scheme, way) in [("mem", "soft-mem"), ("shm", "soft-shm"), ("tcp", "soft-tcp")] {
        let line = line(&text, scheme);
        assert!(line.contains("works") && line.contains(way), "{ended:?}");
    }
    assert!(line(&text, "auto").contains("works  shm://"), "{ended:?}");
    for part in ["open files: ", "locked memory: ", "\nRDMA\n", "\nlocked memory for RDMA\n"] {
        assert!(text.contains(part), "{part} is missing: {ended:?}");
    }
    assert_eq!(ended.stderr, "");
}

#[tokio::test]
async fn a_named_scheme_decides_the_exit_status() {
    let ended = doctor("shm tcp").await.with_code(0);
    assert!(!ended.text().contains("mem "), "{ended:?}");
    // Whether or not there is RDMA here, status and text agree.
    let ended = doctor("rdma").await;
    let works = line(&ended.text(), "rdma").contains("works");
    let ended = ended.with_code(i32::from(!works));
    doctor("carrier-pigeon").await.with_code(2);
    let text = ended.text();
    let Some(said) = line(&text, "rdma").split_once(" NO ").map(|(_, said)| said) else {
        return;
    };
    // A build without the feature names it; a build with it names what the machine lacks.
    let words = if cfg!(feature = "verbs") {
        ["rdma", "RDMA"]
    } else {
        ["--features verbs", "libibverbs-dev"]
    };
    for word in words {
        assert!(said.contains(word), "{word} is missing: {ended:?}");
    }
}

#[tokio::test]
async fn help_says_what_the_exit_status_means() {
    let text = doctor("--help").await.with_code(0).text();
    for part in ["Exit status: 0; 1 if a scheme", "doctor rdma", "--features verbs"] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
}

#[tokio::test]
async fn a_configuration_is_computed_or_refused() {
    let one = doctor("mem").await.with_code(0).text();
    assert!(one.contains("a server with 1 connection on "), "{one}");
    let many = doctor("mem --connections 500 --data-credits 8").await.with_code(0).text();
    assert!(many.contains("a server with 500 connections on "), "{many}");
    assert!(line(&many, "if all are busy").contains("up to 0 B more"), "{many}");
    let ended = doctor("mem --data-credits 0").await.with_code(2);
    assert!(ended.stderr.contains("data_credits is 0, allowed is 1 to 4095"), "{ended:?}");
    doctor("mem --shards 65536").await.with_code(2);
}

/// A regression: `doctor | head` ended with "error: Broken pipe".
#[tokio::test]
async fn a_closed_output_is_no_error() {
    let mut doctor = command("doctor", ["mem"]);
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    doctor.stdout(write);
    let output = doctor.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let output = output.wait_with_output().await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success());
}
