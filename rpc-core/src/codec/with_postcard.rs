//! The format postcard.

use std::rc::Rc;

use postcard::{Deserializer, Error, de_flavors, ser_flavors};
use serde::Serialize;
use serde::de::DeserializeSeed;

use super::{Collector, Cursor, Undecoded, reason};

struct VecFlavor<'a>(&'a mut Vec<u8>, &'a Collector<'a>);

impl ser_flavors::Flavor for VecFlavor<'_> {
    type Output = ();

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        self.1.on_written(self.0.len());
        Ok(())
    }

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        self.1.on_written(self.0.len());
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// A slice without a size hint, so that a sequence reports its announced length however many
/// bytes remain: the guard checks it, by the same rule for every codec.
struct SliceFlavor<'a>(&'a [u8]);

impl<'a> de_flavors::Flavor<'a> for SliceFlavor<'a> {
    type Remainder = usize;
    type Source = &'a [u8];

    #[inline]
    fn pop(&mut self) -> postcard::Result<u8> {
        let (first, rest) = self.0.split_first().ok_or(Error::DeserializeUnexpectedEnd)?;
        self.0 = rest;
        Ok(*first)
    }

    #[inline]
    fn try_take_n(&mut self, count: usize) -> postcard::Result<&'a [u8]> {
        let (taken, rest) =
            self.0.split_at_checked(count).ok_or(Error::DeserializeUnexpectedEnd)?;
        self.0 = rest;
        Ok(taken)
    }

    fn finalize(self) -> postcard::Result<usize> {
        Ok(self.0.len())
    }
}

#[inline]
pub(super) fn encode<T: Serialize>(
    value: &T,
    out: &mut Vec<u8>,
    parts: &Collector<'_>,
) -> Result<(), String> {
    postcard::serialize_with_flavor(value, VecFlavor(out, parts)).map_err(|error| text(&error))
}

struct CursorFlavor<'de>(Rc<Cursor<'de>>);

impl<'de> de_flavors::Flavor<'de> for CursorFlavor<'de> {
    type Remainder = ();
    type Source = ();

    #[inline]
    fn pop(&mut self) -> postcard::Result<u8> {
        let byte = self.0.read(1).and_then(<[u8]>::first);
        byte.copied().ok_or(Error::DeserializeUnexpectedEnd)
    }

    #[inline]
    fn try_take_n(&mut self, count: usize) -> postcard::Result<&'de [u8]> {
        self.0.read(count).ok_or(Error::DeserializeUnexpectedEnd)
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

pub(super) fn decode_parts<'a, S>(seed: S, cursor: Rc<Cursor<'a>>) -> Result<S::Value, String>
where
    S: DeserializeSeed<'a>,
{
    let mut deserializer = Deserializer::from_flavor(CursorFlavor(cursor));
    seed.deserialize(&mut deserializer).map_err(|error| text(&error))
}

#[inline(always)]
pub(super) fn decode<'a, S>(seed: S, bytes: &'a [u8]) -> Result<S::Value, Undecoded>
where
    S: DeserializeSeed<'a>,
{
    let malformed = |error| Undecoded::Malformed(text(&error));
    let mut deserializer = Deserializer::from_flavor(SliceFlavor(bytes));
    let value = seed.deserialize(&mut deserializer).map_err(malformed)?;
    match deserializer.finalize().map_err(malformed)? {
        0 => Ok(value),
        left => Err(Undecoded::Trailing(left)),
    }
}

#[cold]
fn text(error: &Error) -> String {
    match error {
        Error::DeserializeUnexpectedEnd => "the message ends too early".to_owned(),
        Error::DeserializeBadUtf8 => "a string is not UTF-8".to_owned(),
        Error::DeserializeBadVarint => "an integer is too large".to_owned(),
        Error::SerdeSerCustom => "the type rejects the value".to_owned(),
        // This format drops the reason.
        Error::SerdeDeCustom => {
            reason::take().unwrap_or_else(|| "the type rejects the value".to_owned())
        }
        other => other.to_string(),
    }
}
