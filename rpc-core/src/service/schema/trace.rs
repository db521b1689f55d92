//! Finds out what a type looks like by having it deserialized from nothing.
//!
//! Owns a serde deserializer that has no input: it writes down what it is asked for and answers with
//! small values, so that the type asks for all that it has.
//!
//! Invariants:
//! 1. An enum shows one variant at a time, so a type is traced again until every variant that can be
//!    reached was seen once.
//! 2. It ends, whatever the type: a type inside itself is only named, and lines, runs and depth are
//!    bounded. Where a bound is met both ends stop at the same place.

use std::collections::HashMap;
use std::fmt;

use serde::de::value::U32Deserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

/// Most lines of one argument or result.
const MAX_LINES: usize = 4096;
/// Most runs: variants of the type with most of them, one inside the other.
const MAX_RUNS: usize = 1024;
/// Most parts that all runs together look at.
const MAX_STEPS: usize = 1 << 18;
/// Deepest type. A type that has no end of its own stops here.
const MAX_DEPTH: usize = 64;

/// The trace of one type.
#[derive(Default)]
pub(super) struct Trace {
    lines: Vec<String>,
    /// Where each path is in `lines`.
    known: HashMap<String, usize>,
    /// For each enum, by its path, the next variant to be shown, and how many there are.
    variants: HashMap<String, (usize, usize)>,
    /// The types that are being traced, outermost first.
    inside: Vec<&'static str>,
    /// How many levels deep in types that are not written down, since they are inside themselves.
    quiet: usize,
    /// A variant that ends, for each enum that was met inside itself.
    ends: HashMap<&'static str, usize>,
    depth: usize,
    pub(super) steps: usize,
}

/// What a type is told when it cannot be traced further.
#[derive(Debug)]
pub(super) struct Stopped(String);

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Stopped {}

impl serde::de::Error for Stopped {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

type Traced<T> = Result<T, Stopped>;

impl Trace {
    /// The lines of the type that `seed` deserializes.
    pub(super) fn of<S: DeserializeSeed<'static> + Clone>(root: String, seed: S) -> Vec<String> {
        let mut trace = Self::default();
        for _ in 0..MAX_RUNS {
            let before = (trace.lines.len(), trace.unseen());
            // A type that refuses the values is known up to there.
            let _ = seed.clone().deserialize(At { trace: &mut trace, path: root.clone() });
            (trace.quiet, trace.depth) = (0, 0);
            trace.inside.clear();
            if trace.unseen() == 0 || before == (trace.lines.len(), trace.unseen()) {
                break;
            }
        }
        trace.finish()
    }

    fn unseen(&self) -> usize {
        self.variants.values().map(|(next, count)| count - next).sum()
    }

    /// A sequence of bytes is a byte string.
    fn finish(self) -> Vec<String> {
        let is_byte = |path: &str| {
            let element = self.known.get(&format!("{path}[]"));
            element.is_some_and(|at| self.lines[*at].ends_with("[]: u8"))
        };
        let mut lines = Vec::new();
        for line in &self.lines {
            match line.split_once(": ") {
                Some((path, "sequence")) if is_byte(path) => lines.push(format!("{path}: bytes")),
                Some((path, "u8")) if path.ends_with("[]") => {}
                _ => lines.push(line.clone()),
            }
        }
        lines
    }

    /// A variant that was not seen yet, or else one with such variants inside.
    fn next_variant(&mut self, path: &str, names: &[&str]) -> usize {
        let (next, count) =
            self.variants.entry(path.to_owned()).or_insert_with(|| (0, names.len()));
        if next < count {
            *next += 1;
            return *next - 1;
        }
        let has_unseen = |name: &&str| {
            let inside = format!("{path}::{name}");
            self.variants.iter().any(|(path, (next, count))| {
                let rest = path.strip_prefix(&inside);
                next < count && rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
            })
        };
        names.iter().position(has_unseen).unwrap_or(0)
    }

    fn note(&mut self, path: &str, what: impl fmt::Display) {
        if self.quiet == 0 && self.lines.len() < MAX_LINES && !self.known.contains_key(path) {
            self.known.insert(path.to_owned(), self.lines.len());
            self.lines.push(format!("{path}: {what}"));
        }
    }
}

/// The deserializer of the value at a path.
pub(super) struct At<'a> {
    pub(super) trace: &'a mut Trace,
    pub(super) path: String,
}

impl At<'_> {
    fn child(&mut self, suffix: impl fmt::Display) -> At<'_> {
        let path =
            if self.trace.quiet == 0 { format!("{}{suffix}", self.path) } else { String::new() };
        At { trace: self.trace, path }
    }

    /// Traces a type with a name, which may be inside itself.
    fn nominal<T, V>(
        mut self,
        what: impl fmt::Display,
        trace: impl FnOnce(&mut At<'_>) -> Traced<V>,
    ) -> Traced<V> {
        let name = std::any::type_name::<T>();
        let place = self.trace.inside.iter().rev().position(|other| *other == name);
        match place {
            Some(levels) => self.trace.note(&self.path, format_args!("itself, {} up", levels + 1)),
            None => self.trace.note(&self.path, what),
        }
        self.deeper(place.is_some(), |at| {
            at.trace.inside.push(name);
            let traced = trace(at);
            at.trace.inside.pop();
            traced
        })
    }

    fn deeper<V>(
        &mut self,
        quietly: bool,
        trace: impl FnOnce(&mut At<'_>) -> Traced<V>,
    ) -> Traced<V> {
        self.trace.steps += 1;
        if self.trace.depth == MAX_DEPTH || self.trace.steps > MAX_STEPS {
            self.trace.note(&self.path, "more");
            return Err(Stopped("too deep".to_owned()));
        }
        let quietly = usize::from(quietly || self.trace.quiet > 0);
        self.trace.depth += 1;
        self.trace.quiet += quietly;
        let traced = trace(self);
        self.trace.depth -= 1;
        self.trace.quiet -= quietly;
        traced
    }
}

/// A value without parts.
macro_rules! leaves {
    ($($method:ident $visit:ident $name:literal $value:expr;)*) => {$(
        fn $method<V: Visitor<'static>>(self, visitor: V) -> Traced<V::Value> {
            self.trace.note(&self.path, $name);
            visitor.$visit($value)
        }
    )*};
}

impl Deserializer<'static> for At<'_> {
    type Error = Stopped;

    fn is_human_readable(&self) -> bool {
        false
    }

    // Ones, as many types refuse a zero.
    leaves! {
        deserialize_bool visit_bool "bool" true;
        deserialize_i8 visit_i8 "i8" 1;
        deserialize_i16 visit_i16 "i16" 1;
        deserialize_i32 visit_i32 "i32" 1;
        deserialize_i64 visit_i64 "i64" 1;
        deserialize_i128 visit_i128 "i128" 1;
        deserialize_u8 visit_u8 "u8" 1;
        deserialize_u16 visit_u16 "u16" 1;
        deserialize_u32 visit_u32 "u32" 1;
        deserialize_u64 visit_u64 "u64" 1;
        deserialize_u128 visit_u128 "u128" 1;
        deserialize_f32 visit_f32 "f32" 1.0;
        deserialize_f64 visit_f64 "f64" 1.0;
        deserialize_char visit_char "char" '1';
        deserialize_str visit_borrowed_str "str" "1";
        deserialize_string visit_borrowed_str "str" "1";
        deserialize_bytes visit_borrowed_bytes "bytes" &[1; 16];
        deserialize_byte_buf visit_borrowed_bytes "bytes" &[1; 16];
    }

    fn deserialize_unit<V: Visitor<'static>>(self, visitor: V) -> Traced<V::Value> {
        self.trace.note(&self.path, "nothing");
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'static>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Traced<V::Value> {
        self.deserialize_unit(visitor)
    }

    /// Has no bytes of its own.
    fn deserialize_newtype_struct<V: Visitor<'static>>(
        mut self,
        _: &'static str,
        visitor: V,
    ) -> Traced<V::Value> {
        self.deeper(false, |at| visitor.visit_newtype_struct(at.child("")))
    }

    fn deserialize_option<V: Visitor<'static>>(mut self, visitor: V) -> Traced<V::Value> {
        self.trace.note(&self.path, "option");
        if self.trace.quiet > 0 {
            return visitor.visit_none();
        }
        self.deeper(false, |at| visitor.visit_some(at.child("?")))
    }

    fn deserialize_seq<V: Visitor<'static>>(mut self, visitor: V) -> Traced<V::Value> {
        self.trace.note(&self.path, "sequence");
        let count = usize::from(self.trace.quiet == 0);
        self.deeper(false, |at| visitor.visit_seq(Elements::new(at, count, |_| "[]".into())))
    }

    fn deserialize_map<V: Visitor<'static>>(mut self, visitor: V) -> Traced<V::Value> {
        self.trace.note(&self.path, "map");
        let count = 2 * usize::from(self.trace.quiet == 0);
        let part = |at| if at == 0 { "{key}".into() } else { "{value}".into() };
        self.deeper(false, |at| visitor.visit_map(Elements::new(at, count, part)))
    }

    fn deserialize_tuple<V: Visitor<'static>>(
        mut self,
        len: usize,
        visitor: V,
    ) -> Traced<V::Value> {
        self.trace.note(&self.path, format_args!("tuple of {len}"));
        self.deeper(false, |at| visitor.visit_seq(Elements::new(at, len, |at| format!(".{at}"))))
    }

    fn deserialize_tuple_struct<V: Visitor<'static>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Traced<V::Value> {
        self.nominal::<V::Value, _>(format_args!("tuple of {len}"), |at| {
            visitor.visit_seq(Elements::new(at, len, |at| format!(".{at}")))
        })
    }

    fn deserialize_struct<V: Visitor<'static>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Traced<V::Value> {
        let what = format!("struct {{ {} }}", fields.join(", "));
        self.nominal::<V::Value, _>(what, |at| visitor.visit_seq(Elements::fields(at, fields)))
    }

    fn deserialize_enum<V: Visitor<'static>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Traced<V::Value> {
        let what = format!("enum {{ {} }}", variants.join(", "));
        self.nominal::<V::Value, _>(what, |at| {
            let quiet = at.trace.quiet;
            let variant = if quiet > 0 {
                // Another one at each level, until one is found that ends.
                let known = at.trace.ends.get(std::any::type_name::<V::Value>());
                known.copied().unwrap_or((quiet - 1) % variants.len().max(1))
            } else {
                at.trace.next_variant(&at.path, variants)
            };
            let Some(name) = variants.get(variant) else {
                return Err(Stopped("an enum without variants".to_owned()));
            };
            let shown = Variant { at: at.child(format_args!("::{name}")), variant };
            let value = visitor.visit_enum(shown)?;
            if quiet > 0 {
                // The first that was found: those around it end because of it.
                at.trace.ends.entry(std::any::type_name::<V::Value>()).or_insert(variant);
            }
            Ok(value)
        })
    }

    fn deserialize_any<V: Visitor<'static>>(self, _: V) -> Traced<V::Value> {
        self.trace.note(&self.path, "anything");
        Err(Stopped("needs a self-describing format".to_owned()))
    }

    fn deserialize_identifier<V: Visitor<'static>>(self, visitor: V) -> Traced<V::Value> {
        self.deserialize_any(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'static>>(self, visitor: V) -> Traced<V::Value> {
        self.deserialize_any(visitor)
    }
}

/// Parts of a value, each of which has a name in the path.
struct Elements<'a, 'b, F> {
    at: &'a mut At<'b>,
    next: usize,
    count: usize,
    name: F,
}

impl<'a, 'b, F: Fn(usize) -> String> Elements<'a, 'b, F> {
    fn new(at: &'a mut At<'b>, count: usize, name: F) -> Self {
        Self { at, next: 0, count, name }
    }

    fn next<S: DeserializeSeed<'static>>(&mut self, seed: S) -> Traced<S::Value> {
        let name = (self.name)(self.next);
        self.next += 1;
        seed.deserialize(self.at.child(name))
    }
}

impl<'a, 'b> Elements<'a, 'b, ()> {
    fn fields(
        at: &'a mut At<'b>,
        fields: &'static [&'static str],
    ) -> Elements<'a, 'b, impl Fn(usize) -> String> {
        Elements::new(at, fields.len(), |at| format!(".{}", fields[at]))
    }
}

impl<F: Fn(usize) -> String> SeqAccess<'static> for Elements<'_, '_, F> {
    type Error = Stopped;

    fn next_element_seed<S: DeserializeSeed<'static>>(
        &mut self,
        seed: S,
    ) -> Traced<Option<S::Value>> {
        if self.next == self.count { Ok(None) } else { self.next(seed).map(Some) }
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.count - self.next)
    }
}

impl<F: Fn(usize) -> String> MapAccess<'static> for Elements<'_, '_, F> {
    type Error = Stopped;

    fn next_key_seed<S: DeserializeSeed<'static>>(&mut self, seed: S) -> Traced<Option<S::Value>> {
        if self.next == self.count { Ok(None) } else { self.next(seed).map(Some) }
    }

    fn next_value_seed<S: DeserializeSeed<'static>>(&mut self, seed: S) -> Traced<S::Value> {
        self.next(seed)
    }
}

/// One variant of an enum.
struct Variant<'a> {
    at: At<'a>,
    variant: usize,
}

impl<'a> EnumAccess<'static> for Variant<'a> {
    type Error = Stopped;
    type Variant = At<'a>;

    fn variant_seed<S: DeserializeSeed<'static>>(self, seed: S) -> Traced<(S::Value, At<'a>)> {
        let index = u32::try_from(self.variant).unwrap_or(u32::MAX);
        let index: U32Deserializer<Stopped> = index.into_deserializer();
        Ok((seed.deserialize(index)?, self.at))
    }
}

impl VariantAccess<'static> for At<'_> {
    type Error = Stopped;

    fn unit_variant(self) -> Traced<()> {
        self.trace.note(&self.path, "nothing");
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'static>>(self, seed: S) -> Traced<S::Value> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'static>>(self, len: usize, visitor: V) -> Traced<V::Value> {
        self.deserialize_tuple(len, visitor)
    }

    fn struct_variant<V: Visitor<'static>>(
        mut self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Traced<V::Value> {
        self.trace.note(&self.path, format_args!("struct {{ {} }}", fields.join(", ")));
        self.deeper(false, |at| visitor.visit_seq(Elements::fields(at, fields)))
    }
}
