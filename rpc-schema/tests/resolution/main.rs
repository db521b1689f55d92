//! Schema resolution, compared with a format that has names: a value that is read by a plan is what
//! serde_json reads from the same value as JSON.

#![allow(clippy::unwrap_used, reason = "tests")]

mod random;
mod rows;
mod typed;

use std::collections::HashSet;

use rpc_schema::Schema;
use rpc_schema::plan::Plan;
use rpc_schema::schema::Type;
use rpc_schema::value::Data;
use serde::de::DeserializeSeed;

use self::random::{Maker, Random, Values};
use self::typed::{Read, Typed, to_json};

/// How many pairs of types.
const PAIRS: u64 = 1500;
/// How many values of each.
const VALUES: u64 = 8;

fn bincode(data: &Data) -> Vec<u8> {
    bincode::serde::encode_to_vec(data, bincode::config::standard()).unwrap()
}

fn read_bincode<'de, S: DeserializeSeed<'de>>(
    bytes: &'de [u8],
    seed: S,
) -> Result<S::Value, String> {
    let config = bincode::config::standard();
    let value = bincode::serde::seed_decode_from_slice(seed, bytes, config);
    let (value, count) = value.map_err(|error| error.to_string())?;
    assert_eq!(count, bytes.len(), "all was read");
    Ok(value)
}

fn read_postcard<'de, S: DeserializeSeed<'de>>(
    bytes: &'de [u8],
    seed: S,
) -> Result<S::Value, String> {
    let mut from = postcard::Deserializer::from_bytes(bytes);
    let value = seed.deserialize(&mut from).map_err(|error| error.to_string())?;
    assert!(from.finalize().unwrap().is_empty(), "all was read");
    Ok(value)
}

/// All names in a schema.
fn names(schema: &Schema) -> HashSet<&str> {
    let mut names = HashSet::new();
    for it in schema.types() {
        match it {
            Type::Struct { fields, .. } => fields.iter().for_each(|it| {
                names.extend(std::iter::once(&it.name).chain(&it.aliases).map(String::as_str));
            }),
            Type::Enum { variants, .. } => variants.iter().for_each(|it| {
                names.extend(std::iter::once(&it.name).chain(&it.aliases).map(String::as_str));
            }),
            _ => {}
        }
    }
    names
}

fn read_json(writer: &Schema, reader: &Schema, data: &Data) -> Result<Read, String> {
    let known = names(reader);
    let json = to_json(writer, 0, data, &|name| known.contains(name));
    Typed { schema: reader, id: 0 }.deserialize(json).map_err(|error| error.to_string())
}

#[test]
fn plans_read_what_json_reads() {
    let (mut refused, mut equal, mut failed) = (0, 0, 0);
    for seed in 0..PAIRS {
        let mut maker = Maker::new(seed);
        let base = maker.base();
        let rare = 2 + maker.random.below(12);
        let (writer, reader) = (maker.changed(&base, rare), maker.changed(&base, rare));
        let plan = Plan::new(&writer, 0, &reader, 0);
        let is_full = plan.is_err();
        let mut values = Values { random: Random::new(seed + 1), schema: &writer, is_full };
        for _ in 0..VALUES {
            let data = values.make(0, 0);
            let expected = read_json(&writer, &reader, &data);
            let about =
                || format!("seed {seed}: {data:?}\nwriter:\n{writer}reader:\n{reader}{plan:?}");
            let Ok(plan) = &plan else {
                assert!(expected.is_err(), "refused, and JSON reads it: {}", about());
                refused += 1;
                continue;
            };
            let typed = Typed { schema: &reader, id: 0 };
            let bytes = bincode(&data);
            let found = read_bincode(&bytes, plan.seed(typed));
            let bytes = postcard::to_stdvec(&data).unwrap();
            let other = read_postcard(&bytes, plan.seed(typed));
            match expected {
                Ok(expected) => {
                    assert_eq!(found.as_ref(), Ok(&expected), "{}", about());
                    assert_eq!(other.as_ref(), Ok(&expected), "{}", about());
                    equal += 1;
                }
                Err(why) => {
                    assert!(found.is_err() && other.is_err(), "{why}: {}", about());
                    failed += 1;
                }
            }
        }
    }
    // Each of the three is tried.
    assert!(refused > 500 && equal > 500 && failed > 100, "{refused} {equal} {failed}");
}
