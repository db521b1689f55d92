//! A serde serializer without output: it compares what a type writes with what it reads.
//!
//! serde's derive counts skipped variants when it writes and not when it reads, and may skip other
//! fields in each direction. Neither can be seen in a message, so the made-up values are written to
//! this serializer.
//!
//! Owns the rules for a mismatch. Code written by hand may write the same bytes in another way, so
//! only what certainly has other bytes is a problem.

use std::fmt;

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::trace::{Stopped, Trace, WrittenVariant};
use super::tree::{Id, QUIET, What};

type Written = Result<(), Stopped>;

/// How the parts of a container follow each other in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// One after the other: a tuple, a struct.
    Product,
    /// A count, and all alike.
    Each,
    /// A count, and keys with values.
    Pairs,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Product => "tuple",
            Self::Each => "sequence",
            Self::Pairs => "map",
        })
    }
}

/// The serializer of the value at a place.
pub(super) struct Check<'t> {
    pub(super) trace: &'t mut Trace,
    pub(super) id: Id,
}

/// What kind of bytes a value without parts has: those of one kind may stand for each other.
fn kind(name: &str) -> u8 {
    match name {
        "bool" | "u8" | "i8" => 0,
        "u16" | "u32" | "u64" | "u128" => 1,
        "i16" | "i32" | "i64" | "i128" => 2,
        "f32" => 3,
        "f64" => 4,
        "nothing" => 5,
        // A `char` has the same bytes as a text in one of the formats.
        _ => 6,
    }
}

impl<'t> Check<'t> {
    fn what(&self) -> &What {
        self.trace.tree.get(self.id).map_or(&What::Unseen, |node| &node.what)
    }

    /// Nothing is compared in there.
    fn is_out_of_sight(&self) -> bool {
        matches!(self.what(), What::Unseen | What::Itself(..) | What::Anything(_) | What::More)
    }

    fn mark(&mut self) {
        if let Some(node) = self.trace.tree.get_mut(self.id) {
            node.is_written = true;
        }
    }

    fn differs(&mut self, written: impl fmt::Display) {
        let text = format!(
            "its `Serialize` writes `{written}`, but its `Deserialize` reads `{}`; make them agree",
            self.what()
        );
        self.trace.problem(self.id, text);
    }

    fn leaf(mut self, name: &'static str) -> Written {
        self.mark();
        let fits = match self.what() {
            What::Leaf(read) => kind(read) == kind(name),
            // Counts and numbers of variants are such numbers as well, and so may be options.
            What::Enum(_) | What::Option => matches!(kind(name), 0 | 1),
            What::Sequence => kind(name) == 6,
            What::Tuple(len) => *len == 1 || (*len == 0 && name == "nothing"),
            What::Struct(names) => names.len() == 1 || (names.len() == 0 && name == "nothing"),
            What::Map => false,
            What::Unseen | What::Itself(..) | What::Anything(_) | What::More => true,
        };
        if !fits {
            self.differs(name);
        }
        Ok(())
    }

    fn part(self, at: usize) -> Check<'t> {
        let id = self.trace.tree.part(self.id, at).unwrap_or(QUIET);
        Check { trace: self.trace, id }
    }

    /// Writes a part, if it is known what is read there.
    fn write<T: Serialize + ?Sized>(self, value: &T) -> Written {
        if self.id == QUIET { Ok(()) } else { value.serialize(self) }
    }

    fn parts(mut self, order: Order, len: usize) -> Result<Parts<'t>, Stopped> {
        self.mark();
        let fits = match (self.what(), order) {
            (What::Tuple(_) | What::Struct(_), Order::Product) => true,
            (What::Sequence | What::Map, Order::Each | Order::Pairs) => true,
            (What::Leaf(name), Order::Each) => kind(name) == 6,
            (What::Leaf("nothing"), Order::Product) => true,
            // A tuple of one part has the bytes of that part.
            (What::Leaf(_) | What::Option | What::Sequence | What::Map | What::Enum(_), order) => {
                matches!(order, Order::Product) && len == 1
            }
            (What::Tuple(_) | What::Struct(_), _) => false,
            (What::Unseen | What::Itself(..) | What::Anything(_) | What::More, _) => true,
        };
        if !fits {
            self.differs(order);
        }
        let Self { trace, id } = self;
        Ok(Parts { trace, id, order, at: 0, names: Vec::new(), fits, is_shifted: false })
    }

    /// The parts of a container whose length goes into the message.
    fn counted(mut self, order: Order, len: Option<usize>) -> Result<Parts<'t>, Stopped> {
        if len.is_none() && !self.is_out_of_sight() {
            self.differs(format_args!("{order} of unknown length"));
        }
        self.parts(order, len.unwrap_or(0))
    }

    /// What a variant holds.
    fn contents(mut self, name: &'static str, at: u32, variant: &'static str) -> Self {
        let at = self.variant(name, at, variant);
        let Self { trace, id } = self;
        let id = at.and_then(|at| trace.tree.part(id, at)).unwrap_or(QUIET);
        Self { trace, id }
    }

    fn variant(
        &mut self,
        type_name: &'static str,
        index: u32,
        variant: &'static str,
    ) -> Option<usize> {
        self.mark();
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let names = match self.what() {
            What::Enum(names) => names,
            What::Leaf(read) if matches!(kind(read), 0 | 1) => return None,
            What::Option | What::Unseen | What::Itself(..) | What::Anything(_) | What::More => {
                return None;
            }
            _ => {
                self.differs(format_args!("variant {variant}"));
                return None;
            }
        };
        let read = names.find(variant);
        let fits = read.is_none_or(|read| read == index);
        self.trace.on_variant(self.id, index, variant, type_name);
        fits.then_some(index)
    }
}

/// Compares the variants that were written with those that are read, once these are known: their
/// main names, and their numbers.
pub(super) fn judge_variants(trace: &mut Trace) {
    for WrittenVariant { id, index, variant, type_name } in std::mem::take(&mut trace.variants) {
        let Some(names) = trace.tree.names_mut(id) else { continue };
        let read = names.find(variant);
        if read == Some(index) {
            names.set_main(variant);
            continue;
        }
        let is_shifted = read.is_some() || index >= names.len();
        let text = if is_shifted {
            let instead = match index < names.len() {
                true => format!("which is read as `{}`", names.name(index)),
                false => "which is read as no variant".to_owned(),
            };
            format!(
                "the variant `{variant}` of `{type_name}` is written as number {index}, {instead}: \
                 serde counts a variant with `skip` or `skip_deserializing` when writing but not \
                 when reading; put such variants last"
            )
        } else {
            format!(
                "the variant `{variant}` of `{type_name}` is read as `{}`; use the same name in \
                 both directions (serde's `rename`), or put variants with `skip` last",
                names.name(index)
            )
        };
        trace.problem(id, text);
    }
}

macro_rules! leaves {
    ($($method:ident $name:literal $ty:ty;)*) => {$(
        fn $method(self, _: $ty) -> Written {
            self.leaf($name)
        }
    )*};
}

impl<'t> Serializer for Check<'t> {
    type Ok = ();
    type Error = Stopped;
    type SerializeSeq = Parts<'t>;
    type SerializeTuple = Parts<'t>;
    type SerializeTupleStruct = Parts<'t>;
    type SerializeTupleVariant = Parts<'t>;
    type SerializeMap = Parts<'t>;
    type SerializeStruct = Parts<'t>;
    type SerializeStructVariant = Parts<'t>;

    leaves! {
        serialize_bool "bool" bool;
        serialize_i8 "i8" i8;
        serialize_i16 "i16" i16;
        serialize_i32 "i32" i32;
        serialize_i64 "i64" i64;
        serialize_i128 "i128" i128;
        serialize_u8 "u8" u8;
        serialize_u16 "u16" u16;
        serialize_u32 "u32" u32;
        serialize_u64 "u64" u64;
        serialize_u128 "u128" u128;
        serialize_f32 "f32" f32;
        serialize_f64 "f64" f64;
        serialize_char "char" char;
        serialize_str "str" &str;
        serialize_bytes "bytes" &[u8];
    }

    fn serialize_unit(self) -> Written {
        self.leaf("nothing")
    }

    fn serialize_unit_struct(self, _: &'static str) -> Written {
        self.leaf("nothing")
    }

    fn collect_str<T: fmt::Display + ?Sized>(self, _: &T) -> Written {
        self.leaf("str")
    }

    fn serialize_none(mut self) -> Written {
        self.mark();
        if !matches!(self.what(), What::Option | What::Leaf(_) | What::Enum(_))
            && !self.is_out_of_sight()
        {
            self.differs("option");
        }
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(mut self, value: &T) -> Written {
        self.mark();
        if !matches!(self.what(), What::Option) {
            return self.serialize_none();
        }
        self.part(0).write(value)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Written {
        value.serialize(self)
    }

    fn serialize_unit_variant(
        mut self,
        name: &'static str,
        at: u32,
        variant: &'static str,
    ) -> Written {
        match self.variant(name, at, variant) {
            Some(at) => self.part(at).write(&()),
            None => Ok(()),
        }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        mut self,
        name: &'static str,
        at: u32,
        variant: &'static str,
        value: &T,
    ) -> Written {
        match self.variant(name, at, variant) {
            Some(at) => self.part(at).write(value),
            None => Ok(()),
        }
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Parts<'t>, Stopped> {
        self.counted(Order::Each, len)
    }

    fn serialize_tuple(self, len: usize) -> Result<Parts<'t>, Stopped> {
        self.parts(Order::Product, len)
    }

    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Parts<'t>, Stopped> {
        self.serialize_tuple(len)
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        at: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Parts<'t>, Stopped> {
        self.contents(name, at, variant).serialize_tuple(len)
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Parts<'t>, Stopped> {
        self.counted(Order::Pairs, len)
    }

    fn serialize_struct(self, _: &'static str, len: usize) -> Result<Parts<'t>, Stopped> {
        self.parts(Order::Product, len)
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        at: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Parts<'t>, Stopped> {
        self.contents(name, at, variant).serialize_struct(name, len)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The parts of a container, as they are written.
pub(super) struct Parts<'t> {
    trace: &'t mut Trace,
    id: Id,
    order: Order,
    at: usize,
    /// Of fields.
    names: Vec<&'static str>,
    fits: bool,
    /// A field was written at another place than the one where it is read.
    is_shifted: bool,
}

impl Parts<'_> {
    fn next(&mut self) -> Check<'_> {
        let at = self.at;
        self.at += 1;
        let what = self.trace.tree.get(self.id).map(|node| &node.what);
        let part = match (what, self.order) {
            (Some(What::Tuple(_) | What::Struct(_)), Order::Product) => Some(at),
            (Some(What::Sequence), Order::Each) => Some(0),
            (Some(What::Map), Order::Pairs) => Some(at % 2),
            _ => None,
        };
        let part = part
            .filter(|_| self.fits && !self.is_shifted)
            .and_then(|at| self.trace.tree.part(self.id, at));
        Check { trace: self.trace, id: part.unwrap_or(QUIET) }
    }

    fn finish(self) -> Written {
        if !self.fits || self.order != Order::Product {
            return Ok(());
        }
        let Some(node) = self.trace.tree.get(self.id) else { return Ok(()) };
        let text = match &node.what {
            What::Struct(read) if !self.names.is_empty() => {
                let is_same = self.names.len() == read.len()
                    && self.names.iter().enumerate().all(|(at, it)| read.find(it) == Some(at));
                if is_same {
                    let names = self.trace.tree.names_mut(self.id);
                    names.into_iter().for_each(|it| self.names.iter().for_each(|n| it.set_main(n)));
                    return Ok(());
                }
                let names = self.names.join(", ");
                let reason = match self.names.first() {
                    Some(first)
                        if self.names.len() == read.len() + 1 && read.find(first).is_none() =>
                    {
                        "serde's `tag` or `skip_deserializing` make them differ; remove the \
                         attribute, or use `skip`"
                    }
                    _ => {
                        "serde's `skip_serializing`, `skip_deserializing` or a one-way `rename` \
                         make them differ; use `skip`, and `rename` for both directions"
                    }
                };
                format!(
                    "`{}` is written as `{{ {names} }}` but read as `{{ {read} }}`: {reason}",
                    self.trace.tree.type_name(self.id),
                )
            }
            What::Leaf("nothing") if self.at > 0 => {
                format!("{} parts are written, but none is read; make them agree", self.at)
            }
            What::Tuple(_) | What::Struct(_) => {
                let read = self.trace.tree.parts_len(self.id);
                if read == self.at {
                    return Ok(());
                }
                format!(
                    "{} parts are written, but {read} are read: serde's `skip_serializing`, \
                     `skip_serializing_if` or `skip_deserializing` make them differ; use `skip`",
                    self.at
                )
            }
            _ => return Ok(()),
        };
        self.trace.problem(self.id, text);
        Ok(())
    }

    fn field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Written {
        // What follows is at other places, which is no problem of its own.
        let names = self.trace.tree.names(self.id);
        self.is_shifted |= names.is_some_and(|names| names.find(name) != Some(self.at));
        self.names.push(name);
        self.next().write(value)
    }

    /// `skip_serializing_if` has left a field out.
    fn left_out(&mut self, name: &'static str) {
        self.names.push(name);
        let run = self.trace.run;
        let Check { trace, id } = self.next();
        if let Some(node) = trace.tree.get_mut(id) {
            node.is_written = true;
            match node.shown {
                (shown, is_zero) if shown == run => {
                    node.left_out.zero |= is_zero;
                    node.left_out.other |= !is_zero;
                }
                _ => node.left_out.default = true,
            }
        }
    }
}

macro_rules! positional {
    ($($kind:ident::$method:ident),* $(,)?) => {$(
        impl $kind for Parts<'_> {
            type Ok = ();
            type Error = Stopped;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
                self.next().write(value)
            }

            fn end(self) -> Written {
                self.finish()
            }
        }
    )*};
}

positional! {
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field,
}

macro_rules! named {
    ($($kind:ident),* $(,)?) => {$(
        impl $kind for Parts<'_> {
            type Ok = ();
            type Error = Stopped;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Written {
                self.field(name, value)
            }

            fn skip_field(&mut self, name: &'static str) -> Written {
                self.left_out(name);
                Ok(())
            }

            fn end(self) -> Written {
                self.finish()
            }
        }
    )*};
}

named! { SerializeStruct, SerializeStructVariant }

impl SerializeMap for Parts<'_> {
    type Ok = ();
    type Error = Stopped;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Written {
        self.next().write(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
        self.next().write(value)
    }

    fn end(self) -> Written {
        self.finish()
    }
}
