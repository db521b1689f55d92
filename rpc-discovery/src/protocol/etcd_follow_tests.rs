use std::collections::BTreeSet;

use test_kit::Rng;

use super::super::etcd_messages::Event;
use super::*;

const CLUSTER: i64 = 77;

fn header(revision: i64) -> Header {
    Header { cluster_id: CLUSTER, revision }
}

fn pair(id: &str, value: &str, revision: i64) -> KeyValue {
    KeyValue {
        key: format!("/rpc/kv/{id}").into_bytes(),
        value: value.into(),
        create_revision: revision,
        mod_revision: revision,
    }
}

fn server(id: &str, revision: i64) -> KeyValue {
    pair(id, &format!(r#"{{"address":"tcp://{id}:1"}}"#), revision)
}

fn list(revision: i64, kvs: Vec<KeyValue>) -> RangeReply {
    let count = i64::try_from(kvs.len()).unwrap();
    RangeReply { header: header(revision), kvs, count }
}

fn told(revision: i64, events: Vec<Event>) -> WatchReply {
    WatchReply { header: header(revision), events, ..WatchReply::default() }
}

fn put(kv: KeyValue) -> Event {
    Event { kind: None, kv }
}

fn deleted(id: &str, revision: i64) -> Event {
    let kv = KeyValue { value: Vec::new(), ..pair(id, "", revision) };
    Event { kind: Some("DELETE".into()), kv }
}

fn names(follow: &Follow) -> Vec<String> {
    follow.servers().iter().map(|it| it.address().to_string()).collect()
}

fn followed(revision: i64, kvs: Vec<KeyValue>) -> Follow {
    let mut follow = Follow::new("/rpc/kv/".to_owned());
    assert!(!follow.on_list(list(revision, kvs)));
    follow
}

fn is_over(heard: Heard, part: &str) -> bool {
    matches!(heard, Heard::ListAnew(why) if why.contains(part))
}

#[test]
fn a_watch_continues_its_list() {
    let mut follow = followed(5, vec![server("a", 3)]);
    assert_eq!(follow.watch_from(), 6);
    assert_eq!(follow.on_watch(WatchReply { created: true, ..told(5, vec![]) }), Heard::Nothing);
    assert_eq!(follow.on_watch(told(6, vec![put(server("b", 6))])), Heard::Changed);
    assert_eq!(names(&follow), ["tcp://a:1", "tcp://b:1"]);
    assert_eq!(follow.on_watch(told(7, vec![deleted("a", 7)])), Heard::Changed);
    assert_eq!(names(&follow), ["tcp://b:1"]);
    assert_eq!(follow.on_watch(told(90, vec![])), Heard::Nothing, "a progress notice");
    assert_eq!(follow.watch_from(), 91);
}

/// Rows of the table of what a resolver must survive, as far as they are decisions.
#[test]
fn a_watch_that_is_over_is_recognized() {
    let known = || followed(5000, vec![server("a", 3)]);
    let canceled = |compact_revision, reason: &str| WatchReply {
        header: header(0),
        canceled: true,
        compact_revision,
        cancel_reason: reason.to_owned(),
        ..WatchReply::default()
    };
    for (reply, part) in [
        (canceled(7, ""), "compacted revision 7"),
        (canceled(0, ""), "canceled"),
        (canceled(0, "no leader"), "no leader"),
        (WatchReply { created: true, ..told(2, vec![]) }, "wiped or restored"),
        (told(4999, vec![put(server("b", 4999))]), "wiped or restored"),
        (
            WatchReply { header: Header { cluster_id: 1, revision: 6000 }, ..told(0, vec![]) },
            "another cluster",
        ),
    ] {
        let mut follow = known();
        assert!(is_over(follow.on_watch(reply.clone()), part), "{reply:?}");
        assert_eq!(names(&follow), ["tcp://a:1"], "the servers stay until the next list");
    }
}

#[test]
fn a_list_of_another_world_replaces_everything() {
    let mut follow = followed(5000, vec![server("a", 3), server("b", 4)]);
    let mut wiped = list(1, vec![]);
    wiped.header.cluster_id = CLUSTER + 1;
    assert!(follow.on_list(wiped), "it is another world");
    assert_eq!(names(&follow), Vec::<String>::new());
    assert_eq!(follow.watch_from(), 2, "no revision is carried over");
    // An older backup of the same cluster, where the same revision is of another value.
    let mut follow = followed(5000, vec![server("a", 3)]);
    let other = pair("a", r#"{"address":"tcp://other:1"}"#, 3);
    assert!(follow.on_list(list(10, vec![other])));
    assert_eq!(names(&follow), ["tcp://other:1"]);
}

#[test]
fn a_silent_watch_is_found_by_checks() {
    let check = |revision, newest: i64, count| RangeReply {
        header: header(revision),
        kvs: vec![server("x", newest)],
        count,
    };
    let mut follow = followed(5, vec![server("a", 3)]);
    for _ in 0..3 {
        assert_eq!(follow.on_check(&check(9, 3, 1)), Heard::Confirmed, "other keys have changed");
    }
    // A change that the watch has yet to report.
    assert_eq!(follow.on_check(&check(10, 10, 2)), Heard::Nothing);
    assert_eq!(follow.on_watch(told(10, vec![put(server("b", 10))])), Heard::Changed);
    assert_eq!(follow.on_check(&check(11, 11, 3)), Heard::Nothing, "the watch is alive");
    assert!(is_over(follow.on_check(&check(11, 11, 3)), "missed changes"));
    // Deleted, which leaves no newer key behind.
    let mut follow = followed(5, vec![server("a", 3), server("b", 4)]);
    assert_eq!(follow.on_check(&check(6, 4, 1)), Heard::Nothing);
    assert!(is_over(follow.on_check(&check(6, 4, 1)), "missed changes"));
    assert!(is_over(follow.on_check(&check(4, 4, 1)), "wiped"));
}

#[test]
fn bad_entries_are_left_out_alone() {
    let follow = &mut followed(
        9,
        vec![
            server("a", 1),
            pair("b", "no JSON", 2),
            pair("c", r#"{"address":"tcp://0.0.0.0:1"}"#, 3),
            pair("d/e", r#"{"address":"tcp://x:1"}"#, 4),
            pair("f\u{7}", r#"{"address":"tcp://x:1"}"#, 5),
            pair("g", r#"{"address":"tcp://g:1","weight":0}"#, 6),
        ],
    );
    assert_eq!(names(follow), ["tcp://a:1", "tcp://g:1"]);
    assert_eq!(follow.problems.take().0.len(), 4);
    // The next list has the same entries: nothing more is said of them.
    let again = vec![server("a", 1), pair("b", "no JSON", 2), pair("c", "still none", 10)];
    follow.on_list(list(10, again));
    let (lines, beyond) = follow.problems.take();
    assert_eq!((lines.len(), beyond), (1, 0), "{lines:?}");
    assert!(lines[0].starts_with("/rpc/kv/c: "), "{lines:?}");
}

#[test]
fn a_server_that_returned_replaces_itself() {
    for (old, new) in [("a", "b"), ("b", "a")] {
        let old = pair(old, r#"{"address":"tcp://a:1","state":"draining"}"#, 3);
        let new = pair(new, r#"{"address":"tcp://a:1","weight":7}"#, 4);
        let servers = followed(9, vec![old, new]).servers();
        assert_eq!((servers.len(), servers[0].weight()), (1, 7));
    }
}

#[test]
fn entries_are_bounded() {
    let all = (0..5000).map(|at| server(&format!("s{at:04}"), at + 1)).collect();
    let mut follow = followed(9000, all);
    assert_eq!(follow.servers().len(), MAX_KEYS);
    assert_eq!(follow.problems.take().1, 5000 - MAX_KEYS as u64 - 8);
    for at in 0..1000 {
        follow.on_watch(told(9001 + at, vec![put(server(&format!("t{at}"), 9001 + at))]));
    }
    assert_eq!(follow.servers().len(), MAX_KEYS);
}

/// A registry with random operations, faults of the watch, wipes and compaction.
#[test]
fn the_set_is_that_of_the_registry() {
    test_kit::for_seeds(1, 300, |rng: &mut Rng| {
        let (mut keys, mut revision) = (BTreeMap::<String, i64>::new(), 1_i64);
        let mut cluster = 1;
        let mut follow = Follow::new("/rpc/kv/".to_owned());
        let mut is_listed = false;
        for _ in 0..200 {
            let listed = |keys: &BTreeMap<String, i64>, cluster, revision| RangeReply {
                header: Header { cluster_id: cluster, revision },
                kvs: keys.iter().map(|(id, at)| server(id, *at)).collect(),
                count: i64::try_from(keys.len()).unwrap(),
            };
            if !is_listed {
                follow.on_list(listed(&keys, cluster, revision));
            }
            let id = format!("s{}", rng.index(8));
            let mut heard = match rng.index(20) {
                0 => {
                    (cluster, revision) = (cluster + 1, 1);
                    keys.clear();
                    let header = Header { cluster_id: cluster, revision };
                    follow.on_check(&RangeReply { header, ..RangeReply::default() })
                }
                1 => follow.on_watch(WatchReply { canceled: true, ..told(0, vec![]) }),
                2..10 => {
                    revision += 1;
                    let event = match keys.remove(&id) {
                        Some(_) => deleted(&id, revision),
                        None => put(server(&id, revision)),
                    };
                    if event.kind.is_none() {
                        keys.insert(id, revision);
                    }
                    let header = Header { cluster_id: cluster, revision };
                    // Some are lost on the way.
                    match rng.chance(10) {
                        true => Heard::Nothing,
                        false => follow.on_watch(WatchReply { header, ..told(0, vec![event]) }),
                    }
                }
                _ => Heard::Nothing,
            };
            for _ in 0..2 {
                if !matches!(heard, Heard::ListAnew(_)) {
                    let mut newest = listed(&keys, cluster, revision);
                    newest.kvs.sort_by_key(|it| -it.mod_revision);
                    newest.kvs.truncate(1);
                    heard = follow.on_check(&newest);
                }
            }
            is_listed = !matches!(heard, Heard::ListAnew(_));
            if is_listed {
                let known: BTreeSet<_> = names(&follow).into_iter().collect();
                let all: BTreeSet<_> = keys.keys().map(|id| format!("tcp://{id}:1")).collect();
                assert_eq!(known, all);
            }
        }
    });
}
