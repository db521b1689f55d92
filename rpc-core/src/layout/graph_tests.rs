//! What a trace shows of readers: their names, aliases and defaults. Real types are read by plans
//! that are made of it.

#![allow(dead_code, reason = "some types are only looked at")]

use std::fmt::Debug;
use std::marker::PhantomData;

use rpc_schema::Plan;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::tests::Seed;
use super::*;
use crate::codec::Codec;
use crate::codec::shape::Plain;

fn graph_of<T: DeserializeOwned + Serialize>() -> rpc_schema::Schema {
    graph(|tracer| tracer.result(Seed::<T>::default(), Plain), &[]).expect("a graph")
}

#[track_caller]
fn expect<T: DeserializeOwned + Serialize>(text: &str) {
    let lines = text.lines().map(|line| format!("{}\n", line.trim()));
    assert_eq!(graph_of::<T>().to_string(), lines.collect::<String>());
}

#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Denying {
    a: u8,
    b: Vec<u8>,
}

impl Default for Denying {
    fn default() -> Self {
        Self { a: 1, b: Vec::new() }
    }
}

#[derive(Serialize, Deserialize)]
struct Kinds {
    needed: u16,
    #[serde(default)]
    given: u16,
    maybe: Option<char>,
    #[serde(with = "through")]
    strict: Option<u16>,
    #[serde(alias = "zz", alias = "aa")]
    mm: String,
    denying: Denying,
}

/// An option that is needed, as serde has it.
mod through {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Option<u16>, s: S) -> Result<S::Ok, S::Error> {
        value.serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u16>, D::Error> {
        Option::deserialize(d)
    }
}

#[test]
fn names_and_defaults_of_fields_are_known() {
    expect::<Kinds>(
        "result: #0
        #0 struct { needed: #1, given?: #1, maybe?: #2, strict: #4, mm | aa | zz: #5, denying: #6 }
        #1 u16
        #2 option #3
        #3 char
        #4 option #1
        #5 str
        #6 struct deny { a?: #7, b?: #8 }
        #7 u8
        #8 bytes",
    );
}

#[derive(Serialize, Deserialize)]
enum Shape {
    Point,
    #[serde(alias = "Round")]
    Circle {
        radius: f32,
        #[serde(default)]
        filled: bool,
    },
    Line((u8, u8), Box<[Shape; 2]>),
    #[serde(other)]
    Other,
}

#[derive(Serialize, Deserialize)]
enum Strict {
    One(Shape),
    Two,
}

#[test]
fn variants_for_unknown_ones_are_known() {
    expect::<(Strict, Shape)>(
        "result: #0
        #0 tuple (#1, #2)
        #1 enum { One: #2, Two: #3 }
        #2 enum { Point: #3, Circle | Round: #4, Line: #7, Other*: #3 }
        #3 nothing
        #4 struct { radius: #5, filled?: #6 }
        #5 f32
        #6 bool
        #7 tuple (#8, #10)
        #8 tuple (#9, #9)
        #9 u8
        #10 tuple (#2, #2)",
    );
}

#[derive(Serialize, Deserialize)]
struct Pair(u8, Option<Box<Pair>>);

#[derive(Serialize, Deserialize)]
struct Endless(u8, Box<Endless>);

#[test]
fn a_type_inside_itself_is_one_type() {
    expect::<Vec<Pair>>(
        "result: #0
        #0 sequence #1
        #1 tuple (#2, #3)
        #2 u8
        #3 option #1",
    );
    assert!(graph(|it| it.result(Seed::<Endless>::default(), Plain), &[]).is_none());
}

#[test]
fn sets_are_known() {
    use std::collections::{BTreeSet, HashSet, VecDeque};
    type Lists = (BTreeSet<String>, HashSet<u16>, VecDeque<u16>, Vec<u16>, BTreeSet<u8>);
    expect::<Lists>(
        "result: #0
        #0 tuple (#1, #3, #5, #5, #6)
        #1 set #2
        #2 str
        #3 set #4
        #4 u16
        #5 sequence #4
        #6 bytes",
    );
    let lines = Schema::of(|it| it.result(Seed::<Lists>::default(), Plain), &[]).unwrap();
    assert_eq!(graph_of::<Lists>().disagreement(lines.lines(), &[""; 0]), None);
}

#[derive(Serialize, Deserialize)]
enum Expr {
    If(Box<If>),
    Not(Box<Expr>),
    Call { of: Vec<Expr>, with: Box<Expr> },
    Do(Box<Stmt>),
    Lit(i64),
}

#[derive(Serialize, Deserialize)]
struct If {
    cond: Expr,
    then: Expr,
    line: u32,
    #[serde(default)]
    column: u32,
}

#[derive(Serialize, Deserialize)]
enum Stmt {
    Loop(Box<Stmt>, Expr),
    Of(If),
    Return(Expr),
}

/// Regression: whether such a variant needs its fields was not known if it came before one that
/// ends.
#[test]
fn variants_that_hold_their_enum_are_known() {
    expect::<Expr>(
        "result: #0
        #0 enum { If: #1, Not: #0, Call: #3, Do: #5, Lit: #7 }
        #1 struct { cond: #0, then: #0, line: #2, column?: #2 }
        #2 u32
        #3 struct { of: #4, with: #0 }
        #4 sequence #0
        #5 enum { Loop: #6, Of: #1, Return: #0 }
        #6 tuple (#5, #0)
        #7 i64",
    );
}

/// A hundred places of one type are one type, and few bytes of text.
#[test]
fn many_equal_fields_stay_small() {
    #[derive(Serialize, Deserialize)]
    struct Ten {
        a: u8,
        b: u16,
        c: u32,
        d: String,
        e: Option<u64>,
        f: i8,
        g: bool,
        h: f64,
        i: Vec<u16>,
        j: char,
    }
    type Tens = (Ten, Ten, Ten, Ten, Ten, Ten, Ten, Ten, Ten, Ten);
    let found = graph_of::<Vec<(Tens, Tens, Tens)>>();
    assert_eq!(found.types().len(), 15, "{found}");
    assert!(found.to_string().len() < 700, "{found}");
}

mod v1 {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub(super) struct Order {
        pub(super) id: u32,
        pub(super) name: String,
        pub(super) state: State,
        pub(super) lines: Vec<Line>,
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub(super) struct Line {
        pub(super) count: u8,
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub(super) enum State {
        New,
        Sent { by: String },
    }
}

mod v2 {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub(super) struct Order {
        #[serde(default)]
        pub(super) priority: i8,
        #[serde(alias = "id")]
        pub(super) number: u64,
        pub(super) state: State,
        pub(super) name: String,
        pub(super) note: Option<String>,
        pub(super) lines: Vec<Line>,
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub(super) struct Line {
        pub(super) count: u16,
        #[serde(default)]
        pub(super) tags: Vec<String>,
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub(super) enum State {
        Kept,
        New,
        Sent {
            #[serde(default)]
            at: u64,
            by: String,
        },
    }
}

fn old() -> v1::Order {
    v1::Order {
        id: 7,
        name: "a".to_owned(),
        state: v1::State::Sent { by: "b".to_owned() },
        lines: vec![v1::Line { count: 3 }, v1::Line { count: 4 }],
    }
}

fn new() -> v2::Order {
    let line = |count| v2::Line { count, tags: Vec::new() };
    v2::Order {
        priority: 0,
        number: 7,
        state: v2::State::Sent { at: 0, by: "b".to_owned() },
        name: "a".to_owned(),
        note: None,
        lines: vec![line(3), line(4)],
    }
}

/// Reads a `W` as an `R`, with each codec.
fn read<W, R>(value: &W) -> Result<R, String>
where
    W: Serialize + DeserializeOwned,
    R: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let (writer, reader) = (graph_of::<W>(), graph_of::<R>());
    let plan = Plan::new(&writer, 0, &reader, 0).map_err(|problems| format!("{problems:?}"))?;
    let read = |codec: Codec| {
        let mut bytes = crate::service::OutBuf::new();
        codec.encode(value, &mut bytes).expect("a value");
        let read = codec.decode_seed(plan.seed(PhantomData::<R>), &bytes);
        read.map_err(|error| error.to_string())
    };
    let found = read(Codec::Bincode);
    assert_eq!(found.is_ok(), read(Codec::Postcard).is_ok());
    found
}

#[test]
fn each_version_reads_the_other() {
    assert_eq!(read(&old()), Ok(old()));
    assert_eq!(read(&old()), Ok(new()));
    // The old one knows no alias: the new one's own name for it shows that.
    assert_eq!(read(&new()), Ok(old()));
    let wide = v2::Order { lines: vec![v2::Line { count: 300, tags: Vec::new() }], ..new() };
    let error = read::<_, v1::Order>(&wide).unwrap_err();
    assert!(error.contains(".lines[].count: 300 fits no u8"), "{error}");
    let kept = v2::Order { state: v2::State::Kept, ..new() };
    let error = read::<_, v1::Order>(&kept).unwrap_err();
    assert!(error.contains(".state::Kept: this variant of the writer is unknown"), "{error}");
}

/// Each enum ends a run when it is asked for a name that it does not know.
#[test]
fn many_enums_leave_room_for_fields() {
    macro_rules! enums {
        ($($name:ident)*) => {
            $(#[derive(Serialize, Deserialize)]
            enum $name {
                A,
                B(u8),
            })*

            #[derive(Serialize, Deserialize)]
            #[allow(non_snake_case, reason = "a field for each type")]
            struct All {
                $($name: [$name; 16],)*
                #[serde(skip_serializing_if = "Option::is_none")]
                maybe: Option<u8>,
            }
        };
    }
    enums! { E0 E1 E2 E3 E4 E5 E6 E7 E8 E9 Ea Eb Ec Ed Ee Ef Eg Eh Ei Ej Ek El Em En Eo Ep Eq Er Es Et }
    let found = super::tests::looked::<All>();
    assert_eq!(found.left_out, ["maybe"]);
    assert!(found.unseen.is_empty(), "{:?}", found.unseen);
}
