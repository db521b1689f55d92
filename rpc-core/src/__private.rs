//! Support for the code that `#[service]` generates: `rpc_core::__private`.
//!
//! Owns the contract between `#[service]` and this crate. Public because generated code lives in
//! the user's crate; not part of the API, and changes with the macro's version, which is pinned to
//! this crate's. Generated code names nothing but this module and the types that users see.
//!
//! Server side: the macro's dispatch calls [`split`], and in the handler's future
//! [`Incoming::arguments`], the user's method, and [`Incoming::reply`] or
//! [`Incoming::reply_error`]. Client side: `Channel::call` with the arguments as a tuple of
//! [`put`], and one of [`decode_plain`], [`decode_result`] through [`plain`], [`result`].

pub use std::clone::Clone;
pub use std::convert::{AsRef, From};
pub use std::default::Default;
pub use std::fmt;
pub use std::future::Future;
pub use std::iter::IntoIterator;
pub use std::marker::{Send, Sync};
pub use std::option::Option;
pub use std::panic;
pub use std::result::Result;
pub use std::string::String;
pub use std::sync::Arc;
pub use std::vec::Vec;

use std::mem::ManuallyDrop;

use rpc_transport::lock::Mutex;
use rpc_transport::memory::budget::{BudgetExhausted, Reservation};
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::payload::Payload;
use rpc_transport::message::payload_stream::PayloadStream;
use rpc_transport::message::read_error::ReadError;
use rpc_transport::message::received::Message;
use rpc_transport::message::reply_slot::PeerSlot;
use serde::de::DeserializeSeed;
use serde::{Serialize, Serializer};

pub use crate::client::Channel;
pub use crate::client::blocking::BlockingChannel;
pub use crate::client::call::Call;
pub use crate::client::call::stream_call::StreamDecoders;
pub use crate::codec::CodecError;
pub use crate::codec::blob::{Blob, OwnedBlob, PutBlob, TakeBlob, TakeOwnedBlob};
pub use crate::codec::probe::{Lacking, Probe, ProbeMissing, ProbePut, ProbeTake, ProbeTakeOwned};
pub use crate::codec::shape::{
    ArgumentSeed, ByName, Missing, Plain, PutShape, Seeds, StatusShape, TakeShape, put, seed,
    seed_or_default,
};
pub use crate::layout::{Tracer, Writes};
pub use crate::service::handler::Handler;
pub use crate::service::{
    Described, Dispatch, MethodDescriptor, Reply, ReplyKind, ReplyParts, Request,
    ServiceDescriptor, assert_distinct_ids,
};
pub use crate::status::{CallError, Status};
pub use crate::stream::item::item_decoder;
pub use crate::stream::pump::Port;
pub use rpc_transport::device::connection_error::ConnectError;

use crate::bulk::{Bulk, BulkMut};
use crate::codec::{Codec, Placement, Pool, Scratch, Tail};
use crate::context::{Context, copy_to_own_pool};
use crate::endpoint::send_quota::UNCOUNTED_BYTES;
use crate::reply::Value;
use crate::reply::coding::{
    undecodable, undecodable_reply, undescribed, unfit_reply, unreadable_error,
};
use crate::resolution::{By, Decoding, decode_by};
use crate::session::RAISE;
use crate::status::Code;

/// A type that is a [`Result`], behind an alias.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an alias of `Result`",
    label = "marked #[rpc(result)], but is not a `Result`",
    note = "remove #[rpc(result)]: this type is the method's result"
)]
pub trait IsResult {
    /// The success type.
    type Ok;
    /// The error type.
    type Err;
    /// Resolves the alias.
    ///
    /// # Errors
    /// The method's own error.
    fn into_result(self) -> Result<Self::Ok, Self::Err>;
}

impl<T, E> IsResult for Result<T, E> {
    type Ok = T;
    type Err = E;

    #[inline]
    fn into_result(self) -> Self {
        self
    }
}

/// Converts a method's own error to a reply.
pub trait PutError<E>: Copy {
    /// Creates the reply.
    fn reply(self, incoming: &Incoming, method: &'static MethodDescriptor, error: &E) -> Reply;
}

impl<E: Serialize> PutError<E> for Plain {
    #[inline]
    fn reply(self, incoming: &Incoming, method: &'static MethodDescriptor, error: &E) -> Reply {
        incoming.encode(method, ReplyKind::UserError, error)
    }
}

impl PutError<Status> for StatusShape {
    fn reply(self, _: &Incoming, _: &'static MethodDescriptor, status: &Status) -> Reply {
        Reply::Status(status.clone())
    }
}

impl<E> PutError<E> for Missing {
    fn reply(self, _: &Incoming, method: &'static MethodDescriptor, _: &E) -> Reply {
        let text = format!("the error type of {} cannot be sent", method.name);
        Reply::Status(Status::internal(text))
    }
}

/// The encoding is checked in the same shape as it is written to a message.
impl<T, H: PutShape<T>> Writes<T> for H {
    fn write<S: Serializer>(self, value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        self.put(value, serializer)
    }
}

/// The part of a request that its handler's future owns.
#[derive(Debug)]
pub struct Incoming {
    message: Message,
    codec: Codec,
    min_part_bytes: usize,
    // `ManuallyDrop`, because it is mostly `None`, which `drop` checks inline.
    extras: ManuallyDrop<Option<Box<Extras>>>,
}

impl Drop for Incoming {
    #[inline]
    fn drop(&mut self) {
        if self.extras.is_some() {
            drop_extras(self.extras.take());
        }
    }
}

#[cold]
fn drop_extras(extras: Option<Box<Extras>>) {
    drop(extras);
}

/// The parts that few requests have.
#[derive(Debug)]
struct Extras {
    parts: Mutex<Parts>,
    /// How the arguments are decoded.
    decoding: Decoding,
    /// Memory for arguments that borrow, but cannot borrow from the message.
    scratch: Scratch,
}

/// Parts of a request, kept until they are used.
#[derive(Debug, Default)]
struct Parts {
    /// The tail, for the arguments: an argument that owns its bytes takes it without a copy.
    tail: Option<Payload>,
    /// A tail that is still arriving, for the arguments.
    stream: Option<PayloadStream>,
    /// The caller's memory for the tail of the reply.
    slot: Option<PeerSlot>,
    /// The memory that a large request takes from the server's budget until its handler is done.
    _charge: Option<Reservation>,
}

#[cold]
fn extras(message: &mut Message, decoding: Decoding) -> Option<Box<Extras>> {
    let (tail, stream) = (message.take_tail(), message.take_stream());
    let (slot, charge) = (message.take_slot(), message.take_charge());
    let any = tail.is_some() || stream.is_some() || slot.is_some() || charge.is_some();
    let parts = Mutex::new(Parts { tail, stream, slot, _charge: charge });
    (any || !decoding.is_own())
        .then(|| Box::new(Extras { parts, decoding, scratch: Scratch::new() }))
}

/// Splits a request into the handler's context and the part that its future owns.
#[inline]
#[must_use]
pub fn split(request: Request) -> (Context, Incoming) {
    let Request { mut message, codec, decoding, context, streams } = request;
    // They have been taken before. The check saves the call of a drop.
    if streams.is_some() {
        drop(streams);
    } else {
        std::mem::forget(streams);
    }
    let min_part_bytes = context.min_part_bytes();
    let is_plain = message.is_plain() && decoding.is_own();
    let extras = if is_plain { None } else { extras(&mut message, decoding) };
    (context, Incoming { message, codec, min_part_bytes, extras: ManuallyDrop::new(extras) })
}

/// [`split`] for a method with streams.
#[must_use]
pub fn split_stream(mut request: Request) -> (Context, Incoming, Port) {
    let streams = request.streams.take();
    let port = Port::new(streams, request.codec, request.context.min_part_bytes());
    let (context, incoming) = split(request);
    (context, incoming, port)
}

/// The handler for a position that is out of range.
pub fn unknown_method(service: &'static ServiceDescriptor, method: usize) -> Handler {
    let text = format!("service {} has no method at position {method}", service.name);
    Handler::ready(Reply::Status(Status::unimplemented(text)))
}

/// What the arguments of a request are read by, apart from its message.
struct Beside<'a> {
    tail: Option<Tail<'a>>,
    by: Result<By<'a>, &'a str>,
    scratch: &'a Scratch,
}

#[cold]
fn beside_request(extras: &Extras) -> Beside<'_> {
    let mut parts = extras.parts.lock();
    let given = parts.tail.take().map(|tail| Tail::Given(Bulk::from(tail)));
    let tail = given.or_else(|| parts.stream.take().map(Tail::Arriving));
    Beside { tail, by: extras.decoding.arguments(), scratch: &extras.scratch }
}

impl Incoming {
    /// Decodes the arguments, which may borrow from this.
    ///
    /// # Errors
    /// The reply that reports the failure.
    #[inline]
    pub fn arguments<'de, S>(
        &'de self,
        method: &'static MethodDescriptor,
        seeds: S,
    ) -> Result<S::Value, Reply>
    where
        S: DeserializeSeed<'de> + Clone,
        ByName<S>: DeserializeSeed<'de, Value = S::Value> + Clone,
    {
        let decoded = match self.extras.as_deref().map(beside_request) {
            None => self.codec.decode_seed(seeds, &self.message),
            Some(Beside { tail, by, scratch }) => {
                let by = by.map_err(|why| undescribed_arguments(method, why))?;
                match (by, tail) {
                    (By::OwnTypes, None) => self.codec.decode_seed(seeds, &self.message),
                    (By::OwnTypes, Some(tail)) => {
                        self.codec.decode_parts(seeds, &self.message, tail, scratch)
                    }
                    (by, tail) => {
                        let seeds = ByName { seeds, names: method.arguments };
                        decode_by(self.codec, by, seeds, &self.message, tail, scratch)
                    }
                }
            }
        };
        decoded.map_err(|error| undecodable_arguments(method, error))
    }

    /// Encodes the result of a method without an error type.
    #[inline]
    pub fn reply(&self, method: &'static MethodDescriptor, value: &impl Serialize) -> Reply {
        self.encode(method, ReplyKind::Ok, value)
    }

    /// Encodes a method's own error.
    #[inline]
    pub fn reply_error<E, H: PutError<E>>(
        &self,
        method: &'static MethodDescriptor,
        error: &E,
        shape: H,
    ) -> Reply {
        shape.reply(self, method, error)
    }

    /// Charges a large body to the server's budget until it has been sent. If it has a tail and the
    /// caller gave a slot for one, the tail is written there.
    #[cold]
    fn large(&self, body: &mut OutBuf) -> Result<(), BudgetExhausted> {
        let bytes = body.total_len();
        if bytes > UNCOUNTED_BYTES
            && let Some(charge) = Context::reserve(bytes)
        {
            body.charge(charge?);
        }
        if body.tail_len() == 0 {
            return Ok(());
        }
        if let Some(extras) = &*self.extras
            && let Some(slot) = extras.parts.lock().slot.take()
        {
            body.place_in(slot);
        }
        Ok(())
    }

    #[inline]
    fn encode<T: Serialize + ?Sized>(
        &self,
        method: &'static MethodDescriptor,
        kind: ReplyKind,
        value: &T,
    ) -> Reply {
        let min_part_bytes = self.min_part_bytes;
        let placement = Placement { min_part_bytes, pool: Pool::Ask(copy_to_own_pool) };
        let mut body = OutBuf::new();
        if let Err(error) = self.codec.encode_body(value, &mut body, placement, method) {
            return unencodable_result(method, error);
        }
        if (body.len() as u64 > UNCOUNTED_BYTES || body.tail_len() != 0)
            && let Err(reason) = self.large(&mut body)
        {
            return no_memory(method, body.total_len(), &reason);
        }
        match kind {
            ReplyKind::Ok => Reply::Ok(body),
            ReplyKind::UserError => Reply::UserError(body),
        }
    }
}

#[cold]
fn undescribed_arguments(method: &'static MethodDescriptor, why: &str) -> Reply {
    Reply::Status(undescribed(method, "the arguments", why))
}

#[cold]
fn undecodable_arguments(method: &'static MethodDescriptor, error: CodecError) -> Reply {
    let what = error.describe(method.arguments);
    let text = undecodable("the arguments", method, &what, error.kind());
    Reply::Status(Status::new(error.kind().code_or(Code::InvalidArgument), text))
}

/// Not marked as retryable: the handler has run.
#[cold]
fn no_memory(method: &'static MethodDescriptor, bytes: u64, reason: &BudgetExhausted) -> Reply {
    Reply::Status(Status::resource_exhausted(format!(
        "{}: no memory for a reply of {bytes} bytes: {reason}; {RAISE}",
        method.name
    )))
}

#[cold]
fn unencodable_result(method: &'static MethodDescriptor, error: CodecError) -> Reply {
    tracing::error!(method = method.name, %error, "cannot encode a result");
    let text = format!("cannot encode the result of {}: {error}", method.name);
    Reply::Status(Status::new(error.kind().code_or(Code::Internal), text))
}

/// The decoder of a method's reply, for a result of shape `shape`.
#[inline]
pub fn plain<T, H>(_shape: H) -> fn(ReplyParts) -> Result<T, Status>
where
    H: for<'de> TakeShape<'de, T> + Default,
{
    decode_plain::<T, H>
}

/// The decoder of a reply for a method with its own error type.
#[inline]
pub fn result<T, E, H, F>(_shape: H, _error: F) -> fn(ReplyParts) -> Result<T, CallError<E>>
where
    H: for<'de> TakeShape<'de, T> + Default,
    F: for<'de> TakeShape<'de, E> + Default,
{
    decode_result::<T, E, H, F>
}

/// Decodes the reply of a method without an error type.
///
/// # Errors
/// The status of the failed call.
pub fn decode_plain<T, H>(parts: ReplyParts) -> Result<T, Status>
where
    H: for<'de> TakeShape<'de, T> + Default,
{
    let ReplyParts { codec, method, outcome, into } = parts;
    match outcome {
        Ok(value @ Value { kind: ReplyKind::Ok, .. }) => {
            take::<T, H>(codec, method, H::default(), value, into)
        }
        Ok(Value { decoding, .. }) => Err(unexpected_user_error(method, &decoding)),
        Err(status) => Err(status),
    }
}

/// Decodes the reply of a method with its own error type.
///
/// # Errors
/// The method's own error, or the status of the failed call.
pub fn decode_result<T, E, H, F>(parts: ReplyParts) -> Result<T, CallError<E>>
where
    H: for<'de> TakeShape<'de, T> + Default,
    F: for<'de> TakeShape<'de, E> + Default,
{
    let ReplyParts { codec, method, outcome, into } = parts;
    match outcome {
        Ok(value @ Value { kind: ReplyKind::UserError, .. }) => {
            let error = take::<E, F>(codec, method, F::default(), value, into)?;
            Err(CallError::User(error))
        }
        outcome => {
            let parts = ReplyParts { codec, method, outcome, into };
            decode_plain::<T, H>(parts).map_err(CallError::Status)
        }
    }
}

#[inline]
fn take<T, H>(
    codec: Codec,
    method: &'static MethodDescriptor,
    shape: H,
    Value { kind, decoding, mut message }: Value,
    into: Option<Box<BulkMut>>,
) -> Result<T, Status>
where
    H: for<'de> TakeShape<'de, T>,
{
    let tail = if into.is_some() || !message.is_plain() || !decoding.is_own() {
        let tail = take_tail(&mut message, into)?;
        if !decoding.is_own() {
            return take_planned::<T, H>(codec, method, (kind, shape), &message, tail, &decoding);
        }
        tail
    } else {
        // `None` in this branch; `forget` avoids the drop glue.
        std::mem::forget(into);
        None
    };
    let decoded = match tail {
        None => codec.decode_seed(seed::<T, H>(shape), &message),
        Some(tail) => {
            let scratch = Scratch::new();
            codec.decode_parts(seed::<T, H>(shape), &message, tail, &scratch)
        }
    };
    decoded.map_err(|error| undecodable_reply(method, error))
}

/// Reads a reply of a callee whose types differ.
#[cold]
#[inline(never)]
fn take_planned<T, H>(
    codec: Codec,
    method: &'static MethodDescriptor,
    (kind, shape): (ReplyKind, H),
    message: &Message,
    tail: Option<Tail<'_>>,
    decoding: &Decoding,
) -> Result<T, Status>
where
    H: for<'de> TakeShape<'de, T>,
{
    let by = match kind {
        ReplyKind::Ok => decoding.result().map_err(|why| undescribed(method, "the reply", why))?,
        ReplyKind::UserError => decoding.error().map_err(|why| unreadable_error(method, why))?,
    };
    let scratch = Scratch::new();
    let decoded = decode_by(codec, by, seed::<T, H>(shape), message, tail, &scratch);
    decoded.map_err(|error| match kind {
        ReplyKind::Ok => unfit_reply(method, error),
        ReplyKind::UserError => unreadable_error(method, &error.to_string()),
    })
}

#[cold]
fn take_tail<'de>(
    message: &mut Message,
    into: Option<Box<BulkMut>>,
) -> Result<Option<Tail<'de>>, ReadError> {
    // Unwanted metadata.
    message.skip_marked();
    Ok(match message.take_tail() {
        Some(tail) => Some(Tail::Given(landed(tail, into)?)),
        None => message.take_stream().map(Tail::Arriving),
    })
}

/// The tail, copied into the caller's buffer if there is one that is large enough.
#[cold]
fn landed(tail: Payload, into: Option<Box<BulkMut>>) -> Result<Bulk, ReadError> {
    Ok(match (into, usize::try_from(tail.len())) {
        (Some(mut buffer), Ok(len)) if len <= buffer.capacity() => {
            buffer.resize(len);
            tail.copy_to(0, &mut buffer)?;
            buffer.freeze()
        }
        _ => Bulk::from(tail),
    })
}

#[cold]
fn unexpected_user_error(method: &'static MethodDescriptor, decoding: &Decoding) -> Status {
    if !decoding.is_own() {
        return unreadable_error(method, "the method has no error type here");
    }
    Status::internal(format!(
        "{}: the server returned the method's own error type, but the method has none here; build \
         both ends from the same version of the trait",
        method.name
    ))
}
