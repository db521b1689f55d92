//! Codecs: values to bytes and back, for any format that serde drives.
//!
//! Owns the choice of format, its id on the wire, and the rules that hold for all of them. This is
//! the only file that names a format's crate. Knows nothing of methods or frames: callers add the
//! method to an error ([`CodecError::describe`]).
//!
//! All formats run behind the same two wrappers (`encode`, `decode`), which enforce the invariants.
//! For formats without names the wrappers also move byte strings from the body to the message's
//! tail and back (`collector`, `source`); joined, body and tail are always exactly the output of
//! the format.
//!
//! Invariants:
//! 1. A message is decoded to its last byte: trailing bytes are refused.
//! 2. The elements of all sequences and maps of a message together never outnumber its bytes, on
//!    either side. So a count is refused before anything is allocated for it or looped over, and
//!    elements that take no bytes (`Vec<()>`) are refused when they are encoded.
//! 3. Containers nest at most [`MAX_DEPTH`] deep, on either side. No container opens once decoding
//!    has used 512 KiB of stack.
//! 4. A failed encoding leaves the output as it was.
//! 5. Strings and byte strings are borrowed from the message and copied by the type that wants to
//!    own them, after their length has been checked.
//! 6. The value does not depend on which byte strings the sender took out of the body; only the
//!    number of copies does.
//! 7. The elements of all sequences and maps of a message take at most 64 bytes of memory for each
//!    of its bytes, plus 16 MiB, not counting what they own on the heap. Without this limit, an
//!    element of one byte on the wire could take a kilobyte of memory. Of a value that serde keeps
//!    before it reads it (`untagged`), what is kept counts.

// Without any codec, only the one error below is reported, not the warnings that follow from it.
#![cfg_attr(
    not(any(feature = "bincode", feature = "postcard")),
    allow(unused, unreachable_code, reason = "there is no codec")
)]

pub(crate) mod blob;
mod collector;
mod decode;
mod encode;
mod error;
mod guard;
#[cfg(feature = "msgpack")]
mod keys;
mod leaf;
#[cfg(feature = "msgpack")]
mod msgpack;
#[cfg(feature = "msgpack")]
mod nothing;
pub(crate) mod probe;
mod reason;
mod scratch;
pub(crate) mod shape;
mod source;

use rpc_transport::message::outgoing::OutBuf;
use serde::de::DeserializeSeed;
use serde::{Deserialize, Serialize};

use self::collector::Collector;
pub(crate) use self::collector::{DEFAULT_MIN_PART_BYTES, Placement, Pool};
pub use self::error::{CodecError, CodecErrorKind};
use self::guard::Guard;
#[doc(hidden)]
pub use self::scratch::Scratch;
#[cfg(feature = "msgpack")]
use self::source::Named;
#[doc(hidden)]
pub use self::source::Tail;
use self::source::{Cursor, Plain};
use crate::method::MethodDescriptor;

#[cfg(not(any(feature = "bincode", feature = "postcard")))]
compile_error!("rpc-over-rdma needs a codec: enable the feature `bincode` or `postcard`");

/// Maximum nesting of containers (structs, enums, options, sequences, maps) in a message. Bounds
/// the stack that a peer can make the decoder of a recursive type use.
pub const MAX_DEPTH: u32 = 128;

/// A serialization format. Its id is sent with every message.
///
/// A codec that is not compiled in is still a value of this type: using it is an error that names
/// the cargo feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Codec {
    /// bincode 2, little endian, variable-length integers. The default.
    Bincode = 1,
    /// postcard 1.
    Postcard = 2,
    /// MessagePack with the names of fields and variants, for types that need a self-describing
    /// format. A method asks for it: `#[rpc(codec = "msgpack")]`.
    MsgPack = 3,
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
            3 => Self::MsgPack,
            _ => return Err(CodecErrorKind::UnknownCodec { id }.into()),
        };
        if codec.is_compiled_in() {
            Ok(codec)
        } else {
            Err(CodecErrorKind::NotCompiledIn { codec }.into())
        }
    }

    /// Whether it is compiled in.
    #[must_use]
    pub const fn is_compiled_in(self) -> bool {
        match self {
            Self::Bincode => cfg!(feature = "bincode"),
            Self::Postcard => cfg!(feature = "postcard"),
            Self::MsgPack => cfg!(feature = "msgpack"),
        }
    }

    /// The name of the codec and of its cargo feature.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bincode => "bincode",
            Self::Postcard => "postcard",
            Self::MsgPack => "msgpack",
        }
    }

    /// The codec of a method's calls, on a channel with this one.
    #[inline]
    pub(crate) const fn of_calls(self, method: &MethodDescriptor) -> Self {
        if method.has_names { Self::MsgPack } else { self }
    }

    /// Appends the encoding of `value` to `out`; on failure `out` is as before.
    ///
    /// # Errors
    /// The value breaks a rule above, or its `Serialize` fails.
    #[inline]
    pub fn encode<T>(&self, value: &T, out: &mut OutBuf) -> Result<(), CodecError>
    where
        T: Serialize + ?Sized,
    {
        self.encode_body(value, out, Placement::INLINE, Whole)
    }

    /// Encodes `value` into `out` as the body of a message. Large byte strings become its tail,
    /// with a PARTS block in front of the body.
    ///
    /// # Errors
    /// As [`Codec::encode`].
    // Inlined into the code that sends values of the type.
    #[inline(always)]
    pub(crate) fn encode_body<T, A>(
        &self,
        value: &T,
        out: &mut OutBuf,
        placement: Placement<'_>,
        absent: A,
    ) -> Result<(), CodecError>
    where
        T: Serialize + ?Sized,
        A: Absent,
    {
        #[cfg(feature = "msgpack")]
        if *self == Self::MsgPack {
            return encode_named(value, out);
        }
        let before = out.len();
        let guard = Guard::for_encoding(A::IS_KNOWN);
        // The writers count from the start of the buffer, not of the message.
        let parts = Collector::new(placement, out.as_vec_mut().len());
        let guarded = encode::Guarded::new(value, &guard, &parts);
        let result = match self {
            #[cfg(feature = "bincode")]
            Self::Bincode => with_bincode::encode(&guarded, out.as_vec_mut(), &parts),
            #[cfg(feature = "postcard")]
            Self::Postcard => with_postcard::encode(&guarded, out.as_vec_mut(), &parts),
            #[allow(unreachable_patterns, reason = "reachable when a codec is not compiled in")]
            codec => return Err(CodecErrorKind::NotCompiledIn { codec: *codec }.into()),
        };
        let written = out.len() - before;
        match result {
            Ok(())
                if guard.claimed() <= written
                    || guard.fits(parts.total(written), |field| absent.may_be(field)) =>
            {
                parts.finish(out).map_err(|error| {
                    out.truncate(before);
                    CodecErrorKind::from(error).into()
                })
            }
            failed => {
                out.truncate(before);
                let limit = parts.total(written);
                Err(unencodable(guard, failed, limit))
            }
        }
    }

    /// Decodes a value that may borrow from `bytes`.
    ///
    /// # Errors
    /// The bytes break a rule above, or are not the encoding of a `T`.
    #[inline]
    pub fn decode<'a, T: Deserialize<'a>>(&self, bytes: &'a [u8]) -> Result<T, CodecError> {
        self.decode_seed(std::marker::PhantomData, bytes)
    }

    /// Decodes with a seed, for values that need more than their type.
    ///
    /// # Errors
    /// As [`Codec::decode`].
    // Inlined into the code that receives values of the type.
    #[inline(always)]
    pub fn decode_seed<'a, S>(&self, seed: S, bytes: &'a [u8]) -> Result<S::Value, CodecError>
    where
        S: DeserializeSeed<'a>,
    {
        #[cfg(feature = "msgpack")]
        if *self == Self::MsgPack {
            let guard = Guard::for_decoding(bytes.len());
            let guarded = decode::Seed::new(seed, Named, &guard);
            return msgpack::decode(guarded, bytes).map_err(|why| undecoded(guard, why));
        }
        self.decode_positional(seed, bytes)
    }

    /// Decodes from a format without names. No code for the others is generated.
    #[inline(always)]
    pub(crate) fn decode_positional<'a, S>(
        &self,
        seed: S,
        bytes: &'a [u8],
    ) -> Result<S::Value, CodecError>
    where
        S: DeserializeSeed<'a>,
    {
        let guard = Guard::for_decoding(bytes.len());
        let guarded = decode::Seed::new(seed, Plain, &guard);
        let result: Result<S::Value, Undecoded> = match self {
            #[cfg(feature = "bincode")]
            Self::Bincode => with_bincode::decode(guarded, bytes),
            #[cfg(feature = "postcard")]
            Self::Postcard => with_postcard::decode(guarded, bytes),
            #[allow(unreachable_patterns, reason = "reachable when a codec is not compiled in")]
            codec => return Err(CodecErrorKind::NotCompiledIn { codec: *codec }.into()),
        };
        result.map_err(|why| undecoded(guard, why))
    }

    /// Decodes a value from a message with a tail: `message` is its PARTS block and body, as
    /// checked by `wire::parse_with_tail`. The value may borrow from the message, and from copies
    /// that `scratch` keeps.
    ///
    /// # Errors
    /// As [`Codec::decode`].
    #[doc(hidden)]
    #[cold]
    pub fn decode_parts<'a, S>(
        &self,
        seed: S,
        message: &'a [u8],
        tail: Tail<'a>,
        scratch: &'a Scratch,
    ) -> Result<S::Value, CodecError>
    where
        S: DeserializeSeed<'a> + Clone,
    {
        let cursor = Cursor::new(message, tail, scratch);
        let guard = Guard::for_decoding(cursor.total_bytes());
        let guarded = decode::Seed::new(seed.clone(), &*cursor, &guard);
        let result: Result<S::Value, String> = match self {
            #[cfg(feature = "bincode")]
            Self::Bincode => with_bincode::decode_parts(guarded, &cursor),
            #[cfg(feature = "postcard")]
            Self::Postcard => with_postcard::decode_parts(guarded, std::rc::Rc::clone(&cursor)),
            #[allow(unreachable_patterns, reason = "reachable when a codec is not compiled in")]
            codec => return Err(CodecErrorKind::NotCompiledIn { codec: *codec }.into()),
        };
        match result {
            Ok(value) if cursor.left_bytes() == 0 => Ok(value),
            Ok(_) => Err(trailing(cursor.left_bytes())),
            Err(reason) => match cursor.refusal() {
                Some(kind) => Err(CodecError::new(kind, guard.into_diagnosis().1)),
                None => match cursor.must_join().then(|| cursor.join()).flatten() {
                    Some(joined) => self.decode_positional(seed, joined?),
                    None => Err(malformed(guard, reason)),
                },
            },
        }
    }
}

/// Byte strings stay in the body: a reader may buffer them before it knows what they are.
#[cfg(feature = "msgpack")]
#[inline(never)]
fn encode_named<T: Serialize + ?Sized>(value: &T, out: &mut OutBuf) -> Result<(), CodecError> {
    let before = out.len();
    let guard = Guard::for_names();
    let parts = Collector::new(Placement::INLINE, out.as_vec_mut().len());
    let guarded = encode::Guarded::new(value, &guard, &parts);
    let result = msgpack::encode(&guarded, out.as_vec_mut());
    let written = out.len() - before;
    if result.is_ok() && guard.claimed() <= written {
        return Ok(());
    }
    out.truncate(before);
    Err(unencodable(guard, result, written))
}

/// The fields that may be omitted from a value (serde's `skip_serializing_if`): those whose omitted
/// value is encoded as one zero byte. Looked up only when a field was omitted.
pub(crate) trait Absent {
    /// Whether anything is known about them; if not, none may be omitted.
    const IS_KNOWN: bool;

    /// Whether fields of that name may be omitted.
    fn may_be(&self, field: &str) -> bool;
}

/// No field may be omitted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whole;

impl Absent for Whole {
    const IS_KNOWN: bool = false;

    fn may_be(&self, _: &str) -> bool {
        false
    }
}

impl Absent for &'static MethodDescriptor {
    const IS_KNOWN: bool = true;

    #[cold]
    fn may_be(&self, field: &str) -> bool {
        self.schema().is_some_and(|schema| schema.may_leave_out(field))
    }
}

/// Makes the error. `limit` is the element budget, which was exceeded if no other rule was broken.
#[cold]
fn unencodable(guard: Guard, failed: Result<(), String>, limit: usize) -> CodecError {
    let (broken, path) = guard.into_diagnosis();
    let refusal = reason::take();
    let kind = match failed {
        Ok(()) => broken.unwrap_or(CodecErrorKind::TooManyElements { limit }),
        Err(reason) => {
            let reason = refusal.unwrap_or(reason);
            broken.unwrap_or(CodecErrorKind::Unencodable { reason })
        }
    };
    CodecError::new(kind, path)
}

/// Why decoding failed.
enum Undecoded {
    /// The number of bytes left over.
    Trailing(usize),
    Malformed(String),
}

#[cold]
fn undecoded(guard: Guard, why: Undecoded) -> CodecError {
    match why {
        Undecoded::Trailing(count) => trailing(count),
        Undecoded::Malformed(reason) => malformed(guard, reason),
    }
}

#[cold]
fn trailing(count: usize) -> CodecError {
    CodecErrorKind::TrailingBytes { count }.into()
}

#[cold]
fn malformed(guard: Guard, reason: String) -> CodecError {
    // A later failure must not report this reason.
    drop(self::reason::take());
    let (broken, path) = guard.into_diagnosis();
    CodecError::new(broken.unwrap_or(CodecErrorKind::Malformed { reason }), path)
}

#[cfg(feature = "bincode")]
mod with_bincode {
    use bincode::config::{Configuration, standard};
    use bincode::de::read::Reader;
    use bincode::enc::write::Writer;
    use bincode::error::{DecodeError, EncodeError};
    use bincode::serde::OwnedSerdeDecoder;
    use serde::Serialize;
    use serde::de::DeserializeSeed;

    use super::{Collector, Cursor, Undecoded};

    const CONFIG: Configuration = standard();

    struct VecWriter<'a>(&'a mut Vec<u8>, &'a Collector<'a>);

    impl Writer for VecWriter<'_> {
        #[inline]
        fn write(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
            self.0.extend_from_slice(bytes);
            self.1.on_written(self.0.len());
            Ok(())
        }
    }

    #[inline]
    pub(super) fn encode<T: Serialize>(
        value: &T,
        out: &mut Vec<u8>,
        parts: &Collector<'_>,
    ) -> Result<(), String> {
        bincode::serde::encode_into_writer(value, VecWriter(out, parts), CONFIG)
            .map_err(encode_reason)
    }

    struct CursorReader<'a, 'de>(&'a Cursor<'de>);

    impl Reader for CursorReader<'_, '_> {
        #[inline]
        fn read(&mut self, bytes: &mut [u8]) -> Result<(), DecodeError> {
            let additional = bytes.len();
            let read = self.0.read(bytes.len());
            bytes.copy_from_slice(read.ok_or(DecodeError::UnexpectedEnd { additional })?);
            Ok(())
        }
    }

    /// The decoder of owned values, the only one that takes a reader: borrowed values come from the
    /// cursor itself.
    pub(super) fn decode_parts<'a, S>(seed: S, cursor: &Cursor<'a>) -> Result<S::Value, String>
    where
        S: DeserializeSeed<'a>,
    {
        let mut decoder = OwnedSerdeDecoder::from_reader(CursorReader(cursor), CONFIG);
        seed.deserialize(decoder.as_deserializer()).map_err(decode_reason)
    }

    #[inline(always)]
    pub(super) fn decode<'a, S>(seed: S, bytes: &'a [u8]) -> Result<S::Value, Undecoded>
    where
        S: DeserializeSeed<'a>,
    {
        match bincode::serde::seed_decode_from_slice(seed, bytes, CONFIG) {
            Ok((value, read)) if read == bytes.len() => Ok(value),
            Ok((_, read)) => Err(Undecoded::Trailing(bytes.len() - read)),
            Err(error) => Err(Undecoded::Malformed(decode_reason(error))),
        }
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
            DecodeError::UnexpectedVariant { found, .. } => format!("{found} is not a variant"),
            DecodeError::InvalidIntegerType { .. } => "an integer is too large".to_owned(),
            other => format!("{other:?}"),
        }
    }
}

#[cfg(feature = "postcard")]
mod with_postcard;

#[cfg(test)]
mod parts_tests;
#[cfg(test)]
mod tests;
