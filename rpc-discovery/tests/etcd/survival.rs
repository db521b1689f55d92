//! What a resolver must survive: each row of that table, against a real etcd.

use rpc_core::client::resolve::Resolve;
use rpc_discovery::Etcd;
use test_kit::Watchdog;

use super::process;
use super::proxy::{Faults, Proxy};
use super::watched::{Watched, quick};

const A: &str = "tcp://10.0.0.1:7";
const B: &str = "tcp://10.0.0.2:7";

#[tokio::test]
async fn a_watch_has_no_gap_after_its_list() {
    let _watchdog = Watchdog::start("a watch after its list");
    let etcd = process::Etcd::start();
    let proxy = Proxy::start(etcd.port()).await;
    etcd.put("a", A);
    proxy.set(Faults { holds_watches: true, ..Faults::default() });
    let resolver = quick(&format!("etcd://127.0.0.1:{}/rpc/kv", proxy.port));
    let mut watched = Watched::new(&resolver);
    watched.until(&[A]).await;
    let between = async {
        proxy.watches(1).await;
        // After the list, and before the watch.
        etcd.put("b", B);
        etcd.delete("a");
        proxy.set(Faults::default());
    };
    let ((), ()) = tokio::join!(watched.until(&[B]), between);
    assert_eq!(watched.errors, Vec::<String>::new());
}

#[tokio::test]
async fn a_live_watch_survives_compaction() {
    let _watchdog = Watchdog::start("compaction under a watch");
    let etcd = process::Etcd::start();
    etcd.put("a", A);
    let resolver = quick(&etcd.name("rpc/kv"));
    let mut watched = Watched::new(&resolver);
    watched.until(&[A]).await;
    etcd.put("x", "tcp://10.0.0.9:7");
    etcd.ctl(&["compaction", &etcd.revision().to_string()]);
    etcd.put("b", B);
    watched.until(&[A, B, "tcp://10.0.0.9:7"]).await;
    assert_eq!(watched.errors, Vec::<String>::new());
}

#[tokio::test]
async fn a_watch_from_a_compacted_revision_lists() {
    let _watchdog = Watchdog::start("a compacted revision");
    let etcd = process::Etcd::start();
    let proxy = Proxy::start(etcd.port()).await;
    etcd.put("a", A);
    proxy.set(Faults { holds_watches: true, ..Faults::default() });
    let resolver = quick(&format!("etcd://127.0.0.1:{}/rpc/kv", proxy.port));
    let mut watched = Watched::new(&resolver);
    watched.until(&[A]).await;
    let between = async {
        proxy.watches(1).await;
        for _ in 0..3 {
            etcd.put("b", B);
        }
        etcd.ctl(&["compaction", &etcd.revision().to_string()]);
        proxy.set(Faults::default());
    };
    let ((), ()) = tokio::join!(watched.until(&[A, B]), between);
    etcd.delete("b");
    watched.until(&[A]).await;
    proxy.watches(2).await;
    assert_eq!(watched.errors, Vec::<String>::new(), "etcd gives no reason, and no error");
}

#[tokio::test]
async fn a_killed_etcd_is_followed_again() {
    let _watchdog = Watchdog::start("kill -9 of etcd");
    let mut etcd = process::Etcd::start();
    etcd.put("a", A);
    let resolver = quick(&etcd.name("rpc/kv"));
    let mut watched = Watched::new(&resolver);
    watched.until(&[A]).await;
    etcd.kill();
    watched.until_error().await;
    watched.until_error().await;
    assert!(watched.errors[1].contains("check that etcd runs there"), "{:?}", watched.errors);
    etcd.restart();
    watched.until(&[A]).await;
    etcd.put("b", B);
    watched.until(&[A, B]).await;
}

#[tokio::test]
async fn a_stopped_etcd_is_noticed() {
    let _watchdog = Watchdog::start("an etcd that is stopped");
    let etcd = process::Etcd::start();
    etcd.put("a", A);
    let resolver = quick(&etcd.name("rpc/kv"));
    let mut watched = Watched::new(&resolver);
    watched.until(&[A]).await;
    etcd.stop();
    watched.until_error().await;
    assert!(watched.errors[0].contains("no answer within"), "{:?}", watched.errors);
    assert!(resolver.resolve().await.unwrap_err().to_string().contains("no answer within 1s"));
    etcd.resume();
    etcd.put("b", B);
    watched.until(&[A, B]).await;
}

/// The connection is there, and says nothing.
#[tokio::test]
async fn a_silent_watch_is_replaced() {
    let _watchdog = Watchdog::start("a watch that is silent");
    let etcd = process::Etcd::start();
    let proxy = Proxy::start(etcd.port()).await;
    etcd.put("a", A);
    let resolver = quick(&format!("etcd://127.0.0.1:{}/rpc/kv", proxy.port));
    let mut watched = Watched::new(&resolver);
    watched.until(&[A]).await;
    proxy.set(Faults { silences_watches: true, ..Faults::default() });
    etcd.put("b", B);
    watched.until(&[A, B]).await;
    etcd.delete("b");
    watched.until(&[A]).await;
    proxy.watches(2).await;
}

/// Follows an etcd of which `replace` leaves the server A only, or none.
async fn in_another_world(
    mut etcd: process::Etcd,
    left: &[&str],
    replace: impl FnOnce(&process::Etcd),
) {
    let resolver = quick(&etcd.name("rpc/kv"));
    let mut watched = Watched::new(&resolver);
    watched.until(&[A, B]).await;
    etcd.kill();
    replace(&etcd);
    etcd.restart();
    watched.until(left).await;
    etcd.put("c", "tcp://10.0.0.3:7");
    watched.until(&[left, &["tcp://10.0.0.3:7"]].concat()).await;
}

#[tokio::test]
async fn a_wiped_etcd_is_another_world() {
    let _watchdog = Watchdog::start("an etcd that is wiped");
    let etcd = process::Etcd::start();
    etcd.put("a", A);
    etcd.put("b", B);
    in_another_world(etcd, &[], process::Etcd::wipe).await;
}

#[tokio::test]
async fn an_older_backup_is_another_world() {
    let _watchdog = Watchdog::start("an etcd from a backup");
    let etcd = process::Etcd::start();
    etcd.put("a", A);
    let backup = std::env::temp_dir().join(format!("rpc-discovery-backup-{}", etcd.port()));
    let backup = backup.to_str().unwrap();
    etcd.ctl(&["snapshot", "save", backup]);
    etcd.put("b", B);
    in_another_world(etcd, &[A], |etcd| etcd.restore(backup)).await;
}

/// The watch begins behind the last revision of the etcd that it gets to.
#[tokio::test]
async fn a_watch_from_the_future_lists() {
    let _watchdog = Watchdog::start("a watch from a later revision");
    let mut etcd = process::Etcd::start();
    let proxy = Proxy::start(etcd.port()).await;
    for _ in 0..10 {
        etcd.put("a", A);
    }
    proxy.set(Faults { holds_watches: true, ..Faults::default() });
    // Only what etcd says first of the watch can show it: checks are rare.
    let name = format!("etcd://127.0.0.1:{}/rpc/kv", proxy.port);
    let resolver: Etcd = name.parse().unwrap();
    let resolver = resolver
        .check_every(std::time::Duration::from_secs(3600))
        .request_timeout(std::time::Duration::from_secs(60));
    let mut watched = Watched::new(&resolver);
    watched.until(&[A]).await;
    let between = async {
        proxy.watches(1).await;
        etcd.kill();
        etcd.wipe();
        etcd.restart();
        etcd.put("b", B);
        proxy.set(Faults::default());
    };
    let ((), ()) = tokio::join!(watched.until(&[B]), between);
    etcd.put("c", A);
    watched.until(&[A, B]).await;
    assert_eq!(watched.errors, Vec::<String>::new());
}
