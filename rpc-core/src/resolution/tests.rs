use super::cache::Cache;
use super::known::MOST;
use super::*;
use crate::codec::shape::{Plain, seed};
use crate::layout::Tracer;
use crate::stats::converted::converted;

static METHOD: MethodDescriptor =
    MethodDescriptor::new("Test.method", "(Item) -> u32", &["item", "note"]).traced(trace);

#[derive(serde::Serialize, serde::Deserialize)]
struct Item {
    id: u32,
    #[serde(default)]
    list: Vec<Self>,
}

fn trace(tracer: &mut Tracer) {
    tracer.argument(seed::<Item, _>(Plain), Plain);
    tracer.argument(seed::<Option<u8>, _>(Plain), Plain);
    tracer.result(seed::<u32, _>(Plain), Plain);
}

/// A schema that differs from all others by a field that is skipped.
fn schema(number: usize) -> String {
    format!("argument item: #0\nresult: #1\n#0 struct {{ more{number}: #1, id: #1 }}\n#1 u32\n")
}

#[test]
fn the_own_schema_needs_no_plan() {
    let own = &METHOD.own_types().unwrap().text;
    let at_callee = Decoding::Planned(Planned(Resolution::at_callee(&METHOD, own).unwrap()));
    assert!(matches!(at_callee.arguments(), Ok(By::OwnTypes)));
    let at_caller = Decoding::Planned(Planned(Resolution::at_caller(&METHOD, own).unwrap()));
    assert!(matches!(at_caller.result(), Ok(By::OwnTypes)));
    // What neither end describes is never read by own types.
    assert!(at_caller.error().is_err() && at_caller.item().is_err());
    assert!(at_callee.result().is_err() && at_caller.arguments().is_err());
    assert!(at_caller.of_refusal().is_err());
}

#[test]
fn other_versions_are_never_converted() {
    let text = format!("version 3\n{}", METHOD.own_types().unwrap().text);
    refused(&text, &["its version is 3 at the peer and none here"]);
}

#[test]
fn one_schema_has_one_plan() {
    let [first, second] =
        [0; 2].map(|_| Resolution::at_callee(&METHOD, &schema(usize::MAX)).unwrap());
    assert!(Arc::ptr_eq(&first, &second));
    assert!(matches!(Decoding::Planned(Planned(first)).arguments(), Ok(By::Plan(_))));
}

#[test]
fn ten_thousand_schemas_stay_bounded() {
    let mut known = KnownSchemas::default();
    for number in 0..10_000 {
        let made = Resolution::at_callee(&METHOD, &schema(number)).unwrap();
        known.insert(METHOD.id, number as u64, made);
        let (count, bytes) = known.size();
        assert!(count <= MOST.0 && bytes <= MOST.1, "{count} {bytes}");
    }
    assert!(Cache::is_bounded());
    assert!(known.find(METHOD.id, 9_999).is_some(), "the newest are kept");
    assert!(known.find(METHOD.id, 0).is_none(), "the oldest go");
}

#[test]
fn a_report_of_uses_is_bounded() {
    let _index = METHOD.dense_index();
    for number in 0..100 {
        let made = Resolution::at_callee(&METHOD, &schema(number)).unwrap();
        made.used.count();
    }
    let of = crate::stats::MethodStats { name: METHOD.name, ..Default::default() };
    let found = converted(Role::Callee, &[of]);
    assert_eq!(found.len(), 64);
    assert!(found.iter().all(|it| it.method == METHOD.name));
    assert!(converted(Role::Callee, &[]).is_empty());
}

#[test]
fn one_hash_for_many_schemas_keeps_the_last() {
    let mut known = KnownSchemas::default();
    for number in 0..100 {
        let made = Resolution::at_callee(&METHOD, &schema(number)).unwrap();
        known.insert(METHOD.id, 1, Arc::clone(&made));
        assert!(Arc::ptr_eq(&known.find(METHOD.id, 1).unwrap(), &made));
    }
    assert_eq!(known.size().0, 1);
}

#[track_caller]
fn refused(text: &str, parts: &[&str]) {
    for found in [Resolution::at_callee(&METHOD, text), Resolution::at_caller(&METHOD, text)] {
        let why = found.expect_err("it is refused");
        assert!(parts.iter().any(|part| why.contains(part)), "{why}");
        assert!(why.len() < 8192, "{}", why.len());
    }
}

#[test]
fn hostile_schemas_are_refused_by_name() {
    refused("", &["no argument `item`", "not describe its result"]);
    refused("\u{0}\u{1b}", &["not a schema"]);
    refused(&"x".repeat(MAX_SCHEMA_BYTES + 1), &["exceeds the limit"]);
    // It contains itself, and takes no byte for it.
    refused("argument item: #0\n#0 struct { a: #0 }\n", &["contains another one"]);
    refused("argument item: #7\n#0 u8\n", &["not a schema"]);
    refused("argument item: #0\nargument item: #0\n#0 u32\n", &["name twice", "not a schema"]);
}

/// As large as may be sent: what takes too long to compare, or too much memory, is refused.
#[test]
fn the_largest_schemas_are_bounded() {
    let deep = (0..)
        .map(|at| format!("#{at} option #{}\n", at + 1))
        .scan(0, |len, line| {
            *len += line.len();
            (*len < MAX_SCHEMA_BYTES - 100).then_some(line)
        })
        .collect::<Vec<_>>();
    let deep = format!("argument item: #0\n{}#{} u8\n", deep.concat(), deep.len());
    assert!(deep.len() <= MAX_SCHEMA_BYTES);
    refused(&deep, &["option", "u8", "struct"]);
    let names: Vec<_> = (0..1_200).map(|at| format!("f{at}: #1")).collect();
    let wide = format!(
        "argument item: #0\nresult: #2\n#0 struct {{ {}, id: #2 }}\n#1 nothing\n#2 u32\n",
        names.join(", ")
    );
    let made = Resolution::at_callee(&METHOD, &wide);
    if let Ok(made) = made {
        assert!(made.bytes <= MAX_PLAN_BYTES);
    }
}
