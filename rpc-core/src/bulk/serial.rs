//! A [`Bulk`] in serde's eyes: bytes, in a newtype that the crate's own codecs know by its name.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use super::{Bulk, handoff};

/// Most room that is made on the strength of an announced count, bytes.
const MAX_RESERVED: usize = 4096;

/// The bytes, for formats that know no payloads.
struct Content<'a>(&'a Bulk);

impl Serialize for Content<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0.contiguous())
    }
}

impl Serialize for Bulk {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        handoff::pass(self.clone(), || {
            serializer.serialize_newtype_struct(handoff::NAME, &Content(self))
        })
    }
}

struct BulkVisitor;

impl<'de> Visitor<'de> for BulkVisitor {
    type Value = Bulk;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    /// The codec's wrapper has a payload.
    fn visit_unit<E: Error>(self) -> Result<Bulk, E> {
        handoff::take().ok_or_else(|| E::custom("a payload is missing"))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<Bulk, D::Error> {
        inner.deserialize_byte_buf(self)
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Bulk, E> {
        Ok(Bulk::copy_from_slice(bytes))
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Bulk, E> {
        Ok(Bulk::from(bytes))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Bulk, E> {
        self.visit_bytes(text.as_bytes())
    }

    /// Formats without byte strings have sequences of numbers.
    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Bulk, A::Error> {
        let announced = elements.size_hint().unwrap_or(0);
        let mut bytes = Vec::with_capacity(announced.min(MAX_RESERVED));
        while let Some(byte) = elements.next_element::<u8>()? {
            bytes.push(byte);
        }
        Ok(Bulk::from(bytes))
    }
}

impl<'de> Deserialize<'de> for Bulk {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(handoff::NAME, BulkVisitor)
    }
}
