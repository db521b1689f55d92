//! Codecs: values to bytes and back, for any format that serde drives.
//!
//! Owns the choice of format, its id on the wire, and the rules that hold for all of them. This is
//! the only file that names a format's crate. Never knows methods or frames: callers add the
//! method to an error ([`CodecError::describe`]).
//!
//! Both formats run behind the same two wrappers (`encode`, `decode`), which hold the
//! invariants; a newtype struct under a private name would be recognised there too.
//!
//! Invariants:
//! 1. A message is decoded to its last byte: trailing bytes are refused.
//! 2. The elements of all sequences and maps of a message together never outnumber its bytes, on
//!    either side. So a count is refused before anything is allocated for it or looped over, and
//!    elements that take no bytes (`Vec<()>`) are refused when they are encoded.
//! 3. Containers nest at most [`MAX_DEPTH`] deep, on either side.
//! 4. A failed encoding leaves the output as it was.
//! 5. Strings and byte strings are borrowed from the message and copied by the type that wants to
//!    own them, after their length has been checked.

mod decode;
mod encode;
mod error;
mod guard;

use rpc_transport::outbound::OutBuf;
use serde::{Deserialize, Serialize};

pub use self::error::{CodecError, CodecErrorKind};
use self::guard::Guard;

#[cfg(not(any(feature = "bincode", feature = "postcard")))]
compile_error!("rpc-core needs a codec: enable the feature `bincode` or `postcard`");

/// Deepest nesting of containers (structs, enums, options, sequences, maps) in a message. Bounds
/// the stack that a peer can make a decoder of recursive types use.
pub const MAX_DEPTH: u32 = 128;

/// A serialisation format. The id travels with every message.
///
/// A codec that this build lacks is still a value of this type: using it is an error that names
/// the cargo feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Codec {
    /// bincode 2, little endian, variable-length integers. The default.
    Bincode = 1,
    /// postcard 1.
    Postcard = 2,
}

impl Default for Codec {
    /// The first of bincode, postcard that is compiled in.
    fn default() -> Self {
        if cfg!(feature = "bincode") { Self::Bincode } else { Self::Postcard }
    }
}

impl Codec {
    /// The id on the wire.
    #[must_use]
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// The codec with that id.
    ///
    /// # Errors
    /// [`CodecErrorKind::UnknownCodec`], [`CodecErrorKind::NotCompiledIn`].
    pub fn from_id(id: u8) -> Result<Self, CodecError> {
        let codec = match id {
            1 => Self::Bincode,
            2 => Self::Postcard,
            _ => return Err(CodecErrorKind::UnknownCodec { id }.into()),
        };
        if codec.is_compiled_in() {
            Ok(codec)
        } else {
            Err(CodecErrorKind::NotCompiledIn { codec }.into())
        }
    }

    /// Whether this build can use it.
    #[must_use]
    pub const fn is_compiled_in(self) -> bool {
        match self {
            Self::Bincode => cfg!(feature = "bincode"),
            Self::Postcard => cfg!(feature = "postcard"),
        }
    }

    /// The name, which is also that of the cargo feature.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bincode => "bincode",
            Self::Postcard => "postcard",
        }
    }

    /// Appends the encoding of `value` to `out`; on failure `out` is as before.
    ///
    /// # Errors
    /// A value that breaks a rule above, or whose own `Serialize` fails.
    #[inline]
    pub fn encode<T>(&self, value: &T, out: &mut OutBuf) -> Result<(), CodecError>
    where
        T: Serialize + ?Sized,
    {
        let before = out.len();
        let guard = Guard::for_encoding();
        let guarded = encode::Guarded::new(value, &guard);
        let result = match self {
            #[cfg(feature = "bincode")]
            Self::Bincode => with_bincode::encode(&guarded, out.as_vec_mut()),
            #[cfg(feature = "postcard")]
            Self::Postcard => with_postcard::encode(&guarded, out.as_vec_mut()),
            #[allow(unreachable_patterns, reason = "reachable when a codec is not compiled in")]
            codec => return Err(CodecErrorKind::NotCompiledIn { codec: *codec }.into()),
        };
        let written = out.len() - before;
        match result {
            Ok(()) if guard.claimed() <= written => Ok(()),
            failed => {
                out.truncate(before);
                let kind = match failed {
                    Ok(()) => CodecErrorKind::TooManyElements { limit: written },
                    Err(reason) => guard.kind_or(CodecErrorKind::Unencodable { reason }),
                };
                Err(CodecError::new(kind, guard.into_path()))
            }
        }
    }

    /// Decodes a value that may borrow from `bytes`.
    ///
    /// # Errors
    /// Bytes that break a rule above, or are no encoding of a `T`.
    #[inline]
    pub fn decode<'a, T: Deserialize<'a>>(&self, bytes: &'a [u8]) -> Result<T, CodecError> {
        self.decode_seed(std::marker::PhantomData, bytes)
    }

    /// Decodes with a seed, for values that need more than their type.
    ///
    /// # Errors
    /// As [`Codec::decode`].
    #[inline]
    pub fn decode_seed<'a, S>(&self, seed: S, bytes: &'a [u8]) -> Result<S::Value, CodecError>
    where
        S: serde::de::DeserializeSeed<'a>,
    {
        let guard = Guard::for_decoding(bytes.len());
        let guarded = decode::Seed::new(seed, &guard);
        let result = match self {
            #[cfg(feature = "bincode")]
            Self::Bincode => with_bincode::decode(guarded, bytes),
            #[cfg(feature = "postcard")]
            Self::Postcard => with_postcard::decode(guarded, bytes),
            #[allow(unreachable_patterns, reason = "reachable when a codec is not compiled in")]
            codec => return Err(CodecErrorKind::NotCompiledIn { codec: *codec }.into()),
        };
        match result {
            Ok((value, read)) if read == bytes.len() => Ok(value),
            Ok((_, read)) => {
                Err(CodecErrorKind::TrailingBytes { count: bytes.len() - read }.into())
            }
            Err(reason) => {
                let kind = guard.kind_or(CodecErrorKind::Malformed { reason });
                Err(CodecError::new(kind, guard.into_path()))
            }
        }
    }
}

#[cfg(feature = "bincode")]
mod with_bincode {
    use bincode::config::{Configuration, standard};
    use bincode::enc::write::Writer;
    use bincode::error::{DecodeError, EncodeError};
    use serde::Serialize;
    use serde::de::DeserializeSeed;

    const CONFIG: Configuration = standard();

    struct VecWriter<'a>(&'a mut Vec<u8>);

    impl Writer for VecWriter<'_> {
        #[inline]
        fn write(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
            self.0.extend_from_slice(bytes);
            Ok(())
        }
    }

    #[inline]
    pub(super) fn encode<T: Serialize>(value: &T, out: &mut Vec<u8>) -> Result<(), String> {
        bincode::serde::encode_into_writer(value, VecWriter(out), CONFIG).map_err(encode_reason)
    }

    #[inline]
    pub(super) fn decode<'a, S>(seed: S, bytes: &'a [u8]) -> Result<(S::Value, usize), String>
    where
        S: DeserializeSeed<'a>,
    {
        bincode::serde::seed_decode_from_slice(seed, bytes, CONFIG).map_err(decode_reason)
    }

    #[cold]
    fn encode_reason(error: EncodeError) -> String {
        match error {
            EncodeError::OtherString(reason) => reason,
            other => format!("{other:?}"),
        }
    }

    #[cold]
    fn decode_reason(error: DecodeError) -> String {
        match error {
            DecodeError::OtherString(reason) => reason,
            DecodeError::UnexpectedEnd { .. } => "the message ends too early".to_owned(),
            DecodeError::Utf8 { .. } => "a string is not UTF-8".to_owned(),
            DecodeError::InvalidBooleanValue(byte) => format!("{byte} is not a bool"),
            DecodeError::InvalidCharEncoding(_) => "a char is not UTF-8".to_owned(),
            DecodeError::UnexpectedVariant { found, .. } => format!("{found} is no variant"),
            DecodeError::InvalidIntegerType { .. } => "an integer is too large".to_owned(),
            other => format!("{other:?}"),
        }
    }
}

#[cfg(feature = "postcard")]
mod with_postcard {
    use postcard::{Deserializer, Error, de_flavors, ser_flavors};
    use serde::Serialize;
    use serde::de::DeserializeSeed;

    struct VecFlavor<'a>(&'a mut Vec<u8>);

    impl ser_flavors::Flavor for VecFlavor<'_> {
        type Output = ();

        #[inline]
        fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
            self.0.extend_from_slice(bytes);
            Ok(())
        }

        #[inline]
        fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
            self.0.push(byte);
            Ok(())
        }

        fn finalize(self) -> postcard::Result<()> {
            Ok(())
        }
    }

    /// A slice that gives no size hint, so that a sequence reports its announced length whatever
    /// remains: the guard judges it, by the same rule for every codec.
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
    pub(super) fn encode<T: Serialize>(value: &T, out: &mut Vec<u8>) -> Result<(), String> {
        postcard::serialize_with_flavor(value, VecFlavor(out)).map_err(|error| reason(&error))
    }

    #[inline]
    pub(super) fn decode<'a, S>(seed: S, bytes: &'a [u8]) -> Result<(S::Value, usize), String>
    where
        S: DeserializeSeed<'a>,
    {
        let mut deserializer = Deserializer::from_flavor(SliceFlavor(bytes));
        let value = seed.deserialize(&mut deserializer).map_err(|error| reason(&error))?;
        let left = deserializer.finalize().map_err(|error| reason(&error))?;
        Ok((value, bytes.len() - left))
    }

    #[cold]
    fn reason(error: &Error) -> String {
        match error {
            Error::DeserializeUnexpectedEnd => "the message ends too early".to_owned(),
            Error::DeserializeBadUtf8 => "a string is not UTF-8".to_owned(),
            Error::DeserializeBadVarint => "an integer is too large".to_owned(),
            Error::SerdeSerCustom | Error::SerdeDeCustom => {
                "the type refuses the value (this format drops the reason)".to_owned()
            }
            other => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests;
