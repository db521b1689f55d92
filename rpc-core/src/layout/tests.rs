use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::num::NonZeroU32;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::read::At;
use super::trace::Trace;
use super::tree::Tree;
use super::*;
use crate::bulk::{Bulk, BulkReader};
use crate::codec::shape::Plain;

pub(super) struct Seed<T>(PhantomData<T>);

impl<T> Default for Seed<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T> Clone for Seed<T> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<T: Deserialize<'static>> DeserializeSeed<'static> for Seed<T> {
    type Value = T;

    fn deserialize<D: serde::Deserializer<'static>>(self, d: D) -> Result<T, D::Error> {
        T::deserialize(d)
    }
}

/// Writes nothing.
#[derive(Clone, Copy)]
struct Unwritten;

impl<T> crate::codec::shape::PutShape<T> for Unwritten {
    fn put<S: serde::Serializer>(self, _: &T, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("not written"))
    }
}

pub(super) fn lines<T: Deserialize<'static>>() -> Vec<String> {
    look("0", Seed::<T>(PhantomData), Unwritten).lines
}

pub(super) fn looked<T: Deserialize<'static> + Serialize>() -> Looked {
    look("0", Seed::<T>(PhantomData), Plain)
}

fn schema_of<T: DeserializeOwned + Serialize>() -> Schema {
    Schema::from_looked(vec![looked::<T>()], &["row"])
}

#[derive(Serialize, Deserialize)]
struct Row {
    id: u64,
    name: String,
    tags: Vec<String>,
    size: Option<u32>,
}

#[test]
fn a_struct_has_its_fields_in_order() {
    let expected = [
        "0: struct { id, name, tags, size }",
        "0.id: u64",
        "0.name: str",
        "0.tags: sequence",
        "0.tags[]: str",
        "0.size: option",
        "0.size?: u32",
    ];
    assert_eq!(lines::<Row>(), expected);
}

#[derive(Serialize, Deserialize)]
enum Inner {
    One,
    Two(u8),
    Three { deep: Option<bool> },
}

#[derive(Serialize, Deserialize)]
enum Outer {
    First(Inner),
    Second,
    Third(u8, Inner),
}

#[test]
fn every_variant_is_seen_also_inside_others() {
    let found = lines::<(Outer, Inner)>();
    for line in [
        "0: tuple of 2",
        "0.0: enum { First, Second, Third }",
        "0.0::First: enum { One, Two, Three }",
        "0.0::First::Three.deep?: bool",
        "0.0::Second: nothing",
        "0.0::Third: tuple of 2",
        "0.0::Third.1::Two: u8",
        "0.0::Third.1::Three: struct { deep }",
        "0.1::Two: u8",
        "0.1::Three.deep?: bool",
    ] {
        assert!(found.iter().any(|other| other == line), "{line} is not in {found:#?}");
    }
}

#[derive(Serialize, Deserialize)]
struct Node<T> {
    value: T,
    next: Option<Box<Node<T>>>,
    children: Vec<Node<T>>,
}

#[derive(Serialize, Deserialize)]
enum Expression {
    Add(Box<Expression>, Box<Expression>),
    Negative(Box<Expression>),
    Number(i64),
}

#[derive(Serialize, Deserialize)]
struct Endless(u8, Box<Endless>);

#[test]
fn types_inside_themselves_end() {
    let expected = [
        "0: struct { value, next, children }",
        "0.value: u8",
        "0.next: option",
        "0.next?: itself, 1 up",
        "0.children: sequence",
        "0.children[]: itself, 1 up",
    ];
    assert_eq!(lines::<Node<u8>>(), expected);
    let found = lines::<Expression>();
    assert!(found.contains(&"0::Add.1: itself, 1 up".to_owned()), "{found:#?}");
    assert!(found.contains(&"0::Number: i64".to_owned()), "{found:#?}");
    assert_eq!(lines::<Endless>()[2], "0.1: itself, 1 up");
}

/// Each level of this type tried the next variant twice: a million values for one that ends.
#[test]
fn a_branching_recursive_type_is_traced_fast() {
    #[derive(Serialize, Deserialize)]
    enum Wide {
        A(Box<Wide>, Box<Wide>),
        B(Box<Wide>, Box<Wide>),
        C(Box<Wide>, Box<Wide>),
        D(Box<Wide>, Box<Wide>),
        E(Box<Wide>, Box<Wide>),
        F(Box<Wide>, Box<Wide>),
        G(Box<Wide>, Box<Wide>),
        H(Box<Wide>, Box<Wide>),
        End,
    }
    let mut trace = Trace::new("0".to_owned());
    assert!(trace.next_run());
    let at = At { trace: &mut trace, id: Tree::ROOT };
    Seed::<Wide>(PhantomData).deserialize(at).unwrap();
    assert!(trace.steps < 100, "{}", trace.steps);
    assert_eq!(lines::<Wide>().len(), 1 + 8 * 3 + 1);
}

#[test]
fn generic_types_show_what_they_hold() {
    assert_ne!(lines::<Node<u8>>(), lines::<Node<u16>>());
    let found = lines::<Node<Node<u8>>>();
    assert!(found.contains(&"0.value.value: u8".to_owned()), "{found:#?}");
    assert!(found.contains(&"0.value.next?: itself, 1 up".to_owned()), "{found:#?}");
}

#[test]
fn types_with_equal_encoding_have_equal_lines() {
    let text = lines::<String>();
    assert_eq!(text, ["0: str"]);
    assert!(
        [lines::<&str>(), lines::<Cow<'_, str>>(), lines::<Box<str>>()]
            .iter()
            .all(|it| *it == text)
    );
    let bytes = lines::<Vec<u8>>();
    assert_eq!(bytes, ["0: bytes"]);
    for other in [lines::<&[u8]>(), lines::<Bytes>(), lines::<Bulk>(), lines::<BulkReader>()] {
        assert_eq!(other, bytes);
    }
    assert_eq!(lines::<HashMap<u8, Row>>(), lines::<BTreeMap<u8, Row>>());
    #[derive(Serialize, Deserialize)]
    struct Version(u64);
    assert_eq!(lines::<Version>(), lines::<u64>());
    #[derive(Serialize, Deserialize)]
    struct Borrowing<'a> {
        #[serde(borrow)]
        name: &'a str,
    }
    #[derive(Serialize, Deserialize)]
    struct Owning {
        name: String,
    }
    assert_eq!(lines::<Borrowing<'static>>(), lines::<Owning>());
    assert_eq!(lines::<NonZeroU32>(), lines::<u32>());
    assert_eq!(lines::<()>(), ["0: nothing"]);
    assert_eq!(lines::<std::time::Duration>().len(), 3);
    assert_eq!(lines::<std::net::IpAddr>().len(), 3 + 4 + 16);
}

/// Whether the tails of arguments and results are copied out.
fn copied<A, R>() -> (bool, bool)
where
    A: Deserialize<'static> + Serialize,
    R: Deserialize<'static> + Serialize,
{
    let mut tracer = Tracer::default();
    tracer.argument(Seed::<u8>::default(), Plain);
    tracer.argument(Seed::<A>::default(), Plain);
    tracer.result(Seed::<R>::default(), Plain);
    (tracer.copied_tails.arguments, tracer.copied_tails.results)
}

#[test]
fn tails_of_owned_bytes_are_copied() {
    assert_eq!(copied::<Bytes, Vec<u8>>(), (true, true));
    assert_eq!(copied::<Bulk, String>(), (false, true));
    assert_eq!(copied::<Vec<u8>, BulkReader>(), (true, false));
    assert_eq!(copied::<(Bytes, Bulk), Vec<Option<Bulk>>>(), (false, false));
    assert_eq!(copied::<Bytes, Result<u8, Bulk>>(), (true, false));
}

#[test]
fn tails_of_unseen_types_stay() {
    assert_eq!(copied::<(Strict, Bytes), Bytes>(), (false, true));
}

/// Refuses whatever it is given.
struct Strict;

impl Serialize for Strict {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("strict")
    }
}

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = <&str>::deserialize(d)?;
        Err(serde::de::Error::custom(format!("{text} is not strict")))
    }
}

#[test]
fn a_field_that_refuses_hides_nothing() {
    #[derive(Deserialize)]
    struct Holder {
        _before: u8,
        _strict: Strict,
        _after: u8,
    }
    let expected = [
        "0: struct { _before, _strict, _after }",
        "0._before: u8",
        "0._strict: str",
        "0._after: u8",
    ];
    assert_eq!(lines::<Holder>(), expected);
}

#[test]
fn a_panic_in_a_type_leaves_no_schema() {
    struct Panics;
    impl<'de> Deserialize<'de> for Panics {
        fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            panic!("on purpose")
        }
    }
    let trace = |tracer: &mut Tracer| tracer.result(Seed::<Panics>(PhantomData), Unwritten);
    assert_eq!(Schema::of(trace, &[]), None);
}

mod changed {
    use super::*;

    #[derive(Serialize, Deserialize)]
    pub(super) struct Swapped {
        name: String,
        id: u64,
        tags: Vec<String>,
        size: Option<u32>,
    }

    #[derive(Serialize, Deserialize)]
    pub(super) struct Narrow {
        id: u32,
        name: String,
        tags: Vec<String>,
        size: Option<u32>,
    }

    #[derive(Serialize, Deserialize)]
    pub(super) struct Bare {
        id: u64,
        name: String,
        tags: Vec<String>,
        size: u32,
    }
}

#[test]
fn the_first_difference_is_named_with_both_ends() {
    let mine = schema_of::<Row>();
    let against = |theirs: Schema| {
        assert_ne!(mine.hash(), theirs.hash());
        mine.difference(&theirs.text(), &["row"])
    };
    assert_eq!(
        against(schema_of::<changed::Swapped>()),
        "`row` is `struct { name, id, tags, size }` on the server and `struct { id, name, tags, \
         size }` here"
    );
    let narrow = against(schema_of::<changed::Narrow>());
    assert_eq!(narrow, "`row.id` is `u32` on the server and `u64` here");
    let bare = against(schema_of::<changed::Bare>());
    assert_eq!(bare, "`row.size` is `u32` on the server and `option` here");
    let hostile = format!("0: \u{1b}[2J{}", "x".repeat(5000));
    let hostile = mine.difference(&hostile, &["row"]);
    assert!(hostile.len() < 1000 && !hostile.contains('\u{1b}'), "{hostile}");
    assert_eq!(mine.difference("", &["row"]), "their types differ");
    assert_eq!(mine.difference(&mine.text(), &[]), "their types differ");
}

#[test]
fn a_huge_type_is_traced_partially() {
    type Wide<T> = (T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T);
    let found = lines::<Wide<Wide<Wide<Wide<u8>>>>>();
    assert_eq!(found.len(), 4096);
    let text = Schema { lines: found, ..Schema::default() }.text();
    assert!(text.len() <= MAX_TEXT_BYTES && text.ends_with('\n'));
}
