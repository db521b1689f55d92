//! serde support for [`Bulk`]: bytes, in a newtype that this crate's codecs recognise by its name.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use super::handoff::{self, Handed};
use super::{Bulk, BulkReader};
use crate::layout::PAYLOAD;

/// Maximum memory reserved because of an announced count, bytes.
const MAX_RESERVED: usize = 4096;

/// The bytes, for formats that do not know payloads.
struct Content<'a>(&'a Bulk);

impl Serialize for Content<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = self.0.contiguous().map_err(serde::ser::Error::custom)?;
        serializer.serialize_bytes(&bytes)
    }
}

impl Serialize for Bulk {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        handoff::pass(Handed::Bulk(self.clone()), || {
            serializer.serialize_newtype_struct(PAYLOAD, &Content(self))
        })
    }
}

struct BulkVisitor;

impl<'de> Visitor<'de> for BulkVisitor {
    type Value = Bulk;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    /// The payload is handed over by the codec's wrapper.
    fn visit_unit<E: Error>(self) -> Result<Bulk, E> {
        match handoff::take() {
            Some(Handed::Bulk(bulk)) => Ok(bulk),
            Some(Handed::Stream(_)) => Err(E::custom("the payload is still arriving")),
            None => Err(E::custom("a payload is missing")),
        }
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

    /// Formats without byte strings use sequences of numbers.
    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Bulk, A::Error> {
        let announced = elements.size_hint().unwrap_or(0);
        let mut bytes = Vec::with_capacity(announced.min(MAX_RESERVED));
        while let Some(byte) = elements.next_element::<u8>()? {
            bytes.push(byte);
        }
        Ok(Bulk::from(bytes))
    }
}

/// Only the unread rest is sent.
impl Serialize for BulkReader {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.unread() {
            Some(bulk) => bulk.serialize(serializer),
            None => Err(serde::ser::Error::custom(
                "a payload that is still arriving cannot be forwarded whole; send its \
                 `into_pieces()` to a method that takes a `Streaming<Bulk>`, or read it first",
            )),
        }
    }
}

struct ReaderVisitor;

impl<'de> Visitor<'de> for ReaderVisitor {
    type Value = BulkReader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        BulkVisitor.expecting(f)
    }

    fn visit_unit<E: Error>(self) -> Result<BulkReader, E> {
        match handoff::take() {
            Some(Handed::Bulk(bulk)) => Ok(bulk.reader()),
            Some(Handed::Stream(stream)) => Ok(BulkReader::of_stream(stream)),
            None => Err(E::custom("a payload is missing")),
        }
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<BulkReader, D::Error> {
        Ok(BulkVisitor.visit_newtype_struct(inner)?.reader())
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<BulkReader, E> {
        Ok(BulkVisitor.visit_bytes::<E>(bytes)?.reader())
    }
}

impl<'de> Deserialize<'de> for BulkReader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(PAYLOAD, ReaderVisitor)
    }
}

impl<'de> Deserialize<'de> for Bulk {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(PAYLOAD, BulkVisitor)
    }
}
