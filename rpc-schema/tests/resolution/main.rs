//! Schema resolution, compared with a format that has names: a value that is read by a plan is what
//! serde_json reads from the same value as JSON. And compared with the documentation.
//!
//! A failure against the documentation prints its seed; `MODEL_SEED=<seed>` runs that one alone,
//! and `MODEL_RUNS=<count>` that many.

#![allow(clippy::unwrap_used, reason = "tests")]

mod oracle;
mod random;
mod rows;
mod typed;

use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};

use rpc_schema::Schema;
use rpc_schema::changes::changes;
use rpc_schema::plan::Plan;
use rpc_schema::schema::{Root, Type};
use rpc_schema::services::{Kind, Method, Services};
use rpc_schema::value::Data;
use serde::de::DeserializeSeed;

use self::oracle::Oracle;
use self::random::{Maker, Random, Values};
use self::typed::{Read, Typed, to_json};

/// How many pairs of types.
const PAIRS: u64 = 1500;
/// How many pairs of versions, from a fresh seed each time.
const RUNS: u64 = 3000;
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

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// The services of a server with one method, which returns the first type.
fn services(schema: &Schema) -> Services {
    let mut services = Services::default();
    let (kind, signature) = (Kind::Unary, "() -> T".to_owned());
    services.add("S", "m", Method { kind, signature, schema: schema.clone() }).unwrap();
    services
}

#[derive(Debug, Default)]
struct Tally {
    refused: u64,
    equal: u64,
    failed: u64,
}

/// Two versions of a type, one to eight changes apart, and values of the one that are read as the
/// other.
fn compare_with_documentation(seed: u64, tally: &mut Tally) {
    let mut maker = Maker::of_all(seed);
    let mut versions = vec![Schema::new(maker.base(), vec![(Root::Result, 0)]).unwrap()];
    for _ in 0..1 + maker.random.below(4) {
        let rare = 2 + maker.random.below(12);
        let next = maker.changed(versions.last().unwrap().types(), rare);
        versions.push(next);
    }
    let [writer, reader] = [0; 2].map(|_| versions[maker.random.below(versions.len())].clone());
    let oracle = Oracle { writer: &writer, reader: &reader };
    let plan = Plan::new(&writer, 0, &reader, 0);
    let about = |data: &dyn std::fmt::Debug| {
        format!("MODEL_SEED={seed}\n{data:?}\nwriter:\n{writer}reader:\n{reader}{plan:?}")
    };
    assert_eq!(plan.is_ok(), oracle.fits(0, 0), "{}", about(&"any value"));
    let diff = changes(&services(&writer), &services(&reader));
    let works = diff.first().is_none_or(|change| change.new_client.works());
    assert!(plan.is_ok() || !works, "a difference of files works: {}", about(&diff));
    assert_eq!(rpc_schema::text::parse(&writer.to_string()).as_ref(), Ok(&writer));
    let Ok(plan) = &plan else {
        tally.refused += 1;
        return;
    };
    let mut values = Values { random: Random::new(seed), schema: &writer, is_full: false };
    for _ in 0..VALUES {
        let data = values.make(0, 0);
        let expected = oracle.read(0, 0, &data);
        let typed = Typed { schema: &reader, id: 0 };
        let (first, second) = (bincode(&data), postcard::to_stdvec(&data).unwrap());
        let found =
            [read_bincode(&first, plan.seed(typed)), read_postcard(&second, plan.seed(typed))];
        for found in found {
            assert_eq!(found.as_ref().ok(), expected.as_ref(), "{}", about(&(&data, &found)));
        }
        match expected {
            Some(_) => tally.equal += 1,
            None => tally.failed += 1,
        }
    }
}

#[test]
fn plans_do_what_the_documentation_says() {
    let alone = variable("MODEL_SEED");
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() << 20;
    let first = alone.unwrap_or_else(now);
    let runs = if alone.is_some() { 1 } else { variable("MODEL_RUNS").unwrap_or(RUNS) };
    println!("seeds from {first} on, {runs} of them");
    let mut tally = Tally::default();
    (first..first + runs).for_each(|seed| compare_with_documentation(seed, &mut tally));
    println!("{tally:?}");
    // Each of the three is tried.
    let Tally { refused, equal, failed } = tally;
    assert!(alone.is_some() || (20 * refused > runs && equal > runs && 20 * failed > runs));
}
