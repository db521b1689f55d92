//! Each kind of change, and what comes of it.

use std::collections::BTreeMap;

use rpc_schema::plan::{Plan, Problem};
use rpc_schema::text::parse;
use serde::{Deserialize, Serialize};

use super::{read_bincode, read_postcard};

/// The plan for two types, each the first of a text without numbers at the front of its lines.
fn plan(writer: &str, reader: &str) -> Result<Plan, Vec<String>> {
    let [writer, reader] = [writer, reader].map(|text| {
        let numbered =
            text.lines().enumerate().map(|(at, line)| format!("#{at} {}\n", line.trim()));
        parse(&numbered.collect::<String>()).unwrap()
    });
    let plan = Plan::new(&writer, 0, &reader, 0);
    plan.map_err(|problems| problems.iter().map(Problem::to_string).collect())
}

#[track_caller]
fn refused(writer: &str, reader: &str, problems: &[&str]) {
    assert_eq!(plan(writer, reader).unwrap_err(), problems);
}

/// Reads by a plan, from both codecs, what was written.
#[track_caller]
fn read<W, R>(plan: &Plan, value: &W) -> Result<R, String>
where
    W: Serialize,
    R: for<'de> Deserialize<'de> + PartialEq + std::fmt::Debug,
{
    use std::marker::PhantomData;
    let bytes = bincode::serde::encode_to_vec(value, bincode::config::standard()).unwrap();
    let found = read_bincode(&bytes, plan.seed(PhantomData::<R>));
    let bytes = postcard::to_stdvec(value).unwrap();
    let other = read_postcard(&bytes, plan.seed(PhantomData::<R>));
    assert_eq!(found.is_ok(), other.is_ok(), "{found:?} {other:?}");
    if found.is_ok() {
        assert_eq!(found, other);
    }
    found
}

const OLD: &str = "struct { id: #1, name: #2, tags: #3, state: #4, size: #6 }
    u32
    str
    sequence #2
    enum { New: #5, Sold: #1, Kept: #7 }
    nothing
    option #1
    struct { by: #2 }";

const NEW: &str =
    "struct { state: #4, number | id: #1, title | name: #2, note?: #6, size: #3, count?: #3 }
    u64
    str
    i16
    enum { New: #5, Lost: #5, Sold: #1, Stays | Kept: #7, Other*: #5 }
    nothing
    option #2
    struct { why?: #2, by: #2 }";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Old {
    id: u32,
    name: String,
    tags: Vec<String>,
    state: OldState,
    size: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum OldState {
    New,
    Sold(u32),
    Kept { by: String },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct New {
    state: NewState,
    #[serde(alias = "id")]
    number: u64,
    #[serde(alias = "name")]
    title: String,
    note: Option<String>,
    size: i16,
    #[serde(default)]
    count: i16,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum NewState {
    New,
    Lost,
    Sold(u64),
    #[serde(alias = "Kept")]
    Stays {
        #[serde(default)]
        why: String,
        by: String,
    },
    #[serde(other)]
    Other,
}

fn old(state: OldState, size: Option<u32>) -> Old {
    Old { id: 7, name: "a".to_owned(), tags: vec!["b".to_owned()], state, size }
}

#[test]
fn derived_types_are_read_by_name() {
    let plan = plan(OLD, NEW).unwrap();
    assert!(!plan.is_same() && plan.partial().is_empty(), "{plan:?}");
    let new =
        |state| New { state, number: 7, title: "a".to_owned(), note: None, size: 300, count: 0 };
    for (from, to) in [
        (OldState::New, NewState::New),
        (OldState::Sold(3), NewState::Sold(3)),
        (
            OldState::Kept { by: "me".to_owned() },
            NewState::Stays { why: String::new(), by: "me".to_owned() },
        ),
    ] {
        assert_eq!(read(&plan, &old(from, Some(300))), Ok(new(to)));
    }
}

#[test]
fn values_that_do_not_fit_are_named() {
    let plan = plan(OLD, NEW).unwrap();
    let error = read::<_, New>(&plan, &old(OldState::New, Some(70_000))).unwrap_err();
    assert!(error.contains(".size: 70000 fits no i16"), "{error}");
    let error = read::<_, New>(&plan, &old(OldState::New, None)).unwrap_err();
    assert!(error.contains(".size: it is `None`, and here it must have a value"), "{error}");
}

#[test]
fn equal_types_are_read_as_ever() {
    assert!(plan(OLD, OLD).unwrap().is_same());
    // What only matters to other writers changes nothing.
    let wider = OLD.replace("tags:", "tags | old?:").replace("struct {", "struct deny {");
    assert!(plan(OLD, &wider).unwrap().is_same());
    assert!(plan(OLD, &OLD.replace("name: #2", "name: #1")).is_err());
}

#[test]
fn texts_are_lent_by_the_message() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Lent<'a> {
        #[serde(default)]
        more: u8,
        name: &'a str,
    }
    let plan =
        plan("struct { id: #1, name: #2 }\nu32\nstr", "struct { more?: #1, name: #2 }\nu8\nstr");
    let bytes = postcard::to_stdvec(&(300_u32, "name")).unwrap();
    let seed = std::marker::PhantomData::<Lent<'_>>;
    let found = read_postcard(&bytes, plan.unwrap().seed(seed)).unwrap();
    assert_eq!(found, Lent { more: 0, name: "name" });
}

#[test]
fn unknown_variants_fail_when_used() {
    let from = "map #1 #2\nu8\nenum { A: #3, B: #1, C: #4 }\nnothing\nstruct { x: #1 }";
    let to = "map #1 #2\nu8\nenum { C: #4, A: #3 }\nnothing\nstruct { y: #1 }";
    let plan = plan(from, to).unwrap();
    let partial: Vec<_> = plan.partial().iter().map(Problem::to_string).collect();
    assert_eq!(
        partial,
        [
            "`{value}::B`: this variant of the writer is unknown here",
            "`{value}::C`: the writer has no field `y`: give it `#[serde(default)]`"
        ]
    );
    #[derive(Serialize)]
    enum From {
        A,
        B(u8),
        C { x: u8 },
    }
    #[derive(Debug, PartialEq, Deserialize)]
    enum To {
        C { y: u8 },
        A,
    }
    type Map = BTreeMap<u8, To>;
    let found: Map = read(&plan, &BTreeMap::from([(1_u8, From::A)])).unwrap();
    assert_eq!(found, Map::from([(1, To::A)]));
    let error = read::<_, Map>(&plan, &BTreeMap::from([(1_u8, From::B(1))])).unwrap_err();
    assert!(error.contains("{value}::B: this variant of the writer is unknown here"), "{error}");
    let error = read::<_, Map>(&plan, &BTreeMap::from([(1_u8, From::C { x: 1 })])).unwrap_err();
    assert!(error.contains("::C: the writer has no field `y`"), "{error}");
    let _ = To::C { y: 0 };
}

#[test]
fn a_variant_gains_fields_with_defaults() {
    #[derive(Serialize)]
    enum From {
        A,
    }
    #[derive(Debug, PartialEq, Deserialize)]
    enum To {
        A {
            #[serde(default)]
            x: u8,
        },
    }
    let from = "enum { A: #1 }\nnothing";
    let found: To =
        read(&plan(from, "enum { A: #1 }\nstruct { x?: #2 }\nu8").unwrap(), &From::A).unwrap();
    assert_eq!(found, To::A { x: 0 });
    let found = plan(from, "enum { A: #1 }\nstruct { x: #2 }\nu8").unwrap();
    assert_eq!(found.partial().len(), 1);
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let one = "struct { a: #1 }\nu8";
    refused(
        one,
        "struct { a: #1, b: #1 }\nu8",
        &["the writer has no field `b`: give it `#[serde(default)]`"],
    );
    refused(
        "struct { a: #1, b: #1 }\nu8",
        "struct deny { a: #1 }\nu8",
        &["the writer has a field `b`, and `deny_unknown_fields` refuses it"],
    );
    refused(
        "struct { a: #1, b: #1 }\nu8",
        "struct { c | a | b: #1 }\nu8",
        &["the fields `a` and `b` of the writer are both `c` here"],
    );
    refused(one, "struct { a: #1 }\nf32", &["`a`: it is `u8` at the writer and `f32` here"]);
    refused(
        "sequence #1\nmap #2 #3\nstr\ntuple (#2, #4)\nu8",
        "sequence #1\nmap #2 #3\nstr\ntuple (#2)",
        &["`[]{value}`: it is `tuple of 2` at the writer and `tuple of 1` here"],
    );
    refused("option #1\nu8", "option #1\nstr", &["`?`: it is `u8` at the writer and `str` here"]);
    refused(
        "struct { a: #1, b: #1 }\nu8",
        "struct { b: #1, a: #1 }\nstr",
        &["`a`: it is `u8` at the writer and `str` here"],
    );
}

#[test]
fn floats_are_rounded_but_never_infinite() {
    let narrow = plan("f64", "f32").unwrap();
    assert_eq!(read(&narrow, &0.1_f64), Ok(0.1_f32));
    let error = read::<_, f32>(&narrow, &1e300_f64).unwrap_err();
    assert!(error.contains("fits no f32"), "{error}");
    assert_eq!(read(&plan("f32", "f64").unwrap(), &1.5_f32), Ok(1.5_f64));
    let whole = plan("u128", "i8").unwrap();
    assert_eq!(read(&whole, &127_u128), Ok(127_i8));
    assert!(read::<_, i8>(&whole, &u128::MAX).unwrap_err().contains("fits no i8"));
}

/// A value that skips 2^11 parts for each item would be slow to read.
#[test]
fn a_hostile_schema_costs_little() {
    let empty: String =
        (1..=10).map(|at| format!("\ntuple (#{next}, #{next})", next = at + 1)).collect();
    let writer =
        format!("struct {{ a: #12, b: #13 }}{empty}\nnothing\nu8\nsequence #14\ntuple (#1, #12)");
    let plan = plan(&writer, "struct { a: #1 }\nu8").unwrap();
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Left {
        a: u8,
    }
    let value = (1_u8, vec![((), 1_u8); 100_000]);
    assert_eq!(read(&plan, &value), Ok(Left { a: 1 }));
    // Types that only contain themselves at the reader.
    refused("u8", "option #0", &["the writer has no option, and here it contains only itself"]);
    let endless = plan_of_itself();
    assert!(read::<_, u8>(&endless, &Some(Some(None::<u8>))).is_err());
}

fn plan_of_itself() -> Plan {
    plan("option #0", "u8").unwrap()
}

#[test]
fn a_plan_for_hundred_fields_is_small() {
    let fields = |more: &str| {
        let kinds = ["#1", "#2", "#3"].iter().cycle();
        let fields: Vec<_> =
            (0..100).zip(kinds).map(|(at, it)| format!("field_{at}: {it}")).collect();
        format!("struct {{ {more}{} }}\nu64\nstr\nu32", fields.join(", "))
    };
    let (old, new) = (fields(""), fields("added?: #1, "));
    for (writer, reader) in [(&old, &new), (&new, &old)] {
        let bytes = plan(writer, reader).unwrap().bytes();
        assert!(bytes <= 16 << 10, "{bytes}");
    }
}

/// Regression: entries of a map vanished without a word.
#[test]
fn entries_that_become_one_are_refused() {
    let one = |why: &str| format!("two of its entries can become one here: {why}");
    let merged = one("the variants `A` and `B` are one variant here");
    let from = "struct { m: #1 }\nmap #2 #3\nenum { A: #4, B: #4 }\nu8\nnothing";
    let to = "struct { m: #1 }\nmap #2 #3\nenum { AB | A | B: #4 }\nu8\nnothing";
    refused(from, to, &[&format!("`m`: {merged}")]);
    // Also somewhere inside of a key.
    let deep = |key: &str| format!("map #1 #2\ntuple (#2, #3)\nu8\noption #4\n{key}\nnothing");
    refused(&deep("enum { A: #5, B: #5 }"), &deep("enum { A | B: #5 }"), &[&merged]);
    let other = |contents: usize, more: &str| {
        format!("map #1 #2\nenum {{ A: #{contents}{more} }}\nu8\nnothing")
    };
    let reader = other(3, ", Other*: #3");
    let names = one("the variants `B` and `C` are one variant here");
    refused(&other(3, ", B: #3, C: #3"), &reader, &[&names]);
    let skipped = one("what the variant `B` holds is skipped here");
    refused(&other(3, ", B: #2"), &reader, &[&skipped]);
    assert!(plan(&other(3, ", B: #3"), &reader).is_ok());
    let field = one("the field `b` is unknown here");
    let key = |fields: &str| format!("map #1 #2\nstruct {{ {fields} }}\nu8\nnothing");
    refused(&key("a: #2, b: #2"), &key("a: #2"), &[&field]);
    assert!(plan(&key("a: #2, b: #3"), &key("a: #2")).is_ok(), "no byte is skipped");
    assert!(plan(&key("a: #2"), &key("b?: #2, a: #2")).is_ok());
    // Within a variant the others can be read.
    let inner = |key: &str| format!("enum {{ A: #1, B: #2 }}\nmap #3 #3\nnothing\n{key}");
    let partial = plan(&inner("f64"), &inner("f32")).unwrap();
    let found: Vec<_> = partial.partial().iter().map(Problem::to_string).collect();
    assert_eq!(found, [format!("`::A`: {}", one("an `f64` is rounded to an `f32`"))]);
    assert!(!partial.is_same());
    // Values may become equal.
    let values = |value: &str| format!("map #2 #1\n{value}\nu8\nnothing");
    let (two, one) = (values("enum { A: #3, B: #3 }"), values("enum { A | B: #3 }"));
    assert!(plan(&two, &one).is_ok());
    // A list keeps equal items, a set does not.
    let list = |kind: &str, item: &str| format!("{kind} #1\n{item}\nnothing");
    let (two, one) = ("enum { A: #2, B: #2 }", "enum { A | B: #2 }");
    assert!(plan(&list("set", two), &list("sequence", one)).is_ok());
    refused(&list("sequence", two), &list("set", one), &[&merged]);
    assert!(plan(&list("sequence", two), &list("set", two)).unwrap().is_same());
}
