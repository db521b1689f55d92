//! What generated code is made of: `rpc_core::__private`.
//!
//! Owns the contract between `#[service]` and this crate. Public because generated code lives in
//! the user's crate; not part of the API, and changes with the macro's version, which is pinned to
//! this crate's. Generated code names nothing but this module and the types that users see.
//!
//! Server side: the macro's dispatch calls [`split`], and in the handler's future
//! [`Incoming::arguments`], the user's method, and [`Incoming::reply`] or
//! [`Incoming::reply_error`]. Client side: `Channel::call` with the arguments as a tuple of
//! [`Put`], and one of [`decode_plain`], [`decode_result`] through [`plain`], [`result`].

pub use std::clone::Clone;
pub use std::convert::{AsRef, From};
pub use std::default::Default;
pub use std::fmt;
pub use std::future::Future;
pub use std::marker::{Send, Sync};
pub use std::option::Option;
pub use std::result::Result;
pub use std::string::String;
pub use std::sync::Arc;
pub use std::vec::Vec;

use rpc_transport::message::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use crate::blocking::BlockingChannel;
pub use crate::call::Call;
pub use crate::client::Channel;
pub use crate::codec::CodecError;
pub use crate::handler::Handler;
pub use crate::service::{
    Dispatch, MethodDescriptor, Reply, ReplyKind, ReplyParts, Request, ServiceDescriptor,
    assert_distinct_ids,
};
pub use crate::shape::{Plain, Probe, ProbePlain, Put, PutShape, Take, TakeShape};
pub use crate::status::{CallError, Status};
pub use rpc_transport::error::ConnectError;

use crate::codec::Codec;
use crate::context::Context;

/// A type that is a [`Result`], behind an alias.
pub trait IsResult {
    /// What it holds on success.
    type Ok;
    /// What it holds on failure.
    type Err;
}

impl<T, E> IsResult for Result<T, E> {
    type Ok = T;
    type Err = E;
}

/// The part of a request that its handler's future owns.
#[derive(Debug)]
pub struct Incoming {
    message: Message,
    codec: Codec,
}

/// Parts a request between the handler and its future.
#[must_use]
pub fn split(request: Request) -> (Context, Incoming) {
    let Request { message, codec, context } = request;
    (context, Incoming { message, codec })
}

/// The handler for a position that no method has.
pub fn unknown_method(service: &'static ServiceDescriptor, method: usize) -> Handler {
    let text = format!("service {} has no method at position {method}", service.name);
    Handler::ready(Reply::status(&Status::unimplemented(text)))
}

impl Incoming {
    /// Decodes the arguments, which may borrow from this.
    ///
    /// # Errors
    /// The reply that says what is wrong with them.
    #[inline]
    pub fn arguments<'de, T, H: TakeShape<'de, T>>(
        &'de self,
        method: &'static MethodDescriptor,
        shapes: H,
    ) -> Result<T, Reply> {
        self.codec
            .decode_seed(Take::<T, H>::new(shapes), &self.message)
            .map_err(|error| undecodable_arguments(method, error))
    }

    /// Encodes what a method without an error type returned.
    #[inline]
    pub fn reply<T: ?Sized, H: PutShape<T>>(
        &self,
        method: &'static MethodDescriptor,
        value: &T,
        shape: H,
    ) -> Reply {
        self.encode(method, ReplyKind::Ok, &Put(value, shape))
    }

    /// Encodes a method's own error.
    #[inline]
    pub fn reply_error<E: Serialize + ?Sized>(
        &self,
        method: &'static MethodDescriptor,
        error: &E,
    ) -> Reply {
        self.encode(method, ReplyKind::UserError, error)
    }

    #[inline]
    fn encode<T: Serialize + ?Sized>(
        &self,
        method: &'static MethodDescriptor,
        kind: ReplyKind,
        value: &T,
    ) -> Reply {
        let mut body = rpc_transport::outbound::OutBuf::new();
        match self.codec.encode(value, &mut body) {
            Ok(()) => Reply { kind, body },
            Err(error) => unencodable_result(method, error),
        }
    }
}

#[cold]
fn undecodable_arguments(method: &'static MethodDescriptor, error: CodecError) -> Reply {
    let what = error.describe(method.arguments);
    Reply::status(&Status::invalid_argument(format!(
        "cannot decode the arguments of {}: {what}",
        method.name
    )))
}

#[cold]
fn unencodable_result(method: &'static MethodDescriptor, error: CodecError) -> Reply {
    tracing::error!(method = method.name, %error, "cannot encode a result");
    Reply::status(&Status::internal(format!(
        "cannot encode the result of {}: {error}",
        method.name
    )))
}

/// The decoder of a method's reply, for a result of shape `shape`.
#[inline]
pub fn plain<T, H>(_shape: H) -> fn(ReplyParts) -> Result<T, Status>
where
    H: for<'de> TakeShape<'de, T> + Default,
{
    decode_plain::<T, H>
}

/// The same for a method with an error type of its own.
#[inline]
pub fn result<T, E, H>(_shape: H) -> fn(ReplyParts) -> Result<T, CallError<E>>
where
    H: for<'de> TakeShape<'de, T> + Default,
    E: DeserializeOwned,
{
    decode_result::<T, E, H>
}

/// Decodes the reply of a method without an error type.
///
/// # Errors
/// The status that the call ended with.
pub fn decode_plain<T, H>(parts: ReplyParts) -> Result<T, Status>
where
    H: for<'de> TakeShape<'de, T> + Default,
{
    match parts.outcome? {
        (ReplyKind::Ok, message) => {
            take(parts.codec, parts.method, Take::<T, H>::new(H::default()), &message)
        }
        (ReplyKind::UserError, _) => Err(unexpected_user_error(parts.method)),
        (ReplyKind::Status(code), message) => Err(received_status(parts.method, code, &message)),
    }
}

/// Decodes the reply of a method with an error type of its own.
///
/// # Errors
/// That error, or the status that the call ended with.
pub fn decode_result<T, E, H>(parts: ReplyParts) -> Result<T, CallError<E>>
where
    H: for<'de> TakeShape<'de, T> + Default,
    E: DeserializeOwned,
{
    let ReplyParts { codec, method, outcome } = parts;
    match outcome {
        Ok((ReplyKind::UserError, message)) => {
            let error: E = take(codec, method, Take::<E, _>::new(Plain), &message)?;
            Err(CallError::User(error))
        }
        outcome => {
            let parts = ReplyParts { codec, method, outcome };
            decode_plain::<T, H>(parts).map_err(CallError::Status)
        }
    }
}

#[inline]
fn take<'de, T, H: TakeShape<'de, T>>(
    codec: Codec,
    method: &'static MethodDescriptor,
    shape: Take<T, H>,
    message: &'de Message,
) -> Result<T, Status> {
    codec.decode_seed(shape, message).map_err(|error| undecodable_reply(method, error))
}

#[cold]
fn undecodable_reply(method: &'static MethodDescriptor, error: CodecError) -> Status {
    let text = format!("cannot decode the reply of {}: {error}", method.name);
    Status::internal(text)
        .with_source(std::sync::Arc::new(error) as Arc<dyn std::error::Error + Send + Sync>)
}

#[cold]
fn unexpected_user_error(method: &'static MethodDescriptor) -> Status {
    Status::internal(format!(
        "{} answered with an error of its own, which the method has not here",
        method.name
    ))
}

#[cold]
fn received_status(
    method: &'static MethodDescriptor,
    code: crate::status::Code,
    body: &[u8],
) -> Status {
    Status::decode_body(code, body).unwrap_or_else(|error| {
        Status::internal(format!("{} ended with `{code}`, unreadable: {error}", method.name))
    })
}

/// The status of a call whose arguments cannot be encoded.
#[cold]
#[must_use]
pub fn unencodable_arguments(method: &'static MethodDescriptor, error: CodecError) -> Status {
    let what = error.describe(method.arguments);
    Status::invalid_argument(format!("cannot encode the arguments of {}: {what}", method.name))
        .with_source(Arc::new(error) as Arc<dyn std::error::Error + Send + Sync>)
}
