//! MessagePack with the names of fields and variants, for types that need a self-describing format.
//!
//! Owns what this format needs besides the guard: byte strings stay byte strings, whichever type
//! holds them, and an option whose value looks like `None` is refused, since it would arrive as
//! `None`.

use std::io;

use rmp_serde::decode::Error as DecodeError;
use rmp_serde::{Deserializer, Serializer};
use serde::de::{DeserializeSeed, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::{MAX_DEPTH, Undecoded, reason};

struct VecWriter<'a>(&'a mut Vec<u8>);

impl io::Write for VecWriter<'_> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn encode<T: Serialize>(value: &T, out: &mut Vec<u8>) -> Result<(), String> {
    let mut serializer = Serializer::new(VecWriter(out)).with_struct_map();
    value.serialize(&mut serializer).map_err(|error| error.to_string())
}

pub(super) fn decode<'a, S>(seed: S, bytes: &'a [u8]) -> Result<S::Value, Undecoded>
where
    S: DeserializeSeed<'a>,
{
    let mut deserializer = Deserializer::from_read_ref(bytes);
    // The guard counts more containers than the format does, so its limit comes first.
    deserializer.set_max_depth(MAX_DEPTH as usize + 1);
    let value = seed.deserialize(&mut deserializer);
    let value = value.map_err(|error| Undecoded::Malformed(text(&error)))?;
    // The reader does not tell how much it has read.
    match IgnoredAny::deserialize(&mut deserializer) {
        Err(DecodeError::InvalidMarkerRead(_)) => Ok(value),
        _ => Err(Undecoded::Trailing(left_over(bytes))),
    }
}

/// The bytes behind the first value.
#[cold]
fn left_over(bytes: &[u8]) -> usize {
    let mut deserializer = Deserializer::new(io::Cursor::new(bytes));
    let _ = IgnoredAny::deserialize(&mut deserializer);
    let read = usize::try_from(deserializer.position()).unwrap_or(usize::MAX);
    bytes.len().saturating_sub(read)
}

#[cold]
fn text(error: &DecodeError) -> String {
    match error {
        DecodeError::InvalidMarkerRead(_) | DecodeError::InvalidDataRead(_) => {
            "the message ends too early".to_owned()
        }
        DecodeError::Utf8Error(_) => "a string is not UTF-8".to_owned(),
        DecodeError::OutOfRange => "an integer is too large".to_owned(),
        DecodeError::DepthLimitExceeded => format!("nested more than {MAX_DEPTH} deep"),
        DecodeError::Uncategorized(text) | DecodeError::Syntax(text) => {
            reason::take().unwrap_or_else(|| text.clone())
        }
        other => other.to_string(),
    }
}
