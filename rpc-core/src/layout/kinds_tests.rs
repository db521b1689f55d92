//! Kinds of types: what is known of each, and which cannot be sent.

#![allow(dead_code, reason = "the types are looked at, and no values are made")]

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::tests::{Seed, lines, looked};
use super::*;
use crate::codec::shape::Plain;

/// A text that must have this form.
macro_rules! strict_text {
    ($name:ident, $accepts:expr) => {
        #[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        struct $name(String);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = String::deserialize(d)?;
                let accepts: fn(&str) -> bool = $accepts;
                match accepts(&text) {
                    true => Ok(Self(text)),
                    false => Err(serde::de::Error::custom(format!("{text} is none"))),
                }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(&self.0)
            }
        }
    };
}

strict_text!(DateTime, |text| text.len() == 20 && text.ends_with('Z'));
strict_text!(Mail, |text| text.contains('@') && text.contains('.'));
strict_text!(Url, |text| text.contains("://"));
strict_text!(Never, |_| false);

#[derive(Debug, Serialize, Deserialize)]
enum State {
    Placed,
    Shipped,
    Lost,
}

fn refusals<T: Deserialize<'static> + Serialize>() -> Vec<String> {
    let found = looked::<T>().refusals;
    found.into_iter().map(|(path, text)| format!("{path} {text}")).collect()
}

fn unseen<T: Deserialize<'static> + Serialize>() -> Vec<String> {
    let found = looked::<T>().unseen;
    found.into_iter().map(|(path, text)| format!("{path} {text}")).collect()
}

#[track_caller]
fn expect_fine<T: Deserialize<'static> + Serialize>() -> Looked {
    let found = looked::<T>();
    assert!(found.refusals.is_empty() && found.unseen.is_empty(), "{found:#?}");
    found
}

#[track_caller]
fn expect_refused<T: Deserialize<'static> + Serialize>(path: &str, words: &[&str]) {
    let found = refusals::<T>();
    let fits = |text: &String| {
        text.starts_with(&format!("{path} ")) && words.iter().all(|word| text.contains(word))
    };
    assert!(found.iter().any(fits), "{found:#?}");
}

#[test]
fn what_stands_behind_a_refusing_field_is_compared() {
    #[derive(Serialize, Deserialize)]
    struct Order {
        at: Never,
        state: State,
        tail: Inner,
    }
    #[derive(Serialize, Deserialize)]
    struct Inner {
        never: Never,
        more: Option<(u8, State)>,
    }
    let found = lines::<Vec<Order>>();
    for line in [
        "0[].at: str",
        "0[].state: enum { Placed, Shipped, Lost }",
        "0[].tail.never: str",
        "0[].tail.more?.1: enum { Placed, Shipped, Lost }",
    ] {
        assert!(found.iter().any(|other| other == line), "{line} is not in {found:#?}");
    }
    let texts = unseen::<Vec<Order>>();
    assert!(texts.iter().any(|text| text.starts_with("0[].at rejects")), "{texts:?}");
    assert!(
        texts.iter().all(|text| text.contains("the enclosing type are not compared")),
        "{texts:?}"
    );
}

#[test]
fn dates_and_mail_addresses_are_made_up() {
    #[derive(Serialize, Deserialize)]
    struct Order {
        at: DateTime,
        from: Option<Mail>,
        seen: HashMap<Url, State>,
        pair: (DateTime, State),
    }
    let found = expect_fine::<Order>();
    assert!(found.lines.contains(&"0.pair.1::Lost: nothing".to_owned()), "{found:#?}");
    assert!(found.lines.contains(&"0.seen{value}::Lost: nothing".to_owned()), "{found:#?}");
}

#[test]
fn a_late_rejection_is_tried_with_other_values() {
    #[derive(Serialize, Deserialize)]
    #[serde(try_from = "Raw", into = "Raw")]
    struct Even(u32);
    #[derive(Serialize, Deserialize)]
    struct Raw {
        half: u32,
        sum: u32,
    }
    impl TryFrom<Raw> for Even {
        type Error = String;

        fn try_from(raw: Raw) -> Result<Self, String> {
            let is_even = raw.half.is_multiple_of(2) && raw.sum > 0;
            if is_even { Ok(Self(raw.half)) } else { Err("odd".to_owned()) }
        }
    }
    impl From<Even> for Raw {
        fn from(even: Even) -> Self {
            Self { half: even.0, sum: 1 }
        }
    }
    impl Clone for Even {
        fn clone(&self) -> Self {
            Self(self.0)
        }
    }
    expect_fine::<(Even, State)>();
    expect_fine::<Vec<Even>>();
}

#[test]
fn types_that_take_no_zero_are_fine() {
    #[derive(Clone, Serialize, Deserialize)]
    #[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
    struct Filled(Vec<u8>);
    impl TryFrom<Vec<u8>> for Filled {
        type Error = &'static str;

        fn try_from(list: Vec<u8>) -> Result<Self, &'static str> {
            if list.contains(&0) || list.is_empty() { Err("nothing") } else { Ok(Self(list)) }
        }
    }
    impl From<Filled> for Vec<u8> {
        fn from(list: Filled) -> Self {
            list.0
        }
    }
    #[derive(Serialize, Deserialize)]
    struct Holder {
        list: Filled,
        pairs: Vec<(Filled, State)>,
        #[serde(skip_serializing_if = "Option::is_none")]
        maybe: Option<Filled>,
    }
    assert_eq!(expect_fine::<Holder>().left_out, ["maybe"]);
    let mut trace = super::trace::Trace::new("0".to_owned());
    while trace.next_run() {
        let at = super::read::At { trace: &mut trace, id: 0 };
        assert!(at.trace.run < 100, "it does not end");
        let _ = Holder::deserialize(at);
    }
}

#[test]
fn what_stands_behind_in_a_tuple_is_said() {
    #[derive(Serialize, Deserialize)]
    struct Order {
        placed: Option<(u8, Never, State)>,
        map: BTreeMap<Never, State>,
    }
    let found = unseen::<Order>();
    let text = "rejects made-up values; the parts after it are not compared";
    assert_eq!(found, [format!("0.placed?.1 {text}"), format!("0.map{{key}} {text}")]);
}

#[test]
fn an_alias_is_no_field() {
    #[derive(Serialize, Deserialize)]
    struct Plain {
        id: u8,
        mm: String,
        tags: Vec<u16>,
    }
    #[derive(Serialize, Deserialize)]
    struct Aliased {
        #[serde(alias = "number")]
        id: u8,
        #[serde(alias = "zz", alias = "aa")]
        mm: String,
        #[serde(alias = "names")]
        tags: Vec<u16>,
    }
    assert_eq!(lines::<Aliased>(), lines::<Plain>());
    assert_eq!(expect_fine::<Aliased>().lines, lines::<Plain>());
}

#[test]
fn aliases_of_refusing_fields_are_no_fields() {
    #[derive(Serialize, Deserialize)]
    struct Aliased {
        #[serde(alias = "aa", alias = "zz")]
        mm: Never,
        #[serde(alias = "b", alias = "d")]
        c: u16,
    }
    assert_eq!(lines::<Aliased>(), ["0: struct { mm, c }", "0.mm: str", "0.c: u16"]);
}

#[test]
fn an_alias_of_a_variant_is_no_variant() {
    #[derive(Serialize, Deserialize)]
    enum Aliased {
        #[serde(alias = "Z", alias = "A")]
        M,
        #[serde(alias = "Old", alias = "Zero")]
        New {
            #[serde(alias = "a")]
            x: u8,
        },
        #[serde(other)]
        Other,
    }
    let found = expect_fine::<Aliased>();
    let expected = [
        "0: enum { M, New, Other }",
        "0::M: nothing",
        "0::New: struct { x }",
        "0::New.x: u8",
        "0::Other: nothing",
    ];
    assert_eq!(found.lines, expected);
}

#[test]
fn skipped_variants_before_others_are_refused() {
    #[derive(Serialize, Deserialize)]
    enum First {
        #[serde(skip)]
        Here,
        Start,
        Stop,
    }
    #[derive(Serialize, Deserialize)]
    enum Middle {
        Start,
        #[serde(skip_deserializing)]
        Here,
        Stop,
    }
    #[derive(Serialize, Deserialize)]
    struct Holder {
        at: DateTime,
        list: Vec<Option<First>>,
    }
    let words = ["`Start` of `First` is written as number 1", "`Stop`", "put such variants last"];
    expect_refused::<First>("0", &words);
    expect_refused::<Holder>("0.list[]?", &words);
    expect_refused::<Middle>("0", &["`Stop` of `Middle` is written as number 2", "as no variant"]);
}

#[test]
fn skipped_variants_at_the_end_are_fine() {
    #[derive(Serialize, Deserialize)]
    enum Last {
        Start,
        #[serde(skip_serializing)]
        Old(u8),
        Stop(u8, #[serde(skip)] u16),
        #[serde(skip)]
        Here,
    }
    assert_eq!(expect_fine::<Last>().lines[0], "0: enum { Start, Old, Stop }");
}

#[test]
fn fields_skipped_in_one_direction_are_refused() {
    #[derive(Serialize, Deserialize)]
    struct Shifted {
        #[serde(skip_serializing, default)]
        old: u32,
        #[serde(skip_deserializing)]
        new: u32,
    }
    #[derive(Serialize, Deserialize)]
    struct Unwritten {
        kept: u32,
        #[serde(skip_serializing, default)]
        old: u32,
    }
    #[derive(Serialize, Deserialize)]
    struct Unread(u8, #[serde(skip_deserializing)] u8);
    #[derive(Serialize, Deserialize)]
    struct Both {
        kept: u32,
        #[serde(skip)]
        local: u32,
    }
    #[derive(Serialize, Deserialize)]
    struct Renamed {
        #[serde(rename(serialize = "there"))]
        here: u32,
    }
    expect_refused::<Shifted>("0", &["written as `{ new }` but read as `{ old }`"]);
    expect_refused::<(u8, Unwritten)>("0.1", &["`{ kept }`", "`{ kept, old }`", "Unwritten"]);
    expect_refused::<Unread>("0", &["2 parts are written, but 1 are read"]);
    expect_refused::<Renamed>("0", &["`{ there }`", "`{ here }`", "`rename`"]);
    expect_fine::<Both>();
}

/// Regression: the field or variant whose name the alias takes was missing from the schema, and
/// was written.
#[test]
#[allow(unreachable_patterns, reason = "serde's derive matches the name twice")]
fn an_alias_that_takes_another_name_is_refused() {
    #[derive(Serialize, Deserialize)]
    struct Before {
        #[serde(alias = "name")]
        title: String,
        #[serde(default)]
        name: String,
    }
    #[derive(Serialize, Deserialize)]
    struct Needed {
        #[serde(alias = "name")]
        title: String,
        name: String,
    }
    #[derive(Serialize, Deserialize)]
    struct After {
        #[serde(default)]
        name: u8,
        #[serde(alias = "name")]
        title: String,
    }
    #[derive(Serialize, Deserialize)]
    enum Kind {
        #[serde(alias = "Small")]
        Little,
        Small,
        Large,
    }
    let words = ["the name `name`", "remove the alias"];
    expect_refused::<Before>("0", &words);
    expect_refused::<(u8, Needed)>("0.1", &words);
    expect_refused::<After>("0", &words);
    expect_refused::<Kind>("0", &["the name `Small`", "remove the alias"]);
    assert_eq!(refusals::<Before>().len(), 1, "{:#?}", refusals::<Before>());
}

#[test]
fn types_that_ask_the_format_are_refused() {
    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Number(u32),
        Text(String),
    }
    #[derive(Serialize, Deserialize)]
    #[serde(tag = "kind")]
    enum Tagged {
        A { x: u8 },
    }
    #[derive(Serialize, Deserialize)]
    #[serde(tag = "kind", content = "value")]
    enum Adjacent {
        A(u8),
        B,
    }
    #[derive(Serialize, Deserialize)]
    struct Flat {
        id: u8,
        #[serde(flatten)]
        rest: HashMap<String, u8>,
    }
    #[derive(Serialize, Deserialize)]
    struct Holder {
        first: Option<Untagged>,
        second: Vec<Tagged>,
        third: Adjacent,
        fourth: (u8, Flat),
        fifth: u8,
    }
    expect_refused::<Untagged>("0", &["Untagged`)", "`untagged`", "remove the attribute"]);
    expect_refused::<Holder>("0.first?", &["`untagged`", "Untagged"]);
    expect_refused::<Holder>("0.second[]", &["`tag`", "Tagged"]);
    expect_refused::<Holder>("0.third", &["`content`", "Adjacent"]);
    expect_refused::<Holder>("0.fourth.1", &["`flatten`", "Flat"]);
    assert_eq!(refusals::<Holder>().len(), 4, "{:#?}", refusals::<Holder>());
    assert!(lines::<Holder>().contains(&"0.fifth: u8".to_owned()));
    assert!(unseen::<Holder>().is_empty(), "{:#?}", unseen::<Holder>());
}

#[test]
fn a_tagged_struct_is_refused_once() {
    #[derive(Serialize, Deserialize)]
    #[serde(tag = "kind")]
    struct Tagged {
        id: u8,
        name: String,
    }
    expect_refused::<Tagged>("0", &["written as `{ kind, id, name }`", "serde's `tag`"]);
    assert_eq!(refusals::<Tagged>().len(), 1, "{:#?}", refusals::<Tagged>());
}

#[test]
fn a_tuple_that_omits_a_field_is_refused() {
    #[derive(Serialize, Deserialize)]
    struct Pair(u8, #[serde(default, skip_serializing_if = "Option::is_none")] Option<u8>);
    expect_refused::<Pair>("0", &["1 parts are written, but 2", "`skip_serializing_if`"]);
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
enum Mode {
    #[default]
    Normal,
    Fast,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[test]
fn fields_of_one_zero_byte_may_be_omitted() {
    #[derive(Serialize, Deserialize)]
    struct Sparse {
        id: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        maybe: Option<DateTime>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        list: Vec<Item>,
        #[serde(default, skip_serializing_if = "HashMap::is_empty")]
        map: HashMap<String, u8>,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        text: String,
        #[serde(default, skip_serializing_if = "is_default")]
        number: u64,
        #[serde(default, skip_serializing_if = "is_default")]
        flag: bool,
        #[serde(default, skip_serializing_if = "is_default")]
        mode: Mode,
    }
    #[derive(Serialize, Deserialize)]
    enum Item {
        One {
            #[serde(skip_serializing_if = "Option::is_none")]
            inner: Option<u8>,
        },
        Two,
    }
    let mut found = expect_fine::<Sparse>().left_out;
    found.sort_unstable();
    assert_eq!(found, ["flag", "inner", "list", "map", "maybe", "mode", "number", "text"]);
}

#[test]
fn fields_of_other_bytes_must_be_present() {
    fn ten() -> u32 {
        10
    }
    fn is_ten(value: &u32) -> bool {
        *value == 10
    }
    fn is_one(value: &u32) -> bool {
        *value == 1
    }
    #[derive(Serialize, Deserialize)]
    struct Limits {
        id: u8,
        #[serde(default = "ten", skip_serializing_if = "is_ten")]
        most: u32,
        #[serde(default, skip_serializing_if = "is_one")]
        one: u32,
        #[serde(default, skip_serializing_if = "is_default")]
        half: f64,
        #[serde(default, skip_serializing_if = "is_default")]
        inner: (u8, u8),
        #[serde(default, skip_serializing_if = "is_late")]
        late: Late,
    }
    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    enum Late {
        First,
        #[default]
        Second,
    }
    fn is_late(late: &Late) -> bool {
        *late == Late::Second
    }
    for field in ["0.most", "0.one", "0.half", "0.inner", "0.late"] {
        expect_refused::<Limits>(field, &["`skip_serializing_if`", "remove the attribute"]);
    }
    assert!(looked::<Limits>().left_out.is_empty());
}

#[test]
fn types_of_the_standard_library_are_fine() {
    type Numbers = (u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64, usize, isize);
    type Times = (std::time::Duration, std::time::SystemTime, std::ops::Range<u8>);
    type Nets = (std::net::IpAddr, std::net::SocketAddr, std::net::Ipv6Addr);
    type Cells = (std::cell::Cell<u8>, std::sync::Mutex<u8>, std::num::Wrapping<u8>);
    type Texts = (std::path::PathBuf, std::ffi::CString, std::ffi::OsString, Box<str>, char);
    type Sums = (Result<u8, String>, std::ops::Bound<u8>, Option<Option<u8>>, Option<()>);
    type Counts = (std::num::NonZeroU8, std::num::NonZeroI64, std::sync::atomic::AtomicU8);
    type Sets = (std::collections::BTreeSet<u8>, std::collections::HashSet<String>);
    type Arrays = ([u8; 0], [u8; 32], [Option<u8>; 3], ((),), std::marker::PhantomData<u8>);
    expect_fine::<Numbers>();
    expect_fine::<Times>();
    expect_fine::<Nets>();
    expect_fine::<Cells>();
    expect_fine::<Texts>();
    expect_fine::<Sums>();
    expect_fine::<Counts>();
    expect_fine::<Sets>();
    expect_fine::<Arrays>();
    expect_fine::<(bytes::Bytes, Vec<u8>, std::collections::VecDeque<bool>)>();
}

#[test]
fn a_panic_while_writing_is_no_refusal() {
    #[derive(Deserialize)]
    struct Panics(u8);
    impl Serialize for Panics {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            panic!("on purpose: {}", self.0)
        }
    }
    assert!(refusals::<Panics>().is_empty());
}

#[test]
fn arguments_of_one_type_have_their_names() {
    let schema = |names: &[&str]| {
        let trace = |tracer: &mut Tracer| {
            tracer.argument(Seed::<String>::default(), Plain);
            tracer.argument(Seed::<u64>::default(), Plain);
            tracer.argument(Seed::<String>::default(), Plain);
            tracer.result(Seed::<u64>::default(), Plain);
        };
        Schema::of(trace, names).unwrap()
    };
    let mine = schema(&["from", "amount", "to"]);
    assert_eq!(mine.lines()[4], "arguments: from, to");
    let swapped = schema(&["to", "amount", "from"]);
    assert_ne!(mine.hash(), swapped.hash());
    let text = mine.difference(&swapped.text(), &["from", "amount", "to"]);
    assert!(text.contains("are named `to, from` on the server and `from, to` here"), "{text}");
    // Where the types differ, names do not count.
    assert_eq!(mine.hash(), schema(&["from", "sum", "to"]).hash());
}

/// Bounded, however much is refused.
#[test]
fn many_refusing_fields_take_few_steps() {
    #[derive(Serialize, Deserialize)]
    struct Many {
        a: Never,
        b: Never,
        c: Never,
        d: Option<Box<Many>>,
        e: Vec<Never>,
        f: State,
    }
    let found = lines::<(u8, Many)>();
    assert!(found.contains(&"0.1.f::Lost: nothing".to_owned()), "{found:#?}");
}
