use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::num::NonZeroU32;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::trace::At;
use super::*;
use crate::bulk::{Bulk, BulkReader};

struct Seed<T>(PhantomData<T>);

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

fn lines<T: Deserialize<'static>>() -> Vec<String> {
    Trace::of("0".to_owned(), Seed::<T>(PhantomData))
}

fn schema_of<T: DeserializeOwned>() -> Schema {
    Schema { lines: lines::<T>() }
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
fn a_type_that_branches_into_itself_takes_no_time() {
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
    let mut trace = Trace::default();
    let at = At { trace: &mut trace, path: "0".to_owned() };
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
fn types_with_the_same_bytes_have_the_same_lines() {
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

/// Refuses whatever it is given.
struct Strict;

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = <&str>::deserialize(d)?;
        Err(serde::de::Error::custom(format!("{text} is not strict")))
    }
}

#[test]
fn a_type_that_refuses_is_known_up_to_there() {
    #[derive(Deserialize)]
    struct Holder {
        _before: u8,
        _strict: Strict,
        _after: u8,
    }
    let expected = ["0: struct { _before, _strict, _after }", "0._before: u8", "0._strict: str"];
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
    assert_eq!(Schema::of(|tracer| tracer.result(Seed::<Panics>(PhantomData))), None);
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
        "`row` is `struct { name, id, tags, size }` at the server and \
         `struct { id, name, tags, size }` here"
    );
    let narrow = against(schema_of::<changed::Narrow>());
    assert_eq!(narrow, "`row.id` is `u32` at the server and `u64` here");
    let bare = against(schema_of::<changed::Bare>());
    assert_eq!(bare, "`row.size` is `u32` at the server and `option` here");
    let hostile = format!("0: \u{1b}[2J{}", "x".repeat(5000));
    let hostile = mine.difference(&hostile, &["row"]);
    assert!(hostile.len() < 1000 && !hostile.contains('\u{1b}'), "{hostile}");
    assert_eq!(mine.difference("", &["row"]), "their types differ");
    assert_eq!(mine.difference(&mine.text(), &[]), "their types differ");
}

#[test]
fn a_huge_type_is_traced_up_to_a_bound() {
    type Wide<T> = (T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T);
    let found = lines::<Wide<Wide<Wide<Wide<u8>>>>>();
    assert_eq!(found.len(), 4096);
    let text = Schema { lines: found }.text();
    assert!(text.len() <= MAX_TEXT_BYTES && text.ends_with('\n'));
}
