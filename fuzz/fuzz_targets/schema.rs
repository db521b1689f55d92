//! Schemas of a peer: a text is refused, or is the one text of a schema; lines always become a
//! schema. Messages of either are read or refused, also into a type of this end.
#![no_main]

use std::collections::BTreeMap;
use std::marker::PhantomData;

use libfuzzer_sys::fuzz_target;
use rpc_core::Codec;
use rpc_schema::Plan;
use rpc_schema::schema::{MAX_TYPES, Schema};
use rpc_schema::text::parse;
use rpc_schema::value::{Nothing, Seed};
use serde::Deserialize;

#[derive(Deserialize)]
#[allow(dead_code, reason = "it is only read")]
struct Order {
    #[serde(alias = "number")]
    id: u16,
    #[serde(default)]
    tags: Vec<Option<String>>,
    state: State,
    next: Option<Box<Order>>,
    #[serde(default)]
    map: BTreeMap<String, (f32, i64)>,
}

#[derive(Deserialize)]
#[allow(dead_code, reason = "it is only read")]
enum State {
    Placed,
    Sent {
        by: Option<u8>,
    },
    Kept(u32, String),
    #[serde(other)]
    Other,
}

const ORDER: &str = "\
result: #0
#0 struct { id | number: #1, tags?: #2, state: #5, next?: #12, map?: #13 }
#1 u16
#2 sequence #3
#3 option #4
#4 str
#5 enum { Placed: #6, Sent: #7, Kept: #10, Other*: #6 }
#6 nothing
#7 struct { by?: #8 }
#8 option #9
#9 u8
#10 tuple (#11, #4)
#11 u32
#12 option #0
#13 map #4 #14
#14 tuple (#15, #16)
#15 f32
#16 i64
";

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(schema) = parse(text) {
        assert_eq!(schema.to_string(), text, "a schema has one text");
        // Two parts of equal kinds take up to the square of their number.
        if schema.types().len() <= 64 {
            check_minimal(schema);
        }
    }
    let end = text.find("\n\n").map_or(text.len(), |at| at + 1);
    let (text, message) = text.split_at(end);
    if let Ok(schema) = parse(text)
        && !schema.types().is_empty()
    {
        read_order(&schema, message.as_bytes());
        let lines: Vec<&str> = message.lines().collect();
        let _ = schema.disagreement(&lines, &["first", "second"]);
    }
    let lines: Vec<&str> = text.lines().collect();
    let schema = Schema::from_lines(&lines, &["first", "second"]);
    assert!(schema.types().len() <= MAX_TYPES);
    assert_eq!(parse(&schema.to_string()).as_ref(), Ok(&schema), "it is written and read");
    for (_, id) in schema.roots() {
        for codec in [Codec::Bincode, Codec::Postcard] {
            let seed = Seed { schema: &schema, id: *id, build: &Nothing };
            let _ = codec.decode_seed(seed, message.as_bytes());
        }
    }
});

fn read_order(writer: &Schema, message: &[u8]) {
    let order = parse(ORDER).expect("a schema");
    let Ok(plan) = Plan::new(writer, 0, &order, 0) else { return };
    for codec in [Codec::Bincode, Codec::Postcard] {
        let _ = codec.decode_seed(plan.seed(PhantomData::<Order>), message);
    }
}

fn check_minimal(schema: Schema) {
    let minimal = schema.minimal();
    assert_eq!(parse(&minimal.to_string()).as_ref(), Ok(&minimal), "it is well-formed");
    assert_eq!(minimal.clone().minimal(), minimal, "nothing is left to merge");
}
