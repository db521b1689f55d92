//! Methods that are unknown to this program, called by the server's description of their types.

use anyhow::{Context, Result, bail};
use rpc_core::codec::{Scratch, Tail};
use rpc_core::reflect::MethodInfo;
use rpc_core::service::{
    Decoding, LearntMethod, Message, MethodDescriptor, ReplyKind, ReplyParts, TooManyMethods,
};
use rpc_core::{Bulk, CallError, Codec, Metadata, Status};
use rpc_schema::schema::{Id, Root, Schema};
use rpc_schema::value::Seed;
use serde_json::Value;

use crate::json::Json;

/// A received value, encoded.
pub(crate) struct Body {
    codec: Codec,
    message: Message,
    /// What came with it.
    pub(crate) metadata: Metadata,
}

/// Why a call failed: the method's own error, or a status.
pub(crate) type Failure = CallError<Body>;

impl Body {
    pub(crate) fn decode(mut self, schema: &Schema, id: Id) -> Result<Value> {
        let scratch = Scratch::default();
        let seed = Seed { schema, id, build: &Json };
        let tail = match self.message.take_tail() {
            Some(tail) => Some(Tail::Given(Bulk::from(tail))),
            None => self.message.take_stream().map(Tail::Arriving),
        };
        let decoded = match tail {
            None => self.codec.decode_seed(seed, &self.message),
            Some(tail) => self.codec.decode_parts(seed, &self.message, tail, &scratch),
        };
        decoded.context("the reply does not have the type that the server describes")
    }
}

pub(crate) fn reply(mut parts: ReplyParts) -> Result<Body, Failure> {
    let metadata = parts.take_metadata();
    let codec = parts.codec;
    let body = |message| Body { codec, message, metadata };
    let value = parts.outcome.map_err(CallError::Status)?;
    let kind = value.kind();
    let message = value.by_own_types(parts.method).map_err(CallError::Status)?;
    match kind {
        ReplyKind::Ok => Ok(body(message)),
        ReplyKind::UserError => Err(CallError::User(body(message))),
    }
}

pub(crate) fn accepted(parts: ReplyParts) -> Result<(), Failure> {
    reply(parts).map(|_| ())
}

pub(crate) fn item(
    codec: Codec,
    method: &'static MethodDescriptor,
    decoding: &Decoding,
    message: Message,
) -> Result<Body, Status> {
    decoding.check_own(method)?;
    Ok(Body { codec, message, metadata: Metadata::new() })
}

/// The descriptor of a method. A server whose types are not those of `lines` refuses its calls.
///
/// # Errors
/// The process has learnt too many methods.
pub(crate) fn descriptor(
    info: &MethodInfo,
    lines: Vec<String>,
) -> Result<&'static MethodDescriptor, TooManyMethods> {
    let mut method = LearntMethod::new(&info.name, &info.signature);
    method.arguments.clone_from(&info.arguments);
    method.lines = lines;
    method.idempotent = info.idempotent;
    method.streams_arguments = info.streams_arguments;
    method.streams_results = info.streams_results;
    method.idle_deadline = info.idle_deadline;
    method.descriptor()
}

/// The types of a method.
pub(crate) struct Parts {
    pub(crate) schema: Schema,
    pub(crate) sent_item: Option<Id>,
    pub(crate) item: Option<Id>,
    pub(crate) result: Option<Id>,
    pub(crate) error: Option<Id>,
    pub(crate) refusal: Option<Id>,
}

impl Parts {
    pub(crate) fn new(info: &MethodInfo, schema: Schema) -> Result<Self> {
        if !schema.arguments().map(|(name, _)| name).eq(info.arguments.iter().map(String::as_str)) {
            bail!(
                "the server does not describe the types of {}, so rpcctl cannot call it",
                info.name
            );
        }
        let [sent_item, item, result, error, refusal] =
            [Root::SentItem, Root::Item, Root::Result, Root::Error, Root::Refusal]
                .map(|root| schema.root(&root));
        Ok(Self { schema, sent_item, item, result, error, refusal })
    }

    /// Refuses a method whose reply could not be shown, before it is executed.
    pub(crate) fn check(&self, info: &MethodInfo) -> Result<()> {
        let is_stream = info.streams_results;
        let has_result = !is_stream || info.signature.contains(" then ");
        // The error type `Status` has no description.
        let answers = [
            ("result", self.result, has_result),
            ("items", self.item, is_stream),
            ("error", self.error, false),
            ("refusal", self.refusal, false),
        ];
        for (name, id, is_needed) in answers {
            let why = match id {
                Some(id) => self.schema.unknown(id),
                None if is_needed => Some("the server does not describe its type"),
                None => None,
            };
            if let Some(why) = why {
                bail!(
                    "the {name} of {} cannot be shown, so the method was not called: {why}",
                    info.name
                );
            }
        }
        Ok(())
    }
}
