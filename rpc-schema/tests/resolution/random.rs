//! Random types, changes of them, and values.

use std::collections::HashSet;

use rpc_schema::Schema;
use rpc_schema::schema::{Absent, Field, Id, Int, Root, Type, Variant};
use rpc_schema::value::Data;

use crate::typed::fits;

/// A sequence of numbers that look random (xorshift).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % count as u64).expect("it is below a usize")
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// Makes types.
pub(crate) struct Maker {
    pub(crate) random: Random,
    types: Vec<Type>,
    names: usize,
    /// Whether JSON can express all values.
    is_json: bool,
}

impl Maker {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), types: Vec::new(), names: 0, is_json: true }
    }

    /// Also makes types that JSON cannot express: options in options, sets, and keys of any type.
    pub(crate) fn of_all(seed: u64) -> Self {
        Self { is_json: false, ..Self::new(seed) }
    }

    /// A type whose names are unlike all others.
    pub(crate) fn base(&mut self) -> Vec<Type> {
        self.add(0, &[]);
        std::mem::take(&mut self.types)
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("n{}", self.names)
    }

    fn leaf(&mut self) -> Type {
        match self.random.below(9) {
            0 => Type::Bool,
            1 => self.random.of(&[Type::F32, Type::F64][..].iter().collect::<Vec<_>>()).clone(),
            2 => Type::Char,
            3 => Type::Bytes,
            4 | 5 => Type::Str,
            _ => Type::Int(self.random.of(&Int::ALL)),
        }
    }

    fn add(&mut self, depth: usize, around: &[Id]) -> Id {
        let id = self.types.len();
        self.types.push(Type::Nothing);
        let made = match self.random.below(if depth < 4 { 12 } else { 3 }) {
            // A field of a type within itself.
            0 if !around.is_empty() && self.random.one_in(3) => {
                let up = self.random.of(around);
                self.types[id] = Type::Sequence(up);
                return id;
            }
            0..=2 => self.leaf(),
            3 if self.is_json => Type::Option(self.no_option(depth, around)),
            3 => Type::Option(self.add(depth + 1, around)),
            4 if !self.is_json && self.random.one_in(3) => Type::Set(self.key(depth)),
            4 => Type::Sequence(self.add(depth + 1, around)),
            5 => {
                let key = self.key(depth);
                Type::Map(key, self.add(depth + 1, around))
            }
            6 => {
                let count = self.random.below(3) + 1;
                Type::Tuple((0..count).map(|_| self.add(depth + 1, around)).collect())
            }
            7..=9 => {
                let around: Vec<Id> = around.iter().copied().chain([id]).collect();
                let count = self.random.below(5) + usize::from(depth > 0);
                let fields = (0..count).map(|_| self.field(depth + 1, &around)).collect();
                Type::Struct { fields, denies_unknown: self.random.one_in(8) }
            }
            _ => {
                let count = self.random.below(4) + 1;
                let variants = (0..count).map(|_| self.variant(depth + 1, around)).collect();
                Type::Enum { variants, other: None }
            }
        };
        self.types[id] = made;
        id
    }

    fn key(&mut self, depth: usize) -> Id {
        if !self.is_json && self.random.one_in(2) {
            return self.add(depth + 2, &[]);
        }
        let kind = if self.random.one_in(2) { Type::Str } else { Type::Int(Int::U16) };
        self.types.push(kind);
        self.types.len() - 1
    }

    /// JSON does not tell an option in an option from one.
    fn no_option(&mut self, depth: usize, around: &[Id]) -> Id {
        loop {
            let len = self.types.len();
            let id = self.add(depth + 1, around);
            if !matches!(self.types[id], Type::Option(_)) {
                return id;
            }
            self.types.truncate(len);
        }
    }

    fn field(&mut self, depth: usize, around: &[Id]) -> Field {
        let id = self.add(depth, around);
        let is_option = matches!(self.types[id], Type::Option(_));
        let has_default = is_option || self.random.one_in(2);
        let absent = if has_default { Absent::Default } else { Absent::Refused };
        Field { name: self.name(), aliases: Vec::new(), absent, id }
    }

    fn variant(&mut self, depth: usize, around: &[Id]) -> Variant {
        let id = if self.random.one_in(2) {
            self.types.push(Type::Nothing);
            self.types.len() - 1
        } else {
            self.add(depth, around)
        };
        Variant { name: self.name(), aliases: Vec::new(), id }
    }

    /// The same types after some changes. `one_in`: how rare these are.
    pub(crate) fn changed(&mut self, types: &[Type], one_in: usize) -> Schema {
        self.types = types.to_vec();
        for id in 0..types.len() {
            let before = self.types[id].clone();
            let after = self.change(before, one_in);
            self.types[id] = after;
        }
        let types = std::mem::take(&mut self.types);
        Schema::new(types, vec![(Root::Result, 0)]).expect("well-formed")
    }

    fn change(&mut self, it: Type, one_in: usize) -> Type {
        match it {
            Type::Int(_) if self.random.one_in(one_in) => Type::Int(self.random.of(&Int::ALL)),
            Type::F32 if self.random.one_in(one_in) => Type::F64,
            Type::F64 if self.random.one_in(one_in) => Type::F32,
            Type::Bool if self.random.one_in(4 * one_in) => Type::Int(Int::U8),
            Type::Struct { mut fields, mut denies_unknown } => {
                self.change_fields(&mut fields, one_in);
                if self.random.one_in(4 * one_in) {
                    denies_unknown = !denies_unknown;
                }
                Type::Struct { fields, denies_unknown }
            }
            Type::Enum { mut variants, mut other } => {
                self.change_variants(&mut variants, &mut other, one_in);
                Type::Enum { variants, other }
            }
            it => it,
        }
    }

    fn change_fields(&mut self, fields: &mut Vec<Field>, one_in: usize) {
        for field in fields.iter_mut() {
            if self.random.one_in(2 * one_in) {
                let old = std::mem::replace(&mut field.name, self.name());
                if !self.random.one_in(3) {
                    field.aliases.push(old);
                }
            }
            let id = field.id;
            if self.random.one_in(2 * one_in) {
                match self.types[id].clone() {
                    Type::Option(inner) => field.id = inner,
                    _ => {
                        self.types.push(Type::Option(id));
                        field.id = self.types.len() - 1;
                    }
                }
            }
        }
        if self.random.one_in(one_in) && !fields.is_empty() {
            let at = self.random.below(fields.len());
            let gone = fields.remove(at);
            // Two fields become one.
            if self.random.one_in(4) && !fields.is_empty() {
                let at = self.random.below(fields.len());
                fields[at].aliases.push(gone.name);
            }
        }
        if self.random.one_in(one_in) {
            let new = self.field(3, &[]);
            let at = self.random.below(fields.len() + 1);
            fields.insert(at, new);
        }
        if self.random.one_in(one_in) && fields.len() > 1 {
            let to = self.random.below(fields.len());
            fields.swap(0, to);
        }
    }

    fn change_variants(
        &mut self,
        variants: &mut Vec<Variant>,
        other: &mut Option<usize>,
        one_in: usize,
    ) {
        for variant in variants.iter_mut() {
            if self.random.one_in(2 * one_in) {
                let old = std::mem::replace(&mut variant.name, self.name());
                if !self.random.one_in(3) {
                    variant.aliases.push(old);
                }
            }
        }
        let for_unknown = other.take().map(|at| variants[at].name.clone());
        if self.random.one_in(one_in) && variants.len() > 1 {
            let at = self.random.below(variants.len());
            let gone = variants.remove(at);
            // Two variants become one.
            if !self.is_json && self.random.one_in(3) {
                let at = self.random.below(variants.len());
                variants[at].aliases.push(gone.name);
            }
        }
        if self.random.one_in(one_in) {
            let new = self.variant(3, &[]);
            let at = self.random.below(variants.len() + 1);
            variants.insert(at, new);
        }
        if self.random.one_in(one_in) {
            let to = self.random.below(variants.len());
            variants.swap(0, to);
        }
        let is_it = |variant: &Variant| for_unknown.as_ref() == Some(&variant.name);
        *other = variants.iter().position(is_it);
        if self.random.one_in(one_in) {
            self.types.push(Type::Nothing);
            let id = self.types.len() - 1;
            *other = Some(variants.len());
            variants.push(Variant { name: self.name(), aliases: Vec::new(), id });
        }
    }
}

/// A value of a type.
pub(crate) struct Values<'a> {
    pub(crate) random: Random,
    pub(crate) schema: &'a Schema,
    /// All options and lists have something in them, and all numbers are small.
    pub(crate) is_full: bool,
}

impl Values<'_> {
    pub(crate) fn make(&mut self, id: Id, depth: usize) -> Data {
        let schema = self.schema;
        let len = match (self.is_full, depth) {
            (_, 12..) => 0,
            (true, _) => 1,
            (false, _) => self.random.below(3),
        };
        match schema.get(id) {
            Type::Bool => Data::Bool(self.random.one_in(2)),
            Type::Int(int) => {
                let value = match self.is_full || self.random.one_in(3) {
                    true => 1,
                    false => self.random.of(&[
                        0,
                        -1,
                        127,
                        128,
                        255,
                        300,
                        -300,
                        70_000,
                        i64::MAX.into(),
                        i64::MIN.into(),
                        u64::MAX.into(),
                    ]),
                };
                let value = if fits(*int, value) { value } else { 7 };
                match int {
                    Int::U128 => Data::U128(value.unsigned_abs()),
                    int => Data::Int(*int, value),
                }
            }
            Type::F32 => Data::F32(self.random.of(&[0.0, 1.5, -0.1, f32::MAX])),
            Type::F64 => Data::F64(self.random.of(&[0.0, 1.5, -0.1, 1e30])),
            Type::Char => Data::Char(self.random.of(&['a', 'ü', '\0'])),
            Type::Str => Data::Str(self.random.of(&["", "text", "x", "ümlaut"]).to_owned()),
            Type::Bytes => Data::Bytes(vec![7; self.random.below(4)]),
            Type::Nothing => Data::Nothing,
            Type::Option(_) if len == 0 => Data::None,
            Type::Option(inner) => Data::Some(Box::new(self.make(*inner, depth + 1))),
            Type::Set(item) => {
                let mut seen = HashSet::new();
                let all = (0..len).map(|_| self.make(*item, depth + 1));
                Data::Sequence(all.filter(|it| seen.insert(format!("{it:?}"))).collect())
            }
            Type::Sequence(item) => {
                Data::Sequence((0..len).map(|_| self.make(*item, depth + 1)).collect())
            }
            Type::Map(key, value) => {
                let mut seen = HashSet::new();
                let entry = |at: usize| {
                    let small = 1 + at;
                    let key = match schema.get(*key) {
                        Type::Int(Int::U128) => Data::U128(u128::try_from(small).expect("small")),
                        Type::Int(int) => Data::Int(*int, i128::try_from(small).expect("small")),
                        Type::Str => Data::Str(format!("key {at}")),
                        _ => self.make(*key, depth + 1),
                    };
                    (key, self.make(*value, depth + 1))
                };
                let all = (0..len).map(entry);
                Data::Map(all.filter(|(key, _)| seen.insert(format!("{key:?}"))).collect())
            }
            Type::Tuple(ids) => {
                Data::Tuple(ids.iter().map(|id| self.make(*id, depth + 1)).collect())
            }
            Type::Struct { fields, .. } => {
                Data::Tuple(fields.iter().map(|it| self.make(it.id, depth + 1)).collect())
            }
            Type::Enum { variants, .. } => {
                let at = self.random.below(variants.len());
                let contents = self.make(variants[at].id, depth + 1);
                Data::Variant(u32::try_from(at).expect("small"), Box::new(contents))
            }
            Type::Unknown(why) => panic!("{why}"),
        }
    }
}
