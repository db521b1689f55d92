//! Items as bytes.
//!
//! Owns how an item is encoded and decoded: as a body is, with its large byte strings sent
//! separately.

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;
use serde::Serialize;
use serde::de::DeserializeSeed;

use crate::bulk::Bulk;
use crate::codec::shape::{TakeShape, seed};
use crate::codec::{Codec, CodecError, Placement, Scratch, Tail};
use crate::reply::coding::{undecodable_item, undescribed, unfit_item};
use crate::resolution::{Decoding, decode_by};
use crate::service::MethodDescriptor;
use crate::status::Status;

/// What an item of a client's source becomes: itself, or the error that ends the source.
///
/// A source may be a stream of `T`, or of `Result<T, E>` where `E` becomes a [`Status`]. An error
/// resets the stream with that status's code, and the call ends with the status.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no item of this stream, whose items are `{T}`",
    label = "neither `{T}` nor a `Result` of it"
)]
pub trait IntoItem<T> {
    /// The item, or why there are no more.
    ///
    /// # Errors
    /// The source's own.
    fn into_item(self) -> Result<T, Status>;
}

impl<T> IntoItem<T> for T {
    #[inline]
    fn into_item(self) -> Result<T, Status> {
        Ok(self)
    }
}

impl<T, E: Into<Status>> IntoItem<T> for Result<T, E> {
    #[inline]
    fn into_item(self) -> Result<T, Status> {
        self.map_err(Into::into)
    }
}

/// Encodes one item; generated code hands it the item with its shape.
#[doc(hidden)]
#[derive(Debug)]
pub struct ItemEncoder<'a> {
    codec: Codec,
    placement: Placement<'a>,
    method: &'static MethodDescriptor,
    encoded: Result<OutBuf, CodecError>,
}

/// The function that encodes items of type `T`.
pub(crate) type Encode<T> = fn(T, &mut ItemEncoder<'_>);

impl<'a> ItemEncoder<'a> {
    /// Encodes `item` by `encode`.
    #[inline]
    pub(crate) fn encode<T>(
        item: T,
        encode: Encode<T>,
        codec: Codec,
        placement: Placement<'a>,
        method: &'static MethodDescriptor,
    ) -> Result<OutBuf, CodecError> {
        let mut encoder = Self { codec, placement, method, encoded: Ok(OutBuf::new()) };
        encode(item, &mut encoder);
        encoder.encoded
    }

    /// Encodes a value.
    #[inline]
    pub fn put(&mut self, value: impl Serialize) {
        if let Ok(out) = &mut self.encoded
            && let Err(error) = self.codec.encode_body(&value, out, self.placement, self.method)
        {
            self.encoded = Err(error);
        }
    }
}

/// The function that decodes items of type `T`.
pub(crate) type Decode<T> =
    fn(Codec, &'static MethodDescriptor, &Decoding, Message) -> Result<T, Status>;

/// The decoder of items of type `T` in shape `shape`.
#[doc(hidden)]
#[inline]
pub fn item_decoder<T, H>(_shape: H) -> Decode<T>
where
    H: for<'de> TakeShape<'de, T> + Default,
{
    decode::<T, H>
}

fn decode<T, H>(
    codec: Codec,
    method: &'static MethodDescriptor,
    decoding: &Decoding,
    mut message: Message,
) -> Result<T, Status>
where
    H: for<'de> TakeShape<'de, T> + Default,
{
    let tail = if message.is_plain() { None } else { take_tail(&mut message) };
    let shape = seed::<T, H>(H::default());
    if !decoding.is_own() {
        let scratch = Scratch::new();
        return decode_planned(codec, method, decoding, shape, &message, tail, &scratch);
    }
    let decoded = match tail {
        None => codec.decode_seed(shape, &message),
        Some(tail) => codec.decode_parts(shape, &message, tail, &Scratch::new()),
    };
    decoded.map_err(|error| undecodable_item(method, error))
}

/// Decodes an item of a sender whose types differ.
#[cold]
fn decode_planned<'de, S: DeserializeSeed<'de> + Clone>(
    codec: Codec,
    method: &'static MethodDescriptor,
    decoding: &Decoding,
    shape: S,
    message: &'de [u8],
    tail: Option<Tail<'de>>,
    scratch: &'de Scratch,
) -> Result<S::Value, Status> {
    let by = decoding.item().map_err(|why| undescribed(method, "an item", why))?;
    let decoded = decode_by(codec, by, shape, message, tail, scratch);
    decoded.map_err(|error| unfit_item(method, error, decoding.misfit_code()))
}

#[cold]
fn take_tail<'de>(message: &mut Message) -> Option<Tail<'de>> {
    match message.take_tail() {
        Some(tail) => Some(Tail::Given(Bulk::from(tail))),
        None => message.take_stream().map(Tail::Arriving),
    }
}
