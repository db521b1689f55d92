//! Entries of maps and sets that would vanish: different keys of the writer that are equal at the
//! reader.
//!
//! Serde takes the last entry of a key without a word, so only a plan can notice.

use std::collections::HashMap;

use super::op::{Chosen, Op, OpId, Part, inside, outer, spread};
use crate::schema::{Id, Schema, Type, Variant};

/// The maps and sets of which two entries could become one, and why. `pairs` are the types of the
/// ops, and `empty` says which types of the writer take no bytes.
pub(super) fn lost_entries(
    ops: &[Op],
    pairs: &[(Id, Id)],
    (writer, reader): (&Schema, &Schema),
    empty: &[bool],
) -> Vec<(OpId, String)> {
    let key = |at: usize, op: &Op| match op {
        Op::Map(key, _) => Some(*key),
        Op::Sequence(item) => matches!(reader.get(pairs[at].1), Type::Set(_)).then_some(*item),
        _ => None,
    };
    let keys: Vec<(OpId, OpId)> =
        ops.iter().enumerate().filter_map(|(at, op)| Some((at, key(at, op)?))).collect();
    if keys.is_empty() {
        return Vec::new();
    }
    let merging: Vec<Option<String>> = ops
        .iter()
        .zip(pairs)
        .map(|(op, (from, _))| merging(op, writer.get(*from), empty))
        .collect();
    let outer = outer(ops, inside);
    let merges = spread(merging.iter().map(Option::is_some).collect(), &outer);
    let lost = keys.into_iter().filter(|(_, key)| merges[*key]).map(|(at, key)| {
        let why = first_inside(ops, key, |op| merging[op].as_deref()).unwrap_or_default();
        (at, format!("two of its entries can become one here: {why}"))
    });
    lost.collect()
}

/// Why different values of the writer may be equal here, apart from what is inside of them.
fn merging(op: &Op, written: &Type, empty: &[bool]) -> Option<String> {
    match (op, written) {
        (Op::Struct(parts), Type::Struct { fields, .. }) => {
            let is_skipped =
                |part: &Part| matches!(part, Part::Skip(contents) if !empty[*contents]);
            let (_, field) = parts.iter().zip(fields).find(|(part, _)| is_skipped(part))?;
            Some(format!("the field `{}` is unknown here", field.name))
        }
        (Op::Enum(chosen), Type::Enum { variants, .. }) => {
            let mut taken: HashMap<u32, &str> = HashMap::new();
            chosen.iter().zip(variants).find_map(|(chosen, Variant { name, .. })| {
                let (to, is_whole) = match chosen {
                    Chosen::Take { to, .. } => (*to, true),
                    Chosen::Other { to, contents } => (*to, empty[*contents]),
                    Chosen::Missing(_) => return None,
                };
                match taken.insert(to, name) {
                    Some(first) => {
                        Some(format!("the variants `{first}` and `{name}` are one variant here"))
                    }
                    None if is_whole => None,
                    None => Some(format!("what the variant `{name}` holds is skipped here")),
                }
            })
        }
        (Op::Float(true), _) => Some("an `f64` is rounded to an `f32`".to_owned()),
        _ => None,
    }
}

/// What the first op in the order of the parts has, of an op and those inside of it.
fn first_inside<'a, T>(ops: &[Op], root: OpId, has: impl Fn(OpId) -> Option<&'a T>) -> Option<&'a T>
where
    T: ?Sized,
{
    let (mut seen, mut left) = (vec![false; ops.len()], vec![root]);
    while let Some(at) = left.pop() {
        if std::mem::replace(&mut seen[at], true) {
            continue;
        }
        if let Some(found) = has(at) {
            return Some(found);
        }
        left.extend(inside(&ops[at]).into_iter().rev());
    }
    None
}
