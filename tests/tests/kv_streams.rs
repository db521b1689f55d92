//! The streaming commands of the `kv` example as a person runs them.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::ffi::OsStr;
use std::fs;

use tests::example::{Ended, Scratch, Serving, command, run};

async fn serve(name: &str) -> Serving {
    let address = format!("shm://kv-streams-{name}-{}", std::process::id());
    Serving::start(command("kv", ["serve", &address]), 1).await
}

async fn kv(arguments: &[&dyn AsRef<OsStr>]) -> Ended {
    run(command("kv", arguments.iter().map(|argument| argument.as_ref()))).await
}

#[test]
fn a_table_is_loaded_and_a_directory_kept_up_to_date() {
    tests::limit::run(async {
        let server = serve("sync").await;
        let address = &server.addresses()[0];
        let scratch = Scratch::new();
        let (table, dir) = (scratch.path().join("table.tsv"), scratch.path().join("copy"));
        let lines: String = (0..1000).map(|number| format!("t/{number:03}\t{number}\n")).collect();
        fs::write(&table, lines).unwrap();
        let loaded = kv(&[&"load", address, &table]).await.with_code(0).text();
        assert!(loaded.contains("loaded 1,000 keys"), "{loaded}");
        let synced = kv(&[&"sync", address, &dir, &"--prefix", &"t/"]).await.with_code(0).text();
        assert!(synced.ends_with("wrote 1,000 files, 0 not in the store\n"), "{synced}");
        assert_eq!(fs::read_to_string(dir.join("999")).unwrap(), "999");
        // Only what differs.
        kv(&[&"put", address, &"t/500", &"changed"]).await.with_code(0);
        fs::write(dir.join("extra"), "mine").unwrap();
        let synced = kv(&[&"sync", address, &dir, &"--prefix", &"t/"]).await.with_code(0).text();
        let expected =
            "written t/500\nnot in the store t/extra\nwrote 1 file, 1 not in the store\n";
        assert_eq!(synced, expected);
        assert_eq!(fs::read_to_string(dir.join("500")).unwrap(), "changed");
        fs::write(&table, "no tab\n").unwrap();
        let refused = kv(&[&"load", address, &table]).await;
        assert!(refused.stderr.contains("line 1 has no tab"), "{}", refused.stderr);
    });
}

#[test]
fn changes_are_watched() {
    tests::limit::run(async {
        let server = serve("watch").await;
        let address = server.addresses()[0].clone();
        let watch = command("kv", ["watch", &address, "w/", "-n", "3"]);
        let watched = tokio::spawn(run(watch));
        let mut number = 0;
        while !watched.is_finished() {
            kv(&[&"put", &address, &"other", &"x"]).await;
            kv(&[&"put", &address, &"w/key", &number.to_string()]).await;
            number += 1;
        }
        let lines = watched.await.unwrap().with_code(0).text();
        assert_eq!(lines.lines().count(), 3, "{lines}");
        assert!(lines.lines().all(|line| line.starts_with("set ") && line.ends_with(" w/key")));
    });
}
